"""Gathers events into batches: what is due at the same time goes in one request.

The relay begins one attempt for each event, as without batches; so order, retries and
settlement stay as they are. But an attempt here is no task, only a future: a task for
each event would cost more than its share of the request. There is one task for each
request: it takes what waits, sends it, and gives each event its own result.

    urgent ──few are in flight──▶ sent at once, alone
    others ──▶ wait ──taken by a request──▶ sent ──▶ result
                 │                           ├── refused because of one event: that one
                 │                           │   alone, those before it, those after it
                 │                           ├── refused, or a fault of the sink: in
                 │                           │   halves, until the guilty one is alone
                 │                           ├── sent in part: the rest is sent next
                 │                           ├── failed: all of them have failed
                 │                           └── the sink asks for a pause: what has
                 │                               not been sent is not sent
                 ├── the sink has asked for a pause: it is not sent; urgent ones are
                 └── cancelled: it leaves; a request that all have left is cancelled
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.outbox.delivery import Delivery
from bridge.pipeline.policy import ATTEMPT_LIMIT, is_urgent, wish_of
from bridge.sinks.base import BatchLimits
from bridge.sinks.batch import BatchSink
from bridge.telemetry.counters import Spread

_ONE_MORE_AFTER = 3.0  # seconds: requests that hang do not hold up all others


class _Waiting(asyncio.Future[None]):
    """An event that waits to be sent: the future is what becomes of it.

    Attributes:
        is_pressing: whether no request may wait for more company.
        key: the EventId, or the id of an event without one; no two with the same key
            go together.
        size: bytes of its JSON.
        request: which sends it; None = it still waits.
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
        """Leave: the event is not sent, or nobody waits for its result any more."""
        is_new = super().cancel(msg)
        if is_new and self.request is not None:
            self.request.left()
        return is_new


@dataclass(slots=True, eq=False)
class _Request:
    """The events that are sent together.

    Attributes:
        scope: its time limit.
    """

    events: list[_Waiting]
    scope: asyncio.Timeout

    def left(self) -> None:
        """Give the request up if nobody waits for it any more."""
        is_over = self.scope.expired() or not all(map(_Waiting.done, self.events))
        if not is_over:
            self.scope.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Batches:
    """Sends the events of one sink, several in one request.

    It is wide because who waits and what is on its way change together.

    Attributes:
        sink: the open sink.
        limits: what one request may hold.
        may_send: whether a delivery may be sent that has waited; see ``Relay``.
        sizes: counts the events of each request, also of those that hold one.
    """

    sink: BatchSink
    limits: BatchLimits
    clock: Clock
    may_send: Callable[[Delivery], bool]
    sizes: Spread
    _waiting: dict[_Waiting, None] = field(default_factory=dict)  # the oldest first
    _is_gathering: bool = False  # whether a request is about to take what waits
    _ripe: asyncio.Event = field(default_factory=asyncio.Event)  # do not wait longer
    _size: int = 0  # of all that wait
    _alone: int = 0
    _flying: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _began: float = float("-inf")

    def deliver(
        self, delivery: Delivery, tasks: asyncio.TaskGroup
    ) -> "asyncio.Future[None]":
        """Begin one attempt at a delivery, in company if there is any.

        Args:
            delivery: what is sent.
            tasks: the group in which the request runs.

        Returns:
            What becomes of it: None, an error as of ``Sink.deliver``, or NotSentError
            if the sink has asked for a pause before it was sent. Cancel it to leave.
        """
        goes_first = is_urgent(delivery, self.clock.now().timestamp())
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
        """Let an event wait for a request, and see to it that there will be one."""
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
        """Wait for company and for room; then send what waits, as far as it may go."""
        await asyncio.sleep(0)  # what begins at the same time goes together
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
        """Wait while as many requests as may be are in flight, but not for ever."""
        while self._flying >= self.limits.requests:
            left = self._began + _ONE_MORE_AFTER - self.clock.monotonic()
            if left <= 0:
                return
            self._ended.clear()
            await self.clock.wait(self._ended, left)

    def _take(self) -> list[_Waiting]:
        """Take what goes together, the pressing ones first."""
        batch, size, keys = list[_Waiting](), 0, set[str]()
        waiting = list(self._waiting)
        if any(one.is_pressing for one in waiting):
            waiting.sort(key=lambda one: not one.is_pressing)
        for one in waiting:
            if one.done():  # it has left
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
        """Send events with ``work``; what it raises is the result of those left."""
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
                one.cancel()  # no result: the process ends

    async def _send_parts(self, batch: list[_Waiting]) -> None:
        """Make requests until each event has its result.

        Raises:
            DeliveryError: all that is not settled has failed.
            NotSentError: the sink asks for a pause: the rest is not sent.
        """
        parts = deque([batch])
        while parts:
            part = [one for one in parts.popleft() if self._is_to_go(one)]
            if part:
                parts.extendleft(reversed(await self._try(part)))

    def _is_to_go(self, one: _Waiting) -> bool:
        """Return whether to send an event now; if it may not be sent, settle it."""
        if not self.may_send(one.delivery):
            one.settle(NotSentError())
        return not one.done()

    async def _try(self, part: list[_Waiting]) -> list[list[_Waiting]]:
        """Make one request, and settle what is decided; return what is to be sent next.

        Raises:
            DeliveryError: all that is not settled has failed.
            NotSentError: the sink asks for a pause: the rest is not sent.
        """
        results: list[DeliveryError | None]
        try:
            results = await self._made(part)
        except (TransientDeliveryError, RefusedDeliveryError):
            raise
        except Exception as error:  # noqa: BLE001 - the attempt at the guilty one raises it
            if len(part) > 1:
                return _split(part, error)
            part[0].settle(error)
            return []
        for one, result in zip(part, results, strict=False):
            one.settle(result)
        if any(map(_asks_for_a_pause, results)):
            raise NotSentError
        return [part[len(results) :]]

    async def _made(self, part: list[_Waiting]) -> list[DeliveryError | None]:
        """Make one request; return what became of the events that it held."""
        self.sizes.observe(len(part))
        events = [CloudEvent.from_json(one.delivery.body) for one in part]
        results = await self.sink.deliver_many(events)
        if not results:
            raise ValueError("nothing was sent")
        return [*results]


def _asks_for_a_pause(error: DeliveryError | None) -> bool:
    """Return whether a result says that nothing more may be sent now."""
    if error is None:
        return False
    return isinstance(error, RefusedDeliveryError) or wish_of(error) > 0


def _split(part: list[_Waiting], error: Exception) -> list[list[_Waiting]]:
    """Return the parts of a batch that was refused.

    The event that the receiver names is sent again, alone: if it has named another
    one, nothing is lost.
    """
    if isinstance(error, RefusedEventError) and 0 <= error.place < len(part):
        place = error.place
        return [part[:place], [part[place]], part[place + 1 :]]
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
