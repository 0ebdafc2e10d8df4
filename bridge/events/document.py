"""The scheduled-events document: its types, and reading it from bytes. Pure.

The parser is lenient where Azure may add something: it keeps unknown fields, types
and statuses. It passes on a field of an unexpected type verbatim, but treats the
field as absent wherever a value is derived from it. The parser is strict about the
whole: a body that is not a JSON object with an ``Events`` array is refused.

Some valid JSON cannot be written again by every JSON writer. So a number beyond 64
bits becomes text, digit for digit, and half of a surrogate pair becomes U+FFFD. The
result is the same on every VM.

Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property

import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.foundation.errors import MalformedDocumentError
from bridge.foundation.sections import nearest

MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 64  # no real document is deeper; our JSON writer fails beyond 254
_MAX_EVENT_ID = 1024
_LONG_NUMBER = re.compile(rb"[0-9]{19}")  # orjson would round such a number
_HALF = re.compile(r"[\ud800-\udfff]")  # half a surrogate pair: not valid in UTF-8
_REPLACEMENT = "\ufffd"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
# As in the Date header of each answer; the parser of the standard library is slow.
_USUAL_TIME = re.compile(
    rf"[A-Z][a-z]{{2}}, (\d\d) ({_MONTHS}) ([12]\d{{3}}) "
    r"(\d\d):(\d\d):(\d\d) GMT",
    re.ASCII,
)

# The documented values. Azure may add others; those are passed on.
EVENT_SOURCES = ("Platform", "User")


class ScheduledEvent(Struct, frozen=True, kw_only=True, dict=True):
    """One element of ``Events``; what is read from it is computed once.

    Attributes:
        event_id: ``EventId`` as received. To compare events, use ``key``.
        raw: the IMDS object, verbatim.
    """

    event_id: str
    raw: Mapping[str, object]

    @cached_property
    def key(self) -> str:
        """The EventId in capitals, for comparisons: case does not matter."""
        return self.event_id.upper()

    @cached_property
    def status(self) -> str | None:
        """``EventStatus``, known or not."""
        return self._text("EventStatus")

    @cached_property
    def event_type(self) -> str | None:
        """``EventType``, known or not."""
        return self._text("EventType")

    @cached_property
    def event_source(self) -> str | None:
        """``EventSource``: Platform or User; absent before 2019-08-01."""
        return self._text("EventSource")

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The names of the affected VMs, as received."""
        return resources_of(self.raw)

    @cached_property
    def has_resources(self) -> bool:
        """Whether ``Resources`` is an array in which every name is a string."""
        names = self.raw.get("Resources")
        return isinstance(names, list) and len(names) == len(self.resources)

    @cached_property
    def duration(self) -> int | None:
        """``DurationInSeconds``: -1 = unknown, 0 = no interruption; None if absent."""
        value = self.raw.get("DurationInSeconds")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return None

    @cached_property
    def not_before(self) -> datetime | None:
        """``NotBefore`` in UTC; None if absent (after the start) or invalid."""
        text = self._text("NotBefore")
        return parse_time(text) if text else None

    @cached_property
    def canonical(self) -> dict[str, object]:
        """The object in the form that is compared and hashed: the same on every VM."""
        event: dict[str, object] = {**self.raw, "EventId": self.key}
        if self.has_resources:
            event["Resources"] = sorted(self.resources)
        return event

    def _text(self, name: str) -> str | None:
        value = self.raw.get(name)
        return value if isinstance(value, str) else None


class Document(Struct, frozen=True, kw_only=True):
    """A valid document.

    Attributes:
        incarnation: ``DocumentIncarnation``; None if it is absent.
        events: by key. If two EventIds differ only in case, the last event is kept.
        faults: one text for each element that was left out because it is invalid.
            While there is any, no event counts as gone.
        raw: the whole object, verbatim, but without values that are nested too deep.
    """

    incarnation: int | None
    events: Mapping[str, ScheduledEvent]
    faults: tuple[str, ...]
    raw: Mapping[str, object]

    @property
    def canonical(self) -> dict[str, object]:
        """The document in the form that is compared: without the order of Events."""
        events = {key: event.canonical for key, event in self.events.items()}
        return {**self.raw, "Events": [events, sorted(self.faults)]}


def parse(body: bytes) -> Document:
    """Parse a document.

    Raises:
        MalformedDocumentError: the body is empty, too large, or not a JSON object
            with an ``Events`` array.
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
    raw = _shallow(root, elements) if is_deep(root) else root
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
    """Parse JSON with orjson, or with the slower ``json`` where orjson cannot.

    Raises:
        ValueError: the body is not JSON.
        RecursionError: the body is nested too deep.
    """
    if not _LONG_NUMBER.search(body):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # let json try: it accepts more than orjson
    return json.loads(
        body.decode(), parse_int=_int, parse_float=_float, parse_constant=_no_constant
    )


def _int(text: str) -> int | str:
    """Return the number if it fits into 64 bits, else its digits as text."""
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
    """Replace every half of a surrogate pair in a value by U+FFFD."""
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return _whole_object(value) if isinstance(value, dict) else value


def _whole_text(text: str) -> str:
    return _HALF.sub(_REPLACEMENT, text)


def _element(element: object) -> ScheduledEvent | str:
    """Return the event, or a text that says why the element is invalid."""
    if not isinstance(element, dict):
        return "is no object"
    event_id = element.get("EventId")
    if not isinstance(event_id, str) or not event_id.strip():
        return "has no EventId that is a string"
    if _HALF.search(event_id):
        return "has an EventId that is no Unicode text"
    if len(event_id) > _MAX_EVENT_ID:
        return f"has an EventId of more than {_MAX_EVENT_ID} characters"
    if is_deep(element):
        return f"is nested more than {_MAX_DEPTH} levels deep"
    return ScheduledEvent(event_id=event_id, raw=element)


def _shallow(root: dict[str, object], elements: list[object]) -> dict[str, object]:
    """Return the object without the values that are nested too deep for JSON tools."""
    kept = {
        name: value
        for name, value in root.items()
        if name != "Events" and not is_deep(value)
    }
    return {**kept, "Events": [item for item in elements if not is_deep(item)]}


def is_deep(value: object, most: int = _MAX_DEPTH) -> bool:
    """Whether a JSON value has more than ``most`` levels.

    JSON writers, and functions that call themselves for each level, fail at too many.
    """
    level = [value]
    for _ in range(most):
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
    """Return the incarnation; None if it is absent or does not fit into 64 bits."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        is_whole = digits.isascii() and digits.isdigit() and len(digits) < 20
        value = int(value) if is_whole else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**63 else None


def misspelt(word: str, known: Sequence[str]) -> str | None:
    """Return a warning if a word is not one of ``known``, else None.

    It is only a warning, because Azure may have added words.
    """
    if word.casefold() in {name.casefold() for name in known}:
        return None
    near = nearest(word.capitalize(), known)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
    return f"{word!r} is not documented by Azure; {hint}"


def parse_time(text: str) -> datetime | None:
    """Parse a time in any format that IMDS has used; None if the text is not a time.

    The service writes RFC 1123. The weekday is not checked, since Microsoft's own
    sample has a wrong one. Old documents and Microsoft's mock server use ISO 8601.
    """
    if usual := _USUAL_TIME.fullmatch(text):
        month = _MONTHS.index(usual[2]) // 4 + 1
        day, year, hour, minute, second = map(int, usual.group(1, 3, 4, 5, 6))
        try:
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            pass
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text.strip())
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return moment.astimezone(UTC)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def resources_of(event: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names in ``Resources``, without values that are not strings."""
    names = event.get("Resources")
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names if isinstance(name, str))


def bare(resource: str) -> str:
    """Return a resource name for comparisons: lower case, no leading underscore."""
    return resource.removeprefix("_").casefold()


def exact(value: object) -> str:
    """Return a value as JSON text, to compare two values.

    In Python 1, 1.0 and True are equal; in JSON they differ.
    """
    return json.dumps(value, sort_keys=True)
