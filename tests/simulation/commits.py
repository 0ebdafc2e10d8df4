"""What one life commits, as the judge sees it: at once, and whatever becomes of it."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bridge.outbox.records import CHECKPOINT
from bridge.outbox.tables.observations import load
from tests.simulation.edges import Shown
from tests.simulation.oracle_commands import judge_successes
from tests.simulation.rows import Row
from tests.simulation.world import Kept

if TYPE_CHECKING:
    from tests.simulation.life import Life

_ROWS = """SELECT d.id, d.sink, d.key, i.id, i.kind, i.body
    FROM deliveries d JOIN items i ON i.id = d.item WHERE d.id > ? ORDER BY d.id"""
_WAITING = """SELECT count(DISTINCT d.item) FROM deliveries d
    JOIN items i ON i.id = d.item WHERE d.id > ? AND i.kind = 'event'"""


@dataclass(slots=True)
class Commits:
    """Looks at the state file after each commit of a life."""

    life: "Life"
    _checkpoint: bytes | None = None
    _since: int = 0  # the last delivery that the disk has
    _was_durable: bool = True
    _taken_over: int = 0  # events that were with the disk when it was found to hang

    def note(self) -> None:
        """Note what is kept by now: rows, and the document if it has changed."""
        life, world = self.life, self.life.world
        self._note_rows()
        if world.plan.has("commands"):
            judge_successes(life)
        checkpoint = load(life.database.keeper.connection, CHECKPOINT)
        shown = life.imds.shown
        if checkpoint != self._checkpoint and shown and is_of(checkpoint, shown):
            is_durable = not life.database.is_degraded
            world.shown.append(replace(shown, is_durable=is_durable))
            if is_durable:
                kept = Kept(life.now(), shown.at, life.number)
                world.kept.append(kept)
        self._checkpoint = checkpoint

    def _note_rows(self) -> None:
        life, world = self.life, self.life.world
        is_durable = not life.database.is_degraded
        found = life.database.keeper.connection.execute(
            _ROWS, (world.last_row,)
        ).fetchall()
        for number, sink, key, item, kind, body in found:
            told = json.loads(body)
            world.last_row = number
            if is_durable:
                self._since = number
            world.rows[number] = Row(
                number, sink, key, item, kind, told, life.now(), life.number, is_durable
            )
            said = told.get("data", {}).get("durable", True)
            if kind == "event" and said and not is_durable:
                world.blame(f"{told['type']} of memory is said to be durable")
        if not is_durable:
            self._judge_room(len({row[3] for row in found if row[4] == "event"}))
        self._was_durable = is_durable

    def _judge_room(self, came: int) -> None:
        """Blame memory that takes more events than there is room for.

        What was with the disk when it was found to hang is taken in any case.
        """
        world = self.life.world
        if self._was_durable:
            self._taken_over = came if world.plan.hangs else 0
        connection = self.life.database.keeper.connection
        (waiting,) = connection.execute(_WAITING, (self._since,)).fetchone()
        room = world.plan.room
        most = max(room + room // 10, self._taken_over)
        if waiting > most:
            world.blame(f"{waiting} events wait in memory, where {most} may")


def is_of(checkpoint: bytes | None, shown: Shown) -> bool:
    """Return whether a checkpoint holds a document.

    It may hold an older one, and when that was seen last: while memory has no room for
    the steps of the last.
    """
    if checkpoint is None:
        return False
    return bool(json.loads(checkpoint)["incarnation"] == shown.incarnation)
