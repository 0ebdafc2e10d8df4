"""Dates as Slack shows them to a reader. Pure.

Source:  docs.slack.dev/messaging/formatting-message-text (date formatting)
"""

import re
from datetime import UTC, datetime
from typing import Final

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
