"""How many deliveries of each sink are in which state."""

import sqlite3

from msgspec.structs import replace

from bridge.outbox.records import Tally
from bridge.outbox.tables import clock_jumps


def tallies(db: sqlite3.Connection) -> dict[str, Tally]:
    """Return the tally of each sink that ever had a delivery."""
    counts: dict[str, dict[str, int]] = {}
    for sink, state, n in db.execute("SELECT sink, state, n FROM tallies"):
        counts.setdefault(sink, {})[state] = n
    jumps = clock_jumps.noted(db)
    return {
        sink: _aged(_tally(db, sink, states), jumps) for sink, states in counts.items()
    }


def _aged(tally: Tally, jumps: clock_jumps.Jumps) -> Tally:
    """Convert the time of a tally to the wall clock as it is set now."""
    if tally.oldest is None:
        return tally
    return replace(tally, oldest=clock_jumps.as_set_now(jumps, tally.oldest))


def _tally(db: sqlite3.Connection, sink: str, states: dict[str, int]) -> Tally:
    oldest = db.execute(
        """SELECT i.created, d.last_error FROM deliveries d
           JOIN items i ON i.id = d.item
           WHERE d.sink = ? AND d.state = 'pending' ORDER BY d.id LIMIT 1""",
        (sink,),
    ).fetchone() or (None, None)
    dead = db.execute(
        """SELECT last_error FROM deliveries
           WHERE sink = ? AND state = 'dead' ORDER BY id DESC LIMIT 1""",
        (sink,),
    ).fetchone() or (None,)
    return Tally(
        pending=states.get("pending", 0),
        dead=states.get("dead", 0),
        delivered=states.get("delivered", 0),
        discarded=states.get("discarded", 0),
        oldest=oldest[0],
        last_error=oldest[1] or dead[0],
    )
