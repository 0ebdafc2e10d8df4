"""The events of a hub: alarms about a fleet, in words that every sink shows. Pure.

Source: config/hub.md.
"""

from msgspec import Struct, to_builtins

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import SEVERITY, CloudEvent, clean
from bridge.events.data import HubData, HubReporter
from bridge.events.routing import Subject

SILENT, BACK, UNREPORTED = "bridge-silent", "bridge-back", "unreported"
SLOW, CLOCK, REPORT, KEY = "message-slow", "clock-wrong", "report", "key-unknown"
_FAMILY = ".hub."


class Alarm(Struct, frozen=True, kw_only=True):
    """One alarm of a hub.

    Attributes:
        what: ``bridge-silent``, ``bridge-back``, ``unreported``, ``message-slow``,
            ``clock-wrong``, ``key-unknown``, ``report`` or ``approval.WORD``.
        id: a hash of the cause.
        severity: INFO, WARN or ERROR.
        subject: the subject of the CloudEvent.
        data: what it says. Its headline is enough to understand the alarm; its reason
            says why, or what to do.
    """

    what: str
    id: str
    severity: str
    subject: str | None = None
    data: HubData


class HubContext(Struct, frozen=True, kw_only=True):
    """The values that all events of a hub share.

    Attributes:
        prefix: the start of the type of each event.
        source: the source of the CloudEvents.
        name: the name of the hub for people: its address, or its machine.
        version: the version of the hub.
    """

    prefix: str
    source: str
    name: str
    version: str

    @property
    def reporter(self) -> HubReporter:
        """The ``reporter`` member of ``data``."""
        return HubReporter(vm_name=self.name, version=self.version)


def from_alarm(context: HubContext, alarm: Alarm) -> OutgoingEvent:
    """Make the event about an alarm."""
    event = CloudEvent(
        id=alarm.id,
        source=context.source,
        type=f"{context.prefix}.hub.{alarm.what}.v1",
        subject=clean(alarm.subject) if alarm.subject else None,
        time=alarm.data.observed_at,
        dataschema="urn:sebridge:schema:hub:v1",
        extensions=SEVERITY[alarm.severity],
        data=to_builtins(alarm.data),
    )
    return OutgoingEvent(
        event=event, cause=alarm.id, subject=Subject(is_lifecycle=True)
    )


def headline_of(event: CloudEvent) -> str | None:
    """Return the headline of an event of a hub; None for every other event."""
    found = event.data.get("headline")
    is_alarm = what_of(event) is not None and isinstance(found, str)
    return str(found) if is_alarm and str(found).strip() else None


def what_of(event: CloudEvent) -> str | None:
    """Return the kind of an alarm, such as ``approval.failed``; None: no alarm."""
    _, family, rest = event.type.partition(_FAMILY)
    what, _, version = rest.rpartition(".")
    return what if family and version == "v1" else None
