"""The simulated IMDS as plain JSON values with camelCase names, for its control API."""

from msgspec.structs import asdict

from bridge.simulator.faults import Fault
from bridge.simulator.foreign import load_or_text
from bridge.simulator.imds.document import ScheduledEvent, Status
from bridge.simulator.imds.source import Approval
from bridge.simulator.imds.state import ImdsOptions, ImdsState


def state_view(state: ImdsState) -> dict[str, object]:
    """Return the whole state, with the document as a VM would get it now."""
    return {
        "document": load_or_text(state.peek().body),
        "showsEvents": state.is_live,
        "events": [event_view(event) for event in state.events()],
        "approvals": [_approval_view(approval) for approval in state.approvals],
        "compute": state.compute,
        "options": as_camel(state.options),
        "faults": [_fault_view(fault) for fault in state.faults.waiting()],
        "requests": len(state.requests),
    }


def event_view(event: ScheduledEvent) -> dict[str, object]:
    """Return an event with its approvals and its end, which the document hides."""
    is_scheduled = event.status is Status.SCHEDULED
    return {
        "eventId": event.event_id,
        "type": event.event_type,
        "resources": list(event.resources),
        "status": event.status,
        "startsAt": event.not_before if is_scheduled else None,
        "endsAt": event.ends_at,
        "approvedBy": sorted(event.approved_by),
        "source": event.source,
        "description": event.description,
        "duration": event.duration_seconds,
    }


def as_camel(options: ImdsOptions) -> dict[str, object]:
    """Return options under the names of the control API."""
    return {_camel(name): value for name, value in asdict(options).items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _approval_view(approval: Approval) -> dict[str, object]:
    return {
        "eventIds": list(approval.event_ids),
        "by": approval.by,
        "at": approval.at,
    }


def _fault_view(fault: Fault) -> dict[str, object]:
    return {
        "fault": type(fault.strike).__name__.lower(),
        "method": fault.method,
        "path": fault.path,
        "times": fault.times,
        "takesEffect": fault.takes_effect,
    }
