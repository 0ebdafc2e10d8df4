"""Render Slack's mrkdwn as HTML. Pure; every text of a message is escaped.

Finished pieces (code, links, emoji) are taken out first and put back at the end.
Meanwhile, a mark from Unicode's private use area stands in the place of each piece.

Source:  docs.slack.dev/messaging/formatting-message-text
"""

import re
from datetime import UTC, datetime
from html import escape
from typing import Final

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


# -- Emoji that are common in operations, by their names in Slack ----------------------
#
# Source:  github.com/iamcal/emoji-data, the origin of Slack's names


EMOJI: Final = {
    "+1": "\U0001f44d",
    "-1": "\U0001f44e",
    "alarm_clock": "\u23f0",
    "arrows_counterclockwise": "\U0001f504",
    "ballot_box_with_ballot": "\U0001f5f3\ufe0f",
    "bell": "\U0001f514",
    "black_circle": "\u26ab",
    "boom": "\U0001f4a5",
    "bust_in_silhouette": "\U0001f464",
    "calendar": "\U0001f4c6",
    "checkered_flag": "\U0001f3c1",
    "clock3": "\U0001f552",
    "cloud": "\u2601\ufe0f",
    "construction": "\U0001f6a7",
    "desktop_computer": "\U0001f5a5\ufe0f",
    "double_vertical_bar": "\u23f8\ufe0f",
    "exclamation": "\u2757",
    "fast_forward": "\u23e9",
    "fire": "\U0001f525",
    "gear": "\u2699\ufe0f",
    "grey_question": "\u2754",
    "hammer_and_wrench": "\U0001f6e0\ufe0f",
    "heavy_check_mark": "\u2714\ufe0f",
    "hourglass": "\u231b",
    "hourglass_flowing_sand": "\u23f3",
    "information_source": "\u2139\ufe0f",
    "ice_cube": "\U0001f9ca",
    "large_blue_circle": "\U0001f535",
    "large_green_circle": "\U0001f7e2",
    "large_orange_circle": "\U0001f7e0",
    "large_purple_circle": "\U0001f7e3",
    "large_yellow_circle": "\U0001f7e1",
    "lock": "\U0001f512",
    "mag": "\U0001f50d",
    "memo": "\U0001f4dd",
    "no_bell": "\U0001f515",
    "no_entry": "\u26d4",
    "no_entry_sign": "\U0001f6ab",
    "octagonal_sign": "\U0001f6d1",
    "ok": "\U0001f197",
    "pencil2": "\u270f\ufe0f",
    "pushpin": "\U0001f4cc",
    "question": "\u2753",
    "raised_hand": "\u270b",
    "recycle": "\u267b\ufe0f",
    "red_circle": "\U0001f534",
    "repeat": "\U0001f501",
    "robot_face": "\U0001f916",
    "rotating_light": "\U0001f6a8",
    "skull": "\U0001f480",
    "snowflake": "\u2744\ufe0f",
    "speech_balloon": "\U0001f4ac",
    "stop_sign": "\U0001f6d1",
    "stopwatch": "\u23f1\ufe0f",
    "thumbsdown": "\U0001f44e",
    "thumbsup": "\U0001f44d",
    "traffic_light": "\U0001f6a5",
    "truck": "\U0001f69a",
    "warning": "\u26a0\ufe0f",
    "wastebasket": "\U0001f5d1\ufe0f",
    "wave": "\U0001f44b",
    "white_check_mark": "\u2705",
    "white_circle": "\u26aa",
    "wrench": "\U0001f527",
    "x": "\u274c",
    "zap": "\u26a1",
    "zzz": "\U0001f4a4",
}


# -- Dates as Slack shows them to a reader. Pure ---------------------------------------
#
# Source:  docs.slack.dev/messaging/formatting-message-text (date formatting)


_TOKEN: Final = re.compile(r"\{([a-z_]+)\}")
_SPANS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def written(seconds: int, pattern: str, now: float) -> str | None:
    """Return a time in the form of ``pattern``; None: it cannot be shown.

    Args:
        seconds: the time, since the epoch.
        pattern: such as ``{date_short_pretty} at {time}``.
        now: seconds since the epoch, for tokens that become "today" or "ago".

    A time cannot be shown if it is out of range, or if the pattern has an unknown
    token. The reader's time zone is UTC.
    """
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    parts = {name: _part(name, at, now) for name in _TOKEN.findall(pattern)}
    if None in parts.values():
        return None
    return _TOKEN.sub(lambda match: parts[match[1]] or "", pattern)


def _part(name: str, at: datetime, now: float) -> str | None:
    if name == "ago":
        return _ago(round(now - at.timestamp()))
    near = _near(at, now) if name.endswith("_pretty") else None
    return near or _written(at).get(name.removesuffix("_pretty"))


def _written(at: datetime) -> dict[str, str]:
    date = f"{at:%B} {_ordinal(at.day)}, {at.year}"
    return {
        "date_num": f"{at:%Y-%m-%d}",
        "date_slash": f"{at:%m/%d/%Y}",
        "date": date,
        "date_short": f"{at:%b} {at.day}, {at.year}",
        "date_long": f"{at:%A}, {date}",
        "time": f"{at:%H:%M}",
        "time_secs": f"{at:%H:%M:%S}",
    }


def _near(at: datetime, now: float) -> str | None:
    days = (at.date() - datetime.fromtimestamp(now, UTC).date()).days
    return {-1: "yesterday", 0: "today", 1: "tomorrow"}.get(days)


def _ordinal(day: int) -> str:
    is_teen = 11 <= day <= 13
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def _ago(seconds: int) -> str:
    length, name = next(
        ((each, name) for each, name in _SPANS if abs(seconds) >= each), _SPANS[-1]
    )
    count = abs(seconds) // length
    span = f"{count} {name}{'' if count == 1 else 's'}"
    return f"{span} ago" if seconds >= 0 else f"in {span}"
