"""One event of each type, to test a template with. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime

import orjson

from bridge.events.build import (
    EventContext,
    Outcome,
    from_bridge,
    from_document,
    from_outcome,
    from_transition,
    rfc3339,
)
from bridge.events.cloudevent import CloudEvent
from bridge.events.command_result import CommandResult, from_command
from bridge.events.document import parse
from bridge.events.identity import Identity
from bridge.events.transitions import Transition
from bridge.events.vocabulary import TransitionKind
from bridge.telemetry.metrics import COMMAND_OUTCOMES, OUTCOMES

_AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_ME = Identity(
    vm_name="web-0",
    vm_id="13f56399-bd52-4150-9748-7190aae1ff21",
    resource_id=(
        "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web"
        "/providers/Microsoft.Compute/virtualMachines/web-0"
    ),
    location="westeurope",
    vm_scale_set_name="",
)
_CONTEXT = EventContext(
    prefix="sebridge",
    source="/subscriptions/00000000-0000-0000-0000-000000000000/resourcegroups/web"
    "/providers/microsoft.compute",
    identity=_ME,
    version="0",
)
_EVENT = {
    "EventId": "00000000-0000-0000-0000-000000000000",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0", "web-1"],
    "NotBefore": "Mon, 02 Mar 2026 12:15:00 GMT",
    "Description": 'Host "A" & its \\ <guests>',  # breaks a careless template
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
_DOCUMENT = parse(orjson.dumps({"DocumentIncarnation": 2, "Events": [_EVENT]}))
_STARTED = parse(
    orjson.dumps(
        {
            "DocumentIncarnation": 3,
            "Events": [{**_EVENT, "EventStatus": "Started", "NotBefore": ""}],
        }
    )
)
_REQUEST = {
    "messageId": "m-1",
    "enqueuedAt": "2026-03-02T12:00:00Z",
    "approvedBy": None,
    "reason": None,
    "expiresAt": None,
}


def one_of_each(*, lifecycle: bool) -> Iterator[CloudEvent]:
    """Yield an event of each type, and one with as few values as possible.

    Args:
        lifecycle: whether to include ``bridge.*`` and ``document.*``.
    """
    yield from map(_transition, TransitionKind)
    for outcome in OUTCOMES:
        yield _outcome(outcome)
    yield from map(_command, COMMAND_OUTCOMES)
    if lifecycle:
        for what in ("started", "stopped", "imds-recovered"):
            yield from_bridge(_CONTEXT, what, observed_at=_AT).event
        yield from_bridge(
            _CONTEXT, "imds-unreachable", observed_at=_AT, reason="no answer"
        ).event
        numbers = {"pending": 0, "dead": 0, "freeDiskBytes": 10**9}
        yield from_bridge(_CONTEXT, "heartbeat", observed_at=_AT, more=numbers).event
        for what, event_id in (("traffic-out", "x"), ("traffic-in", None)):
            why = {"eventId": event_id, "since": rfc3339(_AT)}
            yield from_bridge(_CONTEXT, what, observed_at=_AT, more=why).event
        yield from_document(
            _CONTEXT, _DOCUMENT, previous_incarnation=None, observed_at=_AT, repeats=0
        ).event


def _transition(kind: TransitionKind) -> CloudEvent:
    (scheduled,), (started,) = _DOCUMENT.events.values(), _STARTED.events.values()
    step = Transition(
        kind=kind,
        event=started if kind is TransitionKind.STARTED else scheduled,
        previous=scheduled if kind is TransitionKind.UPDATED else None,
        changes=("NotBefore",) if kind is TransitionKind.UPDATED else (),
        announced=None,
        unobserved=None,
    )
    return from_transition(
        _CONTEXT, step, incarnation=2, observed_at=_AT, repeats=0
    ).event


def _outcome(outcome: str) -> CloudEvent:
    """Return the event of an outcome; ``invalid`` has no EventId."""
    is_known = outcome not in {"invalid", "unknown-event", "event-ended"}
    (event,) = _DOCUMENT.events.values()
    return from_outcome(
        _CONTEXT,
        Outcome(
            outcome=outcome,
            event_id=None if outcome == "invalid" else event.event_id,
            event=event if is_known else None,
            imds_status=200 if outcome == "relayed" else None,
            confirmed=True if outcome == "relayed" else None,
            reason=None if outcome == "relayed" else outcome,
            request=_REQUEST,
            origin=("vm-approvals", "m-1", 1),
        ),
        _AT,
    ).event


def _command(outcome: str) -> CloudEvent:
    """Return the result of a command; a skipped command has never run."""
    ran, failed = outcome != "skipped", outcome == "failed"
    reasons = {"failed": "exit code 1", "skipped": "the event has started"}
    result = CommandResult(
        sink="drain",
        outcome=outcome,
        action="prepare",
        cause=_transition(TransitionKind.SCHEDULED),
        exit_code=int(failed) if ran else None,
        signal=None,
        timed_out=False,
        seconds=4.2 if ran else 0.0,
        attempts=int(ran),
        output='cannot evict "db-0" & <others>' if failed else None,
        reason=reasons.get(outcome),
    )
    return from_command(_CONTEXT, result, _AT).event
