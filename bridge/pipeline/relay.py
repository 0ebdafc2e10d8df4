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

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError
from bridge.foundation.rate_limit import Pace, Pause
from bridge.foundation.workers import waking
from bridge.outbox.records import Delivery, not_stored
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import (
    Deliver,
    DueTimes,
    Gather,
    Probe,
    Settling,
    Trying,
)
from bridge.pipeline.attempt_loop import PLENTY, AttemptLoop, Launcher
from bridge.pipeline.circuit import Circuit, SinkState
from bridge.pipeline.in_flight import Attempt, Attempts
from bridge.pipeline.policy import RelayPolicy
from bridge.telemetry.metrics import Metrics

# -- The heartbeats of one relay: the only deliveries that are not stored --------------
#
# A heartbeat says that the bridge is alive now. So only the newest one waits, and a
# heartbeat that fails is not tried again.


class HeartbeatSlot(Struct):
    """Holds the latest heartbeat until no stored delivery is more important.

    Attributes:
        sink: the sink's name.
        waiting: the heartbeat; None after its attempt has begun.
    """

    sink: str
    trying: Trying
    pace: Pace
    clock: Clock
    waiting: Delivery | None = None
    _is_in_flight: bool = False

    def offer(self, heartbeat: CloudEvent) -> None:
        """Replace the waiting heartbeat by a newer one."""
        now = self.clock.now().timestamp()
        self.waiting = not_stored(
            self.sink, heartbeat.id, heartbeat.type, heartbeat.to_json(), now
        )

    def begin(self, *, is_idle: bool, is_alone: bool) -> Attempt | None:
        """Begin the attempt at the heartbeat, unless a stored delivery comes first.

        Args:
            is_idle: whether nothing is due and nothing is in flight.
            is_alone: whether, in addition, no delivery is due later.

        Returns:
            The attempt, which the caller passes to ``make``; None if none has begun.
        """
        attempts, circuit = self.trying.attempts, self.trying.circuit
        if self.waiting is None or attempts.taken >= attempts.slots:
            return None
        opens_at = max(circuit.hold_until, circuit.opens_at, self.pace.opens_at)
        if self._is_in_flight or self.clock.monotonic() < opens_at:
            return None
        is_in_trouble = circuit.last_error is not None
        is_first = is_alone if is_in_trouble else is_idle
        if (is_in_trouble or self.pace.rate is not None) and not is_first:
            return None
        beat, self.waiting = attempts.begin(self.waiting), None
        self._is_in_flight = True
        return beat

    async def make(self, beat: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make the attempt; if it was not sent, it waits again."""
        try:
            await self.trying.beat(beat, tasks)
        finally:
            self._is_in_flight = False
        if beat.is_void and self.waiting is None:
            self.waiting = beat.delivery


# -- The relay of one sink: a due delivery → one attempt → settle ----------------------


_LONGEST_WAIT = 60.0
_MOST_RELEASED = 10_000  # deliveries per transaction, so that each one is short


@dataclass(slots=True)
class Relay:
    """Delivers the deliveries of one sink: reads what is due, and has it attempted.

    Attributes:
        sink: the sink's name.
        deliver: makes one attempt; raises DeliveryError or NotSentError.
        chance: returns a random number in [0, 1) at each call.
        pace: limits how often an attempt may begin; holds for urgent ones, too.
        busy: the pause that all sinks of the same Service Bus namespace share.
        repeats: whether a second attempt at an urgent delivery may begin while the
            first hangs.
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
    _loop: AttemptLoop = field(init=False)
    _heartbeat: HeartbeatSlot = field(init=False)
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_probing: bool = False

    def __post_init__(self) -> None:
        sink, outbox, clock, policy = self.sink, self.outbox, self.clock, self.policy
        circuit = Circuit(policy.backoff, self.busy)
        trying = Trying(
            deliver=self.deliver,
            policy=policy,
            circuit=circuit,
            attempts=Attempts(
                policy.slots, policy.most_slots, circuit, self.pace, clock, self.chance
            ),
            settling=Settling(sink, outbox, clock, self.metrics),
            times=DueTimes(sink, outbox, clock, circuit, policy.backoff.max_backoff),
        )
        self._loop = AttemptLoop(
            name=self.name,
            trying=trying,
            launcher=Launcher(trying, clock),
            pace=self.pace,
            clock=clock,
            wake=outbox.wakeups.of(sink),
        )
        self._heartbeat = HeartbeatSlot(sink, trying, self.pace, clock)

    @property
    def name(self) -> str:
        """The name of the worker."""
        return f"relay:{self.sink}"

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        return self._loop.trying.circuit.state

    @property
    def last_error(self) -> str | None:
        """The error of the last attempt; None after a success."""
        return self._loop.trying.circuit.last_error

    @property
    def trouble(self) -> str | None:
        """Why deliveries fail now, with the last error; None if they do not."""
        circuit = self._loop.trying.circuit
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

    def may_send(self, delivery: Delivery) -> bool:
        """Return whether a delivery whose attempt has begun may still be sent now.

        An attempt that waits before it sends calls this. If the result is False, the
        attempt raises NotSentError.
        """
        now = self.clock.now().timestamp()
        return self._loop.trying.attempts.may_go_on(delivery, now)

    def gather_with(self, gather: Gather | None) -> None:
        """Let attempts share requests from now on; None = one request for each."""
        self._loop.trying.gather = gather

    def probe_with(self, probe: Probe | None) -> None:
        """Ask the address of a silent sink with this; None = it cannot be asked."""
        self._loop.trying.probe = probe

    def offer(self, heartbeat: CloudEvent) -> None:
        """Replace the waiting heartbeat by a newer one; heartbeats are not stored."""
        self._heartbeat.offer(heartbeat)
        self._loop.wake.set()

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self._loop.trying.resume()
        self._loop.wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set; then finish the attempts in flight."""
        news, self._loop.stop = self._loop.wake, stop
        async with self._running:
            async with waking(stop, news), asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    wait = await self.step(tasks)
                    await self.clock.wait(news, wait)
            await self._loop.trying.times.keep(is_last=True)

    async def last_call(self, cloud_event_id: str, since: float) -> None:
        """Make one attempt after the end of ``run``: for the event bridge.stopped.

        Args:
            cloud_event_id: the id of the event.
            since: seconds since the epoch; the event was committed after that.
        """
        async with self._running:
            await self._loop.trying.times.follow()
            outbox, sink = self.outbox, self.sink
            for delivery in await outbox.deliveries.of_cloud_event(
                sink, cloud_event_id, since=since
            ):
                attempt = self._loop.trying.attempts.begin(delivery)
                await self._loop.make(attempt, None)

    async def step(self, tasks: asyncio.TaskGroup) -> float:
        """Begin every attempt that may begin now.

        Returns:
            Seconds after which to call this again, if nothing happens before.
        """
        loop, trying, deliveries = self._loop, self._loop.trying, self.outbox.deliveries
        loop.wake.clear()
        await trying.times.follow()
        now = self.clock.now().timestamp()
        if trying.circuit.takes_release(self.clock.monotonic()):
            count = await deliveries.release(self.sink, now=now, limit=_MOST_RELEASED)
            if count == _MOST_RELEASED:  # there may be more to release
                trying.circuit.owe_release()
        loop.launcher.begun.clear()
        due, next_due = await deliveries.due(
            self.sink, now=now, limit=self.policy.ahead, but=trying.under_way
        )
        is_plenty = len(due) >= PLENTY and not (
            await deliveries.has_urgent(self.sink, now=now)
        )
        loop.take(due, is_plenty=is_plenty)
        if not loop.stop.is_set():
            is_idle = not due and not len(trying.attempts)
            is_alone = is_idle and next_due is None
            if beat := self._heartbeat.begin(is_idle=is_idle, is_alone=is_alone):
                name = f"{self.name}:heartbeat"
                tasks.create_task(self._beat(beat, tasks), name=name)
            loop.start(loop.launcher.begin(), tasks)
            await self._try_beside(tasks)
        trying.times.has_pending = bool(due) or next_due is not None
        await trying.times.keep()
        return self._wait(now, next_due)

    async def _try_beside(self, tasks: asyncio.TaskGroup) -> None:
        """Begin an extra attempt at an unreachable sink, if no other one can begin.

        The address of a silent sink is asked as well: an event is not sent again while
        the sink may be working on it.
        """
        loop, attempts = self._loop, self._loop.trying.attempts
        if not attempts.is_one_wanted:
            return
        monotonic = self.clock.monotonic()
        is_silent = loop.trying.circuit.is_silent(monotonic, attempts.oldest)
        if is_silent and loop.trying.probe is not None and not self._is_probing:
            self._is_probing = True
            loop.trying.circuit.began(monotonic, self.chance())
            tasks.create_task(self._probe(loop.trying.probe), name=f"{self.name}:probe")
        now = self.clock.now().timestamp()
        waiting = await self.outbox.deliveries.waiting_for_sink(
            self.sink, now=now, limit=self.policy.ahead, but=loop.trying.under_way
        )
        if loop.stop.is_set():
            return
        attempt = loop.launcher.begin_beside(waiting, repeats=self.repeats)
        if attempt is not None:
            loop.start([attempt], tasks)

    async def _probe(self, probe: Probe) -> None:
        """Ask the address of the sink; if it is back, send what hangs or waits."""
        trying, began = self._loop.trying, self.clock.monotonic()
        try:
            await probe()
        except DeliveryError:
            trying.circuit.probed(is_there=False)
            return
        finally:
            self._is_probing = False
        if trying.circuit.probed(is_there=True):
            trying.attempts.cut_left_behind(began)
            self._loop.wake.set()

    async def _beat(self, heartbeat: Attempt, tasks: asyncio.TaskGroup) -> None:
        await self._heartbeat.make(heartbeat, tasks)
        self._loop.wake.set()

    def _wait(self, now: float, next_due: float | None) -> float:
        """Return the seconds to wait; the end of an attempt ends the wait, too."""
        monotonic = self.clock.monotonic()
        trying = self._loop.trying
        marks = trying.circuit.marks(trying.attempts.oldest)
        if self._loop.launcher.ready or self._heartbeat.waiting:
            marks.append(self.pace.opens_at)
        waits = [mark - monotonic for mark in marks if mark > monotonic]
        if next_due is not None:
            waits.append(next_due - now)
        return min([*waits, _LONGEST_WAIT])
