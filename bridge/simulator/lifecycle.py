"""Scheduled events as the service keeps them: their life, without any HTTP.

    schedule → Scheduled → (approved by all concerned, or NotBefore) → Started → removed

Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Literal

from bridge.simulator.errors import SimulatorError

VERSIONS = (
    "2017-03-01",
    "2017-08-01",
    "2017-11-01",
    "2019-01-01",
    "2019-04-01",
    "2019-08-01",
    "2020-07-01",
)
# Which version of the API brought a field or a type of event.
_TYPE_SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
_FIELD_SINCE = {
    "Description": "2019-04-01",
    "EventSource": "2019-08-01",
    "DurationInSeconds": "2020-07-01",
}
StartOn = Literal["at-once", "all-concerned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One scheduled event. ``not_before`` is None once started."""

    event_id: str
    event_type: str
    resources: tuple[str, ...]
    status: str = "Scheduled"
    not_before: datetime | None = None
    description: str = ""
    source: str = "Platform"
    duration: int = -1

    def as_json(self, version: str) -> dict[str, object]:
        """Return the event as an api-version shows it."""
        underscore = "_" if version == VERSIONS[0] else ""
        at = self.not_before
        whole: dict[str, object] = {
            "EventId": self.event_id,
            "EventStatus": self.status,
            "EventType": self.event_type,
            "ResourceType": "VirtualMachine",
            "Resources": [underscore + name for name in self.resources],
            "NotBefore": format_datetime(at.astimezone(UTC), usegmt=True) if at else "",
            "Description": self.description,
            "EventSource": self.source,
            "DurationInSeconds": self.duration,
        }
        return {k: v for k, v in whole.items() if _FIELD_SINCE.get(k, "") <= version}


@dataclass(slots=True)
class Lifecycle:
    """The document and what approvals do to it.

    Attributes:
        on_approved: called with the EventId after each approval that counts.
        verbatim: a document that is served as it is, whatever it may be.
    """

    start_on: StartOn = "at-once"
    incarnation: int = 1
    events: dict[str, Event] = field(default_factory=dict)
    verbatim: bytes | None = None
    approvals: dict[str, set[str]] = field(default_factory=dict)
    on_approved: list[Callable[[str], None]] = field(default_factory=list)

    def document(self, version: str) -> bytes:
        """Return the body of the document."""
        if self.verbatim is not None:
            return self.verbatim
        shown = [
            event.as_json(version)
            for event in self.events.values()
            if _TYPE_SINCE.get(event.event_type, "") <= version
        ]
        whole = {"DocumentIncarnation": self.incarnation, "Events": shown}
        return json.dumps(whole).encode()

    def show(self, document: object) -> None:
        """Serve a document verbatim from now on; None = our own again."""
        if document is None:
            self.verbatim = None
        elif isinstance(document, bytes):
            self.verbatim = document
        else:
            self.verbatim = json.dumps(document).encode()
        self.approvals.clear()

    def schedule(self, event: Event) -> None:
        """Add an event.

        Raises:
            SimulatorError: there is one of this EventId already.
        """
        if event.event_id.upper() in self.events:
            raise SimulatorError(f"there is an event {event.event_id} already")
        self._change({**self.events, event.event_id.upper(): event})

    def start(self, event_id: str) -> None:
        """Start an event; nothing if it is started already.

        Raises:
            SimulatorError: there is no such event.
        """
        event = self.get(event_id)
        if event.status == "Started":
            return
        started = replace(event, status="Started", not_before=None)
        self._change({**self.events, event_id.upper(): started})

    def pass_time(self, now: datetime) -> None:
        """Start what has reached its NotBefore; a preempted VM is simply gone."""
        for event in tuple(self.events.values()):
            if event.not_before is not None and event.not_before <= now:
                is_eviction = event.event_type == "Preempt"
                (self.remove if is_eviction else self.start)(event.event_id)

    def remove(self, event_id: str) -> None:
        """Take an event out of the document: completed or cancelled.

        Raises:
            SimulatorError: there is no such event.
        """
        self.get(event_id)
        self._change({k: e for k, e in self.events.items() if k != event_id.upper()})

    def get(self, event_id: str) -> Event:
        """Return an event.

        Raises:
            SimulatorError: there is no such event.
        """
        if (event := self.events.get(event_id.upper())) is None:
            raise SimulatorError(f"there is no event {event_id}")
        return event

    def knows(self, event_id: str) -> bool:
        """Whether an EventId stands in the document."""
        return event_id.upper() in self._ids()

    def approve(self, event_id: str, by: str) -> None:
        """Take an approval by the VM named ``by`` of an event that is there."""
        key = event_id.upper()
        self.approvals.setdefault(key, set()).add(by)
        event = self.events.get(key)
        if self.verbatim is None and event is not None:
            waiting = set(event.resources) - self.approvals[key]
            if self.start_on == "all-concerned" and waiting:
                return
            self.start(event_id)
        for notify in self.on_approved:
            notify(event_id)

    def _ids(self) -> set[str]:
        if self.verbatim is None:
            return set(self.events)
        return {id_.upper() for id_ in ids_of(parsed(self.verbatim))}

    def _change(self, events: dict[str, Event]) -> None:
        self.events = events
        self.incarnation += 1


def parsed(body: bytes) -> object:
    """Return a body as JSON; None if it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def ids_of(document: object) -> list[str]:
    """Return the EventIds of a document, however odd it is."""
    events = document.get("Events") if isinstance(document, Mapping) else None
    return [
        event["EventId"]
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, Mapping) and isinstance(event.get("EventId"), str)
    ]
