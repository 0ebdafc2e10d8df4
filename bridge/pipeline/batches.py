"""Gathers events into batches: events that are due at the same time share a request.

The relay begins one attempt for each event, as without batches; so order, retries and
settlement stay the same. But here an attempt is a future, not a task: a task for each
event would cost more than its share of the request. There is one task for each request:
it takes the waiting events, sends them, and sets the result of each event.

    urgent ──few are in flight──▶ sent at once, alone
    others ──▶ wait ──taken by a request──▶ sent ──▶ result
                 │                           ├── refused because of one event: send
                 │                           │   the events before it, this event
                 │                           │   alone, the events after it
                 │                           ├── refused, or a bug: send in halves,
                 │                           │   until the event at fault is alone
                 │                           ├── sent in part: send the rest next
                 │                           ├── failed: all its events have failed
                 │                           └── the sink asks for a pause: do not
                 │                               send the rest
                 ├── the sink has asked for a pause: not sent, unless it is urgent
                 └── cancelled: not sent; if all events of a request are cancelled,
                     the request is cancelled
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import Histogram

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    Reason,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.pipeline.attempt import ATTEMPT_LIMIT, is_urgent
from bridge.pipeline.circuit import wish_of
from bridge.sinks.base import BatchLimits
from bridge.sinks.batch import BatchSink

_ONE_MORE_AFTER = 3.0  # seconds: hanging requests must not stop all others


class _Waiting(asyncio.Future[None]):
    """An event that waits to be sent, as the future of its result.

    Attributes:
        is_pressing: whether its request must not wait for more events.
        key: the EventId, or the id of an event without one; events with the same key
            never share a request.
        size: bytes of its JSON.
        request: the request that sends it; None = it is not being sent.
    """

    __slots__ = ("delivery", "is_pressing", "key", "request", "size")

    def __init__(self, delivery: Delivery, *, is_pressing: bool) -> None:
        super().__init__()
        self.delivery = delivery
        self.size = len(delivery.body)
        self.is_pressing = is_pressing
        self.key = delivery.key or delivery.cloud_event_id or ""
        self.request: _Request | None = None

    def settle(self, error: Exception | None) -> None:
        """Set the result, unless there is one."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)

    def cancel(self, msg: object = None) -> bool:
        """Give up: do not send the event, or ignore the result of its request."""
        is_new = super().cancel(msg)
        if is_new and self.request is not None:
            self.request.left()
        return is_new


@dataclass(slots=True, eq=False)
class _Request:
    """The events that are sent together.

    Attributes:
        scope: the time limit of the request.
    """

    events: list[_Waiting]
    scope: asyncio.Timeout

    def left(self) -> None:
        """Cancel the request if no event waits for its result any more."""
        is_over = self.scope.expired() or not all(map(_Waiting.done, self.events))
        if not is_over:
            self.scope.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Batches:
    """Sends the events of one sink, several in one request.

    Attributes:
        sink: the open sink.
        limits: what one request may hold.
        may_send: returns whether a delivery that has waited may still be sent; see
            ``Relay``.
        sizes: counts the events of each request, also of requests with one event.
    """

    sink: BatchSink
    limits: BatchLimits
    clock: Clock
    may_send: Callable[[Delivery], bool]
    sizes: Histogram
    _waiting: dict[_Waiting, None] = field(default_factory=dict)  # the oldest first
    _is_gathering: bool = False  # whether a request will soon take what waits
    _ripe: asyncio.Event = field(default_factory=asyncio.Event)  # do not wait longer
    _size: int = 0  # bytes of all waiting events
    _alone: int = 0
    _flying: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _began: float = float("-inf")

    def deliver(
        self, delivery: Delivery, tasks: asyncio.TaskGroup
    ) -> "asyncio.Future[None]":
        """Begin one attempt at a delivery; it may share a request with others.

        Args:
            delivery: what is sent.
            tasks: the group in which the request runs.

        Returns:
            The future of the result: None, an error of ``Sink.deliver``, or
            NotSentError if the sink asked for a pause before the event was sent. Cancel
            the future to give the attempt up.
        """
        goes_first = delivery.urgent_until is not None and is_urgent(
            delivery, self.clock.now().timestamp()
        )  # for most, the clock need not be read
        mine = _Waiting(delivery, is_pressing=goes_first)
        if goes_first and self._alone < self.limits.alone:
            self._alone += 1
            tasks.create_task(self._send_alone(mine), name="one event alone")
        else:
            self._wait(mine, tasks)
        return mine

    async def _send_alone(self, mine: _Waiting) -> None:
        self.sizes.observe(1)
        try:
            await self._send([mine], self._deliver)
        finally:
            self._alone -= 1

    async def _deliver(self, batch: list[_Waiting]) -> None:
        (mine,) = batch
        await self.sink.deliver(CloudEvent.from_json(mine.delivery.body))
        mine.settle(None)

    def _wait(self, mine: _Waiting, tasks: asyncio.TaskGroup) -> None:
        """Let an event wait, and start a request if none is about to take it."""
        self._waiting[mine] = None
        self._size += mine.size
        if mine.is_pressing or self._is_full:
            self._ripe.set()
        if not self._is_gathering:
            self._gather(tasks)

    def _gather(self, tasks: asyncio.TaskGroup) -> None:
        self._is_gathering = True
        tasks.create_task(self._request(tasks), name="several events")

    @property
    def _is_full(self) -> bool:
        limits = self.limits
        return len(self._waiting) >= limits.most or self._size >= limits.size

    async def _request(self, tasks: asyncio.TaskGroup) -> None:
        """Wait for more events and for a free request; then send waiting events."""
        await asyncio.sleep(0)  # attempts that begin together share it
        if self.limits.wait and not self._may_go:
            self._ripe.clear()
            await self.clock.wait(self._ripe, self.limits.wait)
        await self._room()
        batch, self._is_gathering = self._take(), False
        if self._waiting:
            self._gather(tasks)
        self._flying += 1
        self._began = self.clock.monotonic()
        try:
            await self._send(batch, self._send_parts)
        finally:
            self._flying -= 1
            self._ended.set()

    @property
    def _may_go(self) -> bool:
        return self._is_full or any(one.is_pressing for one in self._waiting)

    async def _room(self) -> None:
        """Wait while the most allowed requests are in flight, but not for ever."""
        while self._flying >= self.limits.requests:
            left = self._began + _ONE_MORE_AFTER - self.clock.monotonic()
            if left <= 0:
                return
            self._ended.clear()
            await self.clock.wait(self._ended, left)

    def _take(self) -> list[_Waiting]:
        """Remove and return the events of the next request, pressing ones first."""
        batch, size, keys = list[_Waiting](), 0, set[str]()
        waiting = list(self._waiting)
        if any(one.is_pressing for one in waiting):
            waiting.sort(key=lambda one: not one.is_pressing)
        for one in waiting:
            if one.done():  # it was cancelled
                self._forget(one)
                continue
            if one.key in keys:
                continue
            size += one.size
            if batch and (len(batch) >= self.limits.most or size > self.limits.size):
                break
            keys.add(one.key)
            batch.append(one)
            self._forget(one)
        return batch

    def _forget(self, one: _Waiting) -> None:
        del self._waiting[one]
        self._size -= one.size

    async def _send(
        self, batch: list[_Waiting], work: Callable[[list[_Waiting]], Awaitable[None]]
    ) -> None:
        """Send events with ``work``; its error is the result of unsettled events."""
        try:
            async with asyncio.timeout(ATTEMPT_LIMIT) as scope:
                request = _Request(batch, scope)
                for one in batch:
                    one.request = request
                await work(batch)
        except Exception as error:  # noqa: BLE001 - the relay logs what is a bug
            for one in batch:
                one.settle(error)
        finally:
            for one in batch:
                one.request = None
                if not one.done():
                    one.cancel()  # the process ends

    async def _send_parts(self, batch: list[_Waiting]) -> None:
        """Make requests until each event has its result.

        Raises:
            DeliveryError: all events without a result have failed.
            NotSentError: the sink asks for a pause: the rest is not sent.
        """
        parts = deque([batch])
        while parts:
            part = [one for one in parts.popleft() if self._is_to_go(one)]
            if part:
                parts.extendleft(reversed(await self._try(part)))

    def _is_to_go(self, one: _Waiting) -> bool:
        """Return whether to send an event now; settle it if it may not be sent."""
        if not self.may_send(one.delivery):
            one.settle(NotSentError())
        return not one.done()

    async def _try(self, part: list[_Waiting]) -> list[list[_Waiting]]:
        """Make one request and settle its results; return the parts to send next.

        Raises:
            DeliveryError: all events without a result have failed.
            NotSentError: the sink asks for a pause: the rest is not sent.
        """
        results: list[DeliveryError | None]
        try:
            results = await self._made(part)
        except (TransientDeliveryError, RefusedDeliveryError):
            raise
        except Exception as error:  # noqa: BLE001 - it becomes the result of one event
            if len(part) > 1:
                return _split(part, error)
            part[0].settle(error)
            return []
        for one, result in zip(part, results, strict=False):
            one.settle(result)
        if any(map(_asks_for_a_pause, filter(None, results))):
            raise NotSentError
        return [part[len(results) :]]

    async def _made(self, part: list[_Waiting]) -> list[DeliveryError | None]:
        """Make one request; return the results of the events that were sent."""
        self.sizes.observe(len(part))
        events = [CloudEvent.from_json(one.delivery.body) for one in part]
        results = await self.sink.deliver_many(events)
        if not results:
            raise ValueError("nothing was sent")
        return [*results]


def _asks_for_a_pause(error: DeliveryError) -> bool:
    """Return whether an error says that nothing more may be sent now."""
    is_busy = error.reason is Reason.THROTTLED or wish_of(error) > 0
    return isinstance(error, RefusedDeliveryError) or is_busy


def _split(part: list[_Waiting], error: Exception) -> list[list[_Waiting]]:
    """Return the parts of a batch that was refused.

    The event that the receiver names is sent again, alone. So nothing is lost if the
    receiver has named the wrong event.
    """
    if isinstance(error, RefusedEventError) and 0 <= error.place < len(part):
        place = error.place
        return [part[:place], [part[place]], part[place + 1 :]]
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
