"""Handles the end of an attempt of a sink that acts.

Either the action is tried again later, or its delivery is settled. One commit settles
the delivery, publishes the event about the result, and records a success, which
approvals may require.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from bridge.events.build import EventContext
from bridge.events.command_result import CommandResult, from_command
from bridge.foundation.clock import Clock
from bridge.foundation.errors import Reason, TransientDeliveryError
from bridge.outbox.records import Delivery, DeliveryState, Success
from bridge.outbox.runs import Runs
from bridge.pipeline.attempt import Trying
from bridge.pipeline.policy import RelayPolicy
from bridge.sinks.acting import Action, Actor, Ending, Fate, Step
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_STATES: dict[Fate, DeliveryState] = {
    Fate.SUCCEEDED: "delivered",
    Fate.FAILED: "dead",
    Fate.SKIPPED: "skipped",
}


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
class Endings:
    """Settles the runs of one sink.

    Attributes:
        event_context: prefix, source and VM of the events about results.
        chance: returns a random number in [0, 1) at each call.
    """

    sink: str
    actor: Actor
    event_context: Callable[[], EventContext]
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]
    trying: Trying

    def note_beginning(self, run: Run, action: Action) -> None:
        """Log that an action begins."""
        log.info("command begins", extra={**_fields_of(run), "action": action.value})

    async def conclude(self, outbox: Runs, run: Run, ending: Ending) -> None:
        """Plan another attempt, or settle the delivery.

        Args:
            outbox: the outbox of the sink.
            run: the run that has ended.
            ending: how the attempt ended.
        """
        self.metrics.command_seconds.labels(self.sink).observe(ending.seconds)
        if run.void is not None:
            skipped = replace(ending, fate=Fate.SKIPPED, reason=run.void)
            await self.settle(outbox, run, skipped, attempts=1)
            return
        is_last = run.delivery.attempts + 1 >= self.actor.most_attempts
        if ending.fate is Fate.FAILED and ending.is_transient and not is_last:
            await self._postpone(run, ending)
            return
        await self.settle(outbox, run, ending, attempts=1)

    async def _postpone(self, run: Run, ending: Ending) -> None:
        error = TransientDeliveryError(ending.reason or "", Reason.COMMAND)
        self._note_failure(error)
        now, unit = self.clock.now().timestamp(), self.chance()
        await self.trying.settling.postpone(
            run.delivery,
            error,
            delay=self.policy.delay(run.delivery, error, now=now, unit=unit),
            waits_for_sink=False,
            running=self.trying.times.running,
        )

    def _note_failure(self, error: TransientDeliveryError) -> None:
        now = self.clock.monotonic()
        self.trying.circuit.failed(error, 0, now=now, unit=self.chance())

    async def settle(
        self, outbox: Runs, run: Run, ending: Ending, attempts: int = 0
    ) -> None:
        """Record the result of a run, and publish it.

        Args:
            outbox: the outbox of the sink.
            run: the run; also for a delivery for which no action began.
            ending: the result.
            attempts: 1 after an attempt; 0 if none was made now.
        """
        fate, now = ending.fate, self.clock.now()
        result = self._result(run, ending, attempts)
        reason = ending.reason or ""
        await outbox.settle(
            run.delivery,
            _STATES[fate],
            [from_command(self.event_context(), result, now)],
            now=now.timestamp(),
            error=None if fate is Fate.SUCCEEDED else (reason, Reason.COMMAND.value),
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
        content, key = run.delivery.body, run.step.key
        return Success(
            sink=self.sink,
            key=key,
            appearance=run.appearance,
            content=content,
            at=at,
        )

    def _count(self, run: Run, ending: Ending) -> None:
        """Count the result of a run, and log it."""
        fate, metrics = ending.fate, self.metrics
        metrics.commands.labels(self.sink, fate.value).inc()
        if fate is Fate.SUCCEEDED:
            self.trying.circuit.succeeded(self.clock.monotonic(), run.began)
            metrics.deliveries.labels(self.sink, "delivered").inc()
            seconds = round(ending.seconds, 3)
            log.info("command succeeded", extra={**_fields_of(run), "seconds": seconds})
        elif fate is Fate.SKIPPED:
            log.info(
                "command skipped", extra={**_fields_of(run), "fault": ending.reason}
            )
        else:
            self._note_failure(
                TransientDeliveryError(ending.reason or "", Reason.COMMAND)
            )
            metrics.deliveries.labels(self.sink, "dead").inc()
            log.error(
                "command failed", extra={**_fields_of(run), "fault": ending.reason}
            )


def _fields_of(run: Run) -> dict[str, object]:
    """Return the log fields of a run."""
    delivery = run.delivery
    return {
        "sink": delivery.sink,
        "type": delivery.type,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "attempt": delivery.attempts + 1,
    }
