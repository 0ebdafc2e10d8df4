"""An event in words for people: the same in Slack, mail, alerts and Teams. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping

from bridge.events import vocabulary
from bridge.events.alarm import headline_of
from bridge.events.cloudevent import CloudEvent
from bridge.events.document import resources_of

MOST_IN_HEADLINE = 3

STEP_WORDS = {
    "scheduled": "is scheduled",
    "started": "has started",
    "updated": "was changed",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "has ended; its outcome is not known",
}
OUTCOME_WORDS = {
    "relayed": "passed on to Azure",
    "already-started": "not needed: it has started already",
    "event-ended": "too late: the event is gone",
    "unknown-event": "refused: no such event here",
    "denied": "denied",
    "expired": "expired",
    "invalid": "not readable",
    "rejected": "rejected by Azure",
    "failed": "not passed on: Azure could not be reached",
    "withheld": "not given yet",
}
DOCUMENT_CHANGED = "The document of scheduled events has changed"
LIFE_WORDS = {
    "started": "The bridge has started",
    "stopped": "The bridge has stopped",
    "heartbeat": "The bridge is alive",
    "imds-unreachable": "The bridge cannot read scheduled events",
    "imds-recovered": "The bridge can read scheduled events again",
    "traffic-out": "This VM is out of rotation",
    "traffic-in": "This VM is in rotation again",
}


def family_of(event: CloudEvent) -> tuple[str, str]:
    """Return the family and the step of a type, such as bridge, heartbeat."""
    *_, family, step, _ = ("", "", *event.type.split("."))
    return family, step


def headline(event: CloudEvent, clean: Callable[[str], str] = str) -> str:
    """Return what happened in one line; never raises, whatever the data holds.

    Args:
        event: the event.
        clean: makes a text from outside fit for where it is shown.
    """
    family, step = family_of(event)
    raw, step = table(event.data.get("event")), clean(step)
    kind = _text(raw.get("EventType"), clean) or "Event of unknown type"
    if family == "scheduledevent":
        return f"{kind} {STEP_WORDS.get(step, step)}: {machines_of(raw, clean)}"
    if family == "startrequest":
        said = f"Approval {OUTCOME_WORDS.get(step, step)}"
        return f"{said} ({kind})" if raw else said
    reporter = table(event.data.get("reporter"))
    name = _text(reporter.get("vmName"), clean) or "unknown machine"
    if family == "command":
        parts = (event.data.get("sink"), event.data.get("action"))
        command = " ".join(filter(None, (_text(part, clean) for part in parts)))
        return f"Command {command} {step}: {kind if raw else name}"
    if alarm := headline_of(event):
        return clean(alarm)
    known = LIFE_WORDS if family == "bridge" else {}
    changed = DOCUMENT_CHANGED if family == "document" else ""
    return f"{known.get(step) or changed or clean(event.type)}: {name}"


def facts_of(event: CloudEvent, machines: str) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of what people are told besides the headline.

    Values are as received, of any type: None and "" are not shown.

    Args:
        event: the event.
        machines: its machines, as they are shown.
    """
    data, raw = event.data, table(event.data.get("event"))
    request, changes = table(data.get("request")), data.get("changes")
    yield "Not before", data.get("notBefore")
    yield "Machines", machines
    yield "Impact", impact_of(raw)
    yield "Announced by", raw.get("EventSource")
    yield "Changed", ", ".join(map(str, changes)) if isinstance(changes, list) else ""
    yield "Description", raw.get("Description")
    yield "Approved by", request.get("approvedBy")
    yield "Because", request.get("reason")
    yield "Reason", data.get("reason")
    yield "Output", data.get("output")


def machines_of(
    raw: Mapping[str, object],
    clean: Callable[[str], str] = str,
    most: int = MOST_IN_HEADLINE,
) -> str:
    """Return the first names of Resources, and how many more there are."""
    names = resources_of(raw)
    shown = ", ".join(clean(name) or "-" for name in names[:most])
    rest = len(names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


def impact_of(raw: Mapping[str, object]) -> str:
    """Return what happens to the VM, and for about how long; "" if not known."""
    seconds = whole(raw.get("DurationInSeconds"))
    impact = vocabulary.impact_of(raw.get("EventType"), seconds)
    if not impact or seconds is None or seconds <= 0:
        return impact
    return f"{impact}; about {span(seconds)}"


def span(seconds: int) -> str:
    """Return a time in seconds, minutes or hours, rounded down."""
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def whole(value: object) -> int | None:
    """Return an integer of sane size, else None; JSON's true is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**53 else None


# Control characters, marks that change the writing direction, and lone surrogates.
_NOT_SHOWN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]"
)


def one_line(text: str, limit: int) -> str:
    """Return a text from outside on one line, so that all of it can be shown.

    It is cut to ``limit`` characters; "" for one that is blank.
    """
    line = _NOT_SHOWN.sub("\ufffd", " ".join(text[: limit + 1].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def table(value: object) -> Mapping[str, object]:
    """Return a JSON object unchanged, and any other value as an empty one."""
    return value if isinstance(value, Mapping) else {}


def _text(value: object, clean: Callable[[str], str]) -> str:
    return clean(value) if isinstance(value, str) and value.strip() else ""
