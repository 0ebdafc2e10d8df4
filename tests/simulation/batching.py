"""A simulated sink that takes several events in one request."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, Reason, TransientDeliveryError
from bridge.outbox.delivery import Delivery
from bridge.pipeline.batches import Batches
from bridge.pipeline.policy import is_urgent
from bridge.sinks.base import BatchLimits
from tests.simulation.edges import SimulatedSink
from tests.simulation.plan import Plan

BATCHED = 0.4  # the share of sinks
_MOST = 4
_WAITS = (0.0, 0.0, 0.5)  # seconds


@dataclass(slots=True)
class BatchedSink:
    """Gathers deliveries as the forwarder does, and lets the sink judge each of them.

    A request is answered when all of it is judged.
    """

    sink: SimulatedSink
    clock: Clock
    plan: Plan
    _batches: Batches = field(init=False)
    _known: dict[str, Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.sink.name
        wait = _WAITS[int(len(_WAITS) * self.plan.chance("batch wait", name))]
        limits = BatchLimits(most=_MOST, size=10_000, wait=wait, requests=2, alone=2)
        self._batches = Batches(self, limits, self.clock)

    async def attempt(self, delivery: Delivery) -> None:
        """Make an attempt at a delivery, in company if there is any."""
        event = CloudEvent.from_json(delivery.body)
        self._known[event.id] = delivery
        now = self.clock.now().timestamp()
        await self._batches.deliver(
            event, len(delivery.body), is_urgent=is_urgent(delivery, now)
        )

    async def deliver(self, event: CloudEvent) -> None:
        """See ``Sink.deliver``."""
        await self.sink.deliver(self._known[event.id])

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """See ``BatchSink.deliver_many``."""
        return await asyncio.gather(*(self._judged(event) for event in events))

    async def _judged(self, event: CloudEvent) -> DeliveryError | None:
        try:
            await self.deliver(event)
        except DeliveryError as error:
            return error
        except ValueError:
            return TransientDeliveryError("unforeseen", Reason.UNFORESEEN)
        return None
