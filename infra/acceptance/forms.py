"""Turns values into what two runs of the same story have in common. Pure.

A GUID, a time or a hash differs each time: what is compared is its form, and everything
else as it is. Names of this VM, its ids and EventIds become words.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_GUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_FORMS: Final = (
    (r"(resourcegroups/)[^/\s]+", r"\1GROUP"),
    (_GUID, "GUID"),
    (r"\b00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]\b", "TRACEPARENT"),
    (r"\b[0-9a-f]{32}\b", "HASH"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", "RFC 3339 time"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", "RFC 1123 time"),
    (r"<!date\^\d+", "<!date^N"),
    (r"\bin \d+ (?:min|s)\b", "in N"),
)
# Numbers that depend on the moment; whether it is one, or null, is compared.
_MOMENTARY: Final = {"DocumentIncarnation", "documentIncarnation", "noticeSeconds"}
_EITHER: Final = {"unobservedSeconds"}  # a number or null, by how long a reboot took


@dataclass(frozen=True, slots=True)
class Names:
    """What this run calls things.

    Attributes:
        words: the word for each name; names are compared without case.
    """

    words: Mapping[str, str] = field(default_factory=dict)

    def in_text(self, text: str) -> str:
        """Return a text with a word or a form in the place of each name."""
        for name in sorted(self.words, key=len, reverse=True):
            text = re.sub(re.escape(name), self._word(name), text, flags=re.IGNORECASE)
        for pattern, form in _FORMS:
            text = re.sub(pattern, form, text, flags=re.IGNORECASE)
        return text

    def _word(self, name: str) -> str:
        return self.words[name]


def of_event(event_id: str) -> dict[str, str]:
    """Return the word for an EventId; it shows in which case the letters are."""
    is_small = event_id == event_id.lower()
    return {event_id: "event-id" if is_small else "EVENT-ID"} if event_id else {}


def of_reporter(reporter: Mapping[str, object]) -> dict[str, str]:
    """Return the words for what a bridge says of its VM."""
    wanted = {"vmName": "VM-NAME", "vmId": "VM-ID", "location": "LOCATION"}
    found = {str(reporter.get(key) or ""): word for key, word in wanted.items()}
    found.pop("", None)
    return found


def forms(value: object, names: Names, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the form of each value inside a JSON value, by its path."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from forms(inner, names, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from forms(inner, names, f"{path}[{number}]")
    else:
        yield path, _form(value, path.rpartition(".")[2], names)


def _form(value: object, key: str, names: Names) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if key in _EITHER and (is_number or value is None):
        return "a whole number or null"
    if key in _MOMENTARY and is_number:
        return "a whole number"
    if isinstance(value, str):
        return f'"{names.in_text(value)}"'
    return (
        str(value).lower() if value is None or isinstance(value, bool) else str(value)
    )
