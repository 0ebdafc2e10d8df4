"""The running time of each sink, the clock for the age of its deliveries.

It is the number of seconds for which the forwarder has run and the sink was not parked.
Each delivery stores the running time of its insertion (``born``). The difference to the
present running time is its age, which does not depend on the wall clock.
"""

import sqlite3
from collections.abc import Mapping

from msgspec import Struct, field

_RUNNING = "running:"


def load(db: sqlite3.Connection, sink: str) -> float:
    """Return the saved running time of a sink, in seconds."""
    query = "SELECT value FROM meta WHERE key = ?"
    row = db.execute(query, (f"{_RUNNING}{sink}",)).fetchone()
    is_known = row is not None and isinstance(row[0], int | float)
    return float(row[0]) if is_known else 0.0  # if damaged: 0, as in a new state file


def save(db: sqlite3.Connection, sink: str, seconds: float) -> None:
    """Save the running time of a sink."""
    row = (f"{_RUNNING}{sink}", seconds)
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", row)


class RunningTimes(Struct, frozen=True):
    """The running times during one commit; each is read or written once.

    More accesses would be slow, because SQLite reads the whole checkpoint whenever it
    searches for another row of ``meta``.

    Attributes:
        db: the state file.
        now: running times that are newer than those in the file. They are saved.
    """

    db: sqlite3.Connection
    now: Mapping[str, float]
    _known: dict[str, float] = field(default_factory=dict)

    def of(self, sink: str) -> float:
        """Return the running time of a sink."""
        if sink not in self._known:
            seconds = self.now.get(sink)
            if seconds is None:
                seconds = load(self.db, sink)
            else:
                save(self.db, sink, seconds)
            self._known[sink] = seconds
        return self._known[sink]
