"""Decide by the newest document whether a command is run for a step, and run it.

waits ──lead, a good document, its turn──▶ runs ──exit 0──▶ succeeded
  │ └──over, started, overtaken──▶ skipped  │ └──any other──▶ failed
  └◀──timed out, killed, retry_exit_codes───┘
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct, field

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.material import is_material
from bridge.events.routing import Route
from bridge.events.vocabulary import GONE, EventStatus, TransitionKind
from bridge.events.wording import table
from bridge.foundation.clock import Clock
from bridge.sinks.acting import (
    Action,
    Begin,
    Ending,
    Fate,
    Outlook,
    Skip,
    Step,
    Verdict,
    Wait,
)
from bridge.sinks.command import ownership, terms
from bridge.sinks.command.environment import Occasion, inherited, variables_of
from bridge.sinks.command.process import Exit, Runner
from bridge.sinks.command.terms import CommandKeys

log = logging.getLogger(__name__)

_LIMIT_BEYOND_TIMEOUT = 15.0
_LONGEST_WAIT = 60.0
_CHANGES = {TransitionKind.UPDATED.value, TransitionKind.STARTED.value}
_OUTPUTS = {
    "failed": frozenset({Fate.FAILED}),
    "always": frozenset(Fate),
    "never": frozenset[Fate](),
}


class CommandActor(Struct, kw_only=True):
    """Runs one command; see ``bridge.sinks.acting.Actor``.

    Half of its methods are those of the contract. The others belong to two decisions:
    whether a step may begin, and what the end of a run means.

    Attributes:
        account: the uid that may write the program, beside root; None on Windows.
        outer: the forwarder's environment.
        is_test: whether ``send-test`` runs the command for an invented event.
    """

    terms: CommandKeys
    outlook: Outlook
    runner: Runner
    clock: Clock
    outer: Mapping[str, str]
    account: int | None = field(default_factory=ownership.account)
    is_test: bool = False

    @property
    def route(self) -> Route:
        """The route of the configuration; see ``Actor.route``."""
        return self.terms.route

    @property
    def limit(self) -> float:
        """Seconds until an attempt is abandoned: later than the command's timeout."""
        return self.terms.timeout + _LIMIT_BEYOND_TIMEOUT

    @property
    def most_attempts(self) -> int:
        """The number of attempts after which a step has failed for good."""
        return self.terms.max_attempts

    @property
    def keeps_output(self) -> frozenset[Fate]:
        """The results for which the output is published."""
        return _OUTPUTS[self.terms.output]

    @property
    def obstacle(self) -> str | None:
        """Why no step can begin at all; None if steps can begin."""
        if self.outlook.identity.vm_name is None:
            return "this VM's name is not known: no command is run"
        return None

    @property
    def unclear(self) -> str | None:
        """Describe an event that is not acted on; see ``Actor.unclear``."""
        document = self.outlook.document
        for event in document.events.values() if document else ():
            unfit = {one.key for one in self.route.unfit(event, Identity())}
            if not _has_resources(event) and unfit <= {"when.resources"}:
                return f"{event.event_id} has no Resources: no command is run for it"
        return None

    def restores_at_start(self) -> bool | None:
        """Whether to run a restore at the start; see ``Actor.restores_at_start``."""
        if not self.terms.at_start:
            return False
        if self.obstacle is not None:
            return None
        return terms.is_free(self.outlook, self._fits)

    def action(self, event: CloudEvent) -> Action:
        """Return restore if the event is over or no longer fits the sink."""
        step = _transition_of(event)
        if (
            terms.is_start(event)
            or step in GONE
            or (step in _CHANGES and not self._fits(event_of(event)))
        ):
            return Action.RESTORE
        return Action.PREPARE

    def _fits(self, event: ScheduledEvent) -> bool:
        return not any(self.route.unfit(event, self.outlook.identity))

    def verdict(self, step: Step) -> Verdict:
        """Decide whether a step may begin now; see ``Actor.verdict``."""
        if self.obstacle is not None:
            return Wait()
        if terms.is_start(step.event):
            return terms.verdict(self.outlook, self._fits)
        event = event_of(step.event)
        if not _has_resources(event):
            return Skip("Resources is missing: it is not known whose event it is")
        if self.action(step.event) is Action.PREPARE:
            return self._verdict_on_prepare(step, event)
        return self._verdict_on_restore(step, event)

    def _verdict_on_restore(self, step: Step, event: ScheduledEvent) -> Verdict:
        if self.outlook.document is None:
            return Wait()  # it is not known yet whether other events are pending
        is_over = _transition_of(step.event) in GONE
        if is_over and not self._fits(event) and not self._is_prepared(step):
            return Skip("the event does not fit this sink")
        return Begin()

    def _is_prepared(self, step: Step) -> bool:
        """Whether the step before this one was a prepare; True if it is not known."""
        if step.older is None:
            return True
        older = CloudEvent.from_json(step.older)
        return self.action(older) is Action.PREPARE and self._fits(event_of(older))

    def _verdict_on_prepare(self, step: Step, event: ScheduledEvent) -> Verdict:
        if step.newer is not None:
            return Skip("a newer step of the event has overtaken it")
        if not self._fits(event):
            return Skip("the event does not fit this sink")
        return self._verdict_by_document(step, event)

    def _verdict_by_document(self, step: Step, event: ScheduledEvent) -> Verdict:
        document = self.outlook.document
        if document is None:
            return Wait()  # the step may have been stored before the last restart
        if (found := document.events.get(step.key)) is None:
            return self._verdict_on_absent(step)
        if found.status == EventStatus.STARTED and not _is_of_start(step.event):
            fate = Fate.FAILED if step.attempts else Fate.SKIPPED
            return Skip("the event has started", fate)
        if step.done is not None and not is_material(_read(step.done, event), event):
            return Skip("the command has succeeded for this event before")
        return self._verdict_by_lead(found)

    def _verdict_on_absent(self, step: Step) -> Verdict:
        watch = self.outlook.watch
        read = watch.seen.monotonic if watch.seen else None
        is_read_since = read is not None and read > step.asked
        if step.key in watch.known or not is_read_since:
            return Wait()  # its absence does not count yet, or is from an old document
        return Skip("the event is over")

    def _verdict_by_lead(self, event: ScheduledEvent) -> Verdict:
        if event.not_before is None:
            return Begin()
        begins = event.not_before - timedelta(seconds=self.terms.lead)
        left = (begins - self.clock.now()).total_seconds()
        return Wait(min(left, _LONGEST_WAIT), is_early=True) if left > 0 else Begin()

    def void(self, step: Step) -> str | None:
        """Return why a running step must be stopped; see ``Actor.void``."""
        if self.action(step.event) is Action.RESTORE:
            return None
        if step.newer is not None:
            if self.action(step.newer) is Action.RESTORE:
                return "the event is over, or fits no more"
            if is_material(event_of(step.event), event_of(step.newer)):
                return "the event has changed"
        document, known = self.outlook.document, self.outlook.watch.known
        is_there = document is None or step.key in document.events or step.key in known
        if not is_there and isinstance(self._verdict_on_absent(step), Skip):
            return "the event is over"
        return None

    def counts(self, step: Step) -> bool:
        """Whether other parts may rely on a success: of a prepare, before the start."""
        if self.action(step.event) is Action.RESTORE or self.void(step) is not None:
            return False
        document = self.outlook.document
        found = None if document is None else document.events.get(step.key)
        return found is not None and found.status != EventStatus.STARTED

    def may_join(self, step: Step, other: Step, seconds: float) -> bool:
        """Whether a prepare would be too late after the other run; see ``Actor``."""
        not_before = event_of(step.event).not_before
        if step.key == other.key or not_before is None:
            return False
        left = (not_before - self.clock.now()).total_seconds()
        return self.action(step.event) is Action.PREPARE and left < seconds

    async def act(self, step: Step, stop: asyncio.Event) -> Ending:
        """Run the command once; see ``Actor.act``."""
        command = self.terms.program
        trouble = await asyncio.to_thread(ownership.trouble_of, command, self.account)
        if trouble is not None:
            return Ending(fate=Fate.FAILED, reason=trouble)
        found = await self.runner.run(
            command,
            given=step.event.to_json(),
            environment=self.environment(step),
            limit=self.terms.timeout,
            stop=stop,
        )
        for line in found.output.splitlines():
            log.debug("command wrote", extra={"sink": self.terms.name, "line": line})
        return self._ending(found)

    def environment(self, step: Step) -> dict[str, str]:
        """Return the whole environment of the command."""
        return inherited(self.outer) | variables_of(self._occasion(step))

    def _occasion(self, step: Step) -> Occasion:
        return Occasion(
            sink=self.terms.name,
            action=self.action(step.event),
            type=step.event.type,
            id=step.event.id,
            transition=_transition_of(step.event),
            event=event_of(step.event),
            others=self._others(step.key),
            vm_name=self.outlook.identity.vm_name or "",
            attempt=step.attempts + 1,
            now=self.clock.now(),
            is_test=self.is_test,
        )

    def _others(self, key: str) -> tuple[str, ...]:
        document, me = self.outlook.document, self.outlook.identity
        return tuple(
            event.event_id
            for event in (document.events.values() if document else ())
            if event.key != key
            and me.is_named_in(event.resources)
            and self._fits(event)
        )

    def _ending(self, found: Exit) -> Ending:
        """Convert the end of a process to the end of an attempt."""
        if found.code == 0 and not (found.timed_out or found.was_stopped):
            return Ending(
                fate=Fate.SUCCEEDED,
                exit_code=0,
                seconds=found.seconds,
                output=found.output,
            )
        is_killed = found.code is not None and found.code < 0
        is_asked_for = found.code in self.terms.retry_exit_codes
        return Ending(
            fate=Fate.FAILED,
            reason=self._reason(found),
            is_transient=is_killed
            or is_asked_for
            or found.timed_out
            or found.is_transient,
            exit_code=None if is_killed else found.code,
            signal=_name_of(-(found.code or 0)) if is_killed else None,
            timed_out=found.timed_out,
            seconds=found.seconds,
            output=found.output,
        )

    def _reason(self, found: Exit) -> str:
        if found.code is None:
            return f"{self.terms.program[0]} cannot be run: {found.fault}"
        if found.timed_out:
            return f"it was ended after {self.terms.timeout:g} s (timeout)"
        if found.was_stopped:
            return "it was stopped"
        if found.code < 0:
            return f"it was killed by {_name_of(-found.code)}"
        return f"it ended with exit code {found.code}"


def event_of(event: CloudEvent) -> ScheduledEvent:
    """Return the scheduled event of a step, as IMDS described it."""
    found = table(event.data.get("event"))
    return ScheduledEvent(event_id=str(found.get("EventId", "")), raw=found)


def _has_resources(event: ScheduledEvent) -> bool:
    return isinstance(event.raw.get("Resources"), list)


def _read(body: bytes, event: ScheduledEvent) -> ScheduledEvent:
    """Return the event as it was when the command succeeded for it.

    Args:
        body: the CloudEvent of that success; empty if it was not stored.
        event: the event as it is now, returned if ``body`` is empty.
    """
    return event_of(CloudEvent.from_json(body)) if body else event


def _transition_of(event: CloudEvent) -> str:
    return str(event.data.get("transition", ""))


def _is_of_start(event: CloudEvent) -> bool:
    return _transition_of(event) == TransitionKind.STARTED.value


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
