"""Example events, as a bridge makes them; a test names what it varies."""

from collections.abc import Mapping
from datetime import datetime

from bridge.events.build import EventContext, Outcome, OutgoingEvent, from_transition
from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.transitions import Transition
from bridge.events.vocabulary import TransitionKind
from tests.support.builders import EVENT_ID, event_context_of, imds_event
from tests.support.fakes import START

Raw = Mapping[str, object]


def seen(raw: Raw) -> ScheduledEvent:
    """Return a scheduled event of a document."""
    return ScheduledEvent(event_id=str(raw["EventId"]), raw=raw)


def transition(
    kind: str = "scheduled",
    event: Raw | ScheduledEvent | None = None,
    previous: Raw | ScheduledEvent | None = None,
    **fields: object,
) -> Transition:
    """Return a transition of an event, by default of ``imds_event()``."""
    values = {"changes": (), "announced": True, "unobserved": 1} | fields
    return Transition(
        kind=TransitionKind(kind),
        event=_seen(imds_event() if event is None else event),
        previous=None if previous is None else _seen(previous),
        **values,  # type: ignore[arg-type]  # the other fields of Transition
    )


def _seen(event: Raw | ScheduledEvent) -> ScheduledEvent:
    return event if isinstance(event, ScheduledEvent) else seen(event)


def published(
    step: Transition,
    *,
    context: EventContext | None = None,
    repeats: int = 0,
    at: datetime = START,
    incarnation: int | None = 2,
) -> OutgoingEvent:
    """Return what a bridge publishes of a transition."""
    return from_transition(
        context or event_context_of(),
        step,
        incarnation=incarnation,
        observed_at=at,
        repeats=repeats,
    )


def outcome(what: str = "relayed", **fields: object) -> Outcome:
    """Return what became of an approval."""
    values: dict[str, object] = {
        "outcome": what,
        "event_id": EVENT_ID,
        "event": seen(imds_event()),
        "imds_status": 200,
        "confirmed": True,
        "reason": None,
        "request": {"messageId": "m1", "approvedBy": "ada", "reason": None},
        "origin": ("vm-approvals", "m1", 7),
    }
    return Outcome(**(values | fields))  # type: ignore[arg-type]  # as above


def received(event: CloudEvent) -> CloudEvent:
    """Return an event as the outbox gives it to a sink: read back."""
    return CloudEvent.from_json(event.to_json())
