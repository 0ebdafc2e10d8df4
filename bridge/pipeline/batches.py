"""Gathers events into batches: what is due at the same time goes in one request.

The relay makes one attempt for each event, as without batches; so order, retries and
settlement stay as they are. The first attempt that waits leads: it takes what waits
beside it, sends all of it, and gives each attempt its own result. Meanwhile the next
one that waits leads the next batch.

    urgent ──few are in flight──▶ sent at once, alone
    others ──▶ wait ──taken by the leader──▶ sent ──▶ result
                 │                            ├── refused because of one event: that one
                 │                            │   alone, those before it, those after it
                 │                            ├── refused, or a fault of the sink: in
                 │                            │   halves, until the guilty one is alone
                 │                            ├── sent in part: the rest is sent next
                 │                            ├── failed: all of them have failed
                 │                            └── the sink asks for a pause: what has
                 │                                not been sent is not sent
                 ├── the sink has asked for a pause: it is not sent; urgent ones are
                 └── cancelled: it leaves; if it leads, the next one does
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    BridgeError,
    DeliveryError,
    NotSentError,
    Reason,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.outbox.delivery import Delivery
from bridge.pipeline.policy import is_urgent, wish_of
from bridge.sinks.base import BatchLimits
from bridge.sinks.batch import BatchSink
from bridge.telemetry.counters import Spread

_ONE_MORE_AFTER = 3.0  # seconds: requests that hang do not hold up all others


@dataclass(slots=True, eq=False)
class _Waiting:
    """An event for which an attempt waits.

    Attributes:
        is_pressing: whether no batch may wait for more company.
        key: the EventId, or the id of an event without one; no two with the same key
            go together.
        woken: set when there is a result, or when this one is to lead.
        is_gone: whether its attempt is over, so that it need not be sent.
    """

    delivery: Delivery
    event: CloudEvent
    is_pressing: bool
    key: str
    woken: asyncio.Future[None]
    is_settled: bool = False
    error: Exception | None = None
    is_gone: bool = False

    @property
    def size(self) -> int:
        """Bytes of its JSON."""
        return len(self.delivery.body)

    def settle(self, error: Exception | None) -> None:
        """Give its attempt the result, unless it has one."""
        if not self.is_settled:
            self.is_settled, self.error = True, error
            self.wake()

    def wake(self) -> None:
        """Let its attempt look what is to be done."""
        if not self.woken.done():
            self.woken.set_result(None)


@dataclass(slots=True)
class Batches:
    """Sends the events of one sink, several in one request.

    It is wide because who waits, who leads and what is on its way change together.

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
    _leader: _Waiting | None = None
    _ripe: asyncio.Event = field(default_factory=asyncio.Event)  # do not wait longer
    _size: int = 0  # of all that wait
    _alone: int = 0
    _flying: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _began: float = float("-inf")

    async def deliver(self, delivery: Delivery) -> None:
        """Make one attempt at a delivery, in company if there is any.

        Raises:
            DeliveryError: as ``Sink.deliver``.
            NotSentError: the sink has asked for a pause before this one was sent.
        """
        event = CloudEvent.from_json(delivery.body)
        goes_first = is_urgent(delivery, self.clock.now().timestamp())
        if goes_first and self._alone < self.limits.alone:
            await self._send_alone(event)
            return
        key = (event.text("correlationid") or event.id).upper()
        woken = asyncio.get_running_loop().create_future()
        mine = _Waiting(delivery, event, goes_first, key, woken)
        try:
            await self._wait(mine)
            if self._leader is mine:
                await self._lead(mine)
        finally:
            mine.is_gone = True
            self._leave(mine)
        if mine.error is not None:
            raise mine.error

    async def _send_alone(self, event: CloudEvent) -> None:
        self._alone += 1
        self.sizes.observe(1)
        try:
            await self.sink.deliver(event)
        finally:
            self._alone -= 1

    async def _wait(self, mine: _Waiting) -> None:
        """Wait for the result, or until this one leads."""
        self._waiting[mine] = None
        self._size += mine.size
        if mine.is_pressing or self._is_full:
            self._ripe.set()
        if self._leader is None:
            self._leader = mine
        else:
            await mine.woken

    @property
    def _is_full(self) -> bool:
        limits = self.limits
        return len(self._waiting) >= limits.most or self._size >= limits.size

    def _leave(self, mine: _Waiting) -> None:
        """Remove one that waits; if it leads, let the next one lead."""
        if mine in self._waiting:
            del self._waiting[mine]
            self._size -= mine.size
        if self._leader is mine:
            self._leader = next(iter(self._waiting), None)
            if self._leader is not None:
                self._leader.wake()

    async def _lead(self, mine: _Waiting) -> None:
        """Send a batch: this event, and others that wait."""
        await asyncio.sleep(0)  # what begins at the same time is beside it then
        if self.limits.wait and not self._may_go:
            self._ripe.clear()
            await self.clock.wait(self._ripe, self.limits.wait)
        await self._room()
        batch = self._take(mine)
        self._leave(mine)
        self._flying += 1
        self._began = self.clock.monotonic()
        try:
            await self._send(batch)
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

    def _take(self, mine: _Waiting) -> list[_Waiting]:
        """Take what goes with an event, the pressing ones first."""
        batch, size, keys = [mine], mine.size, {mine.key}
        others = [one for one in self._waiting if one is not mine]
        if any(one.is_pressing for one in others):
            others.sort(key=lambda one: not one.is_pressing)
        for one in others:
            if one.key in keys:
                continue
            size += one.size
            if len(batch) >= self.limits.most or size > self.limits.size:
                break
            keys.add(one.key)
            batch.append(one)
        for one in batch[1:]:
            self._leave(one)
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        """Send a batch, in parts if need be, until each event has its result."""
        why: BridgeError = TransientDeliveryError(
            "the request was given up", Reason.TIMEOUT
        )
        parts = deque([batch])
        try:
            while parts:
                part = [one for one in parts.popleft() if self._is_to_go(one)]
                if part:
                    parts.extendleft(reversed(await self._try(part)))
        except (DeliveryError, NotSentError) as error:
            why = error
        finally:
            for one in batch:
                one.settle(why)

    def _is_to_go(self, one: _Waiting) -> bool:
        """Return whether to send an event now; if it may not be sent, settle it."""
        if not self.may_send(one.delivery):
            one.settle(NotSentError())
        return not (one.is_gone or one.is_settled)

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
        results = await self.sink.deliver_many([one.event for one in part])
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
