"""Read the CloudEvents of the topic. Pure.

The body of a Service Bus message is the event as structured JSON. Two kinds matter
here: steps of scheduled events, and outcomes of approvals.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from approver.errors import UnreadableError
from approver.loading import load

ENDS: Final = frozenset({"completed", "cancelled", "ended"})
"""The transitions after which an event is gone."""

_GOOD: Final = frozenset({"relayed", "already-started", "event-ended"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A step in the life of a scheduled event.

    Attributes:
        transition: scheduled, started, updated, completed, cancelled or ended.
        event_id: as received.
        time: when it was observed, in UTC.
        event: the IMDS object; if it is gone, the last one known.
        is_whole: False if names of Resources were left out of a large event.
        reply_to: the approval entity; None if no approval is possible.
        session: the session of that entity.
        id: of the CloudEvent: the same from each VM that saw the step.
        not_before: when Azure starts the event by itself, in UTC; None: not known.
        source: of the CloudEvent.
    """

    transition: str
    event_id: str
    time: datetime
    event: Mapping[str, object]
    is_whole: bool = True
    reply_to: str | None = None
    session: str | None = None
    id: str = ""
    not_before: datetime | None = None
    source: str = ""

    @property
    def is_end(self) -> bool:
        """Whether the event is gone."""
        return self.transition in ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an approval.

    Attributes:
        outcome: relayed, denied, expired and so on.
        event_id: as received.
        message_id: the MessageId of the approval; None if it had none.
        id: of the CloudEvent.
        time: when it was known, RFC 3339 as received; "" if not said.
        by: who approved, as claimed; "" if not said.
        because: why it ended so; "" if not said.
    """

    outcome: str
    event_id: str
    message_id: str | None
    id: str = ""
    time: str = ""
    by: str = ""
    because: str = ""

    @property
    def is_good(self) -> bool:
        """Whether no further approval is needed."""
        return self.outcome in _GOOD


def read(body: bytes, prefix: str) -> Announcement | Outcome | None:
    """Return what a message is about; None: it is not about one scheduled event.

    Args:
        body: the body of the Service Bus message.
        prefix: the prefix of the types of the bridge's CloudEvents.

    Raises:
        UnreadableError: it is not a structured CloudEvent of the expected form.
    """
    cloud_event = load(body, "the body")
    if not isinstance(cloud_event, dict) or cloud_event.get("specversion") != "1.0":
        raise UnreadableError("the body is not a structured CloudEvent 1.0")
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
        UnreadableError: the value is not such a time.
    """
    try:
        found = datetime.fromisoformat(str(value).upper())
        if found.tzinfo is None:
            raise UnreadableError("a time has no offset")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnreadableError("a time does not follow RFC 3339") from error


def _announcement(
    transition: str, cloud_event: Mapping[str, object]
) -> Announcement | None:
    data = cloud_event.get("data")
    event = data.get("event") if isinstance(data, dict) else None
    event_id = event.get("EventId") if isinstance(event, dict) else None
    if not isinstance(data, dict) or not isinstance(event, dict):
        raise UnreadableError("data.event is not an object")
    if not isinstance(event_id, str) or not event_id:
        raise UnreadableError("data.event.EventId is not a text")
    if data.get("test") is True:
        return None  # of `sebridge send-test`: its end would never come
    truncated = data.get("truncated")
    return Announcement(
        transition=transition,
        event_id=event_id,
        time=moment(cloud_event.get("time")),
        event=event,
        is_whole=not isinstance(truncated, list) or "Resources" not in truncated,
        id=_text(cloud_event.get("id")),
        not_before=_moment_or_none(data.get("notBefore")),
        source=_text(cloud_event.get("source")),
    )


def _outcome(outcome: str, cloud_event: Mapping[str, object]) -> Outcome | None:
    data = cloud_event.get("data")
    if not isinstance(data, dict):
        raise UnreadableError("data is not an object")
    event_id, request = data.get("eventId"), data.get("request")
    if not isinstance(event_id, str) or not event_id:
        return None  # an approval without an EventId
    asked = request if isinstance(request, dict) else {}
    message_id = asked.get("messageId")
    return Outcome(
        outcome=outcome,
        event_id=event_id,
        message_id=message_id if isinstance(message_id, str) else None,
        id=_text(cloud_event.get("id")),
        time=_text(cloud_event.get("time")),
        by=_text(asked.get("approvedBy")),
        because=_text(data.get("reason")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _moment_or_none(value: object) -> datetime | None:
    try:
        return None if value is None else moment(value)
    except UnreadableError:
        return None
