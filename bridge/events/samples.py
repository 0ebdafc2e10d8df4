"""Events to try a configuration with: made up, or read from a file. Pure.

A made-up event goes the way of a real one (diff, then event), so that it looks like it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime

import msgspec
import orjson

from bridge.events.build import EventContext, OutgoingEvent, from_transition, rfc3339
from bridge.events.cloudevent import CloudEvent
from bridge.events.cloudevent_rules import as_time, faults
from bridge.events.document import SCHEDULED, parse
from bridge.events.identity import Identity
from bridge.events.routing import Subject
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MalformedDocumentError

# No VM can be called so: a blank is not allowed in the name of one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An event as it would go out, and what routing looks at."""

    event: CloudEvent
    subject: Subject

    @property
    def reporter(self) -> Identity:
        """The VM that told of it, as far as it says so."""
        found = self.event.data.get("reporter")
        return Identity.from_reporter(found if isinstance(found, dict) else {})


def sample(event_context: EventContext, now: datetime) -> Sample:
    """Return a Reboot in a quarter of an hour, of the VM that tells."""
    name = event_context.identity.vm_name or MADE_UP.vm_name or ""
    return _told(
        _announced(
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
    """Return an event that looks like a real one, and that nobody can act on.

    It says in four places that it is a test (EventId, Description, ``data.test`` and
    an attribute for filters), and concerns a machine that cannot exist.

    Args:
        event_context: who tells.
        event_type: as in IMDS.
        unique: what no other test event has in its EventId.
        now: what the quarter of an hour to NotBefore is counted from.
    """
    event = _announced(
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


def _announced(  # noqa: PLR0913  each is a field of the event
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
        "EventStatus": SCHEDULED,
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
    """Read an event: a CloudEvent, an IMDS document with one event, or that event.

    What comes from IMDS is told as on first sight: scheduled, or started.

    Args:
        body: of a file.
        event_context: who would tell of what comes from IMDS.
        now: when it would be seen.

    Raises:
        ValueError: what is wrong with it, beginning with a verb.
    """
    body = body.strip().removeprefix(b"\xef\xbb\xbf")
    members = _members(body)
    if "specversion" in members:
        return _received(body, members, now)
    if "Events" in members:
        return _told(_first_look(event_context, body, now))
    if "EventId" in members:
        return _told(_first_look(event_context, b'{"Events":[' + body + b"]}", now))
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
        event_context, step, incarnation=document.incarnation, observed_at=now, told=0
    )


def _told(told: OutgoingEvent) -> Sample:
    return Sample(event=told.event, subject=told.subject)


def _received(body: bytes, raw: Mapping[str, msgspec.Raw], now: datetime) -> Sample:
    """Read a CloudEvent of the bridge, as it was received or as others wrote it.

    Args:
        body: all of it.
        raw: its members, as they are written.
        now: its time, where it says none.
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
    looks = (event.data.get("event"), event.data.get("previous"))
    found = tuple(look for look in looks if isinstance(look, dict))
    if family == "scheduledevent" and not found:
        raise ValueError("tells of no scheduled event: it has no data.event")
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
    """Return the members of a CloudEvent; null is as good as absent.

    Raises:
        ValueError: it is none; all faults are told.
    """
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is no JSON object ({error})") from error
    if found := list(faults(members)):
        raise ValueError(f"is no CloudEvent: {'; '.join(found)}")
    return {name: value for name, value in members.items() if value is not None}


def _has_object(members: Mapping[str, object]) -> bool:
    """Whether the data is a JSON object, as that of each event of the bridge."""
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
    """Return the body with what the bridge always says; as it is, if that is there."""
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
    """Whether everybody can read it: not so a leap second, and small letters."""
    try:
        datetime.fromisoformat(time)
    except ValueError:
        return False
    return True
