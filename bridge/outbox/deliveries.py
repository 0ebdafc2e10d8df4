"""Deliveries on their way to the sinks.

pending ──delivered──▶ delivered        (pruned after state.retention)
   │ ▲ └──────dead───▶ dead ──retry──▶ pending
   └─┘ postpone          └──discard──▶ discarded
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from msgspec import Struct

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import OutboxFullError, Reason
from bridge.outbox.clock_jumps import as_set_now, noted
from bridge.outbox.facts import Observations
from bridge.outbox.image import put
from bridge.outbox.line import Lines, Waiting
from bridge.outbox.reads import PAGE
from bridge.outbox.records import Delivery, DeliveryState, Tally
from bridge.outbox.state import State
from bridge.outbox.storage.journal import Rows

log = logging.getLogger(__name__)

# -- Deliveries on their way to the sinks ----------------------------------------------


class Deliveries(Struct):
    """Reads and changes deliveries for the relays. Times: seconds since the epoch."""

    state: State
    observations: Observations

    def _lines(self, sink: str) -> Lines:
        return self.state.image.sinks.get(sink) or Lines()

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
        lines, left_out = self._lines(sink), frozenset(but)
        while True:
            chosen = lines.due(now, limit, left_out)
            ahead = partial(lines.due, now, PAGE, left_out)
            found = await self.state.image.deliveries(chosen, ahead)
            is_whole = True
            for one in found:
                if one.damage is not None:
                    is_whole = False
                    self.give_up(one, now)
            if is_whole:
                return found, lines.next_due(now)

    def waiting(self, sink: str) -> int:
        """Return how many deliveries wait, also those in flight or not due."""
        lines = self.state.image.sinks.get(sink)
        return 0 if lines is None else len(lines.waiting)

    async def has_urgent(self, sink: str, *, now: float) -> bool:
        """Return whether any pending delivery of a sink is urgent, also one in flight.

        An earlier step is urgent, too, as soon as a later one is.
        """
        return (self._lines(sink)).has_urgent(now)

    async def waiting_for_sink(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> list[Delivery]:
        """Return deliveries that wait until the sink answers; arguments as ``due``."""
        lines = self._lines(sink)
        found = lines.for_sink(now, limit, frozenset(but))
        return [d for d in await self.state.image.deliveries(found) if d.damage is None]

    async def pending(self, sink: str, *, now: float, limit: int) -> list[Delivery]:
        """Return what waits for a sink, oldest first; dead-letter damaged ones."""
        lines = self._lines(sink)
        ready = [one for one in lines.waiting.values() if one.is_sendable]
        found = await self.state.image.deliveries(ready[:limit])
        for one in found:
            if one.damage is not None:
                self.give_up(one, now)
        return [one for one in found if one.damage is None]

    async def of_cloud_event(
        self, sink: str, cloud_event_id: str, *, since: float = 0.0
    ) -> list[Delivery]:
        """Return the pending deliveries of one CloudEvent to one sink.

        Args:
            sink: the name of the sink.
            cloud_event_id: the id of the CloudEvent.
            since: events that were committed before this time are not searched.
        """
        lines = self._lines(sink)
        late = [w for w in lines.waiting.values() if w.created >= since]
        found = await self.state.image.deliveries(late)
        return [
            one
            for one in found
            if one.cloud_event_id == cloud_event_id and one.damage is None
        ]

    async def tallies(self) -> dict[str, Tally]:
        """Return the tally of each sink that ever had a delivery."""
        jumps = noted(self.state.facts.value)
        return self.state.image.tallies(partial(as_set_now, jumps))

    # -- results of attempts -------------------------------------------------
    #
    # Each changes what waits at once, and returns the future of ``State.write``.

    def delivered(self, *sent: Delivery, now: float) -> asyncio.Future[bool]:
        """Record that the sink has accepted deliveries."""
        return self._end(sent, "delivered", now)

    def dead_letter(
        self, delivery: Delivery, *, now: float, error: str, reason: Reason
    ) -> asyncio.Future[bool]:
        """Give a delivery up; keep its row. The next one of its key may be sent."""
        return self._end((delivery,), "dead", now, (error, reason.value))

    def _end(
        self,
        found: Iterable[Delivery],
        state: DeliveryState,
        now: float,
        error: tuple[str, str] | None = None,
    ) -> asyncio.Future[bool]:
        rows, image = Rows(), self.state.image
        for delivery in found:
            if (one := image.find(delivery)) is not None:
                image.end(one, state, rows, now=now, error=error)
        return self.state.write(rows)

    def postpone(  # noqa: PLR0913 - one per column
        self,
        delivery: Delivery,
        *,
        due: float,
        error: str,
        reason: Reason,
        waits_for_sink: bool = False,
        running: float | None = None,
    ) -> asyncio.Future[bool]:
        """Plan another attempt at ``due``.

        Args:
            delivery: the delivery that failed.
            due: seconds since the epoch.
            error: why it failed, in words.
            reason: why it failed, as a label.
            waits_for_sink: whether ``release`` makes it due sooner.
            running: the running time of the sink, which is saved; None = it is not.
        """
        rows: Rows = {}
        if (one := self.state.image.find(delivery)) is not None:
            one.due, one.attempts = due, one.attempts + 1
            one.last_error, one.reason = error, reason.value
            one.waits_for_sink = waits_for_sink
            self.state.image.sinks[one.sink].change(one)
            put(rows, one, "pending")
        if running is not None:
            self.state.ages.note(delivery.sink, running, rows)
        return self.state.write(rows)

    def give_up(self, delivery: Delivery, now: float) -> None:
        """Dead-letter a damaged delivery, and have its event published again."""
        one, rows = self.state.image.find(delivery), Rows()
        if one is None:
            return
        error = (delivery.damage or "", Reason.DAMAGED.value)
        self.state.image.end(one, "dead", rows, now=now, error=error)
        is_step = delivery.kind != "reply" and ".startrequest." not in delivery.type
        if is_step and delivery.key is not None:
            self.observations.publish_again(delivery.key, rows)
        self.state.database.put(rows)
        self.state.image.lost(delivery.sink)
        _log_damage(delivery)

    # -- due times -----------------------------------------------------------

    async def release(self, sink: str, *, now: float, limit: int) -> int:
        """Make deliveries that wait until the sink answers due now; return how many.

        Only memory knows: after a restart they wait until the sink answers again.

        Args:
            sink: the name of the sink.
            now: seconds since the epoch.
            limit: the most deliveries to change now.
        """
        return len((self._lines(sink)).release(now, limit))

    async def make_due(self, sink: str, *, beyond: float, now: float) -> None:
        """Make deliveries that are due later than ``beyond`` due now."""
        lines = self._lines(sink)
        late = (w for w in lines.waiting.values() if w.due > beyond)
        self._moved(lines.shift((one, now) for one in late))

    async def make_earlier(self, sink: str, seconds: float) -> None:
        """Make all deliveries due earlier, because the clock was set back."""
        lines = self._lines(sink)
        every = lines.waiting.values()
        self._moved(lines.shift((one, one.due - seconds) for one in every))

    def _moved(self, changed: Iterable[Waiting]) -> None:
        """Write the new due times."""
        rows: Rows = {}
        for one in changed:
            put(rows, one, "pending")
        if rows:
            self.state.database.put(rows)


def _log_damage(delivery: Delivery) -> None:
    """Log a damaged delivery with the same line as the relay's dead letters."""
    log.error(
        "dead letter",
        extra={
            "sink": delivery.sink,
            "type": delivery.type,
            "eventId": delivery.event_id,
            "cloudEventId": delivery.cloud_event_id,
            "attempt": delivery.attempts,
            "fault": delivery.damage,
            "reason": Reason.DAMAGED.value,
        },
    )


def log_drop(outgoing: OutgoingEvent, error: OutboxFullError) -> None:
    """Log an event for which there is no room."""
    log.error(
        "event dropped",
        extra={
            "type": outgoing.event.type,
            "eventId": outgoing.key,
            "fault": str(error),
        },
    )
