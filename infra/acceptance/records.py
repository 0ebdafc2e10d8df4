"""The records of a story: what the witness, the topic and the approvers have seen.

A folder holds ``witness.jsonl`` (witness.py), ``messages.jsonl`` (topic.py),
``stories.json`` and ``function.json`` (story.py). ``facts`` makes of them what can be
compared: names of places, and the form of what stands there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self

from acceptance.forms import Names, forms, of_event, of_reporter
from acceptance.story import step_of

Line = Mapping[str, Any]


class RecordError(Exception):
    """A file of the records is missing or not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was recorded of two reboots."""

    witness: tuple[Line, ...]
    messages: tuple[Line, ...]
    stories: tuple[Line, ...]
    function: tuple[Line, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a folder.

        Raises:
            RecordError: names the file, and what is wrong.
        """
        return cls(
            witness=_lines(folder / "witness.jsonl"),
            messages=_lines(folder / "messages.jsonl"),
            stories=tuple(_json(folder / "stories.json")),
            function=tuple(_json(folder / "function.json")),
        )

    @property
    def names(self) -> Names:
        """The words for the names of this run."""
        found = dict[str, str]()
        for message in self.messages:
            data = message["body"].get("data", {})
            found |= of_reporter(data.get("reporter", {}))
        for story in self.stories:
            found |= of_event(str(story["eventId"]))
        return Names(found)

    def of_kind(self, kind: str) -> list[Line]:
        """Return what the witness has of a kind, oldest first."""
        return [line for line in self.witness if line["kind"] == kind]


def facts(record: Record) -> dict[str, str]:
    """Return everything that is compared, by the name of its place."""
    names = record.names
    found = dict[str, str]()
    for place, what in _places(record, names):
        for path, form in forms(what, names):
            found[f"{place}: {path}" if path else place] = form
    return found


def times(record: Record) -> dict[str, float | None]:
    """Return the durations that are compared, in seconds."""
    found = dict[str, float | None]()
    for number, story in enumerate(record.stories, 1):
        steps = dict(_steps(record, str(story["eventId"])))
        scheduled, started, gone = (
            steps.get(step) for step in ("Scheduled", "Started", "gone")
        )
        before = _not_before(scheduled, str(story["eventId"]))
        relayed = _relayed_at(record, str(story["eventId"]))
        reboot = f"reboot {number}"
        found[f"{reboot}: from Scheduled to NotBefore"] = _between(
            _at(scheduled), before
        )
        found[f"{reboot}: from StartRequest to Started"] = _between(
            relayed, _at(started)
        )
        found[f"{reboot}: from Started to gone"] = _between(_at(started), _at(gone))
    return found


def _places(record: Record, names: Names) -> Iterator[tuple[str, object]]:
    """Yield each place and what stands there."""
    for line in record.of_kind("probe"):
        yield from _answer(f"IMDS, {line['name']}", line)
    for number, story in enumerate(record.stories, 1):
        event_id, reboot = str(story["eventId"]), f"reboot {number}"
        steps = list(_steps(record, event_id))
        yield f"{reboot}, the document: steps", " → ".join(step for step, _ in steps)
        for step, line in steps:
            yield from _answer(f"{reboot}, the document when {step}", line, event_id)
        yield from _messages(record, event_id, f"{reboot}, Service Bus")
        yield f"{reboot}, approved by", story["by"]
        yield f"{reboot}, sebridge approve", story.get("answer")
    for line in record.function:
        place = f"the Functions app, {line['name']}"
        yield f"{place}: status", line["status"]
        yield f"{place}: Content-Type", _kind(str(line["contentType"]))
        yield place, line["body"]
    yield from _slack(record, names)


def _answer(place: str, line: Line, event_id: str = "") -> Iterator[tuple[str, object]]:
    """Yield status, headers and body of an answer; of a document only one event."""
    headers = {name.lower(): value for name, value in line["headers"].items()}
    yield f"{place}: status", line["status"]
    yield f"{place}: headers", ", ".join(sorted(headers))
    yield f"{place}: Content-Type", headers.get("content-type")
    body = _parsed(line["body"])
    if event_id and isinstance(body, dict):
        body = {**body, "Events": _events(body, event_id)}
    if line.get("name") == "the document" and isinstance(body, dict):
        body = {**body, "Events": "left out"}
    yield place, body


def _messages(
    record: Record, event_id: str, place: str
) -> Iterator[tuple[str, object]]:
    """Yield the messages about an event, and their order."""
    found = [m for m in record.messages if m["body"].get("subject") == event_id]
    found.sort(key=lambda message: int(message["sequence"]))
    yield f"{place}: order", " → ".join(step_of(message) for message in found)
    for message in found:
        kept = {key: message[key] for key in message if key not in {"at", "sequence"}}
        yield f"{place}, {step_of(message)}", kept


def _slack(record: Record, names: Names) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(record.of_kind("slack"), 1):
        body = _parsed(line["body"])
        text = body.get("text", "") if isinstance(body, dict) else ""
        place = f"Slack, message {number} ({names.in_text(str(text))})"
        yield f"{place}: Content-Type", line["headers"].get("Content-Type")
        yield place, body


def _steps(record: Record, event_id: str) -> Iterator[tuple[str, Line]]:
    """Yield each status of an event with the document that first showed it."""
    last = ""
    for line in record.of_kind("document"):
        body = _parsed(line["body"])
        if not isinstance(body, dict):
            continue
        events = _events(body, event_id)
        step = str(events[0].get("EventStatus")) if events else "gone"
        if step != last and (last or events):
            last = step
            yield step, line
        if step == "gone" and last:
            return


def _events(document: Mapping[str, Any], event_id: str) -> list[Mapping[str, Any]]:
    events = document.get("Events")
    found = events if isinstance(events, list) else []
    return [event for event in found if event.get("EventId") == event_id]


def _not_before(line: Line | None, event_id: str) -> datetime | None:
    body = _parsed(line["body"]) if line else None
    events = _events(body, event_id) if isinstance(body, dict) else []
    try:
        return parsedate_to_datetime(events[0]["NotBefore"]) if events else None
    except (KeyError, TypeError, ValueError):
        return None


def _relayed_at(record: Record, event_id: str) -> datetime | None:
    """Return when the bridge had sent the StartRequest."""
    for message in record.messages:
        body = message["body"]
        if step_of(message) == "startrequest.relayed" and body["subject"] == event_id:
            return datetime.fromisoformat(body["data"]["observedAt"])
    return None


def _at(line: Line | None) -> datetime | None:
    return datetime.fromisoformat(line["at"]) if line else None


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return (end - begin).total_seconds() if begin and end else None


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0]


def _parsed(body: str) -> object:
    try:
        found: object = json.loads(body)
    except ValueError:
        return body
    return found


def _lines(path: Path) -> tuple[Line, ...]:
    lines = _text(path).splitlines()
    found = [_parsed(line) for line in lines]
    # The last line may be cut off: the VM was rebooted while it was written.
    return tuple(line for line in found if isinstance(line, dict))


def _json(path: Path) -> list[Line]:
    found = _parsed(_text(path))
    if not isinstance(found, list):
        raise RecordError(f"{path} must be a list")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
