"""Events to try a configuration with: made up, or read from a file. Pure.

A made-up event goes the way of a real one (diff, then event), so that it looks like it.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import orjson

from bridge.cloudevent import CloudEvent
from bridge.errors import MalformedDocumentError
from bridge.events import Teller, Told, from_transition
from bridge.identity import Identity
from bridge.imds.document import SCHEDULED, parse
from bridge.routing import Subject
from bridge.transitions import Moment, Watch, diff

# No VM can be called so: a blank is not allowed in the name of one.
NO_MACHINE = "TEST (no machine)"
TEST_ATTRIBUTE = "sebridgetest"

_NOTICE = timedelta(minutes=15)
_SAMPLE_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
_ATTRIBUTE = re.compile(r"[a-z0-9]+")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_TYPE = re.compile(
    r"(?:.*\.)?(scheduledevent|startrequest|bridge|document)\.([a-z-]+)\.v1"
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


def sample(teller: Teller, now: datetime) -> Sample:
    """Return a Reboot in a quarter of an hour, of the VM that tells."""
    name = teller.identity.vm_name or "vm-1"
    return _told(
        _announced(
            teller,
            event_id=_SAMPLE_ID,
            event_type="Reboot",
            machine=name,
            description="A sample: virtual machine is going to be restarted.",
            now=now,
        )
    )


def marked_event(
    teller: Teller, event_type: str, *, unique: str, now: datetime
) -> CloudEvent:
    """Return an event that looks like a real one, and that nobody can act on.

    It says in four places that it is a test (EventId, Description, ``data.test`` and
    an attribute for filters), and concerns a machine that cannot exist.

    Args:
        teller: who tells.
        event_type: as in IMDS.
        unique: what no other test event has in its EventId.
        now: what the quarter of an hour to NotBefore is counted from.
    """
    event = _announced(
        teller,
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
    teller: Teller,
    *,
    event_id: str,
    event_type: str,
    machine: str,
    description: str,
    now: datetime,
) -> Told:
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
    return _first_look(teller, orjson.dumps({"Events": [event]}), now)


def read(body: bytes, teller: Teller, now: datetime) -> Sample:
    """Read an event: a CloudEvent, an IMDS document with one event, or that event.

    What comes from IMDS is told as on first sight: scheduled, or started.

    Args:
        body: of a file.
        teller: who would tell of what comes from IMDS.
        now: when it would be seen.

    Raises:
        ValueError: what is wrong with it, beginning with a verb.
    """
    body = body.strip().removeprefix(b"\xef\xbb\xbf")
    members = _members(body)
    if "specversion" in members:
        return _received(body)
    if "Events" in members:
        return _told(_first_look(teller, body, now))
    if "EventId" in members:
        return _told(_first_look(teller, b'{"Events":[' + body + b"]}", now))
    raise ValueError(
        "is neither a structured CloudEvent (specversion), nor an IMDS document "
        "(Events), nor an event of one (EventId)"
    )


def _is_moment(text: str) -> bool:
    """Whether it is a time as RFC 3339 has it, of our calendar."""
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


def _members(body: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no JSON object ({error})") from error
    return dict(found)


def _first_look(teller: Teller, body: bytes, now: datetime) -> Told:
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
        teller, step, incarnation=document.incarnation, observed_at=now, told=0
    )


def _told(told: Told) -> Sample:
    return Sample(event=told.event, subject=told.subject)


def _received(body: bytes) -> Sample:
    try:
        event = CloudEvent.from_json(body)
    except msgspec.ValidationError as error:
        raise ValueError(f"is no CloudEvent of the bridge: {error}") from error
    if not _is_moment(event.time):
        raise ValueError(
            f"is no CloudEvent: its time is {event.time[:40]!r}, and not as in RFC 3339"
        )
    for name in event.extensions:  # they become headers and properties
        if not _ATTRIBUTE.fullmatch(name):
            raise ValueError(
                f"is no CloudEvent: an attribute is called {name[:40]!r}, and only a "
                "to z and 0 to 9 are allowed"
            )
    match = _TYPE.fullmatch(event.type)
    if match is None:
        raise ValueError(f"is no CloudEvent of the bridge: its type is {event.type!r}")
    family, step = match.groups()
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
