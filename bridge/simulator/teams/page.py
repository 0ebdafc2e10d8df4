"""Render the page that shows a conversation as people would see it. Pure.

The page has no JavaScript and loads nothing: its Content-Security-Policy forbids both.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from bridge.simulator.teams.team import Conversation, Person, Post, Team

PAGE: Final = "/teams"
_STYLE: Final = files("bridge.simulator.teams").joinpath("page.css").read_text("utf-8")
_EMPTY: Final = '<p class="empty">There are no messages yet.</p>'


class Reader(Struct, frozen=True, kw_only=True):
    """The conversation to show, and the person who looks at it.

    Attributes:
        conversation: the conversation; None: there is none yet.
        person: the person; None: show the cards that everybody sees.
    """

    conversation: Conversation | None
    person: Person | None = None

    @property
    def user(self) -> str:
        """The object id of the person; "" without a person."""
        return "" if self.person is None else self.person.object_id


def page(team: Team, reader: Reader) -> tuple[str, str]:
    """Return the page as HTML, and its Content-Security-Policy."""
    found = reader.conversation
    style = _STYLE + _widths(found)
    body = _EMPTY if found is None else _conversation(found, reader)
    title = escape(found.name if found else "Teams, simulated")
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title>"
        f"<style>{style}</style></head><body>"
        f"<nav><h1>Simulated</h1>{_links(team, reader)}</nav>"
        f"<main>{body}</main></body></html>"
    )
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    )
    return html, policy


def address(conversation: str, user: str) -> str:
    """Return the address of a conversation for a person."""
    return f"{PAGE}?{urlencode({'conversation': conversation, 'as': user})}"


def _links(team: Team, reader: Reader) -> str:
    found = reader.conversation
    channels = "".join(
        _link(address(each.id, reader.user), each.name, is_open=each is found)
        for each in sorted(team.conversations.values(), key=lambda each: each.name)
    )
    people = "" if found is None else _people(found, reader)
    return f"<h2>Channels</h2>{channels}{people}"


def _people(found: Conversation, reader: Reader) -> str:
    shown = [("Everybody", ""), *((each.name, each.object_id) for each in found.people)]
    links = "".join(
        _link(address(found.id, user), name, is_open=user == reader.user)
        for name, user in shown[:20]
    )
    return f"<h2>Seen by</h2>{links}"


def _link(url: str, words: str, *, is_open: bool) -> str:
    kind = ' class="open"' if is_open else ""
    return f'<a{kind} href="{escape(url)}">{escape(words)}</a>'


def _conversation(found: Conversation, reader: Reader) -> str:
    by_day = groupby(found.posts.values(), key=lambda each: int(each.at) // 86_400)
    days = "".join(
        f'<div class="day">{_day(day)}</div>'
        + "".join(_article(found, each, reader) for each in posts)
        for day, posts in by_day
    )
    person = f", seen by {escape(reader.person.name)}" if reader.person else ""
    head = f"<header>{escape(found.name)}<small>times in UTC{person}</small></header>"
    return head + (days or _EMPTY)


def _day(number: int) -> str:
    at = datetime.fromtimestamp(number * 86_400, UTC)
    return f"{at:%A}, {at.day} {at:%B} {at.year}"


def _article(found: Conversation, post: Post, reader: Reader) -> str:
    at = datetime.fromtimestamp(post.at, UTC)
    shown = Shown(conversation=found.id, message=post.id, user=reader.user)
    seen = post.views.get(reader.user)
    words = (
        f'<div class="words">{escape(seen.words)}</div>' if seen and seen.words else ""
    )
    edited = "<span>Edited</span>" if post.edited_at is not None else ""
    return (
        f'<article id="m{escape(post.id)}"><div class="face">S</div><div class="said">'
        f'<div class="who"><b>sebridge</b><time>{at:%H:%M}</time>{edited}</div>'
        f'<div class="card">{shown.card(post.card_for(reader.user))}</div>{words}'
        "</div></article>"
    )


def _widths(found: Conversation | None) -> str:
    posts = found.posts.values() if found else ()
    cards = [card for post in posts for card in _cards(post)]
    return "".join(
        f".w-{width}{{flex:0 0 {width}px}}" for width in sorted({*widths(cards)})
    )


def _cards(post: Post) -> list[object]:
    return [post.card, *(each.card for each in post.views.values())]


# -- Render an Adaptive Card as HTML, in the look of Teams. Pure -----------------------
#
# Every text is escaped. Markdown in text blocks is shown as it was written; only the
# date functions of text blocks are evaluated, in UTC.


Table = Mapping[str, object]

_CALL: Final = re.compile(
    r"\{\{(DATE|TIME)\(([^,)]{10,40})(?:,\s*(COMPACT|SHORT|LONG))?\)\}\}"
)
_STYLED: Final = ("size", "weight", "color", "fontType", "spacing", "style")
_WORD: Final = re.compile(r"[a-z]+")
_WIDTH: Final = re.compile(r"(\d{1,4})px")


class Shown(Struct, frozen=True, kw_only=True):
    """The message that shows a card; the card's buttons send these values.

    Attributes:
        conversation: the id of the channel or chat.
        message: the id of the message.
        user: the object id of the person who looks; "" = nobody may click.
    """

    conversation: str
    message: str
    user: str

    def card(self, card: Table) -> str:
        """Return the card, with its buttons."""
        parts = "".join(map(self._element, _tables(card.get("body"))))
        return f"{parts}{self._actions(card.get('actions'))}"

    def _element(self, element: Table) -> str:
        kind = element.get("type")
        inner = {
            "TextBlock": lambda: _block(element),
            "RichTextBlock": lambda: _runs(element.get("inlines")),
            "Container": lambda: self._items(element),
            "ColumnSet": lambda: self._columns(element),
            "FactSet": lambda: _facts(element.get("facts")),
            "ActionSet": lambda: self._actions(element.get("actions")),
        }.get(str(kind), lambda: f"[{escape(str(kind))}]")()
        name = f"e-{str(kind).lower()}"
        return f'<div class="{name}{_classes(element)}">{inner}</div>'

    def _items(self, box: Table) -> str:
        return "".join(map(self._element, _tables(box.get("items"))))

    def _columns(self, element: Table) -> str:
        return "".join(
            f'<div class="column {width_class(each)}{_classes(each)}">'
            f"{self._items(each)}</div>"
            for each in _tables(element.get("columns"))
        )

    def _actions(self, actions: object) -> str:
        buttons = "".join(map(self._button, _tables(actions)))
        return f'<div class="actions">{buttons}</div>' if buttons else ""

    def _button(self, action: Table) -> str:
        words, style = escape(str(action.get("title", "…"))), _style(action)
        inner = action.get("card")
        if isinstance(inner, Mapping):
            return (
                f'<details><summary class="{style}">{words}</summary>'
                f'<div class="inner">{self.card(inner)}</div></details>'
            )
        if not self.user or action.get("type") != "Action.Execute":
            return f'<button class="{style}" disabled>{words}</button>'
        fields = {
            "conversation": self.conversation,
            "message": self.message,
            "user": self.user,
            "verb": action.get("verb"),
        }
        hidden = "".join(
            f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
            for name, value in fields.items()
        )
        return (
            f'<form method="post" action="/teams/click">{hidden}'
            f'<button class="{style}">{words}</button></form>'
        )


def width_class(column: Table) -> str:
    """Return the CSS class of a column's width, such as ``w-110`` for 110 pixels."""
    width = column.get("width")
    if isinstance(width, str) and (match := _WIDTH.fullmatch(width)):
        return f"w-{int(match[1])}"
    return "w-auto" if width == "auto" else "w-stretch"


def widths(part: object) -> Iterator[int]:
    """Yield all widths in pixels below a part of a card."""
    if isinstance(part, Mapping):
        width = part.get("width")
        if isinstance(width, str) and (match := _WIDTH.fullmatch(width)):
            yield int(match[1])
        part = [*part.values()]
    if isinstance(part, list):
        for each in part:
            yield from widths(each)


def _style(action: Table) -> str:
    style = action.get("style")
    return f"{style}" if style in {"positive", "destructive"} else "plain"


def _classes(element: Table) -> str:
    """Return the CSS classes for the style of an element."""
    found = [
        f" {name.lower()}-{word.lower()}"
        for name in _STYLED
        if isinstance(word := element.get(name), str) and _WORD.fullmatch(word.lower())
    ]
    flags = ("isSubtle", "bleed", "separator", "wrap")
    return "".join(
        [*found, *(f" {f.lower()}" for f in flags if element.get(f) is True)]
    )


def _block(element: Table) -> str:
    return _CALL.sub(_called, escape(str(element.get("text", ""))))


def _called(match: re.Match[str]) -> str:
    """Return a date or time as Teams shows it in English, in UTC."""
    try:
        at = datetime.fromisoformat(match[2]).astimezone(UTC)
    except (ValueError, OverflowError):
        return match[0]
    if match[1] == "TIME":
        return f"{at:%H:%M}"
    day = f"{at:%b} {at.day}, {at.year}"
    return {
        "SHORT": f"{at:%a}, {day}",
        "LONG": f"{at:%A}, {at:%B} {at.day}, {at.year}",
    }.get(match[3] or "COMPACT", f"{at.day}/{at.month}/{at.year}")


def _runs(inlines: object) -> str:
    parts: Iterable[object] = inlines if isinstance(inlines, list) else ()
    return "".join(
        f'<span class="run{_classes(each)}">{escape(str(each.get("text", "")))}</span>'
        if isinstance(each, Mapping)
        else escape(str(each))
        for each in parts
    )


def _facts(facts: object) -> str:
    rows = "".join(
        f"<dt>{escape(str(each.get('title')))}</dt>"
        f"<dd>{escape(str(each.get('value')))}</dd>"
        for each in _tables(facts)
    )
    return f"<dl>{rows}</dl>"


def _tables(value: object) -> list[Table]:
    items = value if isinstance(value, list) else []
    return [each for each in items if isinstance(each, Mapping)]
