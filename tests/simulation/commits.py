"""What one life commits, as the judge sees it: as soon as the forwarder knows."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from bridge.outbox.records import CHECKPOINT
from bridge.outbox.storage.journal import Rows
from tests.simulation.edges import Shown
from tests.simulation.oracle_commands import judge_successes
from tests.simulation.rows import Row
from tests.simulation.world import Kept

if TYPE_CHECKING:
    from tests.simulation.life import Life


@dataclass(slots=True)
class Commits:
    """Looks at each commit of a life once it is answered: on the disk, or in memory."""

    life: "Life"
    _checkpoint: bytes | None = None

    def note(self, rows: Rows, shown: Shown | None, *, is_durable: bool) -> None:
        """Note what is kept by now: rows, and the document if it has changed.

        Args:
            rows: what is kept.
            shown: the document that had been read when they were committed.
            is_durable: whether they are on the disk.
        """
        life, world = self.life, self.life.world
        self._note_rows(rows, is_durable=is_durable)
        if world.plan.has("commands"):
            judge_successes(life)
        (checkpoint,) = rows.get(("meta", (CHECKPOINT,))) or (None,)
        if (
            isinstance(checkpoint, bytes)
            and checkpoint != self._checkpoint
            and shown
            and is_of(checkpoint, shown)
        ):
            world.shown.append(replace(shown, is_durable=is_durable))
            if is_durable:
                kept = Kept(life.now(), shown.at, life.number)
                world.kept.append(kept)
            self._checkpoint = checkpoint

    def _note_rows(self, rows: Rows, *, is_durable: bool) -> None:
        """Note the deliveries that come with their item."""
        life, world = self.life, self.life.world
        unwritten = life.database.journal.unwritten()
        for (table, (number, *_)), row in rows.items():
            if table != "deliveries" or row is None or number in world.rows:
                continue
            place = ("items", (row[0],))
            if place not in rows:
                continue
            content = unwritten.get(place) or rows[place]
            assert content is not None, "an item is never deleted here"
            kind, body = content[0], content[5]
            published = json.loads(cast("bytes", body))
            world.rows[cast("int", number)] = Row(
                cast("int", number),
                cast("str", row[1]),
                cast("str | None", row[2]),
                cast("int", row[0]),
                cast("str", kind),
                published,
                life.now(),
                life.number,
                is_durable,
            )
        if not is_durable:
            self._judge_room(unwritten)

    def _judge_room(self, unwritten: Rows) -> None:
        """Blame memory that takes more events than there is room for.

        What came while the disk worked is of its own room.
        """
        world, given = self.life.world, self.life.database.given
        waiting = {
            row[0]
            for (table, _), row in unwritten.items()
            if table == "deliveries" and row is not None and row[3] == "pending"
        }
        events = {
            number
            for (table, (number, *_)), row in unwritten.items()
            if table == "items"
            and row is not None
            and row[0] == "event"
            and (number,) not in given
        }
        most = world.plan.room + world.plan.room // 10
        if (count := len(waiting & events)) > most:
            world.blame(f"{count} events wait in memory, where {most} may")


def is_of(checkpoint: bytes, shown: Shown) -> bool:
    """Return whether a checkpoint holds a document.

    It may hold an older one, and when that was seen last: while memory has no room for
    the steps of the last.
    """
    return bool(json.loads(checkpoint)["incarnation"] == shown.incarnation)
