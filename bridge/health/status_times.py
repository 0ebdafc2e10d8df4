"""Durations as people read them: how long until a time, or since a time."""

from datetime import datetime


def countdown(moment: datetime, now: datetime) -> str:
    """Return how long it is until or since a time; the page's script does the same."""
    left = (moment - now).total_seconds()
    return f"in {span(int(left))}" if left > 0 else f"{span(int(-left))} ago"


def span(seconds: int) -> str:
    """Return a duration in its two largest units."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute:02} min"
    return f"{minutes} min {second:02} s" if minutes else f"{second} s"
