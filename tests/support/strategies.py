"""What Hypothesis makes of documents, from likely ones to absurd ones."""

import json
from datetime import UTC, datetime

from hypothesis import strategies as st

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import Document, parse
from bridge.events.vocabulary import TransitionKind
from tests.support.builders import (
    document,
    imds_event,
    not_before,
    started,
)
from tests.support.example_events import published, received, transition

# Few ids, in both cases, so that two documents often name the same event.
EVENT_IDS = ("A1B2", "a1b2", "C3D4", "c3d4", "E5F6", "ö", "Ö", "x\x00y", "_")
_FIELDS = (
    "EventStatus",
    "EventType",
    "ResourceType",
    "Resources",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
    "NextYearsField",
)
_NAMES = st.sampled_from(_FIELDS) | st.text(max_size=8)

WIDE_INTEGERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | WIDE_INTEGERS | FLOATS | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)
LIKELY_FIELDS = {
    "EventStatus": st.sampled_from(["Scheduled", "Started", "Acknowledged", ""]),
    "EventType": st.sampled_from(
        ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "Melt"]
    ),
    "Resources": st.lists(st.sampled_from(["a", "B", "_c", "D"]), max_size=4),
    "NotBefore": st.sampled_from(
        ["", "soon", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
    )
    | st.integers(-1000, 100000).map(not_before),
    "EventSource": st.sampled_from(["Platform", "User"]),
    "DurationInSeconds": st.integers(-1, 10),
}


def odd_events(
    names: st.SearchStrategy[str] = _NAMES,
) -> st.SearchStrategy[dict[str, object]]:
    """Return events with an EventId, and otherwise whatever JSON can hold.

    Args:
        names: of the fields beside it; one that is EventId itself changes nothing.
    """
    return st.builds(
        lambda event_id, fields: {**fields, "EventId": event_id},
        st.sampled_from(EVENT_IDS),
        st.dictionaries(names, JSON_VALUES, max_size=8),
    )


def likely_events() -> st.SearchStrategy[dict[str, object]]:
    """Return events of known fields with values that a service may send."""
    return st.builds(
        lambda event_id, fields: {"EventId": event_id, **fields},
        st.sampled_from(EVENT_IDS),
        st.fixed_dictionaries({}, optional=LIKELY_FIELDS),
    )


def events() -> st.SearchStrategy[dict[str, object]]:
    return likely_events() | odd_events()


def cloud_events() -> st.SearchStrategy[CloudEvent]:
    """Return events as a sink gets them: read back from the outbox."""
    return st.builds(_as_event, events(), st.sampled_from(TransitionKind))


def _as_event(raw: dict[str, object], kind: TransitionKind) -> CloudEvent:
    (event,) = document(raw).events.values()
    step = transition(kind, event, event)
    return received(published(step, incarnation=1).event)


def bodies(
    elements: st.SearchStrategy[object] | None = None,
) -> st.SearchStrategy[bytes]:
    """Return bodies of documents; ``elements`` are what stands in Events."""
    numbers = st.integers(-1, 6) | st.integers(0, 6).map(str) | JSON_VALUES
    return st.builds(
        lambda number, found: json.dumps(
            {"DocumentIncarnation": number, "Events": found}
        ).encode(),
        numbers,
        st.lists(elements if elements is not None else events(), max_size=4),
    )


def documents() -> st.SearchStrategy[Document]:
    """Return documents in which every element could be read."""
    return bodies().map(parse)


def odd_documents() -> st.SearchStrategy[Document]:
    """Return documents with elements that have to be left out, too."""
    return bodies(events() | JSON_VALUES).map(parse)


@st.composite
def histories(draw: st.DrawFn) -> list[Document]:
    """Return what a VM sees over time: events appear, move, start and vanish."""
    alive: dict[str, dict[str, object]] = {}
    found = []
    for number in range(1, draw(st.integers(2, 8))):
        for event_id in draw(st.sets(st.sampled_from(["A1", "B2", "C3"]))):
            alive = _lived(alive, event_id, draw(st.sampled_from("mser")))
        body = {"DocumentIncarnation": number, "Events": list(alive.values())}
        found.append(parse(json.dumps(body).encode()))
    return found


def _lived(
    alive: dict[str, dict[str, object]], event_id: str, step: str
) -> dict[str, dict[str, object]]:
    rest = {key: value for key, value in alive.items() if key != event_id}
    if event_id not in alive:
        return rest | {event_id: imds_event(event_id)}
    if step == "s":
        return rest | {event_id: started(event_id)}
    if step == "m":
        return rest | {event_id: imds_event(event_id, NotBefore=not_before(7200))}
    return rest if step == "e" else alive


def moments() -> st.SearchStrategy[datetime]:
    return st.datetimes(
        min_value=datetime(1971, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
        max_value=datetime(9998, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
        timezones=st.just(UTC),
    )
