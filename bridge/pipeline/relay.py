"""The relay of one sink: a due delivery → one attempt → settle.

    begin what is due, as far as slots, pace and circuit allow ◀── an attempt has ended,
      └──▶ wait until there is news, or for the next moment ──▶ ┘  an event is there

A retry is data: a failed delivery is a row that is due later. So it survives a restart
and can be listed. Deliveries of the same EventId are made in order, since the outbox
offers only the first of them. Other EventIds do not wait for them. One attempt slot is
kept for urgent deliveries. ``bridge.pipeline.circuit`` decides what the sink's answers
mean for the other deliveries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, OutboxError
from bridge.foundation.pace import Pace, Pause
from bridge.foundation.workers import waking
from bridge.outbox.records import Delivery, not_stored
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import (
    ATTEMPT_LIMIT,
    Attempt,
    Attempts,
    RelayPolicy,
    is_urgent,
)
from bridge.pipeline.circuit import Circuit, SinkState
from bridge.pipeline.settling import Probe, Settling
from bridge.telemetry.metrics import Metrics

Deliver = Callable[[Delivery], Awaitable[None]]
Gather = Callable[[Delivery, asyncio.TaskGroup], asyncio.Future[None]]

_LONGEST_WAIT = 60.0
_MOST_RELEASED = 10_000  # deliveries at once, so that each time is short
_MANY = 200  # due deliveries, to find one that may begin behind those that may not
_BACKLOG = 16  # deliveries that wait beside those under way


@dataclass(slots=True)
class Relay:
    """Delivers the deliveries of one sink: has what is due attempted, and settles it.

    Attributes:
        sink: the sink's name.
        deliver: makes one attempt; raises DeliveryError or NotSentError.
        chance: returns a random number in [0, 1) at each call.
        pace: limits how often an attempt may begin; holds for urgent ones, too.
        busy: the pause that all sinks of the same Service Bus namespace share.
        repeats: whether a second attempt at an urgent delivery may begin while the
            first hangs.
        gather: begins an attempt that may share a request, and returns the future of
            its result; None = one request for each attempt.
        remind: runs beside the deliveries; None = the other side needs no reminder.
        name: the name of the worker.
    """

    sink: str
    deliver: Deliver
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    busy: Pause = field(default_factory=Pause)
    repeats: bool = False
    name: str = field(init=False)
    gather: Gather | None = field(init=False, default=None)
    remind: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = field(
        init=False, default=None
    )
    _circuit: Circuit = field(init=False)
    _attempts: Attempts = field(init=False)
    _settling: Settling = field(init=False)
    _wake: asyncio.Event = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_probing: bool = False
    # Only the newest heartbeat waits, and one that fails is not tried again: it says
    # that the bridge is alive now.
    _beat: Delivery | None = None
    _beating: Attempt | None = None  # the attempt at an earlier one

    def __post_init__(self) -> None:
        sink, outbox, clock, policy = self.sink, self.outbox, self.clock, self.policy
        self.name = f"relay:{sink}"
        self._circuit = circuit = Circuit(policy.backoff, self.busy)
        self._attempts = attempts = Attempts(
            policy.slots, policy.most_slots, circuit, self.pace, clock, self.chance
        )
        self._settling = Settling(
            sink, outbox, clock, self.metrics, policy, circuit, attempts
        )
        self._wake = outbox.wakeups.of(sink)

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        return self._circuit.state

    @property
    def last_error(self) -> str | None:
        """The error of the last attempt; None after a success."""
        return self._circuit.last_error

    @property
    def trouble(self) -> str | None:
        """Why deliveries fail now, with the last error; None if they do not."""
        circuit = self._circuit
        if (error := circuit.last_error) is None:
            return None
        if circuit.is_parked:
            cure = f"once that is mended, sebridge outbox retry --sink {self.sink}"
            return f"parked ({error}): {cure}"
        what = "failing" if circuit.was_reached else "nothing delivered since the start"
        return f"{what} ({error})"

    @property
    def obstacle(self) -> str | None:
        """Why the sink cannot work at all; None if it can. See ``ActingRelay``."""
        return None

    @property
    def is_acting(self) -> bool:
        """Whether an action runs, which a stop would cut short. See ``ActingRelay``."""
        return False

    def may_send(self, delivery: Delivery) -> bool:
        """Return whether a delivery whose attempt has begun may still be sent now.

        An attempt that waits before it sends calls this. If the result is False, the
        attempt raises NotSentError.
        """
        return self._attempts.may_go_on(delivery)

    def probe_with(self, probe: Probe) -> None:
        """Ask the address of a silent sink with this."""
        self._settling.probe = probe

    def offer(self, heartbeat: CloudEvent) -> None:
        """Replace the waiting heartbeat by a newer one; heartbeats are not stored."""
        now, body = self.clock.now().timestamp(), heartbeat.to_json()
        self._beat = not_stored(self.sink, heartbeat.id, heartbeat.type, body, now)
        self._wake.set()

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self._settling.resume()
        self._wake.set()

    # -- the loop ------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set; then finish the attempts in flight."""
        self._stop = stop
        async with self._running:
            async with waking(stop, self._wake), asyncio.TaskGroup() as tasks:
                if self.remind is not None:
                    tasks.create_task(self.remind(stop), name=f"{self.name} reminds")
                while not stop.is_set():
                    wait = await self.step(tasks)
                    await self.clock.wait(self._wake, wait)
                self._settling.record()
            self._settling.keep()

    async def last_call(self, cloud_event_id: str, since: float) -> None:
        """Make one attempt after the end of ``run``: for the event bridge.stopped.

        Args:
            cloud_event_id: the id of the event.
            since: seconds since the epoch; the event was committed after that.
        """
        async with self._running:
            await self._settling.follow()
            found = await self.outbox.deliveries.of_cloud_event(
                self.sink, cloud_event_id, since=since
            )
            async with asyncio.TaskGroup() as tasks:
                for delivery in found:
                    self._make(self._attempts.begin(delivery), tasks, is_alone=True)
            self._settling.record()

    async def step(self, tasks: asyncio.TaskGroup) -> float:
        """Begin every attempt that may begin now.

        Returns:
            Seconds after which to call this again, if nothing happens before.
        """
        self._wake.clear()
        circuit, settling = self._circuit, self._settling
        await settling.follow()
        now = self.clock.now().timestamp()
        if circuit.is_release_owed and circuit.takes_release(self.clock.monotonic()):
            await self._release(now)
        if settling.landed and not self._attempts.was_full:
            settling.record()
        next_due = await self._begin_due(tasks, now)
        if settling.landed and not await self._has_time(now):
            settling.record()
            has_urgent = self.outbox.deliveries.has_urgent
            if not self._attempts.is_full or await has_urgent(self.sink, now=now):
                next_due = await self._begin_due(tasks, now)  # what has followed them
        if self._attempts.looked() and not self._stop.is_set():
            await self._begin_beside(tasks, now)
        settling.has_pending = bool(self._attempts.at) or next_due is not None
        return self._wait(now, next_due)

    async def _has_time(self, now: float) -> bool:
        """Return whether to wait for further successes before these are recorded.

        That is so only during a backlog: others use the slots meanwhile, many more
        wait, and none of them is urgent.
        """
        deliveries, settling = self.outbox.deliveries, self._settling
        if not self._attempts.is_full or settling.is_overdue:
            return False
        more = deliveries.waiting(self.sink) - len(self._under_way)
        return more >= _BACKLOG and not await deliveries.has_urgent(self.sink, now=now)

    async def _release(self, now: float) -> None:
        """Make due what failed because of the sink, which is back."""
        count = await self.outbox.deliveries.release(
            self.sink, now=now, limit=_MOST_RELEASED
        )
        if count == _MOST_RELEASED:  # there may be more to release
            self._circuit.is_release_owed = True

    async def _begin_due(self, tasks: asyncio.TaskGroup, now: float) -> float | None:
        """Begin attempts at what is due, as far as slots, pace and circuit allow.

        Returns:
            When the next delivery will be due, in seconds since the epoch.
        """
        limit = max(self._attempts.slots + 1 - self._attempts.taken, 0)
        found, next_due = await self._due(now, limit)
        if self._stop.is_set():
            return next_due
        if self._beat is not None:
            is_idle = not (found or self._under_way)
            if self._may_beat(is_idle=is_idle, is_alone=is_idle and next_due is None):
                self._beating, self._beat = self._attempts.begin(self._beat), None
                self._make(self._beating, tasks)
        if self._begin(found, tasks, now) and len(found) == limit:
            found, next_due = await self._due(now, _MANY)
            self._begin(found, tasks, now)
        return next_due

    def _may_beat(self, *, is_idle: bool, is_alone: bool) -> bool:
        """Return whether a heartbeat may go: no stored delivery comes first.

        Args:
            is_idle: whether nothing is due and nothing is in flight.
            is_alone: whether, in addition, no delivery is due later.
        """
        attempts, circuit = self._attempts, self._circuit
        opens_at = max(circuit.hold_until, circuit.opens_at, self.pace.opens_at)
        is_in_trouble = circuit.last_error is not None
        is_first = is_alone if is_in_trouble else is_idle
        return (
            self._beating is None
            and attempts.taken < attempts.slots
            and self.clock.monotonic() >= opens_at
            and (is_first or not (is_in_trouble or self.pace.rate is not None))
        )

    async def _due(self, now: float, limit: int) -> tuple[list[Delivery], float | None]:
        return await self.outbox.deliveries.due(
            self.sink, now=now, limit=limit, but=self._under_way
        )

    @property
    def _under_way(self) -> set[int]:
        """Ids of deliveries in flight, or delivered but not yet recorded as such."""
        return self._attempts.at.keys() | self._settling.landed.keys()

    def _begin(
        self, found: Iterable[Delivery], tasks: asyncio.TaskGroup, now: float
    ) -> bool:
        """Begin attempts at deliveries, the urgent ones of which are first.

        Returns:
            Whether some may not begin, though others behind them may.
        """
        attempts, is_any_left = self._attempts, False
        for delivery in found:
            if delivery.key in attempts.keys:
                is_any_left = True
            elif attempts.may_begin(delivery, now):
                self._make(attempts.begin(delivery), tasks)
            elif is_urgent(delivery, now):
                is_any_left = True
            else:
                return False
        return is_any_left

    async def _begin_beside(self, tasks: asyncio.TaskGroup, now: float) -> None:
        """Begin an extra attempt at an unreachable sink, if no other one can begin.

        The address of a silent sink is asked as well: an event is not sent again while
        the sink may be working on it.
        """
        attempts, circuit = self._attempts, self._circuit
        monotonic, probe = self.clock.monotonic(), self._settling.probe
        is_silent = circuit.is_silent(monotonic, attempts.oldest)
        if is_silent and probe is not None and not self._is_probing:
            self._is_probing = True
            circuit.began(monotonic, self.chance())
            tasks.create_task(self._probe(probe), name=f"{self.name}:probe")
        due, _ = await self._due(now, _MANY)
        waiting = await self.outbox.deliveries.waiting_for_sink(
            self.sink, now=now, limit=_MANY, but=self._under_way
        )
        if self._stop.is_set():
            return
        free = (one for one in (*due, *waiting) if one.key not in attempts.keys)
        if (delivery := next(free, None)) is not None:
            self._make(attempts.begin(delivery, is_beside=True), tasks)
        elif self.repeats and circuit.is_unreachable:
            hanging = attempts.hanging(now)
            if hanging is not None:
                second = attempts.begin(hanging, is_beside=True, is_second=True)
                self._make(second, tasks)

    async def _probe(self, probe: Probe) -> None:
        """Ask the address of the sink; if it is back, send what hangs or waits."""
        began = self.clock.monotonic()
        try:
            await probe()
        except DeliveryError:
            self._circuit.probed(is_there=False)
            return
        finally:
            self._is_probing = False
        if self._circuit.probed(is_there=True):
            self._attempts.cut_left_behind(began)
            self._wake.set()

    def _wait(self, now: float, next_due: float | None) -> float:
        """Return the seconds to wait; the end of an attempt ends the wait, too."""
        monotonic = self.clock.monotonic()
        marks = self._circuit.marks(self._attempts.oldest)
        marks.append(self.pace.opens_at)
        if self._settling.landed:
            marks.append(self._settling.record_at)
        wait = _LONGEST_WAIT if next_due is None else min(next_due - now, _LONGEST_WAIT)
        for mark in marks:
            if mark > monotonic:
                wait = min(wait, mark - monotonic)
        return wait

    # -- an attempt ----------------------------------------------------------

    def _make(
        self, attempt: Attempt, tasks: asyncio.TaskGroup, *, is_alone: bool = False
    ) -> None:
        """Make an attempt: in a task, or as one event of a request."""
        delivery = attempt.delivery
        answer: asyncio.Future[Any]
        if self.gather is None or is_alone:
            name = f"{self.name}:{delivery.id}"
            answer = tasks.create_task(self._sent(delivery), name=name)
        else:
            answer = self.gather(delivery, tasks)
        attempt.answer = answer
        answer.add_done_callback(partial(self._answered, attempt))

    async def _sent(self, delivery: Delivery) -> Exception | None:
        """Make one attempt at a delivery alone; return its error."""
        try:
            async with asyncio.timeout(ATTEMPT_LIMIT):
                await self.deliver(delivery)
        except Exception as error:  # noqa: BLE001 - the result of the attempt
            return error
        return None

    def _answered(self, attempt: Attempt, _: "asyncio.Future[Any]") -> None:
        """Settle an attempt, and let the loop begin the next ones."""
        with suppress(OutboxError):  # its thread has died, so the process ends
            try:
                if attempt is self._beating:
                    self._settling.settle_heartbeat(attempt)
                    self._beating = None
                    if attempt.is_void and self._beat is None:
                        self._beat = attempt.delivery  # it was not sent
                else:
                    self._settling.settle(attempt)
            finally:
                self._attempts.end(attempt)
            if self._stop.is_set():
                self._settling.record()
        self._wake.set()
