"""The relay: one per sink. A due delivery → one attempt → settle.

Retry is data: a failed delivery is a row that is due later, so it survives a
restart and can be listed. Order holds per EventId (the outbox offers heads only);
other EventIds are not held up, and one attempt slot is kept for urgent deliveries.
What the sink's answers mean for it, and for all that waits, is in
``bridge.pipeline.circuit``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock
from bridge.foundation.rate_limit import Pace
from bridge.foundation.workers import waking
from bridge.outbox.delivery import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import Deliver, Trying
from bridge.pipeline.circuit import Circuit, SinkState
from bridge.pipeline.due_times import DueTimes
from bridge.pipeline.in_flight import Attempt, Attempts
from bridge.pipeline.launcher import HeartbeatSlot, Launcher
from bridge.pipeline.policy import RelayPolicy
from bridge.pipeline.settlement import Settling
from bridge.telemetry.metrics import Metrics

_LONGEST_WAIT = 60.0
_MOST_RELEASED = 10_000  # deliveries at a time, so that nobody waits long


@dataclass(slots=True)
class Relay:
    """Delivers what the outbox holds for one sink.

    Nine fields say what it works with, and are passed in by whoever composes it; the
    rest is its state.

    Attributes:
        sink: the sink's name.
        deliver: makes one attempt; raises DeliveryError.
        chance: a random number in [0, 1) at each call.
        pace: how often an attempt may begin, an urgent one too.
        repeats: whether a delivery that hangs may be sent a second time beside it.
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
        self._launcher = Launcher(self.name, self._trying, clock, self._attempt)
        self._heartbeat = HeartbeatSlot(self._trying, self.pace, clock, policy.slots)

    @property
    def name(self) -> str:
        """How the worker is called."""
        return f"relay:{self.sink}"

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        return self._trying.circuit.state

    @property
    def last_error(self) -> str | None:
        """What the last attempt failed with; None after a success."""
        return self._trying.circuit.last_error

    @property
    def obstacle(self) -> str | None:
        """Why nothing at all can be done for the sink; None where something can."""
        return None

    def offer(self, heartbeat: Delivery) -> None:
        """Take a heartbeat in place of an older one; it is never stored."""
        self._heartbeat.waiting = heartbeat
        self.outbox.news(self.sink).set()

    def resume(self) -> None:
        """Forget all that keeps deliveries waiting: a person has asked for it."""
        self._trying.resume()
        self.outbox.news(self.sink).set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until asked to stop; attempts in flight are finished."""
        news, self._stop = self.outbox.news(self.sink), stop
        async with self._running:
            async with waking(stop, news), asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    wait = await self.step(tasks)
                    await self.clock.wait(news, wait)
            await self._trying.times.keep(is_last=True)

    async def last_call(self, cloud_event_id: str, since: float) -> None:
        """Try one event once, after the end of ``run``: that the bridge has stopped.

        Args:
            cloud_event_id: of the event.
            since: when it was committed at the earliest, in seconds since the epoch.
        """
        async with self._running:
            await self._trying.times.follow()
            outbox, sink = self.outbox, self.sink
            for delivery in await outbox.find(sink, cloud_event_id, since=since):
                attempt = self._trying.attempts.begin(delivery)
                await self._attempt(attempt, None)

    async def step(self, tasks: asyncio.TaskGroup) -> float:
        """Begin every attempt that may begin now.

        Returns:
            Seconds after which to look again, if nothing happens before.
        """
        trying = self._trying
        self.outbox.news(self.sink).clear()
        await trying.times.follow()
        now = self.clock.now().timestamp()
        if trying.circuit.takes_release(self.clock.monotonic()):
            count = await self.outbox.release(self.sink, now=now, limit=_MOST_RELEASED)
            if count == _MOST_RELEASED:  # there may be more that waits
                trying.circuit.owe_release()
        due, next_due = await self.outbox.due(
            self.sink, now=now, limit=4 * self.policy.slots, but=trying.under_way
        )
        self._launcher.ready = due
        if not self._stop.is_set():
            is_idle = not due and not len(trying.attempts)
            is_alone = is_idle and next_due is None
            if beat := self._heartbeat.begin(is_idle=is_idle, is_alone=is_alone):
                tasks.create_task(self._beat(beat), name=f"{self.name}:heartbeat")
            self._launcher.begin(tasks)
            await self._try_beside(tasks)
        trying.times.has_pending = bool(due) or next_due is not None
        await trying.times.keep()
        return self._wait(now, next_due)

    async def _try_beside(self, tasks: asyncio.TaskGroup) -> None:
        """Try a sink that cannot be reached, although nothing is due or all hangs."""
        if not self._trying.attempts.is_one_wanted:
            return
        now = self.clock.now().timestamp()
        waiting = await self.outbox.waiting_for(
            self.sink, now=now, limit=4 * self.policy.slots, but=self._trying.under_way
        )
        if not self._stop.is_set():
            self._launcher.begin_beside(tasks, waiting, repeats=self.repeats)

    async def _beat(self, heartbeat: Attempt) -> None:
        await self._trying.beat(heartbeat)
        self.outbox.news(self.sink).set()

    def _wait(self, now: float, next_due: float | None) -> float:
        """Return when to look again: an attempt that ends is news by itself."""
        monotonic = self.clock.monotonic()
        marks = self._trying.circuit.marks(self._trying.attempts.oldest)
        if self._launcher.ready or self._heartbeat.waiting:
            marks.append(self.pace.opens_at)
        waits = [mark - monotonic for mark in marks if mark > monotonic]
        if next_due is not None:
            waits.append(next_due - now)
        return min([*waits, _LONGEST_WAIT])

    async def _attempt(self, attempt: Attempt, tasks: asyncio.TaskGroup | None) -> None:
        """Make an attempt, and draw the conclusions.

        Args:
            attempt: at what.
            tasks: where the next one begins at once; None = nothing more begins.
        """
        error, settling = await self._trying.make(attempt), self._trying.settling
        if tasks is not None and not self._stop.is_set():
            self._launcher.begin(tasks)
        is_early = self.clock.monotonic() < self.pace.opens_at  # nobody looks again
        if error is not None or not self._launcher.ready or is_early:
            self.outbox.news(self.sink).set()
        has_landed = error is None and not attempt.is_void
        if has_landed and len(settling.landed) == 1:
            await settling.note_landed(self._noted)

    def _noted(self, is_followed: bool) -> None:  # noqa: FBT001 - a callback
        """Look again after a lot of deliveries was noted, if there may be need to.

        What follows them is due now, and may be more urgent than all that is ready;
        beyond that there is no need to look each time.
        """
        if is_followed or len(self._launcher.ready) < self.policy.slots:
            self.outbox.news(self.sink).set()
