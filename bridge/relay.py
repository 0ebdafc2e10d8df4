"""The relay: one per sink. A due delivery → one attempt → settle.

Retry is data: a failed delivery is a row that is due later, so it survives a
restart and can be listed. Order holds per EventId (the outbox offers heads only);
other EventIds are not held up, and one attempt slot is kept for urgent deliveries.

    open ──three refusals in a row──▶ parked ──first success──▶ open
    parked: deliveries stay; one is tried now and then, and each urgent one twice
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram

from bridge.clock import Clock
from bridge.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.outbox.rows import Delivery
from bridge.outbox.store import Outbox
from bridge.pace import Pace
from bridge.retry import RetryPolicy
from bridge.telemetry import Metrics
from bridge.workers import waking

log = logging.getLogger(__name__)

_PARK_AFTER = 3
_LONGEST_PROBE = 300.0
_PROBE_SPREAD = 0.25
_LEAST_ATTEMPTS = 3
_URGENT_ATTEMPTS = 2  # before NotBefore, whatever the sink wishes
_UNFORESEEN_ATTEMPTS = 10
_ATTEMPT_LIMIT = 60.0
_LONGEST_WAIT = 60.0
_JUMP = 1.0
_LONGEST_WISH = 86400.0
_LEAST_DELAY = 0.1  # quarters of quarters of a notice come to no end

Deliver = Callable[[Delivery], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPolicy:
    """How a relay tries.

    Attributes:
        backoff: the waits between attempts.
        max_age: seconds after which a delivery becomes a dead letter.
        slots: attempts at a time; one more is kept for urgent deliveries.
    """

    backoff: RetryPolicy
    max_age: float
    slots: int


@dataclass(slots=True)
class _Standing:
    """How the sink has behaved lately."""

    refusals: int = 0
    is_parked: bool = False
    probes: int = 0
    probe_at: float = 0.0
    hold_until: float = 0.0
    last_error: str | None = None

    @property
    def is_troubled(self) -> bool:
        """Whether there is anything that a success would end."""
        return self.is_parked or self.last_error is not None or self.refusals > 0


@dataclass(slots=True)
class Relay:
    """Delivers what the outbox holds for one sink.

    Attributes:
        sink: the sink's name.
        deliver: makes one attempt; raises DeliveryError.
        chance: a random number in [0, 1) at each call.
        pace: how often an attempt may begin, an urgent one too.
    """

    sink: str
    deliver: Deliver
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    _standing: _Standing = field(default_factory=_Standing)
    _flying: dict[int, Delivery] = field(default_factory=dict)
    _ready: list[Delivery] = field(default_factory=list)  # due, and not begun
    _landed: dict[int, Delivery] = field(default_factory=dict)  # taken, not yet noted
    _heartbeat: Delivery | None = None
    _offset: float | None = None  # of the wall clock to the monotonic one
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _delivered: Counter = field(init=False)
    _seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self._delivered = self.metrics.deliveries.labels(self.sink, "delivered")
        self._seconds = self.metrics.delivery_seconds.labels(self.sink)

    @property
    def name(self) -> str:
        """How the worker is called."""
        return f"relay:{self.sink}"

    @property
    def state(self) -> str:
        """``ok``, ``retrying`` or ``parked``."""
        if self._standing.is_parked:
            return "parked"
        return "retrying" if self._standing.last_error else "ok"

    @property
    def last_error(self) -> str | None:
        """What the last attempt failed with; None after a success."""
        return self._standing.last_error

    def offer(self, heartbeat: Delivery) -> None:
        """Take a heartbeat in place of an older one; it is never stored."""
        self._heartbeat = heartbeat
        self.outbox.news(self.sink).set()

    def resume(self) -> None:
        """Forget all that keeps deliveries waiting: a person has asked for it."""
        self._recovered()
        self._standing = _Standing()
        self.outbox.news(self.sink).set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until asked to stop; attempts in flight are finished."""
        news, self._stop = self.outbox.news(self.sink), stop
        async with (
            self._running,
            waking(stop, news),
            asyncio.TaskGroup() as attempts,
        ):
            while not stop.is_set():
                wait = await self.step(attempts)
                await self.clock.wait(news, wait)

    async def last_call(self, cloud_event_id: str) -> None:
        """Try one event once, after the end of ``run``: that the bridge has stopped."""
        async with self._running:
            for delivery in await self.outbox.find(self.sink, cloud_event_id):
                self._flying[delivery.id] = delivery
                await self._attempt(delivery, self._standing.refusals, None)

    async def step(self, attempts: asyncio.TaskGroup) -> float:
        """Begin every attempt that may begin now.

        Returns:
            Seconds after which to look again, if nothing happens before.
        """
        self.outbox.news(self.sink).clear()
        await self._follow_clock()
        now = self.clock.now().timestamp()
        due, next_due = await self.outbox.due(
            self.sink,
            now=now,
            limit=4 * self.policy.slots,
            but=self._flying.keys() | self._landed.keys(),
        )
        self._ready = due
        if not self._stop.is_set():
            is_idle = not due and not self._flying
            is_alone = is_idle and next_due is None
            self._begin_heartbeat(attempts, is_idle=is_idle, is_alone=is_alone)
            self._begin(attempts)
        return self._wait(now, next_due)

    def _begin(self, attempts: asyncio.TaskGroup) -> None:
        """Begin what may begin of what is due, urgent first; the rest waits."""
        now = self.clock.now().timestamp()
        ready, waiting = deque(self._ready), list[Delivery]()
        # An earlier step may be under way although it is no longer pending, or a
        # later one although a person has asked for an earlier one again.
        busy = {d.key for d in self._flying.values() if d.key is not None}
        while ready:
            delivery = ready.popleft()
            if delivery.id in self._flying or delivery.id in self._landed:
                continue
            if delivery.key in busy:
                waiting.append(delivery)
                continue
            if self._may_begin(delivery, now):
                self._flying[delivery.id] = delivery
                self.pace.take(self.clock.monotonic())
                attempt = self._attempt(delivery, self._standing.refusals, attempts)
                attempts.create_task(attempt, name=f"{self.name}:{delivery.id}")
                continue
            waiting.append(delivery)
            if not is_urgent(delivery, now):
                break  # nor may any behind it
        self._ready = [*waiting, *ready]

    async def _follow_clock(self) -> None:
        """Keep due times right when the wall clock was set back.

        One that was set forward only makes things due sooner; and what was put into
        the outbox after it must not be moved into the future.
        """
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        if self._offset is None:  # whatever the clock was in an earlier life
            beyond = now + self.policy.backoff.max_backoff
            await self.outbox.hasten(self.sink, beyond=beyond, now=now)
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.bring_forward(self.sink, back)
        self._offset = offset

    def _begin_heartbeat(
        self, attempts: asyncio.TaskGroup, *, is_idle: bool, is_alone: bool
    ) -> None:
        standing = self._standing
        if self._heartbeat is None or len(self._flying) >= self.policy.slots:
            return
        opens_at = max(standing.hold_until, self.pace.opens_at)
        if 0 in self._flying or self.clock.monotonic() < opens_at:
            return
        is_first = is_alone if standing.last_error is not None else is_idle
        is_scarce = standing.last_error is not None or self.pace.rate is not None
        if is_scarce and not is_first:
            return  # what is stored comes first
        self._flying[0], self._heartbeat = self._heartbeat, None
        self.pace.take(self.clock.monotonic())
        attempts.create_task(self._beat(self._flying[0]), name=f"{self.name}:heartbeat")

    async def _beat(self, heartbeat: Delivery) -> None:
        try:
            if (error := await self._try(heartbeat)) is None:
                self._recovered()
            else:
                log.warning(
                    "heartbeat not delivered",
                    extra={"sink": self.sink, "fault": str(error)},
                )
        finally:
            del self._flying[0]
        self.outbox.news(self.sink).set()

    def _may_begin(self, delivery: Delivery, now: float) -> bool:
        monotonic = self.clock.monotonic()
        if len(self._flying) > self.policy.slots or monotonic < self.pace.opens_at:
            return False
        if is_urgent(delivery, now) and (
            not self._standing.is_parked or delivery.attempts < _URGENT_ATTEMPTS
        ):
            return True
        ordinary = sum(not is_urgent(d, now) for d in self._flying.values())
        if ordinary >= self.policy.slots or monotonic < self._standing.hold_until:
            return False
        if not self._standing.is_parked:
            return True
        return not self._flying and monotonic >= self._standing.probe_at

    def _wait(self, now: float, next_due: float | None) -> float:
        """Return when to look again: an attempt that ends is news by itself."""
        monotonic, standing = self.clock.monotonic(), self._standing
        marks = [
            standing.hold_until,
            standing.probe_at * standing.is_parked,
            self.pace.opens_at * bool(self._ready or self._heartbeat),
        ]
        waits = [mark - monotonic for mark in marks if mark > monotonic]
        if next_due is not None:
            waits.append(next_due - now)
        return min([*waits, _LONGEST_WAIT])

    async def _attempt(
        self, delivery: Delivery, refusals: int, others: asyncio.TaskGroup | None
    ) -> None:
        """Make an attempt, and draw the conclusions.

        Args:
            delivery: what is tried.
            refusals: how many there had been when it began.
            others: where the next one begins at once; None = nothing more begins.
        """
        try:
            if (error := await self._try(delivery)) is None:
                self._succeeded(delivery)
            else:
                await self._failed(delivery, error, refusals)
        finally:
            del self._flying[delivery.id]
        if others is not None and not self._stop.is_set():
            self._begin(others)
        is_early = self.clock.monotonic() < self.pace.opens_at  # nobody looks again
        if error is not None or not self._ready or is_early:
            self.outbox.news(self.sink).set()
        if error is None and len(self._landed) == 1:
            await self._note_landed()

    async def _note_landed(self) -> None:
        """Note what the sink has taken, many at a time, while others already fly."""
        while self._landed:
            landed = tuple(self._landed.values())
            now = self.clock.now().timestamp()
            try:
                is_followed = await self.outbox.delivered(*landed, now=now)
            finally:
                for delivery in landed:
                    del self._landed[delivery.id]
            # What follows them is due now, and may be more urgent than all that is
            # ready; beyond that there is no need to look each time.
            if is_followed or len(self._ready) < self.policy.slots:
                self.outbox.news(self.sink).set()

    async def _try(self, delivery: Delivery) -> DeliveryError | None:
        """Make one attempt; return what it failed with."""
        try:
            async with asyncio.timeout(_ATTEMPT_LIMIT):
                await self.deliver(delivery)
        except DeliveryError as error:
            return error
        except TimeoutError:
            text = f"no answer within {_ATTEMPT_LIMIT:.0f} s"
            return TransientDeliveryError(text, Reason.TIMEOUT)
        except Exception as error:
            log.exception("sink failed unforeseen", extra=_fields(delivery))
            text = f"unforeseen: {type(error).__name__}"
            return TransientDeliveryError(text, Reason.UNFORESEEN)
        return None

    def _recovered(self) -> None:
        """Forget all trouble but the time that the sink has asked for."""
        if self._standing.is_parked:
            log.info("sink takes deliveries again", extra={"sink": self.sink})
        self._standing = _Standing(hold_until=self._standing.hold_until)
        self.metrics.parked.labels(self.sink).set(0)

    def _succeeded(self, delivery: Delivery) -> None:
        now = self.clock.now().timestamp()
        self._landed[delivery.id] = delivery
        if self._standing.is_troubled:
            self._recovered()
        self._delivered.inc()
        self._seconds.observe(max(0.0, now - delivery.created))
        if delivery.not_before is not None and now > delivery.not_before:
            self.metrics.late.labels(self.sink).inc()
        log.info("delivered", extra=_fields(delivery))

    async def _failed(
        self, delivery: Delivery, error: DeliveryError, refusals: int
    ) -> None:
        self._judge(error, refusals)
        retry_after = min(getattr(error, "retry_after", None) or 0.0, _LONGEST_WISH)
        if retry_after:
            until = self.clock.monotonic() + retry_after
            self._standing.hold_until = max(self._standing.hold_until, until)
        if (reason := self._is_hopeless(delivery, error)) is not None:
            await self._bury(delivery, error, reason)
            return
        now = self.clock.now().timestamp()
        delay = max(self._delay(delivery, now, retry_after), _LEAST_DELAY)
        await self.outbox.postpone(
            delivery, due=now + delay, error=str(error), reason=error.reason
        )
        self.metrics.deliveries.labels(self.sink, "postponed").inc()
        log.warning(
            "delivery postponed",
            extra={
                **_fields(delivery),
                "fault": str(error),
                "seconds": round(delay, 3),
            },
        )

    def _judge(self, error: DeliveryError, refusals: int) -> None:
        """Draw conclusions on the sink.

        Args:
            error: what an attempt failed with.
            refusals: how many there had been when it began: those of attempts that
                were made at the same time say the same thing, and count as one.
        """
        standing = self._standing
        standing.last_error = str(error)
        if not isinstance(error, RefusedDeliveryError):
            standing.refusals = 0
            if standing.is_parked and isinstance(error, TransientDeliveryError):
                self._probe_later()
            return
        standing.refusals += standing.refusals == refusals
        if standing.refusals < _PARK_AFTER and not standing.is_parked:
            return
        self._probe_later()
        if not standing.is_parked:
            standing.is_parked = True
            log.error("sink parked", extra={"sink": self.sink, "fault": str(error)})
        self.metrics.parked.labels(self.sink).set(1)

    def _probe_later(self) -> None:
        """Wait for ``max_backoff``, and twice as long each time, to five minutes."""
        doubled = self.policy.backoff.max_backoff * 2.0 ** min(
            self._standing.probes, 20
        )
        spread = 1 + _PROBE_SPREAD * self.chance()  # other VMs probe too
        wait = min(doubled * spread, _LONGEST_PROBE)
        self._standing.probes += 1
        self._standing.probe_at = self.clock.monotonic() + wait

    def _is_hopeless(self, delivery: Delivery, error: DeliveryError) -> Reason | None:
        if isinstance(error, PermanentDeliveryError):
            return error.reason
        attempts = delivery.attempts + 1
        if error.reason is Reason.UNFORESEEN and attempts >= _UNFORESEEN_ATTEMPTS:
            return error.reason
        if isinstance(error, RefusedDeliveryError):
            return None  # waiting for a person does not count as age
        age = self.clock.now().timestamp() - delivery.created
        is_old = age > self.policy.max_age and attempts >= _LEAST_ATTEMPTS
        return Reason.EXPIRED if is_old else None

    def _delay(self, delivery: Delivery, now: float, retry_after: float) -> float:
        """Return the wait before the next attempt; short of a notice that runs out."""
        backoff = self.policy.backoff
        attempt, unit = delivery.attempts + 1, self.chance()
        if not is_urgent(delivery, now):
            delay = backoff.delay(attempt, unit=unit, retry_after=retry_after)
            ahead = (delivery.urgent_from or 0.0) - now
            return min(delay, ahead) if ahead > 0 else delay
        left = (delivery.urgent_until or now) - now
        delay = min(backoff.delay(attempt, unit=unit), left / 4)
        is_granted = retry_after < left * 3 / 4 or attempt >= _URGENT_ATTEMPTS
        return max(delay, retry_after) if is_granted else delay

    async def _bury(
        self, delivery: Delivery, error: DeliveryError, reason: Reason
    ) -> None:
        now = self.clock.now().timestamp()
        await self.outbox.bury(delivery, now=now, error=str(error), reason=reason)
        self.metrics.deliveries.labels(self.sink, "dead").inc()
        log.error(
            "dead letter",
            extra={**_fields(delivery), "fault": str(error), "reason": reason.value},
        )


def is_urgent(delivery: Delivery, now: float) -> bool:
    """Whether a delivery goes before everything else now."""
    until, since = delivery.urgent_until, delivery.urgent_from
    return until is not None and since is not None and since <= now < until


def _fields(delivery: Delivery) -> dict[str, object]:
    return {
        "sink": delivery.sink,
        "type": delivery.type,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "attempt": delivery.attempts + 1,
    }
