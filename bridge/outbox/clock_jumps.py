"""Corrects the age of rows after the wall clock was set.

Rows hold the time of the wall clock. When the clock is set forward, all earlier rows
look older than they are. There may be a million rows, so they are not changed. Instead
the jump is noted, and each computation of a row's age corrects it by the noted jumps. A
jump is deleted when all rows from before it are old enough to be pruned. When the clock
is set back, the last jumps are reverted.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

_NAME = "clock-jumps"


class Jump(Struct, frozen=True):
    """The wall clock was set forward.

    Attributes:
        at: when, in seconds since the epoch by the clock after it was set.
        by: how far, in seconds.
    """

    at: float
    by: float


Jumps = tuple[Jump, ...]  # in the order in which they were made


def noted(load: Callable[[str], bytes | None]) -> Jumps:
    """Return the noted jumps; none if the value is damaged.

    Args:
        load: returns a named value of the state file.
    """
    body = load(_NAME)
    if body is None:
        return ()
    try:
        return msgspec.json.decode(body, type=Jumps)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def saved(jumps: Jumps) -> dict[str, bytes]:
    """Return the named value of jumps."""
    return {_NAME: msgspec.json.encode(jumps)}


def after(jumps: Jumps, by: float, now: float) -> Jumps:
    """Return the jumps after the wall clock was set.

    Args:
        jumps: those before.
        by: how far forward, in seconds; negative = back.
        now: seconds since the epoch, by the clock as it is now.
    """
    return (*jumps, Jump(now, by)) if by > 0 else _taken_back(jumps, -by)


def needed(jumps: Jumps, before: float, now: float) -> Jumps:
    """Return the jumps that some row still needs, without those in the future.

    Args:
        jumps: all jumps.
        before: rows older than this are pruned; seconds since the epoch.
        now: seconds since the epoch.
    """
    left = tuple(jump for jump in jumps if jump.at <= now)
    while left and written_before(left[1:], before) >= left[0].at:
        left = left[1:]
    return left


def written_before(jumps: Jumps, before: float) -> float:
    """Convert a time of the present clock to the clock at the time of writing.

    Rows that were written at ``before``, by the clock as it is set now, hold the
    returned time.
    """
    for jump in reversed(jumps):
        if before < jump.at:
            before -= jump.by
    return before


def as_set_now(jumps: Jumps, at: float) -> float:
    """Convert the time in a row to the clock as it is set now."""
    for jump in jumps:
        if at < jump.at:
            at += jump.by
    return at


def _taken_back(jumps: Jumps, by: float) -> Jumps:
    """Return the jumps after the last ``by`` seconds of them were reverted."""
    left = list(jumps)
    while left and by > 0:
        jump = left.pop()
        if jump.by > by:
            left.append(replace(jump, at=jump.at - by, by=jump.by - by))
        by -= jump.by
    return tuple(left)
