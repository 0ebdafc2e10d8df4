"""A simulated sink that takes several events in one request."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, Reason, TransientDeliveryError
from bridge.outbox.records import Delivery
from bridge.pipeline.batches import Batches
from bridge.pipeline.relay import Relay
from bridge.sinks.base import BatchLimits
from tests.simulation.edges import SimulatedSink, Tried
from tests.simulation.plan import Plan
from tests.support.builders import sizes_histogram

BATCHED = 0.4  # the share of sinks
_MOST = 4
_WAITS = (0.0, 0.5)  # seconds


def wait_of(plan: Plan, sink: str) -> float:
    """Return the seconds that a delivery waits for company at a sink of batches."""
    return _WAITS[int(len(_WAITS) * plan.chance("batch wait", sink))]


@dataclass(slots=True)
class BatchedSink:
    """Gathers deliveries as the forwarder does, and lets the sink judge each of them.

    A request is answered when all of it is judged.

    Attributes:
        relay: whose deliveries these are; set after it is made.
    """

    sink: SimulatedSink
    clock: Clock
    plan: Plan
    relay: Relay = field(init=False)
    _batches: Batches = field(init=False)
    _known: dict[str, Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wait = wait_of(self.plan, self.sink.name)
        limits = BatchLimits(most=_MOST, size=10_000, wait=wait, requests=2, alone=2)
        self._batches = Batches(
            self, limits, self.clock, self._may_send, sizes_histogram()
        )

    def attempt(
        self, delivery: Delivery, tasks: asyncio.TaskGroup
    ) -> "asyncio.Future[None]":
        """Begin an attempt at a delivery, in company if there is any."""
        self._known[CloudEvent.from_json(delivery.body).id] = delivery
        return self._batches.deliver(delivery, tasks)

    def _may_send(self, delivery: Delivery) -> bool:
        return self.relay.may_send(delivery)

    async def deliver(self, event: CloudEvent) -> None:
        """See ``Sink.deliver``."""
        await self.sink.deliver(self._known[event.id])

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """See ``BatchSink.deliver_many``."""
        tried, is_answered = self.sink.life.world.tried, False
        first = len(tried)
        try:
            results = await asyncio.gather(*map(self._judged, events))
            is_answered = True
        finally:
            sent = {self._known[event.id].id for event in events}
            self._end(
                [one for one in tried[first:] if one.delivery in sent], is_answered
            )
        return results

    def _end(self, tried: list[Tried], is_answered: bool) -> None:  # noqa: FBT001 - one of two ends
        """Note that the forwarder learns of each event when the request ends."""
        for one in tried:
            if one.sink == self.sink.name:
                one.ended = self.sink.life.now()
                if not is_answered:  # so nothing is known, not even a Retry-After
                    one.error, one.wish = "cut", 0.0

    async def _judged(self, event: CloudEvent) -> DeliveryError | None:
        try:
            await self.deliver(event)
        except DeliveryError as error:
            return error
        except ValueError:
            return TransientDeliveryError("unforeseen", Reason.UNFORESEEN)
        return None
