"""Makes the CloudEvent about the result of a command: ``command.<outcome>``. Pure."""

from datetime import datetime

from msgspec import Struct, to_builtins

from bridge.events.build import EventContext, OutgoingEvent, attributes_of
from bridge.events.cloudevent import (
    SEVERITY,
    CloudEvent,
    clean,
    fitted,
    hash32,
    rfc3339,
)
from bridge.events.data import CommandData
from bridge.events.document import ScheduledEvent
from bridge.events.routing import Subject

_SEVERITIES = {"succeeded": "INFO", "failed": "ERROR", "skipped": "INFO"}


class CommandResult(Struct, frozen=True, kw_only=True):
    """The result of a command for one transition.

    Attributes:
        sink: the name of the sink that ran the command.
        outcome: ``succeeded``, ``failed`` or ``skipped``.
        action: ``prepare`` or ``restore``.
        cause: the event about the transition.
        exit_code: of the last run; None if the command never ran or was killed.
        signal: the signal that killed the command; None if none did.
        timed_out: whether the command was killed because it took too long.
        seconds: how long the last run took.
        attempts: how often the command was run.
        output: what the command wrote; None if there was nothing.
        reason: why the command did not succeed.
    """

    sink: str
    outcome: str
    action: str
    cause: CloudEvent
    exit_code: int | None
    signal: str | None
    timed_out: bool
    seconds: float
    attempts: int
    output: str | None
    reason: str | None

    @property
    def event(self) -> ScheduledEvent | None:
        """The scheduled event of the transition; None for the start of the bridge."""
        raw = self.cause.data.get("event")
        if not isinstance(raw, dict):
            return None
        return ScheduledEvent(event_id=str(raw.get("EventId", "")), raw=raw)

    @property
    def transition(self) -> str | None:
        """The step of the scheduled event; None for the start of the bridge."""
        step = self.cause.data.get("transition")
        return step if isinstance(step, str) else None


def from_command(
    event_context: EventContext, result: CommandResult, observed_at: datetime
) -> OutgoingEvent:
    """Make the event about the result of a command."""
    event = result.event
    cause = [event_context.identity.vm_id, result.sink, result.cause.id, result.outcome]
    cloud_event = CloudEvent(
        id=(own_id := hash32(cause)),
        source=event_context.source,
        type=f"{event_context.prefix}.command.{result.outcome}.v1",
        subject=clean(event.event_id) if event else event_context.identity.vm_id,
        time=rfc3339(observed_at),
        dataschema="urn:sebridge:schema:command:v1",
        extensions=(attributes_of(event, own_id) if event else {})
        | SEVERITY[_SEVERITIES[result.outcome]],
        data=to_builtins(
            CommandData(
                sink=result.sink,
                action=result.action,
                event=event.raw if event else None,
                transition=result.transition,
                exit_code=result.exit_code,
                signal=result.signal,
                timed_out=result.timed_out,
                seconds=round(result.seconds, 3),
                attempts=result.attempts,
                output=result.output,
                reason=result.reason,
                observed_at=rfc3339(observed_at),
                reporter=event_context.reporter,
            )
        ),
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=own_id,
        subject=Subject(events=(event,) if event else ()),
        key=event.key if event else None,
    )
