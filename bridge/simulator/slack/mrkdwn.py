"""Render Slack's mrkdwn as HTML. Pure; every text of a message is escaped.

Finished pieces (code, links, emoji) are taken out first and put back at the end.
Meanwhile, a mark from Unicode's private use area stands in the place of each piece.

Source:  docs.slack.dev/messaging/formatting-message-text
"""

import re
from html import escape
from typing import Final

from bridge.simulator.slack.dates import written
from bridge.simulator.slack.emoji import EMOJI

_MARKS: Final = re.compile("[\ue000\ue001]")
_MARK: Final = re.compile("\ue000(\\d+)\ue001")
_PRE: Final = re.compile(r"\n?```\n?(.+?)\n?```\n?", re.DOTALL)
_CODE: Final = re.compile(r"`([^`\n]+)`")
_ANGLE: Final = re.compile(r"<([^<>\n\ue000\ue001]+)>")
_EMOJI: Final = re.compile(r":([a-z0-9_+-]+):")
_URL: Final = re.compile(r"https?://[^\s<>|\ue000\ue001]+")
_DATE: Final = re.compile(
    r"!date\^(-?\d{1,12})\^([^|^]*)(?:\^([^|]*))?\|(.*)", re.DOTALL
)
_LINK: Final = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
_QUOTE: Final = re.compile(r"(?:^&gt; ?.*(?:\n|$))+", re.MULTILINE)
_STYLES: Final = tuple(
    (re.compile(rf"(?<![\w{mark}]){mark}(?!\s)([^{mark}\n]+?)(?<!\s){mark}(?!\w)"), tag)
    for mark, tag in ((r"\*", "b"), ("_", "i"), ("~", "s"))
)


class _Kept:
    """Finished pieces of HTML, each replaced by a mark."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def __call__(self, html: str) -> str:
        self._pieces.append(html)
        return f"\ue000{len(self._pieces) - 1}\ue001"

    def restored(self, text: str) -> str:
        while _MARK.search(text):
            text = _MARK.sub(lambda match: self._pieces[int(match[1])], text)
        return text


def mrkdwn(text: str, now: float, *, is_verbatim: bool = False) -> str:
    """Return mrkdwn as HTML.

    Args:
        text: as posted.
        now: seconds since the epoch, for dates such as "today".
        is_verbatim: whether a URL becomes a link only if it is marked as one.
    """
    keep = _Kept()
    text = _MARKS.sub("\ufffd", text)
    text = _PRE.sub(lambda m: keep(f"<pre>{plain(m[1], emoji=False)}</pre>"), text)
    text = _CODE.sub(lambda m: keep(f"<code>{plain(m[1], emoji=False)}</code>"), text)
    text = _ANGLE.sub(lambda m: keep(_reference(m[1], now)), text)
    if not is_verbatim:
        text = _URL.sub(lambda m: keep(_link(m[0], plain(m[0], emoji=False))), text)
    text = _EMOJI.sub(lambda m: keep(_emoji(m[1])), text)
    html = escape(_unescaped(text), quote=False)
    for pattern, tag in _STYLES:
        html = pattern.sub(rf"<{tag}>\1</{tag}>", html)
    html = _QUOTE.sub(_quoted, html)
    return keep.restored(html.replace("\n", "<br>"))


def plain(text: str, *, emoji: bool = True) -> str:
    """Return plain text as HTML; only emoji names are replaced."""
    shown = _unescaped(text)
    return escape(_EMOJI.sub(_sign, shown) if emoji else shown)


def _sign(match: re.Match[str]) -> str:
    return EMOJI.get(match[1], match[0])


def _reference(inside: str, now: float) -> str:
    """Return the HTML of angle brackets: a link, a mention or a date."""
    if match := _DATE.fullmatch(inside):
        date = written(int(match[1]), _unescaped(match[2]), now) or match[4]
        return f"<time>{plain(date, emoji=False)}</time>"
    target, _, label = inside.partition("|")
    if _LINK.match(target):
        return _link(target, plain(label) or plain(target, emoji=False))
    return _mention(target, label)


def _mention(target: str, label: str) -> str:
    """Return a mention as Slack shows it for an unknown user."""
    if target.startswith(("@", "#")):
        words = f"{target[0]}{label.removeprefix(target[0]) or target[1:]}"
        return f'<span class="mention">{plain(words, emoji=False)}</span>'
    if target.startswith("!"):
        words = f"@{label.removeprefix('@') or target[1:].removeprefix('subteam^')}"
        return f'<span class="mention loud">{plain(words, emoji=False)}</span>'
    return plain(f"<{label or target}>", emoji=False)


def _link(target: str, words: str) -> str:
    href = escape(_unescaped(target))
    return f'<a href="{href}" rel="noopener noreferrer">{words}</a>'


def _emoji(name: str) -> str:
    if name not in EMOJI:
        return f":{name}:"
    return f'<span class="emoji" title=":{name}:">{EMOJI[name]}</span>'


def _quoted(match: re.Match[str]) -> str:
    lines = (
        line.removeprefix("&gt;").lstrip(" ")
        for line in match[0].removesuffix("\n").split("\n")
    )
    return f"<blockquote>{'<br>'.join(lines)}</blockquote>"


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
