"""The deliveries of a sink that acts: all that is pending, and what became of each.

Other than what is sent, a step here may be overtaken by a later one, and what became of
it is told in the commit that settles it.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.outbox import deliveries as rows
from bridge.outbox import successes
from bridge.outbox.checksum import Content
from bridge.outbox.delivery import Delivery, select_checked
from bridge.outbox.records import Success
from bridge.outbox.storage.connection import Connection
from bridge.outbox.store import Outbox

_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of the EventId of a step.

    Attributes:
        newer: the newest later step of it for this sink; None where there is none.
        appearance: how often it had gone.
        success: the last one of this sink that still counts.
    """

    newer: bytes | None
    appearance: int
    success: Success | None


@dataclass(frozen=True, slots=True)
class Runs:
    """The deliveries of one sink that acts."""

    outbox: Outbox
    sink: str

    async def pending(self, now: float) -> list[Delivery]:
        """Return what is pending, oldest first; what is damaged is given up here."""
        condition = "d.sink = ? AND d.state = 'pending' ORDER BY d.id LIMIT ?"
        found = await self.outbox.database.read(
            lambda db: select_checked(db, condition, (self.sink, _MOST))
        )
        for delivery in found:
            if delivery.damage is not None:
                await self.outbox.give_up(delivery, now)
        return [delivery for delivery in found if delivery.damage is None]

    async def standings(self, deliveries: Sequence[Delivery]) -> dict[int, Standing]:
        """Return what is known of the EventId of each step, by its id."""

        def job(db: sqlite3.Connection) -> dict[int, Standing]:
            newest = _newest(db, self.sink) if deliveries else {}
            return {d.id: self._standing(db, d, newest) for d in deliveries}

        return await self.outbox.database.read(job)

    def _standing(
        self, db: sqlite3.Connection, delivery: Delivery, newest: dict[str, int]
    ) -> Standing:
        key = delivery.key or ""
        later, row = newest.get(key, delivery.id), None
        if later > delivery.id:
            query = """SELECT i.body FROM deliveries d JOIN items i ON i.id = d.item
                WHERE d.id = ?"""
            row = db.execute(query, (later,)).fetchone()
        found = (s for s in successes.of_event(db, key) if s.sink == self.sink)
        return Standing(
            newer=None if row is None else row[0],
            appearance=successes.appearance(db, key),
            success=next(found, None),
        )

    async def ask(self, event: CloudEvent, *, now: float) -> None:
        """Have this sink, and no other, act on an event of no EventId."""
        content = Content(
            kind="event",
            key=None,
            event_id=None,
            cloud_event_id=event.id,
            type=event.type,
            body=event.to_json(),
        )
        ageing = self.outbox.ageing.get(self.sink)
        running = None if ageing is None else ageing()

        def job(db: sqlite3.Connection) -> None:
            rows.insert(
                db,
                item=rows.add(db, content, created=now),
                sink=self.sink,
                key=None,
                now=now,
                window=(None, None),
                running=running,
            )

        await self.outbox.database.run(job)
        self.outbox.news(self.sink).set()

    async def void(self, key: str) -> None:
        """Forget the success for an EventId: it is undone, or done anew, now."""
        await self.outbox.database.run(lambda db: successes.void(db, self.sink, key))

    async def settle(  # noqa: PLR0913 - what one commit holds
        self,
        delivery: Delivery,
        state: str,
        told: Sequence[OutgoingEvent],
        *,
        now: float,
        error: tuple[str, str] | None = None,
        success: Success | None = None,
    ) -> None:
        """Move a delivery to its end, with what is told of it, in one commit.

        Args:
            delivery: what is settled.
            state: ``delivered``, ``dead`` or ``skipped``.
            told: what became of it.
            now: seconds since the epoch.
            error: what it failed with, in words and as a label.
            success: what others may rely on from now on.
        """

        def settle(db: Connection) -> None:
            moved = rows.settle(db, delivery, state, now=now, error=error)
            if moved and success is not None:
                successes.keep(db, success)

        await self.outbox.commit(told, now=now, settle=settle)


def _newest(db: sqlite3.Connection, sink: str) -> dict[str, int]:
    """Return the newest step of each EventId; what is discarded never was one."""
    query = """SELECT key, max(id) FROM deliveries WHERE sink = ? AND key IS NOT NULL
        AND state IN ('pending', 'delivered', 'dead', 'skipped') GROUP BY key"""
    return dict(db.execute(query, (sink,)))
