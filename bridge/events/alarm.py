"""The events of a hub: alarms about a fleet, in words that every sink shows. Pure.

Source: config/hub.md.
"""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent, clean, rfc3339, severity
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
        headline: one line that is enough to understand the alarm.
        reason: why, or what to do; "" = nothing to add.
        subject: the subject of the CloudEvent.
        more: further members of ``data``.
    """

    what: str
    id: str
    severity: str
    headline: str
    reason: str = ""
    subject: str | None = None
    more: Mapping[str, object]


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


def from_alarm(
    context: HubContext, alarm: Alarm, observed_at: datetime
) -> OutgoingEvent:
    """Make the event about an alarm."""
    event = CloudEvent(
        id=alarm.id,
        source=context.source,
        type=f"{context.prefix}.hub.{alarm.what}.v1",
        subject=clean(alarm.subject) if alarm.subject else None,
        time=rfc3339(observed_at),
        dataschema="urn:sebridge:schema:hub:v1",
        extensions=severity(alarm.severity),
        data={
            "observedAt": rfc3339(observed_at),
            "headline": alarm.headline,
            "reason": alarm.reason or None,
            "reporter": {"vmName": context.name, "version": context.version},
            **alarm.more,
        },
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
