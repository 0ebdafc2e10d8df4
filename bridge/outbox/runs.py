"""The deliveries of a sink that acts, such as ``command``.

They differ from the deliveries of other sinks: a later step may replace an earlier one,
and the commit that settles a delivery also publishes the command's result.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.outbox.records import Content, Delivery, DeliveryState, Success
from bridge.outbox.storage.connection import Connection
from bridge.outbox.store import Outbox
from bridge.outbox.tables import deliveries as rows
from bridge.outbox.tables import successes
from bridge.outbox.tables.deliveries import RunningTimes

_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known about the EventId of a step, for one sink.

    Attributes:
        newer: the event of the newest later step; None = there is no later step.
        older: the event of the step before this one; None = it is not stored.
        appearance: how often the EventId has gone.
        success: the last success of this sink that still counts.
    """

    newer: bytes | None
    older: bytes | None
    appearance: int
    success: Success | None


@dataclass(frozen=True, slots=True)
class Runs:
    """The deliveries of one sink that acts."""

    outbox: Outbox
    sink: str

    async def pending(self, now: float) -> list[Delivery]:
        """Return the pending deliveries, oldest first; dead-letter damaged ones."""
        found = await self.outbox.database.read(
            lambda db: rows.pending(db, self.sink, _MOST)
        )
        for delivery in found:
            if delivery.damage is not None:
                await self.outbox.deliveries.give_up(delivery, now)
        return [delivery for delivery in found if delivery.damage is None]

    async def standings(self, deliveries: Sequence[Delivery]) -> dict[int, Standing]:
        """Return the standing of each delivery's EventId, by the delivery's id."""

        def job(db: sqlite3.Connection) -> dict[int, Standing]:
            newest = rows.newest(db, self.sink) if deliveries else {}
            return {d.id: self._standing(db, d, newest) for d in deliveries}

        return await self.outbox.database.read(job)

    def _standing(
        self, db: sqlite3.Connection, delivery: Delivery, newest: dict[str, int]
    ) -> Standing:
        key = delivery.key or ""
        later = newest.get(key, delivery.id)
        found = (s for s in successes.of_event(db, key) if s.sink == self.sink)
        return Standing(
            newer=rows.body(db, later) if later > delivery.id else None,
            older=rows.body(db, rows.previous(db, delivery)),
            appearance=successes.appearance(db, key),
            success=next(found, None),
        )

    async def add(self, event: CloudEvent, *, now: float) -> None:
        """Add a delivery of an event without EventId, for this sink only."""
        content = Content(
            kind="event",
            key=None,
            event_id=None,
            cloud_event_id=event.id,
            type=event.type,
            body=event.to_json(),
        )
        running = self.outbox.ages.now()

        def job(db: sqlite3.Connection) -> None:
            rows.insert(
                db,
                item=rows.add(db, content, created=now),
                sink=self.sink,
                key=None,
                now=now,
                window=(None, None),
                running=RunningTimes(db, running).of(self.sink),
            )

        await self.outbox.database.run(job)
        self.outbox.wakeups.of(self.sink).set()

    async def void(self, key: str) -> None:
        """Delete the success for an EventId: the command now undoes or repeats it."""
        await self.outbox.database.run(lambda db: successes.void(db, self.sink, key))

    async def settle(  # noqa: PLR0913 - what one commit holds
        self,
        delivery: Delivery,
        state: DeliveryState,
        results: Sequence[OutgoingEvent],
        *,
        now: float,
        error: tuple[str, str] | None = None,
        success: Success | None = None,
    ) -> None:
        """Settle a delivery and publish its result in one commit.

        Args:
            delivery: what is settled.
            state: ``delivered``, ``dead`` or ``skipped``.
            results: the events that are published.
            now: seconds since the epoch.
            error: why it failed, in words and as a label.
            success: the success to save, which approvals may require.
        """

        def settle(db: Connection) -> None:
            moved = rows.settle(db, delivery, state, now=now, error=error)
            if moved and success is not None:
                successes.save(db, success)

        await self.outbox.commit(results, now=now, settle=settle)
        self.outbox.wakeups.rules.set()
