"""How the age of a row is known although the wall clock was set while it was kept.

Rows bear the time of the wall clock. When that is set forward, all that was written
before looks older than it is. No row is touched for it: there may be a million of them.
The jump is noted, and whoever asks for the age of a row takes it into account, until
everything from before it is over anyway. What is set back takes a jump back.
"""

import sqlite3
from dataclasses import dataclass, replace

import msgspec

from bridge.outbox import successes
from bridge.outbox.statements import load, save

_JUMPS = "clock-jumps"


@dataclass(frozen=True, slots=True)
class Jump:
    """That the wall clock was set forward.

    Attributes:
        at: seconds since the epoch, by the clock as it was set.
        by: seconds.
    """

    at: float
    by: float


Jumps = tuple[Jump, ...]  # in the order in which they were made


def noted(db: sqlite3.Connection) -> Jumps:
    """Return the jumps that rows may still be from before."""
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
        by: seconds that it was set forward; less than 0 = back.
        now: seconds since the epoch, by the clock as it is now.
    """
    jumps = noted(db)
    jumps = (*jumps, Jump(now, by)) if by > 0 else _taken_back(jumps, -by)
    if by > 0:
        successes.grow_younger(db, by, now)  # there are but a few of them
    _keep(db, jumps)


def forget(db: sqlite3.Connection, before: float, now: float) -> None:
    """Forget the jumps that nothing is kept from before of, and those undone since."""
    jumps = noted(db)
    left = tuple(jump for jump in jumps if jump.at <= now)
    while left and written_before(left[1:], before) >= left[0].at:
        left = left[1:]
    if left != jumps:
        _keep(db, left)


def written_before(jumps: Jumps, before: float) -> float:
    """Return what the clock said when it was to say ``before`` by its present setting.

    What was written by then is as old as ``before`` says, or older.
    """
    for jump in reversed(jumps):
        if before < jump.at:
            before -= jump.by
    return before


def as_set_now(jumps: Jumps, at: float) -> float:
    """Return when a row was written, by the clock as it is set now."""
    for jump in jumps:
        if at < jump.at:
            at += jump.by
    return at


def _taken_back(jumps: Jumps, by: float) -> Jumps:
    """Return the jumps without the last ``by`` seconds of them."""
    left = list(jumps)
    while left and by > 0:
        jump = left.pop()
        if jump.by > by:
            left.append(replace(jump, at=jump.at - by, by=jump.by - by))
        by -= jump.by
    return tuple(left)


def _keep(db: sqlite3.Connection, jumps: Jumps) -> None:
    save(db, {_JUMPS: msgspec.json.encode(jumps)})
