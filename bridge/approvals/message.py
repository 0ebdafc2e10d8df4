"""Parses an approval message. Pure.

A sender can send any bytes. The result is always an Approval or a
MalformedApprovalError, whose text repeats nothing of the message.

    StartRequests in the object, no CloudEvents property   1  the IMDS body
    specversion in the object                              2  a structured CloudEvent
    StartRequests in the object, CloudEvents properties    3  a binary CloudEvent

The object may have a byte order mark, or be encoded again as a JSON string.

Source: config/approvals.md; CloudEvents 1.0 JSON format and AMQP binding.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from bridge.foundation.errors import MalformedApprovalError

MAX_BYTES = 64 * 1024
MAX_REQUESTS = 100
_MAX_EVENT_ID = 1024  # the limit in a document, too
_MAX_APPROVED_BY = 256  # a claim of the sender, which every outcome repeats
_MAX_REASON = 2048

_PROPERTY_PREFIXES = ("cloudEvents_", "cloudEvents:")
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The content of an approval message.

    Attributes:
        event_ids: as spelled in the message, each once, in the order of the message.
        approved_by: a claim of the sender; not checked.
        reason: a claim of the sender; not checked.
        expires_at: after this time no StartRequest is sent; in UTC.
        approved_event: the scheduled event as the approver saw it.
    """

    event_ids: tuple[str, ...]
    approved_by: str | None = None
    reason: str | None = None
    expires_at: datetime | None = None
    approved_event: Mapping[str, object] | None = None


def parse(body: bytes, properties: Mapping[str, object], *, prefix: str) -> Approval:
    """Parse an approval message.

    Args:
        body: the body as received.
        properties: the application properties; text is decoded.
        prefix: the first part of the type of a CloudEvent, ``events.type_prefix``.

    Raises:
        MalformedApprovalError: the message is not a valid approval.
    """
    if len(body) > MAX_BYTES:
        raise MalformedApprovalError(f"the body is larger than {MAX_BYTES} bytes")
    root = _object(body, "the body")
    context = _context(properties)
    if "StartRequests" in root and not context:
        return _plain(root, properties)
    if "StartRequests" in root:
        _check(context, prefix)
        return _approval(root)
    if "specversion" in root:
        _check(root, prefix)
        return _approval(_data(root))
    raise MalformedApprovalError("the body has no StartRequests")


def _object(value: object, what: str) -> dict[str, object]:
    """Return a value that is a JSON object, or the text or bytes of one."""
    for _ in range(2):  # the JavaScript SDK sends a text as a JSON string
        if isinstance(value, str):
            value = value.encode("utf-8", "replace")
        if isinstance(value, bytes):
            value = _json(value, what)
    if not isinstance(value, dict):
        raise MalformedApprovalError(f"{what} is no JSON object")
    return value


def _json(text: bytes, what: str) -> object:
    try:
        return orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise MalformedApprovalError(f"{what} is no JSON") from error


def _context(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of a binary CloudEvent; empty if it is not one."""
    return {
        name.removeprefix(prefix): value
        for name, value in properties.items()
        for prefix in _PROPERTY_PREFIXES
        if name.startswith(prefix)
    }


def _check(attributes: Mapping[str, object], prefix: str) -> None:
    if attributes.get("specversion") != "1.0":
        raise MalformedApprovalError("the CloudEvent is not of specversion 1.0")
    kind = f"{prefix}.startrequest.v1"
    if attributes.get("type") != kind:
        raise MalformedApprovalError(f"the CloudEvent is not of type {kind}")


def _data(event: Mapping[str, object]) -> dict[str, object]:
    """Return the data of a structured CloudEvent."""
    encoded = event.get("data_base64")
    if encoded is None:
        return _object(event.get("data"), "data")
    if "data" in event or not isinstance(encoded, str):
        raise MalformedApprovalError("data_base64 is no text, or stands beside data")
    try:
        return _object(base64.b64decode(encoded, validate=True), "data_base64")
    except (binascii.Error, ValueError) as error:
        raise MalformedApprovalError("data_base64 is no base64") from error


def _plain(body: Mapping[str, object], properties: Mapping[str, object]) -> Approval:
    """Parse form 1: the body contains only the EventIds."""
    return Approval(
        event_ids=_event_ids(body.get("StartRequests")),
        approved_by=_claim(properties.get("approvedBy"), _MAX_APPROVED_BY),
        reason=_claim(properties.get("reason"), _MAX_REASON),
        expires_at=_expiry(_timestamp(properties.get("expiresAt"))),
    )


def _approval(data: Mapping[str, object]) -> Approval:
    """Parse the data of forms 2 and 3."""
    return Approval(
        event_ids=_event_ids(data.get("StartRequests")),
        approved_by=_claim(data.get("approvedBy"), _MAX_APPROVED_BY),
        reason=_claim(data.get("reason"), _MAX_REASON),
        expires_at=_expiry(data.get("expiresAt")),
        approved_event=_approved_event(data.get("approvedEvent")),
    )


def _event_ids(requests: object) -> tuple[str, ...]:
    if not isinstance(requests, list) or not requests:
        raise MalformedApprovalError("StartRequests is no list with an entry")
    if len(requests) > MAX_REQUESTS:
        raise MalformedApprovalError(f"StartRequests has more than {MAX_REQUESTS}")
    found: dict[str, str] = {}
    for index, entry in enumerate(requests):
        event_id = entry.get("EventId") if isinstance(entry, dict) else None
        if not isinstance(event_id, str) or not event_id.strip():
            raise MalformedApprovalError(f"StartRequests[{index}] has no EventId")
        if len(event_id) > _MAX_EVENT_ID:
            raise MalformedApprovalError(f"StartRequests[{index}] is too long")
        found.setdefault(event_id.upper(), event_id)
    return tuple(found.values())


def _claim(value: object, limit: int) -> str | None:
    """Return a claim if it is text, else None; an invalid claim is not an error."""
    if not isinstance(value, str) or not value:
        return None
    return value[:limit].encode("utf-8", "replace").decode()


def _timestamp(value: object) -> object:
    """Turn an AMQP timestamp, which the SDK returns in milliseconds, into a time."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return value


def _expiry(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return aware.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedApprovalError("expiresAt is not a valid time") from error
    raise MalformedApprovalError("expiresAt is no RFC 3339 time")


def _approved_event(value: object) -> Mapping[str, object] | None:
    if value is not None and not isinstance(value, dict):
        raise MalformedApprovalError("approvedEvent is no object")
    return value
