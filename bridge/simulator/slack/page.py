"""Render the page that shows the workspace as people would see it. Pure.

The page has no JavaScript and loads nothing: its Content-Security-Policy forbids both.
"""

from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Final

from bridge.simulator.slack.blocks_html import Shown, bar
from bridge.simulator.slack.mrkdwn import mrkdwn
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
