"""Read scenarios: what happens to a VM, to be played at any speed.

There are two forms of JSON:

* an object with ``events``: lives of events, as in most files under scenarios/;
* an array of documents, or an object with ``documents``: shown verbatim one after
  another, 60 s each.

Shapes:  name or path → Scenario
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import orjson
from msgspec import Struct

from bridge.simulator.errors import BadInputError, ScenarioError
from bridge.simulator.foreign import Input, check_depth, parse
from bridge.simulator.imds.document import Status
from bridge.simulator.imds.lifecycle import EventLife, event_objects

DOCUMENT_SECONDS: Final = 60.0

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Transition = Literal["scheduled", "started", "completed", "cancelled", "ended"]


class Scenario(Struct, frozen=True, kw_only=True):
    """A scenario: lives of events, or documents.

    Attributes:
        expected: the transitions that a client sees, in order, without an approval;
            empty for documents.
        expected_approved: the transitions that a client sees if the event is approved
            as soon as it is scheduled.
    """

    name: str
    description: str = ""
    lives: tuple[EventLife, ...] = ()
    documents: tuple[object, ...] = ()
    expected: tuple[str, ...] = ()
    expected_approved: tuple[str, ...] = ()

    @property
    def first_resource(self) -> str | None:
        """The affected VM: the first one that any event names."""
        for life in self.lives:
            return life.resources[0]
        return next(_resources(self.documents), None)


class _Life(Input, frozen=True, kw_only=True):
    event_type: str
    resources: Annotated[list[str], msgspec.Meta(min_length=1)]
    status: Status = Status.SCHEDULED
    event_source: str = "Platform"
    description: str = ""
    duration_in_seconds: int = -1
    notice_seconds: _Seconds = 900.0
    started_seconds: _Seconds | None = None
    cancelled_after_seconds: _Seconds | None = None
    is_gone_at_not_before: bool = False
    waits_for_others: bool = False


class _Transitions(Input, frozen=True, kw_only=True):
    unapproved: list[_Transition]
    approved: list[_Transition]


class _Lives(Input, frozen=True, kw_only=True):
    description: str = ""
    source: str = ""
    events: Annotated[list[_Life], msgspec.Meta(min_length=1)]
    transitions: _Transitions | None = None


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str


class _Document(msgspec.Struct, frozen=True, rename="pascal"):
    document_incarnation: int | str
    events: list[_Event]


class _Documents(Input, frozen=True, kw_only=True):
    description: str = ""
    source: str = ""
    documents: Annotated[list[_Document], msgspec.Meta(min_length=1)]


_Reel = Annotated[list[_Document], msgspec.Meta(min_length=1)]


def names() -> tuple[str, ...]:
    """Return the names of the built-in scenarios."""
    return tuple(sorted(_built_in()))


def load(name_or_file: str) -> Scenario:
    """Read a built-in scenario by its name, or else a file.

    Raises:
        ScenarioError: there is no such scenario, or the file is faulty.
    """
    built_in = _built_in().get(name_or_file)
    if built_in is not None:
        return parse_scenario(built_in.read_bytes(), name_or_file)
    path = Path(name_or_file)
    if not path.is_file():
        raise ScenarioError(
            f"there is no scenario or file {name_or_file!r}; the scenarios are "
            f"{', '.join(names())}"
        )
    try:
        return parse_scenario(path.read_bytes(), name_or_file)
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from error


def _built_in() -> Mapping[str, Traversable]:
    folder = resources.files("bridge.simulator") / "scenarios"
    return {
        entry.name.removesuffix(".json"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    }


def parse_scenario(body: bytes, name: str) -> Scenario:
    """Read a scenario in either form.

    Raises:
        ScenarioError: it is not a scenario; the text names ``name`` and the place.
    """
    try:
        return _parsed(body, name)
    except orjson.JSONDecodeError as error:
        raise ScenarioError(
            f"{name} is no JSON: {error.msg} at line {error.lineno} "
            f"column {error.colno}"
        ) from error
    except BadInputError as error:
        raise ScenarioError(f"{name} is no scenario: {error}") from error


def _parsed(body: bytes, name: str) -> Scenario:
    raw = orjson.loads(body)
    check_depth(raw)
    if isinstance(raw, list):
        parse(body, _Reel)
        return Scenario(name=name, documents=tuple(raw))
    if isinstance(raw, dict) and "documents" in raw:
        reel = parse(body, _Documents)
        # The documents are shown as in the file; parse() only checks their types.
        return Scenario(
            name=name, description=reel.description, documents=tuple(raw["documents"])
        )
    return _of_lives(parse(body, _Lives), name)


def _of_lives(given: _Lives, name: str) -> Scenario:
    expected = given.transitions
    return Scenario(
        name=name,
        description=given.description,
        lives=tuple(_life(life) for life in given.events),
        expected=tuple(expected.unapproved) if expected else (),
        expected_approved=tuple(expected.approved) if expected else (),
    )


def _life(given: _Life) -> EventLife:
    return EventLife(
        event_type=given.event_type,
        resources=tuple(given.resources),
        status=given.status,
        source=given.event_source,
        description=given.description,
        duration_seconds=given.duration_in_seconds,
        notice_seconds=given.notice_seconds,
        started_seconds=given.started_seconds,
        cancelled_after_seconds=given.cancelled_after_seconds,
        is_gone_at_not_before=given.is_gone_at_not_before,
        waits_for_others=given.waits_for_others,
    )


def _resources(documents: Sequence[object]) -> Iterator[str]:
    for document in documents:
        for event in event_objects(document):
            names = event.get("Resources")
            if isinstance(names, list):
                yield from (name for name in names if isinstance(name, str))
