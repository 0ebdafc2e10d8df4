"""The scheduled-events document: its types, and reading it from bytes. Pure.

Lenient where Azure may grow: unknown fields, types and statuses are kept, and a
field of an unexpected type is passed on verbatim and counts as absent for what is
derived from it. Strict where nothing sensible could be said: a body that is no
JSON object with an ``Events`` array says nothing at all.

JSON allows what no later step could hold: a number beyond 64 bits is carried as
text, digit for digit, and half of a surrogate pair as U+FFFD, so that every VM
carries the same.

Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import orjson

from bridge.foundation.errors import MalformedDocumentError
from bridge.foundation.sections import nearest

MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 64  # deeper than anything sane; our JSON writer ends at 254
_MAX_EVENT_ID = 1024
_LONG_NUMBER = re.compile(rb"[0-9]{19}")  # a fast reader would round it
_HALF = re.compile(r"[\ud800-\udfff]")  # of a surrogate pair: UTF-8 has none
_REPLACEMENT = "\ufffd"

SCHEDULED = "Scheduled"
STARTED = "Started"
# What is documented; others may come, and are passed on.
EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
EVENT_SOURCES = ("Platform", "User")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledEvent:
    """One element of ``Events``.

    Attributes:
        event_id: ``EventId`` as received; compare by ``key``.
        raw: the IMDS object, verbatim.
    """

    event_id: str
    raw: Mapping[str, object]

    @property
    def key(self) -> str:
        """The EventId as it is compared: without case."""
        return self.event_id.upper()

    @property
    def status(self) -> str | None:
        """``EventStatus``, known or not."""
        return self._text("EventStatus")

    @property
    def event_type(self) -> str | None:
        """``EventType``, known or not."""
        return self._text("EventType")

    @property
    def event_source(self) -> str | None:
        """``EventSource``: Platform or User; absent before 2019-08-01."""
        return self._text("EventSource")

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the VMs concerned, as received."""
        names = self.raw.get("Resources")
        if not isinstance(names, list):
            return ()
        return tuple(name for name in names if isinstance(name, str))

    @property
    def tells_resources(self) -> bool:
        """Whether ``Resources`` is there, and every name of it can be read."""
        names = self.raw.get("Resources")
        return isinstance(names, list) and all(isinstance(name, str) for name in names)

    @property
    def duration(self) -> int | None:
        """``DurationInSeconds``: -1 unknown, 0 none; None where absent."""
        value = self.raw.get("DurationInSeconds")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return None

    @property
    def not_before(self) -> datetime | None:
        """``NotBefore`` in UTC; None once started and where it cannot be read."""
        text = self._text("NotBefore")
        return parse_time(text) if text else None

    @property
    def canonical(self) -> dict[str, object]:
        """The object as it is compared and hashed: the same for every VM."""
        event: dict[str, object] = {**self.raw, "EventId": self.key}
        if self.tells_resources:
            event["Resources"] = sorted(self.resources)
        return event

    def _text(self, name: str) -> str | None:
        value = self.raw.get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document that could be read.

    Attributes:
        incarnation: ``DocumentIncarnation``; None where it is absent.
        events: by key; of two that differ in case only the last one holds.
        faults: what is wrong with elements that had to be left out. Where there
            are any, nothing counts as gone.
        raw: the whole object, verbatim but for what is nested absurdly deep.
    """

    incarnation: int | None
    events: Mapping[str, ScheduledEvent]
    faults: tuple[str, ...]
    raw: Mapping[str, object]


def parse(body: bytes) -> Document:
    """Read a document.

    Raises:
        MalformedDocumentError: it is empty, too large, or no JSON object with an
            ``Events`` array.
    """
    root = _root(body)
    elements = root.get("Events")
    if not isinstance(elements, list):
        raise MalformedDocumentError("the document has no Events array")
    events: dict[str, ScheduledEvent] = {}
    faults = []
    for index, element in enumerate(elements):
        event = _element(element)
        if isinstance(event, str):
            faults.append(f"Events[{index}] {event}")
        else:
            events[event.key] = event
    raw = _shallow(root, elements)
    if b"\\ud" in body.lower():
        events = {key: _whole_event(event) for key, event in events.items()}
        raw = _whole_object(raw)
    return Document(
        incarnation=_incarnation(root.get("DocumentIncarnation")),
        events=events,
        faults=tuple(faults),
        raw=raw,
    )


def _root(body: bytes) -> dict[str, object]:
    if len(body) > MAX_BYTES:
        raise MalformedDocumentError(f"the document is larger than {MAX_BYTES} bytes")
    if not body.strip():
        raise MalformedDocumentError("the document is empty")
    try:
        root = _loaded(body.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        cause = str(error) or "it is nested too deep"
        raise MalformedDocumentError(f"the document is no JSON ({cause})") from error
    if not isinstance(root, dict):
        raise MalformedDocumentError("the document is no JSON object")
    return root


def _loaded(body: bytes) -> object:
    """Read JSON fast, and slowly where it holds what few can.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested absurdly deep.
    """
    if not _LONG_NUMBER.search(body):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # the other reader has the last word
    return json.loads(
        body.decode(), parse_int=_int, parse_float=_float, parse_constant=_no_constant
    )


def _int(text: str) -> int | str:
    """Return a number that 64 bits can hold, else its digits."""
    if len(text) > len(str(-(2**63))):
        return text
    number = int(text)
    return number if -(2**63) <= number < 2**64 else text


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _whole_event(event: ScheduledEvent) -> ScheduledEvent:
    return replace(event, raw=_whole_object(event.raw))


def _whole_object(raw: Mapping[str, object]) -> dict[str, object]:
    return {_whole_text(name): _whole(value) for name, value in raw.items()}


def _whole(value: object) -> object:
    """Return a value with U+FFFD for every half of a surrogate pair."""
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return _whole_object(value) if isinstance(value, dict) else value


def _whole_text(text: str) -> str:
    return _HALF.sub(_REPLACEMENT, text)


def _element(element: object) -> ScheduledEvent | str:
    """Return the event, or what is wrong with it."""
    if not isinstance(element, dict):
        return "is no object"
    event_id = element.get("EventId")
    if not isinstance(event_id, str) or not event_id.strip():
        return "has no EventId that is a string"
    if _HALF.search(event_id):
        return "has an EventId that is no Unicode text"
    if len(event_id) > _MAX_EVENT_ID:
        return f"has an EventId of more than {_MAX_EVENT_ID} characters"
    if _is_deep(element):
        return f"is nested more than {_MAX_DEPTH} levels deep"
    return ScheduledEvent(event_id=event_id, raw=element)


def _shallow(root: dict[str, object], elements: list[object]) -> dict[str, object]:
    """Return the object without what is too deep for others to write or read."""
    if not _is_deep(root):
        return root
    kept = {
        name: value
        for name, value in root.items()
        if name != "Events" and not _is_deep(value)
    }
    return {**kept, "Events": [item for item in elements if not _is_deep(item)]}


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _incarnation(value: object) -> int | None:
    """Return the number; what 64 bits cannot hold counts as absent."""
    number = _number(value)
    return number if number is not None and abs(number) < 2**63 else None


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        text = value.strip()
        digits = text.removeprefix("-")
        is_whole = digits.isascii() and digits.isdigit() and len(digits) < 20
        return int(text) if is_whole else None
    return value if isinstance(value, int) else None


def misspelt(word: str, known: Sequence[str]) -> str | None:
    """Return what is odd about a word that is none of ``known``; None if it is one.

    Azure may have more words by now: an event that has one is passed on.
    """
    if word.casefold() in {name.casefold() for name in known}:
        return None
    near = nearest(word.capitalize(), known)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
    return f"{word!r} is not documented by Azure; {hint}"


def parse_time(text: str) -> datetime | None:
    """Read a time as IMDS has written it over the years; None where it is none.

    RFC 1123 from the service (the weekday is not checked: Microsoft's own sample
    has a wrong one), ISO 8601 in old documents and in their mock server.
    """
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text.strip())
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return moment.astimezone(UTC)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def exact(value: object) -> str:
    """Return what two values are compared by, since 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)
