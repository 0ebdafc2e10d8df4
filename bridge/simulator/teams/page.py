"""Render the page that shows a conversation as people would see it. Pure.

The page has no JavaScript and loads nothing: its Content-Security-Policy forbids both.
"""

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from bridge.simulator.teams.cards_html import Shown, widths
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
