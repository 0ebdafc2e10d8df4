"""The relay of one sink: a due delivery → one attempt → settle.

A retry is data: a failed delivery is a row that is due later. So it survives a restart
and can be listed. Deliveries of the same EventId are made in order, since the outbox
offers only the first of them. Other EventIds do not wait for them. One attempt slot is
kept for urgent deliveries. ``bridge.pipeline.circuit`` decides what the sink's answers
mean for the other deliveries.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError
from bridge.foundation.rate_limit import Pace
from bridge.foundation.workers import waking
from bridge.outbox.delivery import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import Deliver, Gather, Trying
from bridge.pipeline.circuit import Circuit, SinkState
from bridge.pipeline.due_times import DueTimes
from bridge.pipeline.in_flight import Attempt, Attempts
from bridge.pipeline.launcher import HeartbeatSlot, Launcher
from bridge.pipeline.policy import RelayPolicy
from bridge.pipeline.settlement import Settling
from bridge.telemetry.metrics import Metrics

_LONGEST_WAIT = 60.0
_PLENTY = 16  # ready deliveries: with at least so many there is a backlog
_MOST_RELEASED = 10_000  # deliveries per transaction, so that each one is short


@dataclass(slots=True)
class Relay:
    """Delivers the deliveries of one sink.

    It is wide because nine of its fields are given at the start, and the others are its
    state.

    Attributes:
        sink: the sink's name.
        deliver: makes one attempt; raises DeliveryError or NotSentError.
        chance: returns a random number in [0, 1) at each call.
        pace: limits how often an attempt may begin; holds for urgent ones, too.
        repeats: whether a second attempt at a delivery may begin while the first hangs.
    """

    sink: str
    deliver: Deliver
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    repeats: bool = False
    _trying: Trying = field(init=False)
    _launcher: Launcher = field(init=False)
    _heartbeat: HeartbeatSlot = field(init=False)
    _is_more_due: bool = False  # than were read, as far as known
    _is_plenty: bool = False  # many were due at the last look, none was urgent
    _goes_on: bool = False  # whether a call of ``_go_on`` is scheduled
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        sink, outbox, clock, policy = self.sink, self.outbox, self.clock, self.policy
        circuit, longest = Circuit(policy.backoff), policy.backoff.max_backoff
        self._trying = Trying(
            deliver=self.deliver,
            policy=policy,
            circuit=circuit,
            attempts=Attempts(policy.slots, circuit, self.pace, clock, self.chance),
            settling=Settling(sink, outbox, clock, self.metrics),
            times=DueTimes(sink, outbox, clock, circuit, longest),
        )
        self._launcher = Launcher(self._trying, clock)
        self._heartbeat = HeartbeatSlot(self._trying, self.pace, clock, policy.slots)

    @property
    def name(self) -> str:
        """The name of the worker."""
        return f"relay:{self.sink}"

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        return self._trying.circuit.state

    @property
    def last_error(self) -> str | None:
        """The error of the last attempt; None after a success."""
        return self._trying.circuit.last_error

    @property
    def obstacle(self) -> str | None:
        """Why the sink cannot work at all; None if it can. See ``ActingRelay``."""
        return None

    def may_send(self, delivery: Delivery) -> bool:
        """Return whether a delivery whose attempt has begun may still be sent now.

        An attempt that waits before it sends calls this. If the result is False, the
        attempt raises NotSentError.
        """
        now = self.clock.now().timestamp()
        return self._trying.attempts.may_go_on(delivery, now)

    def gather_with(self, gather: Gather | None) -> None:
        """Let attempts share requests from now on; None = one request for each."""
        self._trying.gather = gather

    def offer(self, heartbeat: Delivery) -> None:
        """Replace the waiting heartbeat by a newer one; heartbeats are not stored."""
        self._heartbeat.waiting = heartbeat
        self.outbox.wakeups.of(self.sink).set()

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self._trying.resume()
        self.outbox.wakeups.of(self.sink).set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set; then finish the attempts in flight."""
        news, self._stop = self.outbox.wakeups.of(self.sink), stop
        async with self._running:
            async with waking(stop, news), asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    wait = await self.step(tasks)
                    await self.clock.wait(news, wait)
            await self._trying.times.keep(is_last=True)

    async def last_call(self, cloud_event_id: str, since: float) -> None:
        """Make one attempt after the end of ``run``: for the event bridge.stopped.

        Args:
            cloud_event_id: the id of the event.
            since: seconds since the epoch; the event was committed after that.
        """
        async with self._running:
            await self._trying.times.follow()
            outbox, sink = self.outbox, self.sink
            for delivery in await outbox.deliveries.of_cloud_event(
                sink, cloud_event_id, since=since
            ):
                await self._attempt_once(self._trying.attempts.begin(delivery), None)

    async def step(self, tasks: asyncio.TaskGroup) -> float:
        """Begin every attempt that may begin now.

        Returns:
            Seconds after which to call this again, if nothing happens before.
        """
        trying = self._trying
        self.outbox.wakeups.of(self.sink).clear()
        await trying.times.follow()
        now = self.clock.now().timestamp()
        if trying.circuit.takes_release(self.clock.monotonic()):
            count = await self.outbox.deliveries.release(
                self.sink, now=now, limit=_MOST_RELEASED
            )
            if count == _MOST_RELEASED:  # there may be more to release
                trying.circuit.owe_release()
        self._launcher.reads()
        due, next_due = await self.outbox.deliveries.due(
            self.sink, now=now, limit=self.policy.ahead, but=trying.under_way
        )
        self._is_more_due = len(due) >= self.policy.ahead
        self._is_plenty = len(due) >= _PLENTY and not (
            await self.outbox.deliveries.has_urgent(self.sink, now=now)
        )
        self._launcher.take(due)
        if not self._stop.is_set():
            is_idle = not due and not len(trying.attempts)
            is_alone = is_idle and next_due is None
            if beat := self._heartbeat.begin(is_idle=is_idle, is_alone=is_alone):
                tasks.create_task(
                    self._beat(beat, tasks), name=f"{self.name}:heartbeat"
                )
            self._start(self._launcher.begin(), tasks)
            await self._try_beside(tasks)
        trying.times.has_pending = bool(due) or next_due is not None
        await trying.times.keep()
        return self._wait(now, next_due)

    async def _try_beside(self, tasks: asyncio.TaskGroup) -> None:
        """Begin an extra attempt at an unreachable sink, if no other one can begin."""
        if not self._trying.attempts.is_one_wanted:
            return
        now = self.clock.now().timestamp()
        waiting = await self.outbox.deliveries.waiting_for_sink(
            self.sink, now=now, limit=self.policy.ahead, but=self._trying.under_way
        )
        if self._stop.is_set():
            return
        attempt = self._launcher.begin_beside(waiting, repeats=self.repeats)
        if attempt is not None:
            self._start([attempt], tasks)

    async def _beat(self, heartbeat: Attempt, tasks: asyncio.TaskGroup) -> None:
        await self._trying.beat(heartbeat, tasks)
        if heartbeat.is_void and self._heartbeat.waiting is None:
            self._heartbeat.waiting = heartbeat.delivery
        self.outbox.wakeups.of(self.sink).set()

    def _wait(self, now: float, next_due: float | None) -> float:
        """Return the seconds to wait; the end of an attempt ends the wait, too."""
        monotonic = self.clock.monotonic()
        marks = self._trying.circuit.marks(self._trying.attempts.oldest)
        if self._launcher.ready or self._heartbeat.waiting:
            marks.append(self.pace.opens_at)
        waits = [mark - monotonic for mark in marks if mark > monotonic]
        if next_due is not None:
            waits.append(next_due - now)
        return min([*waits, _LONGEST_WAIT])

    def _start(self, begun: list[Attempt], tasks: asyncio.TaskGroup) -> None:
        """Make attempts: each in a task, or as one event of a request."""
        gather = self._trying.gather
        for attempt in begun:
            if gather is None:
                name = f"{self.name}:{attempt.delivery.id}"
                tasks.create_task(self._attempt(attempt, tasks), name=name)
                continue
            attempt.answer = gather(attempt.delivery, tasks)
            attempt.answer.add_done_callback(partial(self._answered, attempt, tasks))

    def _answered(
        self, attempt: Attempt, tasks: asyncio.TaskGroup, _: "asyncio.Future[None]"
    ) -> None:
        """Settle an attempt that shared a request; then begin the next ones."""
        error, settling = self._trying.conclude(attempt), self._trying.settling
        if attempt.is_given_up:
            return
        if error is not None:
            tasks.create_task(self._postpone(attempt, error, tasks))
            return
        if attempt.is_void:
            self.outbox.wakeups.of(self.sink).set()
        elif settling.lands(has_time=self._has_time(attempt.delivery)):
            tasks.create_task(settling.record(self._noted), name=f"{self.name}:record")
        if not self._goes_on:  # one call for all attempts that end together
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on_together, tasks)

    async def _postpone(
        self, attempt: Attempt, error: DeliveryError, tasks: asyncio.TaskGroup
    ) -> None:
        await self._trying.postpone(attempt, error)
        self.outbox.wakeups.of(self.sink).set()
        self._start(self._go_on(), tasks)

    def _go_on_together(self, tasks: asyncio.TaskGroup) -> None:
        self._goes_on = False
        self._start(self._go_on(), tasks)

    async def _attempt(self, attempt: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make an attempt, and then those that may begin because it has ended.

        The first of these uses the same task: under a backlog, a new task for each
        delivery would cost a tenth of the attempt.
        """
        while True:
            begun = await self._attempt_once(attempt, tasks)
            if not begun:
                return
            if self._trying.gather is not None:  # the sink was opened again
                self._start(begun, tasks)
                return
            attempt, *others = begun
            self._start(others, tasks)

    async def _attempt_once(
        self, attempt: Attempt, tasks: asyncio.TaskGroup | None
    ) -> list[Attempt]:
        """Make an attempt and settle it.

        Args:
            attempt: the attempt to make.
            tasks: the group for the next attempts; None = begin no other attempt.

        Returns:
            The attempts that have begun since then. The caller makes each of them.
        """
        error, settling = await self._trying.make(attempt), self._trying.settling
        begun = [] if tasks is None else self._go_on()
        if error is not None or attempt.is_void:
            self.outbox.wakeups.of(self.sink).set()
            return begun
        has_time = tasks is not None and self._has_time(attempt.delivery)
        if not settling.lands(has_time=has_time):
            return begun
        if tasks is not None:  # the next attempts do not wait for the record
            self._start(begun, tasks)
        await settling.record(self._noted)
        return []

    def _go_on(self) -> list[Attempt]:
        """Begin the next attempts; wake the relay if it must read the outbox again.

        Returns:
            The attempts that have begun. The caller makes each of them.
        """
        begun = [] if self._stop.is_set() else self._launcher.begin()
        is_early = self.clock.monotonic() < self.pace.opens_at  # wait in ``step``
        ready = len(self._launcher.ready)
        is_low = self._is_more_due and ready < self.policy.enough
        if not ready or is_early or is_low:
            self._is_more_due = False  # until the next read
            self.outbox.wakeups.of(self.sink).set()
        return begun

    def _has_time(self, delivery: Delivery) -> bool:
        """Return whether the record of a success may wait for further successes.

        It may not if the process stops, if a later delivery of the same key may be
        urgent, or if few deliveries are ready.
        """
        if self._stop.is_set() or delivery.urgent_until is not None:
            return False
        is_much = len(self._launcher.ready) >= max(self.policy.slots, _PLENTY)
        return self._is_plenty and is_much

    def _noted(self, is_followed: bool) -> None:  # noqa: FBT001 - a callback
        """Read the outbox again after successes were recorded, if that may help.

        It helps if a later delivery of the same key is due now (it may be more urgent
        than the ready ones), or if few deliveries are ready.
        """
        if is_followed or len(self._launcher.ready) < self.policy.slots:
            self.outbox.wakeups.of(self.sink).set()
