"""Corrects the age of rows after the wall clock was set.

Rows hold the time of the wall clock. When the clock is set forward, all earlier rows
look older than they are. There may be a million rows, so they are not changed. Instead
the jump is noted, and each computation of a row's age corrects it by the noted jumps. A
jump is deleted when all rows from before it are old enough to be pruned. When the clock
is set back, the last jumps are reverted.
"""

import sqlite3

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bridge.outbox.tables import successes
from bridge.outbox.tables.observations import load, save

_JUMPS = "clock-jumps"


class Jump(Struct, frozen=True):
    """The wall clock was set forward.

    Attributes:
        at: when, in seconds since the epoch by the clock after it was set.
        by: how far, in seconds.
    """

    at: float
    by: float


Jumps = tuple[Jump, ...]  # in the order in which they were made


def noted(db: sqlite3.Connection) -> Jumps:
    """Return the noted jumps; none if the value is damaged."""
    body = load(db, _JUMPS)
    if body is None:
        return ()
    try:
        return msgspec.json.decode(body, type=Jumps)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def note(db: sqlite3.Connection, by: float, now: float) -> None:
    """Note that the wall clock was set.

    Args:
        db: the state file.
        by: how far forward, in seconds; negative = back.
        now: seconds since the epoch, by the clock as it is now.
    """
    jumps = noted(db)
    jumps = (*jumps, Jump(now, by)) if by > 0 else _taken_back(jumps, -by)
    if by > 0:
        successes.grow_younger(db, by, now)  # only a few rows
    _save(db, jumps)


def forget(db: sqlite3.Connection, before: float, now: float) -> None:
    """Delete the jumps that no row needs any more, and those in the future.

    Args:
        db: the state file.
        before: rows older than this are pruned; seconds since the epoch.
        now: seconds since the epoch.
    """
    jumps = noted(db)
    left = tuple(jump for jump in jumps if jump.at <= now)
    while left and written_before(left[1:], before) >= left[0].at:
        left = left[1:]
    if left != jumps:
        _save(db, left)


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


def _save(db: sqlite3.Connection, jumps: Jumps) -> None:
    save(db, {_JUMPS: msgspec.json.encode(jumps)})
