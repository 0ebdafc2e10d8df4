"""Reads the CloudEvents of the topic. Pure.

The body of a Service Bus message is the event as structured JSON. Two kinds matter
here: what is said of a scheduled event, and what became of an approval.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from approver.errors import UnreadableError

_ENDS: Final = frozenset({"completed", "cancelled", "ended"})
_GOOD: Final = frozenset({"relayed", "already-started", "event-ended"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A step in the life of a scheduled event.

    Attributes:
        transition: scheduled, started, updated, completed, cancelled or ended.
        event_id: as received.
        time: when it was observed, in UTC.
        event: the IMDS object, the last one known if it is gone.
        is_whole: False when names of Resources were left out of a large event.
        reply_to: the approval entity; None where nobody asks for an approval.
        session: of that entity.
    """

    transition: str
    event_id: str
    time: datetime
    event: Mapping[str, object]
    is_whole: bool = True
    reply_to: str | None = None
    session: str | None = None

    @property
    def is_end(self) -> bool:
        """Whether the event is gone."""
        return self.transition in _ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an approval.

    Attributes:
        outcome: relayed, denied, expired and so on.
        event_id: as received.
        message_id: of the approval message; None where it had none.
    """

    outcome: str
    event_id: str
    message_id: str | None

    @property
    def is_good(self) -> bool:
        """Whether nothing is left to be approved."""
        return self.outcome in _GOOD


def read(body: bytes, prefix: str) -> Announcement | Outcome | None:
    """Return what a message says; None: nothing about one scheduled event.

    Args:
        body: of the Service Bus message.
        prefix: what the types of the bridge's CloudEvents begin with.

    Raises:
        UnreadableError: it is no structured CloudEvent, or not one of ours in form.
    """
    try:
        cloud_event = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the body is no JSON") from error
    if not isinstance(cloud_event, dict) or cloud_event.get("specversion") != "1.0":
        raise UnreadableError("the body is no structured CloudEvent 1.0")
    kind, ours = str(cloud_event.get("type")), f"{prefix}."
    if not kind.startswith(ours):
        return None
    match kind.removeprefix(ours).split("."):
        case ["scheduledevent", transition, "v1"]:
            return _announcement(transition, cloud_event)
        case ["startrequest", outcome, "v1"]:
            return _outcome(outcome, cloud_event)
        case _:
            return None


def moment(value: object) -> datetime:
    """Return an RFC 3339 time in UTC.

    Raises:
        UnreadableError: it is none.
    """
    try:
        found = datetime.fromisoformat(str(value).upper())
        if found.tzinfo is None:
            raise UnreadableError("a time has no offset")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnreadableError("a time is not of RFC 3339") from error


def _announcement(
    transition: str, cloud_event: Mapping[str, object]
) -> Announcement | None:
    data = cloud_event.get("data")
    event = data.get("event") if isinstance(data, dict) else None
    event_id = event.get("EventId") if isinstance(event, dict) else None
    if not isinstance(data, dict) or not isinstance(event, dict):
        raise UnreadableError("data.event is no object")
    if not isinstance(event_id, str) or not event_id:
        raise UnreadableError("data.event.EventId is no text")
    if data.get("test") is True:
        return None  # of `sebridge send-test`: it would be waited for without end
    truncated = data.get("truncated")
    return Announcement(
        transition=transition,
        event_id=event_id,
        time=moment(cloud_event.get("time")),
        event=event,
        is_whole=not isinstance(truncated, list) or "Resources" not in truncated,
    )


def _outcome(outcome: str, cloud_event: Mapping[str, object]) -> Outcome | None:
    data = cloud_event.get("data")
    if not isinstance(data, dict):
        raise UnreadableError("data is no object")
    event_id, request = data.get("eventId"), data.get("request")
    if not isinstance(event_id, str) or not event_id:
        return None  # an approval that named no event
    message_id = request.get("messageId") if isinstance(request, dict) else None
    return Outcome(
        outcome=outcome,
        event_id=event_id,
        message_id=message_id if isinstance(message_id, str) else None,
    )
