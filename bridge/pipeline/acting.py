"""The relay of a sink that acts: transition due → may begin → one attempt → settle.

    pending ──Begin──▶ under way ──succeeded──▶ delivered
       │ ▲ └──Skip──▶ skipped  │ ├──failed for good──▶ dead
       └─┘ Wait                │ └──stopped: over, or changed──▶ skipped
         ◀──timed out, killed──┘

This relay differs from the other one: few actions run at a time, a later transition
replaces an earlier one, and the commit that settles a transition also publishes its
result, and records a success, which approvals may require. This module does not know
what an action does: see ``bridge.sinks.acting``.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from bridge.events.build import EventContext, from_bridge
from bridge.events.cloudevent import CloudEvent, rfc3339
from bridge.events.command_result import CommandResult, from_command
from bridge.events.data import BridgeData
from bridge.foundation.errors import Reason, TransientDeliveryError
from bridge.outbox.records import Delivery, DeliveryState, Success
from bridge.outbox.sink_state import Runs, Standing
from bridge.pipeline.attempt import is_urgent
from bridge.pipeline.circuit import SinkState
from bridge.pipeline.relay import Relay
from bridge.pipeline.settling import fields_of
from bridge.sinks.acting import Action, Actor, Ending, Fate, Skip, Step, Wait

log = logging.getLogger(__name__)

_RESTORE_REASON = "no event of this VM was there at the start"
_STATES: dict[Fate, DeliveryState] = {
    Fate.SUCCEEDED: "delivered",
    Fate.FAILED: "dead",
    Fate.SKIPPED: "skipped",
}
_LONGEST_WAIT = 60.0
_LOOK_EVERY = 1.0  # while an action runs, or the restore at the start is undecided
_MOST_AT_A_TIME = 2


@dataclass(slots=True, eq=False)
class Run:
    """One run of an action for a transition.

    Attributes:
        delivery: the delivery of the transition's event.
        step: the transition, as the actor sees it.
        appearance: how often the EventId had gone before; stored with a success.
        began: when the run began, in monotonic seconds.
        stop: set when the action must end.
        void: why the action must end; then its result does not count. None = it counts.
    """

    delivery: Delivery
    step: Step
    appearance: int
    began: float
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    void: str | None = None


@dataclass(slots=True, kw_only=True)
class ActingRelay(Relay):
    """Runs the actions for the deliveries of one sink that acts.

    Attributes:
        actor: decides and acts.
        event_context: prefix, source and VM of the events about results.
    """

    actor: Actor
    event_context: Callable[[], EventContext]
    _deliveries: Runs = field(init=False)
    _runs: list[Run] = field(default_factory=list)
    _ended: set[int] = field(default_factory=set)  # ended since ``pending`` was read
    _asked: dict[int, float] = field(default_factory=dict)  # id: when first seen
    _is_early: bool = False
    _is_start_decided: bool = False  # whether a restore is needed is known

    def __post_init__(self) -> None:
        Relay.__post_init__(self)  # super() does not work in a dataclass with slots
        self._deliveries = Runs(self.outbox, self.sink)

    @property
    def state(self) -> SinkState:
        """The state of the sink; early: all that waits has its time still to come."""
        return SinkState.EARLY if self._is_early else self._circuit.state

    @property
    def obstacle(self) -> str | None:
        """Why the sink cannot act, or not on some event; None if it can act."""
        return self.actor.obstacle or self.actor.unclear

    @property
    def is_acting(self) -> bool:
        """Whether an action runs, which a stop would cut short."""
        return bool(self._runs)

    def offer(self, heartbeat: CloudEvent) -> None:
        """Ignore a heartbeat: no action belongs to it."""

    async def step(self, tasks: asyncio.TaskGroup) -> float:
        """Begin, skip and stop actions where necessary; see ``Relay.step``."""
        self._wake.clear()
        await self._settling.follow()
        self._ended.clear()
        pending = await self._deliveries.pending(self.clock.now().timestamp())
        if not self._is_start_decided and self.outbox.state.knows_earlier_runs:
            await self._decide_at_start()
        first = self._first_of(pending)
        under_way = [run.delivery for run in self._runs]
        standings = await self._deliveries.standings([*first, *under_way])
        self._stop_what_is_void(standings)
        wait = await self._begin_or_skip(first, standings, tasks)
        asked = self._asked
        self._asked = {d.id: asked[d.id] for d in pending if d.id in asked}
        self._settling.has_pending = bool(pending)
        return wait

    async def _decide_at_start(self) -> None:
        """Add a delivery of a restore, if one is needed and none is pending."""
        is_wanted = self.actor.restores_at_start()
        self._is_start_decided = is_wanted is not None
        if not is_wanted:
            return
        await self.outbox.state.write({})  # the look may have added one: it is due then
        now = self.clock.now()
        pending = await self._deliveries.pending(now.timestamp())
        events = (CloudEvent.from_json(delivery.body) for delivery in pending)
        if all(self.actor.action(event) is not Action.RESTORE for event in events):
            context = self.event_context()
            data = BridgeData(
                observed_at=rfc3339(now),
                reporter=context.reporter,
                reason=_RESTORE_REASON,
            )
            started = from_bridge(context, "started", data)
            await self._deliveries.add(started.event, now=now.timestamp())

    def _first_of(self, pending: list[Delivery]) -> list[Delivery]:
        """Return the first delivery of each EventId, urgent ones first."""
        now, busy = self.clock.now().timestamp(), {run.step.key for run in self._runs}
        first: dict[str, Delivery] = {}
        for delivery in pending:
            if (key := delivery.key or "") not in busy:
                first.setdefault(key, delivery)
        return sorted(first.values(), key=lambda d: (not is_urgent(d, now), d.id))

    async def _begin_or_skip(
        self,
        first: list[Delivery],
        standings: dict[int, Standing],
        tasks: asyncio.TaskGroup,
    ) -> float:
        """Begin all actions that may begin, and then settle the skipped deliveries.

        Returns:
            Seconds after which to look again.
        """
        waits, skipped = [_LONGEST_WAIT], list[tuple[Run, Skip]]()
        self._is_early = bool(first) and not self._runs
        for delivery in first:
            if self._stop.is_set() or delivery.id in self._ended:
                continue  # the delivery has changed since it was read
            standing = standings[delivery.id]
            step = self._step_of(delivery, standing)
            verdict = self.actor.verdict(step)
            run = Run(delivery, step, standing.appearance, self.clock.monotonic())
            self._is_early &= isinstance(verdict, Wait) and verdict.is_early
            if isinstance(verdict, Skip):
                skipped.append((run, verdict))
            elif isinstance(verdict, Wait):
                waits.append(verdict.seconds)
            else:
                waits.append(self._begin_when_due(run, tasks))
        for run, verdict in skipped:
            reason = _with_last(verdict, run.delivery)
            await self._settle(run, Ending(fate=verdict.fate, reason=reason))
        if self._runs or not self._is_start_decided:
            waits.append(_LOOK_EVERY)
        return 0.0 if skipped else min(waits)

    def _begin_when_due(self, run: Run, tasks: asyncio.TaskGroup) -> float:
        """Begin a run if it is due and may begin; return the seconds to wait."""
        left = run.delivery.due - self.clock.now().timestamp()
        closed = self.pace.opens_at - self.clock.monotonic()
        if left > 0 or closed > 0:
            return max(left, closed)
        is_restore = self.actor.action(run.step.event) is Action.RESTORE
        if is_restore and not self.outbox.state.knows_earlier_runs:
            return _LONGEST_WAIT
        if self._may_begin(run.step):
            self._runs.append(run)
            self.pace.take(run.began)
            name = f"{self.name}:{run.delivery.id}"
            tasks.create_task(self._act(run), name=name)
        return _LONGEST_WAIT  # the end of the run wakes the relay

    def _step_of(self, delivery: Delivery, standing: Standing) -> Step:
        now, success = self.clock.monotonic(), standing.success
        return Step(
            event=CloudEvent.from_json(delivery.body),
            key=delivery.key or "",
            attempts=delivery.attempts,
            newer=_newer(standing),
            asked=self._asked.setdefault(delivery.id, now),
            done=None if success is None else success.content,
            older=standing.older,
        )

    def _may_begin(self, step: Step) -> bool:
        left = self.actor.limit - self.clock.monotonic()
        return len(self._runs) < _MOST_AT_A_TIME and all(
            self.actor.may_join(step, run.step, run.began + left) for run in self._runs
        )

    def _stop_what_is_void(self, standings: dict[int, Standing]) -> None:
        for run in self._runs:
            standing = standings.get(run.delivery.id)
            if standing is None:
                continue  # the run began after the standings were read
            run.step = replace(run.step, newer=_newer(standing))
            reason = self.actor.void(run.step)
            if reason is not None and run.void is None:
                run.void = reason
                run.stop.set()

    async def _act(self, run: Run) -> None:
        """Run the action for a transition, and settle it."""
        action = self.actor.action(run.step.event)
        extra = {**fields_of(run.delivery), "action": action.value}
        log.info("command begins", extra=extra)
        try:
            if action is Action.RESTORE or run.step.done is not None:
                await self._deliveries.void(run.step.key)  # it counts no more
            ending = await self._attempted(run)
            self._stop_what_is_void(await self._deliveries.standings([run.delivery]))
            await self._conclude(run, ending)
        finally:
            self._runs.remove(run)
            self._ended.add(run.delivery.id)
            self._wake.set()

    async def _attempted(self, run: Run) -> Ending:
        try:
            async with asyncio.timeout(self.actor.limit):
                return await self.actor.act(run.step, run.stop)
        except TimeoutError:
            reason = f"no end within {self.actor.limit:g} s"
            return Ending(
                fate=Fate.FAILED, reason=reason, is_transient=True, timed_out=True
            )
        except OSError as error:
            reason = f"it cannot be run: {error.strerror or type(error).__name__}"
            return Ending(fate=Fate.FAILED, reason=reason, is_transient=True)

    # -- how a run ends ------------------------------------------------------

    async def _conclude(self, run: Run, ending: Ending) -> None:
        """Plan another attempt after a run, or settle its delivery."""
        self.metrics.command_seconds.labels(self.sink).observe(ending.seconds)
        if run.void is not None:
            skipped = replace(ending, fate=Fate.SKIPPED, reason=run.void)
            await self._settle(run, skipped, attempts=1)
            return
        is_last = run.delivery.attempts + 1 >= self.actor.most_attempts
        if ending.fate is Fate.FAILED and ending.is_transient and not is_last:
            self._postpone(run, ending)
        else:
            await self._settle(run, ending, attempts=1)

    def _postpone(self, run: Run, ending: Ending) -> None:
        self._note_failure(error := _error_of(ending))
        now, unit = self.clock.now().timestamp(), self.chance()
        delay = self.policy.delay(run.delivery, error, now=now, unit=unit)
        self._settling.postpone(run.delivery, error, delay=delay, waits_for_sink=False)

    def _note_failure(self, error: TransientDeliveryError) -> None:
        now = self.clock.monotonic()
        self._circuit.failed(error, 0, now=now, unit=self.chance())

    async def _settle(self, run: Run, ending: Ending, attempts: int = 0) -> None:
        """Record the result of a run, and publish it.

        Args:
            run: the run; also for a delivery for which no action began.
            ending: the result.
            attempts: 1 after an attempt; 0 if none was made now.
        """
        fate, now = ending.fate, self.clock.now()
        result = self._result(run, ending, attempts)
        error = None
        if fate is not Fate.SUCCEEDED:
            error = ending.reason or "", Reason.COMMAND.value
        await self._deliveries.settle(
            run.delivery,
            _STATES[fate],
            [from_command(self.event_context(), result, now)],
            now=now.timestamp(),
            error=error,
            success=self._success(run, fate, now.timestamp()),
        )
        self._count(run, ending)

    def _result(self, run: Run, ending: Ending, attempts: int) -> CommandResult:
        is_kept = ending.fate in self.actor.keeps_output and bool(ending.output)
        return CommandResult(
            sink=self.sink,
            outcome=ending.fate.value,
            action=self.actor.action(run.step.event).value,
            cause=run.step.event,
            exit_code=ending.exit_code,
            signal=ending.signal,
            timed_out=ending.timed_out,
            seconds=ending.seconds,
            attempts=run.delivery.attempts + attempts,
            output=ending.output if is_kept else None,
            reason=ending.reason,
        )

    def _success(self, run: Run, fate: Fate, at: float) -> Success | None:
        if fate is not Fate.SUCCEEDED or not self.actor.counts(run.step):
            return None
        return Success(
            sink=self.sink,
            key=run.step.key,
            appearance=run.appearance,
            content=run.delivery.body,
            at=at,
        )

    def _count(self, run: Run, ending: Ending) -> None:
        """Count the result of a run, and log it."""
        fate, metrics = ending.fate, self.metrics
        metrics.commands.labels(self.sink, fate.value).inc()
        ended = {**fields_of(run.delivery), "fault": ending.reason}
        if fate is Fate.SUCCEEDED:
            self._circuit.succeeded(self.clock.monotonic(), run.began)
            metrics.deliveries.labels(self.sink, "delivered").inc()
            seconds = round(ending.seconds, 3)
            done = {**fields_of(run.delivery), "seconds": seconds}
            log.info("command succeeded", extra=done)
        elif fate is Fate.SKIPPED:
            log.info("command skipped", extra=ended)
        else:
            self._note_failure(_error_of(ending))
            metrics.deliveries.labels(self.sink, "dead").inc()
            log.error("command failed", extra=ended)


def _error_of(ending: Ending) -> TransientDeliveryError:
    return TransientDeliveryError(ending.reason or "", Reason.COMMAND)


def _newer(standing: Standing) -> CloudEvent | None:
    newer = standing.newer
    return None if newer is None else CloudEvent.from_json(newer)


def _with_last(verdict: Skip, delivery: Delivery) -> str:
    """Return why the action is skipped, with the error of the last attempt."""
    if not delivery.attempts or delivery.last_error is None:
        return verdict.reason
    return f"{verdict.reason}; before that: {delivery.last_error}"
