"""What JSON allows and few can hold: read all the same, and carried by every step."""

import json
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.build import from_transition
from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.document import ScheduledEvent, parse
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MalformedDocumentError
from tests.support.builders import event_context_of

NOW = Moment(at=datetime(2026, 3, 2, 12, tzinfo=UTC), monotonic=None)
LONG = "1234567890123456789012345"


def document(event: str) -> bytes:
    return f'{{"DocumentIncarnation": 1, "Events": [{event}]}}'.encode()


@pytest.mark.parametrize(
    ("written", "carried"),
    [
        ('"\\ud800"', "\ufffd"),
        ('"\\uD83D\\uDE00"', "\U0001f600"),
        ('"\\ude00\\ud83d"', "\ufffd\ufffd"),
        ('{"\\udfff": ["\\ud800"]}', {"\ufffd": ["\ufffd"]}),
        ("1e999", "1e999"),
        ("-1e999", "-1e999"),
        ("1e308", 1e308),
        (LONG, LONG),
        ("9" * 400, "9" * 400),
        ("9" * 5000, "9" * 5000),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), str(2**64)),
        (str(-(2**63)), -(2**63)),
        (str(-(2**63) - 1), str(-(2**63) - 1)),
        (f'"{LONG}"', LONG),
    ],
)
def test_oddity_is_carried_on_and_blinds_nobody(written: str, carried: object) -> None:
    body = document(f'{{"EventId": "a", "Odd": {written}}}, {{"EventId": "b"}}')

    found = parse(body)

    assert [event.event_id for event in found.events.values()] == ["a", "b"]
    assert found.events["A"].raw["Odd"] == carried
    assert found.faults == ()


def test_event_id_that_is_no_text_is_left_out_and_named() -> None:
    found = parse(document('{"EventId": "\\ud800"}, {"EventId": "b"}'))

    assert list(found.events) == ["B"]
    assert found.faults == ("Events[0] has an EventId that is no Unicode text",)


@pytest.mark.parametrize(
    "body",
    [
        b'{"Events": [], "x": NaN}',
        b'{"Events": [], "x": -Infinity}',
        b'{"Events": [], "x": "\xff"}',
        b'{"Events": [], "x": "\xed\xa0\x80"}',
        b'{"Events": [], "x": 1e999',
        b'{"Events": ' + b"[" * 100_000,
        b'{"x": 1e999, "Events": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_refused_by_both_readers(body: bytes) -> None:
    with pytest.raises(MalformedDocumentError) as caught:
        parse(body)

    assert len(str(caught.value)) < 200


_DECIMAL = r"-?[1-9][0-9]{0,30}\.[0-9]{1,30}([eE][+-]?[0-9]{1,4})?"


def written() -> st.SearchStrategy[str]:
    """Return JSON texts with what only JSON can hold."""
    leaves = (
        st.integers().map(str)
        | st.integers(1, 500).map("7".__mul__)
        | st.from_regex(_DECIMAL, fullmatch=True)
        | st.text().map(json.dumps)
        | st.lists(
            st.sampled_from(["\\ud83d", "\\ude00", "\\uD800", "\\u0000", "x", "\\\\"])
        ).map(lambda parts: f'"{"".join(parts)}"')
        | st.sampled_from(["null", "true", "{}", "[]"])
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
            | st.lists(inner, max_size=4).map(
                lambda items: (
                    "{"
                    + ",".join(f'"\\ud83d{n}": {item}' for n, item in enumerate(items))
                    + "}"
                )
            )
        ),
        max_leaves=8,
    )


FIELDS = st.sampled_from(
    ["Odd", "NotBefore", "Resources", "DurationInSeconds", "EventStatus", "Description"]
)


@pytest.mark.slow
@given(st.dictionaries(FIELDS, written()), written())
def test_whatever_is_read_can_be_published_hashed_and_remembered(
    fields: dict[str, str], beside: str
) -> None:
    members = "".join(f', "{name}": {text}' for name, text in fields.items())
    body = f'{{"Beside": {beside}, "Events": [{{"EventId": "a"{members}}}]}}'.encode()

    found = parse(body)

    watch, steps = diff(Watch(), found, NOW, poll_interval=1, relayed=frozenset())
    (step,) = steps
    shown = from_transition(
        event_context_of(),
        step,
        incarnation=found.incarnation,
        observed_at=NOW.at,
        repeats=0,
    )
    again = CloudEvent.from_json(shown.event.to_json())
    assert again.to_json() == shown.event.to_json()
    assert again.data["event"] == found.events["A"].raw
    raw = again.data["event"]
    assert isinstance(raw, dict)
    same = ScheduledEvent(event_id="a", raw=raw)
    assert hash32(found.events["A"].canonical) == hash32(same.canonical)
    assert Watch.from_json(watch.to_json()).known == watch.known
    assert orjson.loads(orjson.dumps(found.raw)) == found.raw
