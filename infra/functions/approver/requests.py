"""Read the approval that a person or a tool sends over HTTP. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from approver.announcements import moment
from approver.errors import UnreadableError
from approver.loading import load

MOST_BYTES = 62 * 1024
"""Leaves room, so that the message on the queue stays below the bridge's limit."""

_TEXTS = (
    "eventId",
    "approvedBy",
    "reason",
    "expiresAt",
    "replyTo",
    "replyToSessionId",
    "audience",
)
_LONGEST = {"eventId": 1024, "approvedBy": 256, "reason": 2048}
_LONGEST_OTHER = 260


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """An approval as received over HTTP.

    Attributes:
        event_id: the EventId.
        approved_by: who approves; a claim.
        reason: why.
        expires_at: RFC 3339; after this time it is not relayed.
        reply_to: the approval entity; None: as published, else the default.
        session: the session of that entity; None: as published.
        audience: the source of the event, for the signature; None: as published.
        approved_event: the IMDS object as the approver saw it; None: as published.
    """

    event_id: str
    approved_by: str
    reason: str | None = None
    expires_at: str | None = None
    reply_to: str | None = None
    session: str | None = None
    approved_event: Mapping[str, object] | None = None
    audience: str | None = None


def read(body: bytes) -> ApprovalRequest:
    """Return the approval in a request's body.

    Raises:
        UnreadableError: names the member, and what is allowed.
    """
    found = _object(body)
    texts = {name: _text(name, found.get(name)) for name in _TEXTS}
    if texts["expiresAt"] is not None:
        try:
            moment(texts["expiresAt"])
        except UnreadableError as error:
            raise UnreadableError("expiresAt must be an RFC 3339 time") from error
    event_id, approved_by = texts["eventId"], texts["approvedBy"]
    if event_id is None or approved_by is None:
        raise UnreadableError("eventId and approvedBy are required")
    return ApprovalRequest(
        event_id=event_id,
        approved_by=approved_by,
        reason=texts["reason"],
        expires_at=texts["expiresAt"],
        reply_to=texts["replyTo"],
        session=texts["replyToSessionId"],
        audience=texts["audience"],
        approved_event=_event(found.get("approvedEvent"), event_id),
    )


def _object(body: bytes) -> Mapping[str, object]:
    if len(body) > MOST_BYTES:
        raise UnreadableError(f"the body must not be larger than {MOST_BYTES} bytes")
    found = load(body, "the body")
    if not isinstance(found, dict):
        raise UnreadableError("the body must be a JSON object")
    if set(found) - {*_TEXTS, "approvedEvent"}:
        allowed = ", ".join((*_TEXTS, "approvedEvent"))
        raise UnreadableError(f"the body has an unknown member; allowed: {allowed}")
    return found


def _text(name: str, value: object) -> str | None:
    longest = _LONGEST.get(name, _LONGEST_OTHER)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value.strip()) <= longest:
        raise UnreadableError(f"{name} must be a text of 1 to {longest} characters")
    return value


def _event(value: object, event_id: str) -> Mapping[str, object] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UnreadableError("approvedEvent must be the IMDS object")
    if str(value.get("EventId")).upper() != event_id.upper():
        raise UnreadableError("approvedEvent must be of the same EventId")
    return value
