"""Reading the document: lenient where Azure may grow, strict where nothing is said."""

import json
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import MAX_BYTES, exact, parse, parse_time
from bridge.foundation.errors import MalformedDocumentError
from tests.support.builders import (
    DATA,
    EVENT_ID,
    body_of,
    document,
    imds_event,
    recorded,
)
from tests.support.strategies import JSON_VALUES, bodies, events

SEPTEMBER = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
API_VERSIONS = json.loads((DATA / "api-versions.json").read_text())["versions"]


@pytest.mark.parametrize(
    "body", recorded("api-versions"), ids=[f"v{v}" for v in API_VERSIONS]
)
def test_document_of_each_api_version_is_read(body: bytes) -> None:
    found = parse(body)

    (event,) = found.events.values()
    assert found.incarnation == 5
    assert found.faults == ()
    assert event.status == "Scheduled"
    assert event.resources
    assert event.not_before == SEPTEMBER


def test_fields_that_an_old_version_lacks_are_absent() -> None:
    (event,) = parse(recorded("api-versions")[0]).events.values()

    assert (event.event_source, event.duration) == (None, None)


@pytest.mark.parametrize("case", ["live-migration", "user-reboot", "mock-server"])
def test_recorded_events_are_kept_verbatim(case: str) -> None:
    for body in recorded(case):
        found = parse(body)

        assert [e.raw for e in found.events.values()] == orjson.loads(body)["Events"]


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 19 Sep 2016 18:29:47 GMT",
        "Sun, 19 Sep 2016 18:29:47 GMT",
        "19 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 20:29:47 +0200",
        "Mon, 19 Sep 2016 18:29:47",
        "2016-09-19T18:29:47Z",
        "2016-09-19T18:29:47",
        "2016-09-19T18:29:47.000Z",
        "2016-09-19T20:29:47+02:00",
        "  2016-09-19T18:29:47Z  ",
    ],
)
def test_not_before_is_read_in_each_form_it_was_ever_written(text: str) -> None:
    assert parse_time(text) == SEPTEMBER


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "0",
        "2016-13-01",
        "Mon, 99 Sep 2016 18:29:47 GMT",
        "\x00",
        "0001-01-01T00:00:00+14:00",  # beyond what a datetime holds, in UTC
        "9999-12-31T23:59:59-10:00",
    ],
)
def test_not_before_that_is_no_time_counts_as_absent(text: str) -> None:
    event = document(imds_event(NotBefore=text)).events[EVENT_ID]

    assert event.not_before is None
    assert event.raw["NotBefore"] == text


@given(st.text(max_size=40) | st.datetimes().map(str))
def test_reading_a_time_never_raises(text: str) -> None:
    found = parse_time(text)

    assert found is None or found.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("7", 7),
        (" 7 ", 7),
        ("-7", -7),
        (7.0, 7),
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (None, None),
        ("", None),
        ("seven", None),
        ("7.5", None),
        ("--7", None),
        ("\N{ARABIC-INDIC DIGIT SEVEN}", None),
        (7.5, None),
        (True, None),
        ([7], None),
        ({"n": 7}, None),
    ],
)
def test_incarnation_is_a_number_however_written(
    value: object, number: int | None
) -> None:
    body = json.dumps({"DocumentIncarnation": value, "Events": []}).encode()

    assert parse(body).incarnation == number


@pytest.mark.parametrize("value", ["9" * 5000, "9" * 20, 1e300, 2**64, -(2**70)])
def test_incarnation_beyond_64_bits_counts_as_absent(value: object) -> None:
    """Neither JSON for others nor the state file could hold it."""
    assert document(incarnation=value).incarnation is None


def test_incarnation_may_be_absent() -> None:
    assert document(imds_event(), incarnation=None).incarnation is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  \r\n",
        b"\xef\xbb\xbf",
        b"null",
        b"[]",
        b'"Events"',
        b"{}",
        b"<html>",
        b'{"Events": []',
        b'{"Events": {}}',
        b'{"Events": null}',
        b'{"events": []}',
        b'{"Events": [], "x": NaN}',
        b'{"Events": [], "x": "\xff"}',
        b'{"Events":' + b"[" * 5000,
        b'{"Events": []}' + b" " * MAX_BYTES,
    ],
)
def test_body_that_says_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedDocumentError) as caught:
        parse(body)

    assert caught.value.outcome == "malformed"


def test_body_of_exactly_the_limit_is_read() -> None:
    body = b'{"Events": []}'

    assert parse(body + b" " * (MAX_BYTES - len(body))).events == {}


def test_byte_order_mark_is_skipped() -> None:
    assert EVENT_ID in parse(b"\xef\xbb\xbf" + body_of(imds_event())).events


@pytest.mark.parametrize(
    ("element", "what"),
    [
        (None, "is no object"),
        ("x", "is no object"),
        ([imds_event()], "is no object"),
        ({}, "no EventId"),
        ({"EventId": None}, "no EventId"),
        ({"EventId": 7}, "no EventId"),
        ({"EventId": ""}, "no EventId"),
        ({"EventId": "  "}, "no EventId"),
        ({"EventId": "x" * 1025}, "more than 1024 characters"),
        (imds_event("y", Deep=json.loads("[" * 70 + "]" * 70)), "levels deep"),
    ],
)
def test_element_that_cannot_be_read_is_left_out_and_named(
    element: object, what: str
) -> None:
    found = document(imds_event("a"), element, imds_event("b"))

    assert list(found.events) == ["A", "B"]
    assert len(found.faults) == 1
    assert found.faults[0].startswith("Events[1] ")
    assert what in found.faults[0]


@pytest.mark.parametrize("value", [None, 7, True, [], {}, 1.5])
def test_field_of_an_unexpected_type_counts_as_absent_and_is_kept(
    value: object,
) -> None:
    names = ("EventStatus", "EventType", "EventSource", "NotBefore")
    event = document(imds_event() | dict.fromkeys(names, value)).events[EVENT_ID]

    derived = (event.status, event.event_type, event.event_source, event.not_before)
    assert derived == (None, None, None, None)
    assert [event.raw[name] for name in names] == [value] * 4


@pytest.mark.parametrize("value", [None, "WestNO_0", 7, {"0": "WestNO_0"}])
def test_resources_that_are_no_list_count_as_absent(value: object) -> None:
    event = document(imds_event(Resources=value)).events[EVENT_ID]

    assert event.resources == ()
    assert event.canonical["Resources"] == value


def test_resources_that_are_no_names_are_passed_over() -> None:
    event = document(imds_event(Resources=["b", 7, None, "a"])).events[EVENT_ID]

    assert event.resources == ("b", "a")
    assert event.canonical["Resources"] == ["b", 7, None, "a"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(9, 9), (0, 0), (-1, -1), (True, None), ("9", None), (9.5, None), (None, None)],
)
def test_duration_is_a_whole_number_or_absent(
    value: object, seconds: int | None
) -> None:
    event = document(imds_event(DurationInSeconds=value)).events[EVENT_ID]

    assert event.duration == seconds


def test_unknown_fields_types_and_statuses_are_kept() -> None:
    raw = imds_event(EventType="Melt", EventStatus="Acknowledged", Next={"a": [1]})
    event = document(raw).events[EVENT_ID]

    assert (event.event_type, event.status) == ("Melt", "Acknowledged")
    assert event.raw == raw


def test_of_two_elements_that_differ_in_case_the_last_one_holds() -> None:
    found = document(
        imds_event(EVENT_ID.lower()), imds_event(EVENT_ID, EventType="Reboot")
    )

    assert [e.event_type for e in found.events.values()] == ["Reboot"]


def test_canonical_form_hides_case_of_the_id_and_order_of_resources() -> None:
    one = document(imds_event("ab", Resources=["b", "a"])).events["AB"]
    two = document(imds_event("AB", Resources=["a", "b"])).events["AB"]

    assert one.canonical == two.canonical
    assert one.event_id == "ab"


@pytest.mark.parametrize("deep", [100, 800])
def test_what_is_nested_absurdly_deep_beside_the_events_is_not_kept(deep: int) -> None:
    """Else nobody could write the document again: not for a sink, not for an id."""
    nest = b"[" * deep + b"]" * deep
    body = b'{"DocumentIncarnation": 1, "x": %b, "Events": [%b]}'
    found = parse(body % (nest, b'{"EventId": "a", "y": %b}' % nest))

    assert exact(found.raw) == exact({"DocumentIncarnation": 1, "Events": []})
    assert orjson.dumps(found.raw)


def test_event_id_as_long_as_may_be_is_read() -> None:
    assert list(document(imds_event("X" * 1024)).events) == ["X" * 1024]


def test_event_as_deep_as_may_be_stands_in_the_document() -> None:
    deepest = imds_event("a", Deep=json.loads("[" * 62 + "]" * 62))

    found = document(deepest)

    assert list(found.events) == ["A"]
    assert found.raw["Events"] == [deepest]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_malformed(body: bytes) -> None:
    try:
        parse(body)
    except MalformedDocumentError as error:
        assert error.outcome == "malformed"  # noqa: PT017 - either outcome is good


@given(JSON_VALUES)
def test_any_json_is_read_or_refused_as_malformed(value: object) -> None:
    is_document = isinstance(value, dict) and isinstance(value.get("Events"), list)
    try:
        parse(json.dumps(value).encode())
    except MalformedDocumentError:
        assert not is_document


@given(bodies(JSON_VALUES))
def test_any_elements_are_read_or_named(body: bytes) -> None:
    found = parse(body)

    distinct = len(found.events) + len(found.faults)
    assert distinct <= len(orjson.loads(body)["Events"])
    for event in found.events.values():
        assert exact(event.canonical)
        assert event.not_before is None or event.not_before.tzinfo is UTC


@given(st.lists(events(), max_size=4))
def test_readable_events_stand_in_the_document_verbatim(
    elements: list[dict[str, object]],
) -> None:
    found = parse(body_of(*elements))

    last = {str(e["EventId"]).upper(): exact(e) for e in elements}
    assert {key: exact(e.raw) for key, e in found.events.items()} == last
    assert found.faults == ()


def test_values_that_python_holds_for_equal_are_distinguished() -> None:
    assert len({exact(value) for value in (1, 1.0, True, "1")}) == 4


@given(st.text("0129 ", min_size=2, max_size=2), st.datetimes(timezones=st.just(UTC)))
def test_time_of_a_header_is_read_as_the_standard_library_reads_it(
    day: str, moment: datetime
) -> None:
    usual = format_datetime(moment.replace(microsecond=0), usegmt=True)
    for text in (usual, usual[:5] + day + usual[7:], usual[:-3] + "+0000"):
        try:
            wanted = parsedate_to_datetime(text)
        except ValueError:
            wanted = None
        assert parse_time(text) == wanted
