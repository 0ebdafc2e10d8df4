"""Sinks that may send several events in one request: their keys and their contract.

``bridge.pipeline.batches`` gathers the events. A sink only sends what it is given.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.foundation.values import Duration, Size
from bridge.sinks.base import BatchLimits, Sink, SinkConfig

MOST = 1000
_LONGEST_WAIT = 3.0  # after 5 s the relay assumes that an attempt hangs
_REQUESTS = 2  # the second one is in transit while the receiver handles the first


@runtime_checkable
class BatchSink(Sink, Protocol):
    """A destination that takes several events in one request."""

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """Make one attempt at several events, no two of one EventId.

        Returns:
            The result of each event, in the same order; None is success. If the request
            has no room for all events, the results of the first ones, at least of one.

        Raises:
            TransientDeliveryError: for all events; a later attempt may succeed.
            RefusedDeliveryError: every event would be refused now.
            RefusedEventError: the request was refused, probably because of one event.
                The others may be accepted.
            PermanentDeliveryError: this request will never be accepted. Smaller
                requests with some of its events may be.
        """
        ...


class BatchKeys(SinkConfig, frozen=True, kw_only=True):
    """The keys of a sink that may send several events in one request.

    Attributes:
        batch: the most events in one request. Events that are due at the same time go
            together; an urgent event goes at once, alone. 1 to 1000. Example: ``100``.
        batch_size: the most bytes in one request; a larger event goes alone.
        batch_wait: how long a request that is not full waits for more events, at most
            3s. Example: ``"500ms"``.
    """

    batch: int = 1
    batch_size: Size = Size(1_000_000)
    batch_wait: Duration = Duration(0)

    @property
    def slots(self) -> int:
        """How many deliveries may be under way: enough to fill the next request."""
        if self.batch == 1:
            return self.concurrency
        return max(self.concurrency, _REQUESTS * self.batch)

    @property
    def batch_limits(self) -> BatchLimits | None:
        """What a request may hold; see ``SinkConfig.batch_limits``."""
        if self.batch == 1:
            return None
        return BatchLimits(
            most=self.batch,
            size=self.batch_size,
            wait=self.batch_wait,
            requests=min(self.concurrency, _REQUESTS),
            alone=self.concurrency,
        )

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the limits of a request."""
        if not 1 <= self.batch <= MOST:
            yield "batch", f"must be 1 to {MOST}"
        if not self.batch_size:
            yield "batch_size", "must be more than 0"
        if self.batch_wait > _LONGEST_WAIT:
            yield "batch_wait", f"must be at most {_LONGEST_WAIT:.0f}s"
