"""Events to try a configuration with: made up, or read from a file. Pure.

A made-up event is made by the same code as a real one (diff, then event).
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.events.build import (
    EventContext,
    Outcome,
    OutgoingEvent,
    from_bridge,
    from_document,
    from_outcome,
    from_transition,
)
from bridge.events.cloudevent import DEEPEST, CloudEvent, rfc3339
from bridge.events.cloudevent_rules import as_time, faults
from bridge.events.command_result import CommandResult, from_command
from bridge.events.data import BridgeData
from bridge.events.document import ScheduledEvent, is_deep, parse
from bridge.events.identity import Identity
from bridge.events.routing import Subject
from bridge.events.transitions import Transition, diff
from bridge.events.vocabulary import (
    COMMAND_OUTCOMES,
    EventStatus,
    OutcomeKind,
    TransitionKind,
)
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MalformedDocumentError

# No VM can have this name: a VM name must not contain a blank.
NO_MACHINE = "TEST (no machine)"
TEST_ATTRIBUTE = "sebridgetest"
MADE_UP = Identity(
    vm_name="vm-1",
    vm_id="00000000-0000-0000-0000-000000000000",
    vm_scale_set_name="group-1",
)

_NOTICE = timedelta(minutes=15)
_SAMPLE_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
_TYPE = re.compile(
    r"(?:.*\.)?(scheduledevent|startrequest|command|bridge|document)\.([a-z-]+)\.v1"
)


class Sample(Struct, frozen=True, kw_only=True):
    """An event as it would be sent, and the values that routing decides by."""

    event: CloudEvent
    subject: Subject

    @property
    def reporter(self) -> Identity:
        """The VM that published the event, as far as ``data.reporter`` names it."""
        found = self.event.data.get("reporter")
        return Identity.from_reporter(found if isinstance(found, dict) else {})


def sample(event_context: EventContext, now: datetime) -> Sample:
    """Return an event about a Reboot of this VM in a quarter of an hour."""
    name = event_context.identity.vm_name or MADE_UP.vm_name or ""
    return _as_sample(
        _scheduled(
            event_context,
            event_id=_SAMPLE_ID,
            event_type="Reboot",
            machine=name,
            description="A sample: virtual machine is going to be restarted.",
            now=now,
        )
    )


def marked_event(
    event_context: EventContext, event_type: str, *, unique: str, now: datetime
) -> CloudEvent:
    """Return a test event that looks like a real one but does no harm.

    The event says in four places that it is a test (EventId, Description, ``data.test``
    and an extension attribute for filters). Its resource is a VM that cannot exist.

    Args:
        event_context: prefix, source and VM of the event.
        event_type: the EventType, as in IMDS.
        unique: a part of the EventId that no other test event has.
        now: the present time; NotBefore is a quarter of an hour later.
    """
    event = _scheduled(
        event_context,
        event_id=f"TEST-{unique}",
        event_type=event_type,
        machine=NO_MACHINE,
        description="TEST of scheduled-events-bridge: nothing is going to happen.",
        now=now,
    ).event
    return replace(
        event,
        data={**event.data, "test": True},
        extensions={**event.extensions, TEST_ATTRIBUTE: "true"},
    )


def _scheduled(  # noqa: PLR0913  each is a field of the event
    event_context: EventContext,
    *,
    event_id: str,
    event_type: str,
    machine: str,
    description: str,
    now: datetime,
) -> OutgoingEvent:
    event = {
        "EventId": event_id,
        "EventStatus": EventStatus.SCHEDULED.value,
        "EventType": event_type,
        "ResourceType": "VirtualMachine",
        "Resources": [machine],
        "NotBefore": format_datetime(now + _NOTICE, usegmt=True),
        "Description": description,
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return _first_look(event_context, orjson.dumps({"Events": [event]}), now)


def read(body: bytes, event_context: EventContext, now: datetime) -> Sample:
    """Read a CloudEvent, a document with one scheduled event, or one scheduled event.

    A scheduled event is turned into the event about its first transition: scheduled or
    started.

    Args:
        body: the content of the file.
        event_context: prefix, source and VM of an event that is made here.
        now: the time at which the scheduled event counts as seen.

    Raises:
        ValueError: what is wrong with the body; the text begins with a verb.
    """
    body = body.strip().removeprefix(b"\xef\xbb\xbf")
    members = _members(body)
    if "specversion" in members:
        return _received(body, members, now)
    if "Events" in members:
        return _as_sample(_first_look(event_context, body, now))
    if "EventId" in members:
        wrapped = b'{"Events":[' + body + b"]}"
        return _as_sample(_first_look(event_context, wrapped, now))
    raise ValueError(
        "is neither a structured CloudEvent (specversion), nor an IMDS document "
        "(Events), nor an event of one (EventId)"
    )


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no JSON object ({error})") from error


def _first_look(
    event_context: EventContext, body: bytes, now: datetime
) -> OutgoingEvent:
    try:
        document = parse(body)
    except MalformedDocumentError as error:
        raise ValueError(f"cannot be read: {error}") from error
    if document.faults:
        raise ValueError(f"cannot be read: {document.faults[0]}")
    if len(document.events) != 1:
        ids = ", ".join(event.event_id for event in document.events.values())
        raise ValueError(
            f"holds {len(document.events)} events ({ids}): give one of them alone"
            if ids
            else "holds no events"
        )
    moment = Moment(at=now, monotonic=None)
    _, (step,) = diff(Watch(), document, moment, poll_interval=1.0)
    return from_transition(
        event_context,
        step,
        incarnation=document.incarnation,
        observed_at=now,
        repeats=0,
    )


def _as_sample(outgoing: OutgoingEvent) -> Sample:
    return Sample(event=outgoing.event, subject=outgoing.subject)


def _received(body: bytes, raw: Mapping[str, msgspec.Raw], now: datetime) -> Sample:
    """Read a CloudEvent of the bridge: a received one, or one written by hand.

    Args:
        body: the whole event.
        raw: its members, not yet parsed.
        now: the time to use if the event has none.
    """
    members = _without_nulls(body)
    match = _TYPE.fullmatch(str(members["type"]))
    if match is None:
        text = f"is no CloudEvent of the bridge: its type is {members['type']!r}"
        raise ValueError(text)
    if not _has_object(members):
        raise ValueError("is no CloudEvent of the bridge: its data is no JSON object")
    family, step = match.groups()
    event = CloudEvent.from_json(_filled_in(body, raw, members, family, now))
    states = (event.data.get("event"), event.data.get("previous"))
    found = tuple(
        ScheduledEvent(event_id=str(state.get("EventId", "")), raw=state)
        for state in states
        if isinstance(state, dict)
    )
    if family == "scheduledevent" and not found:
        raise ValueError("has no scheduled event: data.event is missing")
    is_lifecycle = family in {"bridge", "document"}
    return Sample(
        event=event,
        subject=Subject(
            transition=step if family == "scheduledevent" else None,
            events=() if is_lifecycle else found,
            is_lifecycle=is_lifecycle,
        ),
    )


def _without_nulls(body: bytes) -> dict[str, object]:
    """Return the members of a CloudEvent, without those that are null.

    Raises:
        ValueError: the body is not a CloudEvent; the text names all faults.
    """
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is no JSON object ({error})") from error
    if is_deep(members, DEEPEST):
        raise ValueError(f"is nested more than {DEEPEST} levels deep")
    if found := list(faults(members)):
        raise ValueError(f"is no CloudEvent: {'; '.join(found)}")
    return {name: value for name, value in members.items() if value is not None}


def _has_object(members: Mapping[str, object]) -> bool:
    """Return whether the data is a JSON object, as in every event of the bridge."""
    kind = str(members.get("datacontenttype", "a/json")).partition(";")[0]
    is_json = kind.strip().lower().endswith(("/json", "+json"))
    return (
        is_json
        and "data_base64" not in members
        and isinstance(members.get("data", {}), dict)
    )


def _filled_in(
    body: bytes,
    raw: Mapping[str, msgspec.Raw],
    members: Mapping[str, object],
    family: str,
    now: datetime,
) -> bytes:
    """Return the body, with the members added that every event of the bridge has.

    If none is missing, the body is returned unchanged.
    """
    more: dict[str, str] = {}
    if "dataschema" not in members:
        more["dataschema"] = f"urn:sebridge:schema:{family}:v1"
    time = members.get("time")
    moment = as_time(time) if isinstance(time, str) else now
    if moment is not None and not (isinstance(time, str) and _is_plain(time)):
        more["time"] = rfc3339(moment)
    if not more and len(members) == len(raw):
        return body
    kept = {name: raw[name] for name in members}
    return msgspec.json.encode({**kept, **more})


def _is_plain(time: str) -> bool:
    """Return whether Python can parse a time: not if it has a leap second."""
    try:
        datetime.fromisoformat(time)
    except ValueError:
        return False
    return True


# -- One event of each type, to test a template with -----------------------------------


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
_EVENT_ID = "00000000-0000-0000-0000-000000000000"
_EVENT = {
    "EventId": _EVENT_ID,
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0", "web-1"],
    "NotBefore": "Mon, 02 Mar 2026 12:15:00 GMT",
    "Description": 'Host "A" & its \\ <guests>',  # breaks a careless template
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
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
    for outcome in OutcomeKind:
        yield _outcome(outcome.value)
    yield from map(_command, COMMAND_OUTCOMES)
    if lifecycle:
        for what in ("started", "stopped", "imds-recovered"):
            yield _life(what)
        yield _life("imds-unreachable", reason="no answer")
        yield _life("heartbeat", pending=0, dead=0, free_disk_bytes=10**9)
        for what, event_id in (("traffic-out", "x"), ("traffic-in", None)):
            yield _life(what, event_id=event_id, since=rfc3339(_AT))
        yield from_document(
            _CONTEXT,
            parse(orjson.dumps({"DocumentIncarnation": 2, "Events": [_EVENT]})),
            previous_incarnation=None,
            observed_at=_AT,
            repeats=0,
        ).event


def _seen(changes: Mapping[str, object] | None = None) -> ScheduledEvent:
    return ScheduledEvent(event_id=_EVENT_ID, raw={**_EVENT, **(changes or {})})


def _life(what: str, reason: str | None = None, **members: Any) -> CloudEvent:
    data = BridgeData(
        observed_at=rfc3339(_AT), reporter=_CONTEXT.reporter, reason=reason, **members
    )
    return from_bridge(_CONTEXT, what, data).event


def _transition(kind: TransitionKind) -> CloudEvent:
    begun = {"EventStatus": "Started", "NotBefore": ""}
    step = Transition(
        kind=kind,
        event=_seen(begun) if kind is TransitionKind.STARTED else _seen(),
        previous=_seen() if kind is TransitionKind.UPDATED else None,
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
    event = _seen()
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
