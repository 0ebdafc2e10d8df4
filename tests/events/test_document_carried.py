"""A document that is read is carried to the letter by every step after it."""

import json
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.build import OutgoingEvent, from_document, from_transition
from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.document import Document, exact, parse
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MalformedDocumentError
from tests.support.builders import event_context_of

NOW = Moment(at=datetime(2026, 3, 2, 12, tzinfo=UTC), monotonic=None)
LONG = b"1234567890123456789012345"


@pytest.mark.parametrize("written", ["\ufffd", "a\ufffdb", "\\ufffd"])
def test_replacement_character_is_text_like_any_other(written: str) -> None:
    """It is not to be taken for half of a surrogate pair."""
    found = parse(f'{{"Events": [{{"EventId": "{written}"}}]}}'.encode())

    assert found.faults == ()
    assert [event.raw["EventId"] for event in found.events.values()] == [
        json.loads(f'"{written}"')
    ]


@pytest.mark.parametrize("depth", [70, 300, 900])
@pytest.mark.parametrize("beside", [b"1", LONG, b'"\\ud800"', b"1e999"])
def test_what_is_nested_too_deep_hides_nothing_else(depth: int, beside: bytes) -> None:
    nest = b"[" * depth + b"]" * depth
    body = (
        b'{"y": %b, "x": %b, "Events": [{"EventId": "a", "x": %b}, {"EventId": "b"}]}'
    )

    found = parse(body % (beside, nest, nest))

    assert list(found.events) == ["B"]
    assert found.faults == ("Events[0] is nested more than 64 levels deep",)
    assert set(found.raw) == {"y", "Events"}


PARTS = st.sampled_from(["\\ud83d", "\\ude00", "\\uD800", "\\u0000", "x", "\\\\", "ö"])
TEXTS = st.lists(PARTS).map("".join) | st.text().map(
    lambda text: json.dumps(text)[1:-1]
)
NUMBERS = (
    st.integers().map(str)
    | st.integers(1, 500).map("7".__mul__)
    | st.from_regex(r"-?[1-9]\d{0,30}\.\d{1,30}([eE][+-]?\d{1,4})?", fullmatch=True)
    | st.sampled_from(["-0", "-0.0", "0e9", "1E400", "-1e999", "1e-999", "2.0"])
)


def members(
    names: st.SearchStrategy[str], values: st.SearchStrategy[str]
) -> st.SearchStrategy[str]:
    """Return JSON objects, with names that may be repeated."""
    return st.lists(
        st.tuples(names, values).map(lambda pair: f'"{pair[0]}": {pair[1]}'),
        max_size=5,
    ).map(lambda found: "{" + ", ".join(found) + "}")


def nested(value: str, depth: int) -> str:
    return "[" * depth + value + "]" * depth


LEAVES = (
    NUMBERS
    | TEXTS.map(lambda text: f'"{text}"')
    | st.sampled_from(["null", "true", "{}", "[]"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | members(TEXTS, inner)
        | st.builds(nested, inner, st.integers(1, 100))
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "EventId",
        "EventStatus",
        "EventType",
        "EventSource",
        "Resources",
        "NotBefore",
        "DurationInSeconds",
    ]
)
ELEMENTS = (
    st.tuples(TEXTS, members(FIELDS | TEXTS, VALUES)).map(
        lambda pair: f'{{"EventId": "{pair[0]}", ' + pair[1][1:]
    )
    | VALUES
)
DOCUMENTS = st.builds(
    lambda number, beside, events: (
        f'{{"DocumentIncarnation": {number}, "x": {beside}, "Events": {events}}}'
    ),
    NUMBERS | VALUES,
    VALUES,
    st.lists(ELEMENTS, max_size=4).map(lambda found: f"[{', '.join(found)}]") | VALUES,
).map(str.encode)


@given(DOCUMENTS, st.integers(0, 200), st.binary(max_size=3))
def test_any_bytes_are_carried_or_refused(body: bytes, at: int, noise: bytes) -> None:
    try:
        found = parse(body[:at] + noise + body[at:])
    except MalformedDocumentError as error:
        assert len(str(error)) < 200  # noqa: PT017 - either outcome is good
        return

    assert_remembered(found)
    for shown in events_of(found):
        assert_readable(shown)


def events_of(found: Document) -> list[OutgoingEvent]:
    watch, steps = diff(Watch(), found, NOW, poll_interval=1)
    _, ends = diff(watch, parse(b'{"Events": []}'), NOW, poll_interval=1)
    shown = [
        from_transition(
            event_context_of(),
            step,
            incarnation=found.incarnation,
            observed_at=NOW.at,
            repeats=0,
        )
        for step in (*steps, *ends)
    ]
    whole = from_document(
        event_context_of(),
        found,
        previous_incarnation=None,
        observed_at=NOW.at,
        repeats=0,
    )
    return [*shown, whole]


def assert_readable(event: OutgoingEvent) -> None:
    written = event.event.to_json()
    again = CloudEvent.from_json(written)

    assert again.to_json() == written
    assert exact(again.data) == exact(event.event.data)


def assert_remembered(found: Document) -> None:
    watch, _ = diff(Watch(), found, NOW, poll_interval=1)
    again = Watch.from_json(watch.to_json())

    assert again.incarnation == found.incarnation
    assert again.known.keys() == found.events.keys()
    for key, event in found.events.items():
        kept = again.known[key].event
        assert exact(kept.raw) == exact(event.raw)
        assert hash32(kept.canonical) == hash32(event.canonical)
    assert exact(orjson.loads(orjson.dumps(found.raw))) == exact(found.raw)


@given(DOCUMENTS)
def test_both_readers_read_the_same(body: bytes) -> None:
    """What else stands in the document changes no id of an event."""
    try:
        found = parse(body)
    except MalformedDocumentError:
        return

    beside = parse(body[:-1] + b', "beside": [%b, "\\ud800"]}' % LONG)
    assert exact([e.raw for e in beside.events.values()]) == exact(
        [e.raw for e in found.events.values()]
    )
    assert beside.incarnation == found.incarnation
