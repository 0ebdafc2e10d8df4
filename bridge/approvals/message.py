"""Parses an approval message. Pure.

A sender can send any bytes. The result is always an Approval or a
MalformedApprovalError, whose text repeats nothing of the message but names of members.

    StartRequests in the object, no CloudEvents property   1  the IMDS body
    specversion in the object                              2  a structured CloudEvent
    StartRequests in the object, CloudEvents properties    3  a binary CloudEvent

The object may have a byte order mark, or be encoded again as a JSON string. It may be
wrapped as older senders do (``wrapped``), or in ``contentData`` of an object. The case
of letters in names does not matter: each language has its own default.

A **limit** is a member that lets fewer approvals through: ``expiresAt`` and
``approvedEvent``. A sender relies on it, so a limit counts, or the message is refused:

    place                             counts                          refused
    the body, or data                 both                            looks like a limit
    application properties            both                            looks like a limit
    attributes of the CloudEvent      both; expirytime = expiresAt    looks like a limit
    an entry of StartRequests         none                            both, and the same
    below approvedEvent, elsewhere    not looked at

A name looks like a limit if ``_LIMIT`` finds something in its letters and digits. Any
other member has no effect and does no harm, as DocumentIncarnation, which IMDS has
asked for in 2017. If a limit is given twice, its values must be equal.

Source: config/approvals.md; CloudEvents 1.0 JSON format, AMQP binding, and Expiry Time.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import orjson
from msgspec import Struct

from bridge.approvals import wrapped
from bridge.foundation.errors import MalformedApprovalError
from bridge.foundation.printable import printable

Value = TypeVar("Value")

MAX_BYTES = 64 * 1024
MAX_REQUESTS = 100
_MAX_EVENT_ID = 1024  # the limit in a document, too
_MAX_APPROVED_BY = 256  # a claim of the sender, which every outcome repeats
_MAX_REASON = 2048
_MOST_WRAPPINGS = 3

_ATTRIBUTE = re.compile("^cloudEvents[_:]")
# Java leaves out the seconds of a full minute.
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TICK = datetime(1, 1, 1, tzinfo=UTC)  # of a DateTimeOffset of .NET and Java
_TICKS = 10  # in a microsecond


def _by_fold(*names: str) -> dict[str, str]:
    return {name.casefold(): name for name in names}


# The names that count in each place, and the member that each one means.
_CLAIMS = ("approvedBy", "reason", "expiresAt", "approvedEvent")
_IN_BODY = _by_fold("StartRequests", *_CLAIMS)
_IN_ENTRY = _by_fold("EventId")
_IN_WRAPPER = {"contentdata": "contentData", "$content": "contentData"}
_IN_PROPERTIES = _by_fold(*_CLAIMS)
_IN_ATTRIBUTES = {**_by_fold("expiresAt", "approvedEvent"), "expirytime": "expiresAt"}
_IN_EVENT = _by_fold(
    *("EventId", "EventType", "EventStatus", "EventSource", "ResourceType"),
    *("Resources", "NotBefore", "Description", "DurationInSeconds"),
)
_LIMIT = re.compile(
    # A time after which nothing may be done.
    r"expir|until|deadline|lifetime|timetolive|notafter|notonorafter|(not?|never)later"
    r"|(valid|good|use|start|approved?)(to|til+|thru|through|before)$"
    r"|(valid|good)for|(start|use|valid)by$|^ttl|ttl$|^maxage|^exp$"
    # A time before which nothing may be done; NotBefore is a member of the event.
    r"|(valid|effective)(from|after)|start(after|at)$|notearlier|^nbf$|^delay"
    # What the event must be like.
    r"|expect|(approved|seen|observed|reviewed|allowed|required|only).*event"
    r"|event.*(approved|seen|observed|reviewed|allowed|required|only)|^allow"
    r"|^max(imum)?(duration|impact)|resources?only|onlyresources?"
    # A condition of any other kind.
    r"|^if(match|nonematch|unmodified|event)|^onlyif|^unless|condition|dryrun|whatif"
)
_LONGEST_NAME = 64


class Approval(Struct, frozen=True, kw_only=True):
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


def parse(
    body: bytes,
    properties: Mapping[str, object],
    *,
    prefix: str,
    wrappings: int = _MOST_WRAPPINGS,
) -> Approval:
    """Parse an approval message.

    Args:
        body: the body as received.
        properties: the application properties; text is decoded.
        prefix: the first part of the type of a CloudEvent, ``events.type_prefix``.
        wrappings: how many wrappings are taken off.

    Raises:
        MalformedApprovalError: the message is not a valid approval.
    """
    if len(body) > MAX_BYTES:
        raise MalformedApprovalError(f"the body is larger than {MAX_BYTES} bytes")
    try:
        root = _object(body, "the body")
    except MalformedApprovalError:
        inner = wrapped.content(body) if wrappings else None
        if inner is None:
            raise
        return parse(inner, properties, prefix=prefix, wrappings=wrappings - 1)
    context, others = _split(properties)
    said = _members(others, _IN_PROPERTIES, "the property ")
    if any(name.casefold() == "startrequests" for name in root):
        _check_form(root, context, prefix)
        attributes = _members(context, _IN_ATTRIBUTES, "the attribute ")
        return _approval([*_members(root, _IN_BODY), *said, *attributes])
    if "specversion" in root:
        _check(root, prefix)
        data = _members(_data(root), _IN_BODY, "data.")
        return _approval([*data, *said, *_members(root, _IN_ATTRIBUTES)])
    inner = _content_data(root) if wrappings else None
    if inner is None:
        raise MalformedApprovalError("the body has no StartRequests")
    return parse(inner, properties, prefix=prefix, wrappings=wrappings - 1)


def _content_data(root: Mapping[str, object]) -> bytes | None:
    """Return the content of an object as Logic Apps show a message; None = no content.

    Raises:
        MalformedApprovalError: it is given twice, or a member beside it looks like a
            limit, which has no effect there.
    """
    members = _members(root, _IN_WRAPPER, "beside contentData: ")
    text = _one(_values(members, "contentData"), "contentData")
    if not isinstance(text, str):
        return None
    given = text.encode("utf-8", "replace")
    return wrapped.decoded(given) or given


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
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        found = orjson.loads(text)
        _check_names(text.decode())
    except (ValueError, RecursionError) as error:
        why = wrapped.why_no_json(text)
        raise MalformedApprovalError(f"{what} is no JSON{why}") from error
    return found


def _check_names(text: str) -> None:
    """Refuse a name that stands twice in an object: one value would have no effect."""
    json.loads(text, object_pairs_hook=_unique, parse_int=str, parse_float=str)


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise _given_twice(name)
    return found


def _given_twice(name: str) -> MalformedApprovalError:
    return MalformedApprovalError(
        f"{_shown(name)} is given twice, with different values"
    )


def _shown(name: str) -> str:
    return printable(name[:_LONGEST_NAME])


Members = list[tuple[str, object]]  # with all values that are given for a member


def _members(
    found: Mapping[str, object], names: Mapping[str, str], place: str = ""
) -> Members:
    """Return the members that count in one place; null counts as absent.

    Args:
        found: the object, with names as the sender spells them.
        names: the names that count, and the member that each one means.
        place: where the object is, for the error.

    Raises:
        MalformedApprovalError: another member looks like a limit.
    """
    members: Members = []
    for name, value in found.items():
        if value is None:
            continue
        if member := names.get(name.casefold()):
            members.append((member, value))
        elif _looks_like_limit(name):
            raise MalformedApprovalError(
                f"{place}{_shown(name)} has no effect there: the limits are expiresAt "
                f"and approvedEvent, beside StartRequests"
            )
    return members


def _values(members: Members, name: str) -> list[object]:
    return [value for member, value in members if member == name]


def _looks_like_limit(name: str) -> bool:
    letters = "".join(c for c in name.casefold() if c.isalnum())
    return _LIMIT.search(letters) is not None


def _check_form(
    root: Mapping[str, object], context: Mapping[str, object], prefix: str
) -> None:
    """Check a body with StartRequests: form 1, or 3 if there is a context."""
    if "specversion" in root and not {"data", "data_base64"}.isdisjoint(root):
        raise MalformedApprovalError("StartRequests stands beside the data of an event")
    if context:
        _check(context, prefix)


def _split(
    properties: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the attributes of a binary CloudEvent, if any, and other properties."""
    attributes, others = [], {}
    for name, value in properties.items():
        if _ATTRIBUTE.match(name):
            attributes.append((_ATTRIBUTE.sub("", name), _timestamp(value)))
        else:
            others[name] = _timestamp(value)
    return _unique(attributes), others


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


def _approval(given: Members) -> Approval:
    """Make the approval of all that is given, in the body and then outside of it."""
    seen = map(_approved_event, _values(given, "approvedEvent"))
    return Approval(
        event_ids=_event_ids(_one(_values(given, "StartRequests"), "StartRequests")),
        approved_by=_claim(_values(given, "approvedBy"), _MAX_APPROVED_BY),
        reason=_claim(_values(given, "reason"), _MAX_REASON),
        expires_at=_one(map(_expiry, _values(given, "expiresAt")), "expiresAt"),
        approved_event=_one(seen, "approvedEvent"),
    )


def _one(values: Iterable[Value], name: str) -> Value | None:
    """Return the value of a member, which may be given several times; None if never."""
    first: Value | None = None
    for value in values:
        if first is not None and value != first:
            raise _given_twice(name)
        first = value
    return first


def _event_ids(requests: object) -> tuple[str, ...]:
    if not isinstance(requests, list) or not requests:
        raise MalformedApprovalError("StartRequests is no list with an entry")
    if len(requests) > MAX_REQUESTS:
        raise MalformedApprovalError(f"StartRequests has more than {MAX_REQUESTS}")
    found: dict[str, str] = {}
    for index, entry in enumerate(requests):
        event_id = _event_id(entry, f"StartRequests[{index}]")
        found.setdefault(event_id.upper(), event_id)
    return tuple(found.values())


def _event_id(entry: object, place: str) -> str:
    fields = entry if isinstance(entry, dict) else {}
    members = _members(fields, _IN_ENTRY, f"{place}.")
    event_id = _one(_values(members, "EventId"), f"{place}.EventId")
    if not isinstance(event_id, str) or not event_id.strip():
        raise MalformedApprovalError(f"{place} has no EventId")
    if len(event_id) > _MAX_EVENT_ID:
        raise MalformedApprovalError(f"{place} is too long")
    return event_id


def _claim(values: Iterable[object], limit: int) -> str | None:
    """Return the first claim that is text; an invalid claim is not an error."""
    for value in values:
        if isinstance(value, str) and value:
            return value[:limit].encode("utf-8", "replace").decode()
    return None


def _timestamp(value: object) -> object:
    """Turn a number among the properties into the time that it means.

    The SDK returns an AMQP timestamp in milliseconds, and a DateTimeOffset in ticks,
    which are so many that they are no milliseconds of a valid time.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        pass
    try:
        return _FIRST_TICK + timedelta(microseconds=value // _TICKS)
    except OverflowError:
        return value


def _expiry(value: object) -> datetime:
    try:
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            value = datetime.fromisoformat(value.upper())
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return aware.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedApprovalError("expiresAt is not a valid time") from error
    raise MalformedApprovalError("expiresAt is no RFC 3339 time")


def _approved_event(value: object) -> Mapping[str, object]:
    """Return the event as the approver saw it, with names as IMDS spells them."""
    event: dict[str, object] = {}
    for name, inner in _object(value, "approvedEvent").items():
        member = _IN_EVENT.get(name.casefold(), name)
        if event.get(member) is None:
            event[member] = inner
        elif inner is not None and event[member] != inner:
            raise _given_twice(f"approvedEvent.{member}")
    return event
