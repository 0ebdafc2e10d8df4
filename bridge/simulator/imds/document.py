"""A scheduled event, and the document as each API version shows it.

Pure: no I/O, no clock; times are seconds since the epoch.

    Scheduled ──NotBefore, approval──→ Started ──ends_at──→ removed
        └───────ends_at (cancelled, evicted)───────────────↗

Source:  learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from collections.abc import Iterable, Mapping
from email.utils import formatdate
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

VERSIONS: Final = (
    "2017-03-01",
    "2017-08-01",
    "2017-11-01",
    "2019-01-01",
    "2019-04-01",
    "2019-08-01",
    "2020-07-01",
)
NEWEST: Final = VERSIONS[-1]
PREVIEW: Final = VERSIONS[0]

# The version that introduced each field and type; older versions do not show it.
_FIELD_SINCE: Final[Mapping[str, str]] = {
    "Description": "2019-04-01",
    "EventSource": "2019-08-01",
    "DurationInSeconds": "2020-07-01",
}
_TYPE_SINCE: Final[Mapping[str, str]] = {
    "Preempt": "2017-11-01",
    "Terminate": "2019-01-01",
}


class Status(StrEnum):
    """The status of an event; an event that is over is not in the document."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"


class ScheduledEvent(Struct, frozen=True, kw_only=True):
    """One event, and what will happen to it.

    Attributes:
        started_seconds: how long it is Started; None: until ends_at.
        ends_at: when it leaves the document; None: not known yet.
        waits_for_others: whether other tenants of the host must approve, too, so that
            the approval of its VMs alone does not start it.
        approved_by: the names of the VMs that have approved it, in lower case.
    """

    event_id: str
    event_type: str
    resources: tuple[str, ...]
    status: Status
    not_before: float
    description: str
    source: str
    duration_seconds: int
    started_seconds: float | None = None
    ends_at: float | None = None
    waits_for_others: bool = False
    approved_by: frozenset[str] = frozenset()

    @property
    def next_step_at(self) -> float | None:
        """When its status changes by itself; None: never."""
        if self.status is Status.STARTED:
            return self.ends_at
        if self.ends_at is None:
            return self.not_before
        return min(self.ends_at, self.not_before)

    def next_step(self) -> "ScheduledEvent | None":
        """Return the event after its next change; None: it leaves the document."""
        ends_first = self.ends_at is not None and self.ends_at <= self.not_before
        if self.status is Status.STARTED or ends_first:
            return None
        return self.started(self.not_before)

    def started(self, at: float) -> "ScheduledEvent":
        """Return the event as it is when it starts at ``at``."""
        lasts = self.started_seconds
        ends_at = self.ends_at if lasts is None else at + lasts
        return replace(self, status=Status.STARTED, ends_at=ends_at)

    def is_approved_by_all(self) -> bool:
        """Return whether each affected VM has approved it."""
        return {name.lower() for name in self.resources} <= self.approved_by


def is_shown(event: ScheduledEvent, version: str) -> bool:
    """Return whether the version knows events of this type."""
    return _TYPE_SINCE.get(event.event_type, PREVIEW) <= version


def document(
    events: Iterable[ScheduledEvent], incarnation: int, version: str
) -> dict[str, object]:
    """Return the document as ``version`` shows it."""
    shown = [_shown(event, version) for event in events if is_shown(event, version)]
    return {"DocumentIncarnation": incarnation, "Events": shown}


def _shown(event: ScheduledEvent, version: str) -> dict[str, object]:
    # The preview version wrote the names of IaaS VMs with an underscore in front.
    prefix = "_" if version == PREVIEW else ""
    is_started = event.status is Status.STARTED
    fields: dict[str, object] = {
        "EventId": event.event_id,
        "EventStatus": event.status,
        "EventType": event.event_type,
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": "" if is_started else formatdate(event.not_before, usegmt=True),
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_seconds,
    }
    return {
        name: value
        for name, value in fields.items()
        if _FIELD_SINCE.get(name, PREVIEW) <= version
    }
