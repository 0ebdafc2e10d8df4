"""What an event means for a service of alerts, tickets or changes. Pure.

All that is told of one EventId is one alert: it opens when the event is announced, is
acknowledged when somebody approved it, and is resolved when the event is gone. What
becomes of a command and of IMDS has alerts of its own, and so has what a hub tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from bridge.events.alarm import BACK, SILENT, UNREPORTED, what_of
from bridge.events.cloudevent import CloudEvent
from bridge.events.cloudevent_rules import as_time
from bridge.events.link import link_of
from bridge.events.severity import DISRUPTIVE
from bridge.foundation.hashing import hash32
from bridge.sinks.webhook.presets.fields import Facts, clipped, facts, known, text

_GONE = frozenset({"completed", "cancelled", "ended"})
_APPROVED = frozenset({"relayed", "already-started"})
_LONGEST_KEY = 100  # the least that a service takes: Datadog, ServiceNow
_LONGEST_TEXT = 1000
_MOST_NAMES = 20
_FARTHEST = timedelta(days=365)


class Turn(StrEnum):
    """What an event does to its alert."""

    OPEN = "open"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An event as a service of alerts sees it.

    Attributes:
        turn: what it does.
        key: what all events of the alert have in common; at most 100 characters.
        about: ``ScheduledEvent``, ``CommandFailed``, ``ImdsUnreachable``, or of a hub
            ``BridgesSilent``, ``Unreported``, ``ApprovalFailed``.
        severity: ERROR, WARN or INFO: the same through the life of an alert, as long
            as its EventType is.
        headline: one line; its parts come from outside.
        facts: what is known of the event.
        details: names and texts for people; at most 1000 characters each.
    """

    turn: Turn
    key: str
    about: str
    severity: str
    headline: str
    facts: Facts
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that it is about; the one that tells, where none is named."""
        teller = text(self.facts.reporter.get("vmName")) or "unknown"
        return self.facts.resources or (teller,)

    @property
    def kind(self) -> str:
        """The EventType, or what the alert is about."""
        return text(self.facts.raw.get("EventType")) or self.about

    @property
    def group(self) -> str:
        """The scale set of the machine that tells, else its location; "" = unknown."""
        found = (self.facts.reporter.get(k) for k in ("vmScaleSetName", "location"))
        return next((name for value in found if (name := text(value))), "")

    def body(self, limit: int) -> str:
        """Return headline and details as lines of at most ``limit`` characters."""
        lines = (f"{name}: {value}" for name, value in self.details.items())
        return clipped("\n".join((self.headline, "", *lines)), limit)


def alert(event: CloudEvent) -> Alert | None:
    """Return what an event means; None: nothing for a service of alerts."""
    seen = facts(event)
    found = _turn(event, seen)
    if found is None:
        return None
    turn, about, key = found
    return Alert(
        turn=turn,
        key=key if len(key) <= _LONGEST_KEY else hash32(key),
        about=about,
        severity=impact(seen.raw) if about == "ScheduledEvent" else "ERROR",
        headline=clipped(seen.headline, _LONGEST_TEXT),
        facts=seen,
        details=details(event, seen),
    )


def _turn(event: CloudEvent, seen: Facts) -> tuple[Turn, str, str] | None:
    key = (event.text("correlationid") or "").upper()
    if seen.family == "scheduledevent" and key:
        return Turn.RESOLVE if seen.step in _GONE else Turn.OPEN, "ScheduledEvent", key
    if seen.family == "startrequest" and key and seen.step in _APPROVED:
        return Turn.ACKNOWLEDGE, "ScheduledEvent", key
    steps = {"failed": Turn.OPEN, "succeeded": Turn.RESOLVE}
    if seen.family == "command" and seen.step in steps:
        sink = text(event.data.get("sink")) or "command"
        owner = key or text(seen.reporter.get("vmId")) or event.source
        return steps[seen.step], "CommandFailed", f"{owner}/{sink}"
    steps = {"imds-unreachable": Turn.OPEN, "imds-recovered": Turn.RESOLVE}
    if seen.family == "bridge" and seen.step in steps:
        owner = text(seen.reporter.get("vmId")) or event.source
        return steps[seen.step], "ImdsUnreachable", f"imds/{owner}"
    return _turn_of_hub(event, what_of(event))


def _turn_of_hub(event: CloudEvent, what: str | None) -> tuple[Turn, str, str] | None:
    """Return what an alarm of a hub means; one alert is for all silent bridges."""
    if what == SILENT:
        return Turn.OPEN, "BridgesSilent", f"silent/{event.source}"
    if what == BACK and not event.data.get("stillSilent"):
        return Turn.RESOLVE, "BridgesSilent", f"silent/{event.source}"
    if what == UNREPORTED:
        return Turn.OPEN, "Unreported", f"unreported/{event.id}"
    if what == "approval.failed":
        return Turn.OPEN, "ApprovalFailed", f"approval/{event.id}"
    return None


def impact(raw: Mapping[str, object]) -> str:
    """Return what an event does to machines, whichever of its steps is told.

    Args:
        raw: the IMDS object.
    """
    if raw.get("DurationInSeconds") == 0:
        return "INFO"
    return "ERROR" if text(raw.get("EventType")) in DISRUPTIVE else "WARN"


def begins(event: CloudEvent) -> datetime:
    """Return NotBefore in UTC, or when the event was told.

    A NotBefore that is more than a year away is no time to plan by.
    """
    told = datetime.fromisoformat(event.time).astimezone(UTC)
    found = as_time(text(event.data.get("notBefore")) or "")
    return found if found and abs(found - told) < _FARTHEST else told


def details(event: CloudEvent, seen: Facts) -> dict[str, str]:
    """Return what is known of an event, by names for people."""
    values = {
        "Not before": event.data.get("notBefore"),
        "Machines": _machines(seen),
        "Status": seen.raw.get("EventStatus"),
        "Source": seen.raw.get("EventSource"),
        "Description": seen.raw.get("Description"),
        "Approved by": seen.request.get("approvedBy"),
        "Because": seen.request.get("reason"),
        "Reason": event.data.get("reason"),
        "Output": event.data.get("output"),
        "Link": link_of(event),
        "EventId": event.text("correlationid"),
        "Told by": seen.reporter.get("vmName"),
        "Told at": event.time,
    }
    found = {name: text(value) for name, value in values.items()}
    return {k: clipped(str(v), _LONGEST_TEXT) for k, v in known(found).items()}


def _machines(seen: Facts) -> str:
    rest = len(seen.resources) - _MOST_NAMES
    shown = ", ".join(seen.resources[:_MOST_NAMES])
    return shown + (f" and {rest} more" if rest > 0 else "")
