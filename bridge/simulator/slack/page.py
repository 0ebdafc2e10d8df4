"""Render the page that shows the workspace as people would see it. Pure.

The page has no JavaScript and loads nothing: its Content-Security-Policy forbids both.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Final

from msgspec import Struct

from bridge.simulator.slack.mrkdwn import mrkdwn, plain
from bridge.simulator.slack.workspace import Channel, Post, Workspace

_STYLE: Final = files("bridge.simulator.slack").joinpath("page.css").read_text("utf-8")


def page(workspace: Workspace, wanted: str | None, now: float) -> tuple[str, str]:
    """Return the page as HTML, and its Content-Security-Policy.

    Args:
        workspace: the workspace to show.
        wanted: the id or the name of a channel; None: the channel of the
            newest message.
        now: seconds since the epoch.
    """
    channel = _chosen(workspace, wanted)
    links = "".join(_link(each, channel) for each in _sorted(workspace))
    body = _channel(channel, now) if channel else _EMPTY
    style = _STYLE + _bars(channel)
    title = escape(f"#{channel.name}" if channel else "Slack, simulated")
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title>"
        f"<style>{style}</style></head><body>"
        f"<nav><h1>Simulated</h1><h2>Channels</h2>{links}</nav>"
        f"<main>{body}</main></body></html>"
    )
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    )
    return html, policy


_EMPTY: Final = '<p class="empty">There are no messages yet.</p>'


def _sorted(workspace: Workspace) -> list[Channel]:
    return sorted(workspace.channels.values(), key=lambda each: each.name)


def _chosen(workspace: Workspace, wanted: str | None) -> Channel | None:
    channels = workspace.channels.values()
    if wanted is not None:
        return next((c for c in channels if wanted in {c.id, c.name}), None)
    return max(channels, key=_last, default=None)


def _last(channel: Channel) -> float:
    return max((float(ts) for ts in channel.posts), default=0.0)


def _link(channel: Channel, chosen: Channel | None) -> str:
    kind = ' class="open"' if channel is chosen else ""
    name = escape(channel.name)
    return f'<a{kind} href="/slack?channel={escape(channel.id)}"># {name}</a>'


def _channel(channel: Channel, now: float) -> str:
    above = [
        each
        for each in channel.posts.values()
        if each.thread_ts not in channel.posts or each.is_broadcast
    ]
    by_day = groupby(above, key=lambda each: int(float(each.ts)) // 86_400)
    days = "".join(
        f'<div class="day"><span>{_day(day)}</span></div>'
        + _articles(channel, posts, now)
        for day, posts in by_day
    )
    head = f"<header># {escape(channel.name)}<small>times in UTC</small></header>"
    return head + (days or _EMPTY)


def _day(number: int) -> str:
    at = datetime.fromtimestamp(number * 86_400, UTC)
    return f"{at:%A}, {at.day} {at:%B %Y}"


def _articles(channel: Channel, posts: Iterable[Post], now: float) -> str:
    return "".join(
        _article(channel, each, now, _thread(channel, each, now)) for each in posts
    )


def _thread(channel: Channel, post: Post, now: float) -> str:
    answers = channel.thread(post.ts)
    if not answers:
        return ""
    count = f"{len(answers)} {'reply' if len(answers) == 1 else 'replies'}"
    inside = "".join(_article(channel, each, now) for each in answers)
    return f'<div class="thread"><div class="count">{count}</div>{inside}</div>'


def _article(channel: Channel, post: Post, now: float, below: str = "") -> str:
    name = escape(post.bot.name)
    at = datetime.fromtimestamp(float(post.ts), UTC)
    only = '<span class="mark">Only visible to you</span>' if post.only_for else ""
    kind = ' class="only"' if post.only_for else ""
    return (
        f'<article{kind} id="m{escape(post.ts)}">'
        f'<div class="face">{name[:1].upper()}</div>'
        f'<div class="said">{only}<div class="who"><b>{name}</b>'
        f'<span class="app">APP</span><time>{at:%H:%M}</time></div>'
        f"{_content(channel, post, now)}{below}</div></article>"
    )


def _content(channel: Channel, post: Post, now: float) -> str:
    shown = Shown(ts=post.ts, channel=channel.id, now=now)
    text = "" if post.content.blocks else mrkdwn(post.content.text, now)
    words = (
        f'<div class="text">{text}</div>' if text else shown.blocks(post.content.blocks)
    )
    edited = ' <span class="edited">(edited)</span>' if post.edited_at else ""
    attachments = "".join(map(shown.attachment, post.content.attachments))
    return f"{words}{attachments}{edited}"


def _bars(channel: Channel | None) -> str:
    posts = channel.posts.values() if channel else ()
    names = {bar(each) for post in posts for each in post.content.attachments} - {None}
    return "".join(
        f".{name}{{border-color:#{name.removeprefix('bar-')}}}"
        for name in sorted(filter(None, names))
    )


# -- Render blocks and attachments as HTML. Pure; every posted text is escaped ---------


_COLOR: Final = re.compile(r"#?([0-9a-fA-F]{6}|[0-9a-fA-F]{3})")
_CLASSES: Final[Mapping[object, str]] = {
    "header": "head",
    "context": "context",
    "actions": "actions",
}
_COLORS: Final = {"good": "2eb886", "warning": "daa038", "danger": "a30200"}

Table = Mapping[str, object]


class Shown(Struct, frozen=True, kw_only=True):
    """The message whose blocks are shown.

    Attributes:
        now: seconds since the epoch.
    """

    ts: str
    channel: str
    now: float

    def blocks(self, blocks: Iterable[object]) -> str:
        """Return blocks as HTML."""
        return "".join(
            self._block(each) for each in blocks if isinstance(each, Mapping)
        )

    def attachment(self, attachment: Table) -> str:
        """Return an attachment as HTML, with a bar in its colour."""
        blocks, fields = attachment.get("blocks"), attachment.get("fields")
        parts = [
            self._words(attachment.get("pretext"), "div"),
            self._words(attachment.get("title"), "h3"),
            self._words(attachment.get("text"), "div"),
            self.blocks(blocks if isinstance(blocks, list) else ()),
            self._old_fields(fields if isinstance(fields, list) else ()),
            self._words(attachment.get("footer"), "div", "context"),
        ]
        words = "".join(parts) or self._words(attachment.get("fallback"), "div")
        kind = f"attachment {bar(attachment) or ''}".strip()
        return f'<div class="{kind}">{words}</div>'

    def text(self, text: object) -> str:
        """Return a text object as HTML."""
        if not isinstance(text, Mapping):
            return ""
        words = str(text.get("text", ""))
        if text.get("type") == "mrkdwn":
            return mrkdwn(words, self.now, is_verbatim=text.get("verbatim") is True)
        return plain(words, emoji=text.get("emoji") is not False)

    def _block(self, block: Table) -> str:
        kind = block.get("type")
        if kind == "divider":
            return "<hr>"
        if kind == "section":
            return self._section(block)
        return (
            f'<div class="block {_CLASSES.get(kind, "")}">{self._inside(block)}</div>'
        )

    def _inside(self, block: Table) -> str:
        match block.get("type"):
            case "header":
                return self.text(block.get("text"))
            case "context":
                return "".join(map(self._remark, _elements(block)))
            case "actions":
                return "".join(self._button(each, block) for each in _elements(block))
            case "image":
                return _image(block)
            case "markdown":
                return self._words(block.get("text"), "div")
        return f"[{escape(str(block.get('type')))}]"

    def _section(self, block: Table) -> str:
        text, fields, accessory = (
            block.get(name) for name in ("text", "fields", "accessory")
        )
        items = fields if isinstance(fields, list) else ()
        cells = "".join(f"<div>{self.text(each)}</div>" for each in items)
        grid = f'<div class="fields">{cells}</div>' if cells else ""
        body = f"<div>{self.text(text)}{grid}</div>"
        if not isinstance(accessory, Mapping):
            return f'<div class="block">{body}</div>'
        return f'<div class="block aside">{body}{self._element(accessory, block)}</div>'

    def _remark(self, element: Table) -> str:
        is_image = element.get("type") == "image"
        return f"<span>{_image(element) if is_image else self.text(element)}</span>"

    def _element(self, element: Table, block: Table) -> str:
        if element.get("type") == "image":
            return _image(element)
        return self._button(element, block)

    def _button(self, element: Table, block: Table) -> str:
        words = self.text(element.get("text"))
        if element.get("type") != "button":
            return f'<span class="image">{escape(str(element.get("type")))}</span>'
        confirm, style = element.get("confirm"), _style(element)
        if not isinstance(confirm, Mapping):
            return self._form(element, block, words, style)
        agreed = self.text(confirm.get("confirm"))
        dialog = (
            f"<h3>{self.text(confirm.get('title'))}</h3>"
            f"<p>{self.text(confirm.get('text'))}</p>"
            f"{self._form(element, block, agreed, _style(confirm) or 'primary')}"
            f' <span class="image">{self.text(confirm.get("deny"))}</span>'
        )
        return (
            f'<details><summary class="{style}">{words}</summary>'
            f'<div class="dialog">{dialog}</div></details>'
        )

    def _form(self, element: Table, block: Table, words: str, style: str) -> str:
        fields = {
            "channel": self.channel,
            "ts": self.ts,
            "blockId": block.get("block_id", ""),
            "actionId": element.get("action_id", ""),
        }
        hidden = "".join(
            f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
            for name, value in fields.items()
        )
        return (
            f'<form method="post" action="/slack/click">{hidden}'
            f'<button class="{style}">{words}</button></form>'
        )

    def _words(self, text: object, tag: str, kind: str = "") -> str:
        if not isinstance(text, str) or not text:
            return ""
        start = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
        return f"{start}{mrkdwn(text, self.now)}</{tag}>"

    def _old_fields(self, fields: Iterable[object]) -> str:
        cells = "".join(
            f"<div>{self._words(each.get('title'), 'b')}<br>"
            f"{self._words(each.get('value'), 'span')}</div>"
            for each in fields
            if isinstance(each, Mapping)
        )
        return f'<div class="block fields">{cells}</div>' if cells else ""


def bar(attachment: Table) -> str | None:
    """Return the class of an attachment's bar, such as ``bar-2eb886``."""
    given = attachment.get("color")
    color = _COLORS.get(given, given) if isinstance(given, str) else ""
    match = _COLOR.fullmatch(color)
    return f"bar-{match[1].lower()}" if match else None


def _style(element: Table) -> str:
    style = element.get("style")
    return style if isinstance(style, str) and style in {"primary", "danger"} else ""


def _image(block: Table) -> str:
    return f'<span class="image">{plain(str(block.get("alt_text", "image")))}</span>'


def _elements(block: Table) -> list[Table]:
    elements = block.get("elements")
    items = elements if isinstance(elements, list) else []
    return [each for each in items if isinstance(each, Mapping)]
