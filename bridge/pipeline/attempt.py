"""Makes one attempt at a delivery; applies its result to the delivery and the sink."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    Reason,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.circuit import Circuit, RunningTime, is_fault_of_sink
from bridge.pipeline.in_flight import Attempt, Attempts
from bridge.pipeline.policy import ATTEMPT_LIMIT, RelayPolicy
from bridge.pipeline.settlement import Settling

# -- Corrects due times and ages of a sink's deliveries when the clock is set ----------


_JUMP = 1.0
_KEEP_EVERY = 60.0  # after a crash, ages may be too low by this many seconds


class DueTimes(Struct):
    """Follows the clocks for the pending deliveries of a sink.

    Attributes:
        max_backoff: after a start, every delivery is due within so many seconds.
        has_pending: whether any delivery is pending.
    """

    sink: str
    outbox: Outbox
    clock: Clock
    circuit: Circuit
    max_backoff: float
    has_pending: bool = False
    _offset: float | None = None  # wall clock minus monotonic clock
    _kept_at: float = 0.0

    @property
    def running(self) -> float:
        """The running time of the sink in seconds, by which ages are counted."""
        return self.circuit.running.at(self.clock.monotonic())

    async def follow(self) -> None:
        """Move due times back if the wall clock was set back.

        A clock set forward needs no correction: deliveries are only due sooner. Newer
        deliveries must not be moved into the future.
        """
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        if self._offset is None:
            await self._begin(now)
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.deliveries.make_earlier(self.sink, back)
        self._offset = offset

    async def _begin(self, now: float) -> None:
        """Continue after a restart, even if the clock was set in between."""
        await self.outbox.deliveries.make_due(
            self.sink, beyond=now + self.max_backoff, now=now
        )
        self.circuit.owe_release()  # the sink may be back by now
        seconds = await self.outbox.ages.load(self.sink)
        self.circuit.running = RunningTime(seconds)
        self.circuit.running.run(self.clock.monotonic())
        self._kept_at = self.clock.monotonic()
        self.outbox.ages.clocks[self.sink] = lambda: self.running

    async def keep(self, *, is_last: bool = False) -> None:
        """Store the running time: once a minute, and at the end."""
        now = self.clock.monotonic()
        if self.has_pending and (is_last or now >= self._kept_at + _KEEP_EVERY):
            self._kept_at = now
            await self.outbox.ages.save(self.sink, self.running)


# -- Makes one attempt at a delivery; applies its result to the delivery and the sink --


log = logging.getLogger(__name__)

Deliver = Callable[[Delivery], Awaitable[None]]
Gather = Callable[[Delivery, asyncio.TaskGroup], asyncio.Future[None]]


class Trying(Struct):
    """Makes the attempts of one relay.

    Attributes:
        deliver: makes one attempt; raises DeliveryError or NotSentError.
        gather: begins an attempt that shares a request with others, and returns the
            future of its result; None = the sink takes one event in a request.
    """

    deliver: Deliver
    policy: RelayPolicy
    circuit: Circuit
    attempts: Attempts
    settling: Settling
    times: DueTimes
    gather: Gather | None = None

    @property
    def under_way(self) -> set[int]:
        """Ids of deliveries in flight, or delivered but not yet recorded as such."""
        return self.attempts.ids | self.settling.landed.keys()

    def is_under_way(self, delivery: Delivery) -> bool:
        """Return whether a delivery is in flight, or delivered but not yet recorded."""
        number = delivery.id
        return number in self.attempts.ids or number in self.settling.landed

    async def make(self, attempt: Attempt) -> DeliveryError | None:
        """Make an attempt and settle it; return its error, None after a success."""
        try:
            error = await self._try(attempt)
            self._conclude(attempt, error)
            if error is not None and not attempt.is_void:
                await self._postpone(attempt, error)
        finally:
            self.attempts.end(attempt)
        return error

    def conclude(self, attempt: Attempt) -> DeliveryError | None:
        """Settle an attempt that shared a request and has its result.

        Returns:
            The error with which ``postpone`` must be called; None = all is done.
        """
        error = self._result_of(attempt)
        self._conclude(attempt, error)
        if error is not None and not attempt.is_void:
            return error
        self.attempts.end(attempt)
        return None

    async def postpone(self, attempt: Attempt, error: DeliveryError) -> None:
        """Plan another attempt, or give up, after a failure in a shared request."""
        try:
            await self._postpone(attempt, error)
        finally:
            self.attempts.end(attempt)

    async def beat(self, heartbeat: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make an attempt at a heartbeat, which is never stored."""
        try:
            error = await self._try(heartbeat, tasks)
        finally:
            self.attempts.end(heartbeat)
        if heartbeat.is_void:
            return
        if error is None:
            self._recovered(heartbeat)
            return
        self.settling.failed(error)
        extra = {"sink": self.settling.sink, "fault": str(error)}
        log.warning("heartbeat not delivered", extra=extra)

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self.settling.parked(is_parked=False)
        self.circuit.resume(self.times.clock.monotonic())

    async def _try(
        self, attempt: Attempt, tasks: asyncio.TaskGroup | None = None
    ) -> DeliveryError | None:
        """Make an attempt; with ``tasks`` it may share a request with others."""
        delivery = attempt.delivery
        try:
            async with asyncio.timeout(ATTEMPT_LIMIT) as attempt.scope:
                if tasks is None or self.gather is None:
                    await self.deliver(delivery)
                else:
                    await self.gather(delivery, tasks)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            return self._meaning(attempt, error)
        finally:
            attempt.scope = None
        return None

    def _meaning(self, attempt: Attempt, error: Exception) -> DeliveryError | None:
        """Convert an exception to a DeliveryError; None = void: nothing was sent."""
        if isinstance(error, DeliveryError):
            return error
        if isinstance(error, NotSentError):
            attempt.is_void = True
            return None
        if isinstance(error, TimeoutError):
            text = f"no answer within {ATTEMPT_LIMIT:.0f} s"
            if attempt.is_cut:
                text = "no answer, while a later attempt got one"
            return TransientDeliveryError(text, Reason.TIMEOUT)
        self.settling.unforeseen(attempt.delivery, error)
        text = f"unforeseen: {type(error).__name__}"
        return TransientDeliveryError(text, Reason.UNFORESEEN)

    def _result_of(self, attempt: Attempt) -> DeliveryError | None:
        """Return the error of an attempt that shared a request; None = no error."""
        assert attempt.answer is not None  # noqa: S101 - for mypy  # nosec B101
        if attempt.answer.cancelled():
            attempt.is_void |= attempt.is_given_up
            return self._meaning(attempt, TimeoutError())
        raised = attempt.answer.exception()
        return self._meaning(attempt, raised) if isinstance(raised, Exception) else None

    def _conclude(self, attempt: Attempt, error: DeliveryError | None) -> None:
        """Update the sink's state by a result, before another attempt begins."""
        if attempt.is_void:
            return  # another attempt settles the delivery, or nothing was sent
        if error is None:
            self._recovered(attempt)
            self.settling.delivered(attempt.delivery)
            self.attempts.decided(attempt)
            return
        self.settling.failed(error)
        if not attempt.is_cut:
            self._judge(error, attempt.refusals)

    def _recovered(self, attempt: Attempt) -> None:
        """Mark the sink as working: an attempt has succeeded."""
        is_back = self.circuit.is_unreachable or attempt.is_beside
        self.settling.parked(is_parked=False)
        self.circuit.succeeded(self.times.clock.monotonic())
        if is_back:
            self.attempts.cut_left_behind(attempt)

    def _judge(self, error: DeliveryError, refusals: int) -> None:
        """Update the state of the sink after a failure."""
        now, unit = self.times.clock.monotonic(), self.attempts.chance()
        self.circuit.failed(error, refusals, now=now, unit=unit)
        if self.circuit.is_parked:
            self.settling.parked(is_parked=True, fault=str(error))

    async def _postpone(self, attempt: Attempt, error: DeliveryError) -> None:
        """Plan another attempt at a delivery, or make it a dead letter."""
        if attempt.is_second:
            return  # the first attempt decides
        delivery, running = attempt.delivery, self.times.running
        age = running - delivery.born
        if (reason := self.policy.end_of(delivery, error, age=age)) is not None:
            await self.settling.dead_letter(delivery, error, reason)
            self.attempts.decided(attempt)
            return
        now, unit = self.times.clock.now().timestamp(), self.attempts.chance()
        delay = self.policy.delay(delivery, error, now=now, unit=unit)
        await self.settling.postpone(
            delivery,
            error,
            delay=0.0 if attempt.is_cut else delay,
            waits_for_sink=is_fault_of_sink(error),
            running=running,
        )
