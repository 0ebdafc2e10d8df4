"""CloudEvents 1.0, rule by rule, beside the official schema and other validators."""

import json
import string
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, FormatChecker

from bridge.events.cloudevent_rules import (
    as_time,
    faults,
    is_media_type,
    is_time,
    is_uri,
    is_uri_reference,
)
from tests.support.sink_fixtures import cloud_event
from tests.support.strategies import cloud_events

SCHEMA = Path(__file__).parents[1] / "data" / "cloudevents.schema.json"
FORMATS = FormatChecker()
OFFICIAL = Draft7Validator(json.loads(SCHEMA.read_text()), format_checker=FORMATS)
LEAST = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def found(**members: object) -> list[str]:
    return list(faults(LEAST | members))


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"subject": "s", "time": "2026-03-02T12:00:00Z"},
        {"time": None, "subject": None, "datacontenttype": None, "dataschema": None},
        {"data": None, "data_base64": None},
        {"data": {"a": [1]}},
        {"data": "text"},
        {"data": 7},
        {"data": {}, "data_base64": None},
        {"data_base64": "AAE="},
        {"comexampleflag": True},
        {"comexampleflag": False},
        {"comexamplenumber": 2**31 - 1},
        {"comexamplenumber": -(2**31)},
        {"comexamplenumber": 0},
        {"comexampletext": ""},
        {"comexampletext": "naïve ☃ 😀"},
        {"comexamplenothing": None},
        {"a1": "x", "1a": "y", "abcdefghijklmnopqrstuvwxyz0123456789": "z"},
        {"datacontenttype": "application/json; charset=utf-8"},
        {"datacontenttype": 'text/x;a="b;c\\"d"'},
        {"dataschema": "urn:sebridge:schema:bridge:v1"},
        {"source": "https://a.example/b?c#d"},
        {"source": "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"},
        {"source": "a"},
    ],
)
def test_valid_event_has_no_fault(members: dict[str, object]) -> None:
    assert found(**members) == []


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"id": ""}, "its id is empty"),
        ({"id": None}, "it has no id"),
        ({"id": 7}, "its id must be text"),
        ({"source": ""}, "its source is empty"),
        ({"source": "a b"}, "its source is 'a b', and no URI reference"),
        ({"source": None}, "it has no source"),
        ({"type": ""}, "its type is empty"),
        ({"type": None}, "it has no type"),
        ({"specversion": "0.9"}, "its specversion is '0.9', and not '1.0'"),
        ({"specversion": "1.0.2"}, "its specversion is '1.0.2', and not '1.0'"),
        ({"specversion": 1.0}, "its specversion must be text"),
        ({"specversion": None}, "it has no specversion"),
        ({"subject": ""}, "its subject is empty"),
        ({"time": ""}, "its time is empty"),
        ({"time": "now"}, "its time is 'now', and not as in RFC 3339"),
        ({"time": 7}, "its time must be text"),
        (
            {"datacontenttype": "xyz"},
            "its datacontenttype is 'xyz', and no media type such as application/json",
        ),
        ({"datacontenttype": ""}, "its datacontenttype is empty"),
        ({"dataschema": "/relative"}, "its dataschema is '/relative', and no URI with"),
        ({"data": 1, "data_base64": "AA=="}, "it has both data and data_base64"),
        ({"data_base64": "?"}, "its data_base64 is '?', and no base64"),
        ({"data_base64": "AA=A"}, "its data_base64 is 'AA=A', and no base64"),
        ({"data_base64": "é"}, "its data_base64 is 'é', and no base64"),
        ({"extension": 2**31}, "its extension must be text, true, false or a whole"),
        ({"extension": -(2**31) - 1}, "its extension must be text, true, false or"),
        ({"extension": 1.0}, "its extension must be text, true, false or a whole"),
        ({"extension": [1]}, "its extension must be text, true, false or a whole"),
        ({"extension": {}}, "its extension must be text, true, false or a whole"),
        ({"Upper": "x"}, "an attribute is called 'Upper', and only a to z and 0 to 9"),
        ({"a_b": "x"}, "an attribute is called 'a_b', and only a to z and 0 to 9"),
        ({"": "x"}, "an attribute is called '', and only a to z and 0 to 9"),
        ({"id": "a\n"}, r"its id holds a character that is not allowed: 'a\n'"),
        ({"subject": "\x7f"}, r"its subject holds a character that is not allowed: '"),
        ({"extension": "\x85"}, "its extension holds a character that is not allowed"),
        ({"extension": "\ud800"}, "its extension holds a character that is not all"),
        ({"extension": "\ufdd0"}, "its extension holds a character that is not all"),
        ({"extension": "\ufffe"}, "its extension holds a character that is not all"),
        ({"extension": "\U0010ffff"}, "its extension holds a character that is not"),
    ],
)
def test_fault_names_the_attribute_and_what_is_allowed(
    members: dict[str, object], words: str
) -> None:
    (fault,) = found(**members)

    assert fault.startswith(words)


def test_all_faults_are_reported_at_once() -> None:
    assert list(faults({"specversion": "0.9", "time": "x"})) == [
        "it has no id",
        "it has no source",
        "it has no type",
        "its specversion is '0.9', and not '1.0'",
        "its time is 'x', and not as in RFC 3339",
    ]


@given(cloud_events())
def test_what_the_bridge_tells_is_valid(event: Any) -> None:
    assert not list(faults(json.loads(event.to_json())))
    assert not list(faults(json.loads(cloud_event().to_json())))


texts = st.text(max_size=6) | st.sampled_from(
    ["1.0", "a/b", "xyz", "/s", "urn:x", "http://h/", "2026-03-02T12:00:00Z", "AA=="]
)
values = st.none() | texts | st.integers() | st.booleans() | st.lists(st.none())
names = st.sampled_from(
    [*LEAST, "subject", "time", "datacontenttype", "dataschema", "data_base64"]
)


@given(st.dictionaries(names, values))
def test_what_the_official_schema_refuses_is_refused(
    changes: Mapping[str, object],
) -> None:
    members = {**LEAST, **changes}
    if not OFFICIAL.is_valid(members):
        assert list(faults(members))


# -- URIs, times, media types --------------------------------------------------------

PARTS = ["http:", "a+b:", "1:", "//", "/", "u@", "h", "[::1]", "[1::2::3]", "[v1.a]"]
PARTS += [":80", ":", "?", "#", "%20", "%2", "é", "a", "="]
URIS = st.one_of(
    st.text(string.ascii_letters + string.digits + "-._~:/?#[]@!$&'()*+,;=% ^{é"),
    st.builds(
        "".join,
        st.lists(
            st.sampled_from(PARTS),
            max_size=8,
        ),
    ),
)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("//[::1]/", True),
        ("http://[2001:db8::1]:80/a?b#c", True),
        ("//[1::2::3]/", False),
        ("//[v1.a:b]", True),
        ("//[v.a]", False),
        ("a:b", True),
        ("./a:b", True),
        ("1:b", False),
        ("//u:p@h:80", True),
        ("//h:x", False),
        ("a#b#c", False),
        ("%zz", False),
        ("", True),
    ],
)
def test_uri_reference_is_as_the_standard_has_it(text: str, *, is_one: bool) -> None:
    assert is_uri_reference(text) is is_one


@given(URIS)
def test_uri_is_read_as_another_validator_reads_it(text: str) -> None:
    assert is_uri_reference(text) == FORMATS.conforms(text, "uri-reference")
    assert is_uri(text) == FORMATS.conforms(text, "uri")


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(["Z", "z", "+00:00"]))
def test_time_is_read_with_either_case(moment: datetime, zone: str) -> None:
    text = moment.isoformat().removesuffix("+00:00")
    for written in (text, text.replace("T", "t")):
        assert as_time(f"{written}{zone}") == moment
    assert FORMATS.conforms(f"{text}{zone.upper()}", "date-time")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00+00:00"),
        ("2016-12-31T23:59:60.5Z", "2017-01-01T00:00:00.500000+00:00"),
        ("2026-03-02T12:00:00.123456789123Z", "2026-03-02T12:00:00.123456+00:00"),
        ("2026-03-02T12:00:00-00:00", "2026-03-02T12:00:00+00:00"),
        ("2026-03-02T12:00:00+05:30", "2026-03-02T06:30:00+00:00"),
    ],
)
def test_odd_times_are_read(text: str, read: str) -> None:
    moment = as_time(text)

    assert moment is not None
    assert moment.isoformat() == read


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-02",
        "2026-03-02T12:00:00",
        "2026-03-02 12:00:00Z",
        "2026-03-02T24:00:00Z",
        "2026-03-02T12:60:00Z",
        "2026-03-02T12:00:61Z",
        "2026-02-30T12:00:00Z",
        "2026-03-02T12:00:00.Z",
        "2026-03-02T12:00:00+24:00",
        "2026-03-02T12:00:00+0100",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:60Z",
        "٢٠٢٦-03-02T12:00:00Z",
        "x\n",
    ],
)
def test_other_texts_are_no_times(text: str) -> None:
    assert not is_time(text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("application/json", True),
        ("application/vnd.a.b+json;v=1 ; charset=utf-8", True),
        ("a/b", True),
        ("a", False),
        ("a/", False),
        ("/b", False),
        ("a/b/c", False),
        ("a/b;", False),
        ("a/b;c", False),
        ("a b/c", False),
        ("a/b\n", False),
    ],
)
def test_media_type_has_two_parts(text: str, *, is_one: bool) -> None:
    assert is_media_type(text) is is_one
