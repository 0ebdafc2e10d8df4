"""Deliveries on their way to the sinks.

pending ──delivered──▶ delivered        (pruned after state.retention)
   │ ▲ └──────dead───▶ dead ──retry──▶ pending
   └─┘ postpone          └──discard──▶ discarded
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from bridge.foundation.errors import Reason
from bridge.outbox.records import Checkpoint, Delivery, Tally
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import deliveries, losses, observations
from bridge.outbox.tables.deliveries import tallies

# -- Reads and saves what was observed and published, and named values -----------------


class Observations(Struct):
    """What the bridge needs to know about its earlier runs.

    Attributes:
        again: keys of the EventIds whose events must be published again from the
            document, because one of these events was damaged before its delivery.
    """

    database: Database
    again: frozenset[str] = frozenset()

    async def load(self, name: str) -> bytes | None:
        """Return the value saved as ``name``; None = not found, b"" = damaged."""
        return await self.database.read(lambda db: observations.load(db, name))

    async def save(self, named: Mapping[str, bytes]) -> None:
        """Save values under their names.

        Use it only for values that are saved again from time to time: values saved
        while the disk fails stay in memory, and are not written to the disk later.
        """
        await self.database.run(lambda db: observations.save(db, named), is_kept=False)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId was in a document within the retention."""
        return await self.database.read(lambda db: observations.was_seen(db, key))

    async def load_again(self) -> None:
        """Add to ``again`` the keys that earlier runs have saved."""
        self.again |= await self.database.read(observations.to_publish_again)

    def note(self, checkpoint: Checkpoint) -> None:
        """Remove from ``again`` the keys that a checkpoint has published again."""
        self.again -= checkpoint.again


# -- Deliveries on their way to the sinks ----------------------------------------------


class Deliveries(Struct):
    """Reads and changes deliveries for the relays. Times are seconds since the epoch.

    Attributes:
        observations: records which events must be published again.
        lost: called with the sink of each delivery that is given up because it is
            damaged, or because there is no room for it.
    """

    database: Database
    observations: Observations
    lost: Callable[[str], None]

    # -- to be delivered -----------------------------------------------------

    async def due(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> tuple[list[Delivery], float | None]:
        """Return the due deliveries of a sink, and when the next one will be due.

        A damaged delivery must not be sent: it is dead-lettered here.

        Args:
            sink: the name of the sink.
            now: seconds since the epoch.
            limit: the most deliveries to return.
            but: ids of deliveries to leave out.
        """
        left_out = tuple(but)
        found, next_due = await self.database.read(
            lambda db: (
                deliveries.due(db, sink, now, limit, left_out),
                deliveries.next_due(db, sink, now),
            )
        )
        damaged = [delivery for delivery in found if delivery.damage is not None]
        if not damaged:
            return found, next_due
        for delivery in damaged:
            await self.give_up(delivery, now)
        left_out += tuple(delivery.id for delivery in damaged)
        return await self.due(sink, now=now, limit=limit, but=left_out)

    async def has_urgent(self, sink: str, *, now: float) -> bool:
        """Return whether any pending delivery of a sink is urgent, also one in flight.

        An earlier step is urgent, too, as soon as a later one is.
        """
        return await self.database.read(lambda db: deliveries.has_urgent(db, sink, now))

    async def waiting_for_sink(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> list[Delivery]:
        """Return deliveries that wait until the sink answers; arguments as ``due``."""
        left_out = tuple(but)
        return await self.database.read(
            lambda db: deliveries.waiting_for_sink(db, sink, now, limit, left_out)
        )

    async def of_cloud_event(
        self, sink: str, cloud_event_id: str, *, since: float = 0.0
    ) -> list[Delivery]:
        """Return the pending deliveries of one CloudEvent to one sink.

        Args:
            sink: the name of the sink.
            cloud_event_id: the id of the CloudEvent.
            since: events that were committed before this time are not searched.
        """
        return await self.database.read(
            lambda db: deliveries.of_cloud_event(db, sink, cloud_event_id, since)
        )

    async def tallies(self) -> dict[str, Tally]:
        """Return the tally of each sink that ever had a delivery."""
        return await self.database.read(tallies)

    # -- results of attempts -------------------------------------------------

    async def delivered(self, *sent: Delivery, now: float) -> bool:
        """Record that the sink has accepted deliveries.

        Returns:
            Whether another delivery with the same key waits behind one of them.
        """
        return await self.database.run(lambda db: deliveries.delivered(db, sent, now))

    async def postpone(  # noqa: PLR0913 - one per column
        self,
        delivery: Delivery,
        *,
        due: float,
        error: str,
        reason: Reason,
        waits_for_sink: bool = False,
        running: float | None = None,
    ) -> None:
        """Plan another attempt at ``due``.

        Args:
            delivery: the delivery that failed.
            due: seconds since the epoch.
            error: why it failed, in words.
            reason: why it failed, as a label.
            waits_for_sink: whether ``release`` makes it due sooner.
            running: the running time of the sink, which is saved; None = it is not.
        """
        await self.database.run(
            lambda db: deliveries.postpone(
                db,
                delivery,
                due=due,
                error=(error, reason.value),
                waits_for_sink=waits_for_sink,
                running=running,
            ),
            is_kept=False,
        )

    async def dead_letter(
        self, delivery: Delivery, *, now: float, error: str, reason: Reason
    ) -> None:
        """Give a delivery up; keep its row. The next one of its key may be sent."""
        await self.database.run(
            lambda db: deliveries.settle(
                db, delivery, "dead", now=now, error=(error, reason.value)
            )
        )

    async def give_up(self, delivery: Delivery, now: float) -> None:
        """Dead-letter a damaged delivery, and have its event published again."""
        key = await self.database.run(lambda db: losses.dead_letter(db, delivery, now))
        if key is not None:
            self.observations.again |= {key}
        self.lost(delivery.sink)
        losses.log_damage(delivery)

    # -- due times -----------------------------------------------------------

    async def release(self, sink: str, *, now: float, limit: int) -> int:
        """Make deliveries that wait until the sink answers due now; return how many.

        Args:
            sink: the name of the sink.
            now: seconds since the epoch.
            limit: the most deliveries to change now, so that other jobs do not wait
                long.
        """
        return await self.database.run(
            lambda db: deliveries.release(db, sink, now, limit), is_kept=False
        )

    # If the disk cannot be written now, these changes are repeated on it later.

    async def make_due(self, sink: str, *, beyond: float, now: float) -> None:
        """Make deliveries that are due later than ``beyond`` due now."""
        await self.database.run(lambda db: deliveries.make_due(db, sink, beyond, now))

    async def make_earlier(self, sink: str, seconds: float) -> None:
        """Make all deliveries due earlier, because the clock was set back."""
        await self.database.run(lambda db: deliveries.make_earlier(db, sink, seconds))
