"""Convert an event to an alert, for services of alerts, tickets or changes. Pure.

All events of one EventId belong to one alert. It opens when the scheduled event is
announced, is acknowledged when somebody has approved it, and is resolved when it is
gone. A failed command, an unreachable IMDS and each alarm of a hub have alerts of their
own.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import orjson
from msgspec import Struct, field

from bridge.events.alarm import BACK, SILENT, SLOW, UNREPORTED, what_of
from bridge.events.cloudevent import CloudEvent, hash32, link_of
from bridge.events.cloudevent_rules import as_time
from bridge.events.vocabulary import APPROVED, DISRUPTIVE, GONE
from bridge.events.wording import facts_of, machines_of
from bridge.sinks.webhook.presets.fields import Facts, clipped, facts, known, text
from bridge.sinks.webhook.presets.preset import JSON, Call, Talk, Talker, Verdict

_LONGEST_KEY = 100  # the smallest limit of all services: Datadog, ServiceNow
_LONGEST_TEXT = 1000
_MOST_NAMES = 20
_FARTHEST = timedelta(days=365)


class AlertAction(StrEnum):
    """What an event does to its alert."""

    OPEN = "open"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"


class Alert(Struct, frozen=True, kw_only=True):
    """An event in the form that services of alerts need.

    Attributes:
        action: what the event does to the alert.
        key: identifies the alert, in all its events; at most 100 characters.
        about: ``ScheduledEvent``, ``CommandFailed``, ``ImdsUnreachable``, or of a hub
            ``BridgesSilent``, ``Unreported``, ``ApprovalFailed``.
        severity: ERROR, WARN or INFO; all events of an alert have the same, unless the
            EventType changes.
        headline: one line; its parts come from outside and are not escaped.
        facts: the fields of the event.
        details: names and texts for people; at most 1000 characters each.
    """

    action: AlertAction
    key: str
    about: str
    severity: str
    headline: str
    facts: Facts
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> tuple[str, ...]:
        """The affected machines; if none is named, the machine that reports."""
        reporter = text(self.facts.reporter.get("vmName")) or "unknown"
        return self.facts.resources or (reporter,)

    @property
    def kind(self) -> str:
        """The EventType, or what the alert is about."""
        return text(self.facts.raw.get("EventType")) or self.about

    @property
    def group(self) -> str:
        """The scale set or location of the machine that reports; "" = unknown."""
        found = (self.facts.reporter.get(k) for k in ("vmScaleSetName", "location"))
        return next((name for value in found if (name := text(value))), "")

    def body(self, limit: int) -> str:
        """Return headline and details as lines of at most ``limit`` characters."""
        lines = (f"{name}: {value}" for name, value in self.details.items())
        return clipped("\n".join((self.headline, "", *lines)), limit)


def alert(event: CloudEvent) -> Alert | None:
    """Return the alert of an event; None if the event belongs to no alert."""
    seen = facts(event)
    found = _action(event, seen)
    if found is None:
        return None
    action, about, key = found
    return Alert(
        action=action,
        key=key if len(key) <= _LONGEST_KEY else hash32(key),
        about=about,
        severity=impact(seen.raw) if about == "ScheduledEvent" else "ERROR",
        headline=clipped(seen.headline, _LONGEST_TEXT),
        facts=seen,
        details=details(event, seen),
    )


def posting(
    make: Callable[[CloudEvent, Alert], Mapping[str, object] | None],
    headers: Mapping[str, str] = JSON,
) -> Talker:
    """Return what posts one JSON object for the alert of an event, if there is one.

    Args:
        make: makes the object; None = the service has no place for this event.
        headers: those of the request.
    """

    def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
        found = alert(event)
        body = None if found is None else make(event, found)
        if body is None:
            return None
        return verdict((yield Call(headers=headers, body=orjson.dumps(body))))

    return talk


def _action(event: CloudEvent, seen: Facts) -> tuple[AlertAction, str, str] | None:
    key = (event.text("correlationid") or "").upper()
    if seen.family == "scheduledevent" and key:
        return (
            AlertAction.RESOLVE if seen.step in GONE else AlertAction.OPEN,
            "ScheduledEvent",
            key,
        )
    if seen.family == "startrequest" and key and seen.step in APPROVED:
        return AlertAction.ACKNOWLEDGE, "ScheduledEvent", key
    steps = {"failed": AlertAction.OPEN, "succeeded": AlertAction.RESOLVE}
    if seen.family == "command" and seen.step in steps:
        sink = text(event.data.get("sink")) or "command"
        owner = key or text(seen.reporter.get("vmId")) or event.source
        return steps[seen.step], "CommandFailed", f"{owner}/{sink}"
    steps = {
        "imds-unreachable": AlertAction.OPEN,
        "imds-recovered": AlertAction.RESOLVE,
    }
    if seen.family == "bridge" and seen.step in steps:
        owner = text(seen.reporter.get("vmId")) or event.source
        return steps[seen.step], "ImdsUnreachable", f"imds/{owner}"
    return _action_of_hub(event, what_of(event))


def _action_of_hub(
    event: CloudEvent, what: str | None
) -> tuple[AlertAction, str, str] | None:
    """Return action, subject and key for an alarm of a hub.

    All silent bridges of a hub share one alert.
    """
    if what == SILENT:
        return AlertAction.OPEN, "BridgesSilent", f"silent/{event.source}"
    if what == BACK and not event.data.get("stillSilent"):
        return AlertAction.RESOLVE, "BridgesSilent", f"silent/{event.source}"
    if what == UNREPORTED:
        return AlertAction.OPEN, "Unreported", f"unreported/{event.id}"
    if what == SLOW:
        return AlertAction.OPEN, "MessageSlow", f"slow/{event.id}"
    if what == "approval.failed":
        return AlertAction.OPEN, "ApprovalFailed", f"approval/{event.id}"
    return None


def impact(raw: Mapping[str, object]) -> str:
    """Return the severity of a scheduled event, by its effect on machines.

    It is the same for all steps of the event.

    Args:
        raw: the IMDS object.
    """
    if raw.get("DurationInSeconds") == 0:
        return "INFO"
    return "ERROR" if text(raw.get("EventType")) in DISRUPTIVE else "WARN"


def begins(event: CloudEvent) -> datetime:
    """Return NotBefore in UTC, or the time of the CloudEvent.

    A NotBefore that is more than a year away is ignored: nobody can plan by it.
    """
    published = datetime.fromisoformat(event.time).astimezone(UTC)
    found = as_time(text(event.data.get("notBefore")) or "")
    return found if found and abs(found - published) < _FARTHEST else published


def details(event: CloudEvent, seen: Facts) -> dict[str, str]:
    """Return the known facts of an event, with names for people."""
    machines = machines_of(seen.raw, most=_MOST_NAMES) if seen.resources else ""
    values = {
        **dict(facts_of(event, machines)),
        "Status": seen.raw.get("EventStatus"),
        "Link": link_of(event),
        "EventId": event.text("correlationid"),
        "Reported by": seen.reporter.get("vmName"),
        "Reported at": event.time,
    }
    found = {name: text(value) for name, value in values.items()}
    return {k: clipped(str(v), _LONGEST_TEXT) for k, v in known(found).items()}
