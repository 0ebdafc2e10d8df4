"""Syslog and CEF as text, against the grammar of RFC 5424 as it is printed there."""

import json
import re
from collections.abc import Mapping
from typing import ClassVar

import pytest
from abnf import Rule
from abnf.grammars.misc import load_grammar_rules
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import PermanentDeliveryError, Reason
from bridge.sinks.syslog.format import (
    FACILITIES,
    SD_ID,
    Style,
    as_cef,
    render,
    severity,
)
from tests.support.sink_fixtures import EVENT_ID, cloud_event
from tests.support.strategies import cloud_events

STYLE = Style(facility=3, hostname="web-0", version="1.2.3", max_size=60_000)


@load_grammar_rules()
class Rfc5424(Rule):
    """Section 6; what is said in comments there is said in rules here."""

    grammar: ClassVar[list[str] | str] = [
        "HEAD = HEADER SP STRUCTURED-DATA SP",
        "HEADER = PRI VERSION SP TIMESTAMP SP HOSTNAME SP APP-NAME SP PROCID SP MSGID",
        'PRI = "<" PRIVAL ">"',
        "PRIVAL = 1*3DIGIT",
        "VERSION = NONZERO-DIGIT 0*2DIGIT",
        "HOSTNAME = NILVALUE / 1*255PRINTUSASCII",
        "APP-NAME = NILVALUE / 1*48PRINTUSASCII",
        "PROCID = NILVALUE / 1*128PRINTUSASCII",
        "MSGID = NILVALUE / 1*32PRINTUSASCII",
        'TIMESTAMP = NILVALUE / FULL-DATE "T" FULL-TIME',
        'FULL-DATE = 4DIGIT "-" 2DIGIT "-" 2DIGIT',
        'FULL-TIME = 2DIGIT ":" 2DIGIT ":" 2DIGIT ["." 1*6DIGIT] TIME-OFFSET',
        'TIME-OFFSET = "Z" / ("+" / "-") 2DIGIT ":" 2DIGIT',
        "STRUCTURED-DATA = NILVALUE / 1*SD-ELEMENT",
        'SD-ELEMENT = "[" SD-ID *(SP SD-PARAM) "]"',
        "SD-PARAM = PARAM-NAME %d61 %d34 PARAM-VALUE %d34",
        "SD-ID = 1*32SD-CHARACTER",
        "PARAM-NAME = 1*32SD-CHARACTER",
        "SD-CHARACTER = %d33 / %d35-60 / %d62-92 / %d94-126",
        "PARAM-VALUE = *(UNESCAPED / %d92 (%d34 / %d92 / %d93))",
        "UNESCAPED = %d32-33 / %d35-91 / %d94-126 / %d160-1114111",
        "PRINTUSASCII = %d33-126",
        "NONZERO-DIGIT = %d49-57",
        'NILVALUE = "-"',
    ]


def parsed(message: bytes) -> tuple[dict[str, str], str]:
    """Return the fields of the head by their names, and the body."""
    text = message.decode()
    node, end = Rfc5424("HEAD").parse(text, 0)
    found: dict[str, str] = {}
    nodes = [node]
    while nodes:
        one = nodes.pop()
        found.setdefault(one.name, one.value)
        nodes += reversed(one.children)
    return found, text[end:]


@pytest.mark.parametrize("body", ["json", "cef"])
@settings(max_examples=25, deadline=None)
@given(event=cloud_events(), hostname=st.text(max_size=300))
def test_any_event_is_a_message_of_the_grammar(
    event: CloudEvent, hostname: str, body: str
) -> None:
    style = replace(
        STYLE,
        hostname=hostname,
        body=body,
        structured_data="sebridge@12345",
    )
    fields, rest = parsed(render(event, style))

    assert fields["MSGID"] == event.type.split(".")[-2]
    assert fields["TIMESTAMP"] == event.time
    if body == "json":
        assert rest.isascii()
        assert json.loads(rest) == json.loads(event.to_json())
    else:
        assert re.fullmatch(r"(?s)CEF:0(\|([^|\\]|\\[|\\])*){6}\|.*", rest)
        assert rest.isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f]", rest)


def test_message_to_the_letter() -> None:
    event = CloudEvent(
        id="0f" * 16,
        source="urn:x",
        type="sebridge.bridge.started.v1",
        time="2026-11-21T10:00:00.123456Z",
        dataschema="urn:y",
        data={"reason": "naïve"},
    )

    assert render(event, STYLE) == (
        b"<30>1 2026-11-21T10:00:00.123456Z web-0 sebridge - bridge.started "
        b'[origin software="sebridge" swVersion="1.2.3"] '
        b'{"specversion":"1.0","id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",'
        b'"source":"urn:x","type":"sebridge.bridge.started.v1",'
        b'"time":"2026-11-21T10:00:00.123456Z","datacontenttype":"application/json",'
        b'"dataschema":"urn:y","data":{"reason":"na\\u00efve"}}'
    )


@pytest.mark.parametrize(
    ("number", "expected"),
    [(9, 6), (13, 4), (17, 3), (21, 3), (1, 6), ("17", 6), (None, 6)],
)
def test_severity_follows_the_severity_number(
    number: str | int | None, expected: int
) -> None:
    extensions = {} if number is None else {"severitynumber": number}

    assert severity(replace(cloud_event(), extensions=extensions)) == expected


@pytest.mark.parametrize(
    ("facility", "number"), [("kern", 0), ("daemon", 3), ("local0", 16), ("local7", 23)]
)
def test_facilities_have_the_numbers_of_the_table(facility: str, number: int) -> None:
    assert FACILITIES.index(facility) == number
    message = render(cloud_event(), replace(STYLE, facility=number))
    assert message.startswith(b"<%d>1 " % (number * 8 + 3))


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("scheduledevent.completed", "completed"),
        ("startrequest.already-started", "startrequest.already-started"),
        ("bridge.imds-unreachable", "bridge.imds-unreachable"),
        ("document.changed", "document.changed"),
    ],
)
def test_message_id_says_what_happened(what: str, expected: str) -> None:
    fields, _ = parsed(render(cloud_event(what), STYLE))

    assert fields["MSGID"] == expected


@pytest.mark.parametrize(
    ("hostname", "expected"),
    [("", "-"), ("my vm", "my?vm"), ("vmü", "vm?"), ("x" * 256, "x" * 255)],
)
def test_host_name_is_made_printable(hostname: str, expected: str) -> None:
    fields, _ = parsed(render(cloud_event(), replace(STYLE, hostname=hostname)))

    assert fields["HOSTNAME"] == expected


def test_control_character_in_an_element_is_spelled_out() -> None:
    """CloudEvents has none in its attributes, but a file of another version may."""
    event = replace(cloud_event(), subject='a\x1b"\u2028')
    style = replace(STYLE, structured_data="x@1")

    assert b'subject="a\\\\u001b\\"\\\\u2028"' in render(event, style)


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        ("sebridge@32473", True),
        ("sebridge@32473.1.2", True),
        (f"{'a' * 26}@12345", True),
        (f"{'a' * 27}@12345", False),
        *((name, False) for name in ("origin", "a@b@1", "a]@1", 'a"@1', "a=@1", "a@")),
        ("a b@1", False),
        ("ä@1", False),
    ],
)
def test_element_of_ones_own_has_an_enterprise_number(
    name: str, *, is_good: bool
) -> None:
    assert bool(SD_ID.fullmatch(name)) is is_good


# -- size ----------------------------------------------------------------------


def large() -> CloudEvent:
    raw = {
        "EventId": "x" * 300,
        "Resources": [f"web-{number:04}" for number in range(40)],
        "Description": "y" * 1000,
        "DurationInSeconds": 9,
        "Next": {"year": "z" * 500},
    }
    return cloud_event(event=raw, previous=raw)


def test_first_what_was_before_is_left_out() -> None:
    event = large()
    style = replace(STYLE, max_size=len(render(event, STYLE)) - 1)

    _, body = parsed(render(event, style))

    data = json.loads(body)["data"]
    assert data == {**event.data, "previous": None, "truncated": ["previous"]}


def test_then_texts_and_lists_are_cut() -> None:
    event = large()
    event = replace(event, data={**event.data, "truncated": ["event"]})
    _, body = parsed(render(event, replace(STYLE, max_size=2048)))

    data = json.loads(body)["data"]
    assert data["event"] == {
        "EventId": "x" * 300,
        "Resources": [f"web-{number:04}" for number in range(10)],
        "Description": "y" * 200,
        "DurationInSeconds": 9,
        "Next": None,
    }
    assert data["truncated"] == ["event", "previous"]


def test_document_is_left_out() -> None:
    event = cloud_event("document.changed", event=None, document={"x": "y" * 9000})

    _, body = parsed(render(event, replace(STYLE, max_size=2048)))

    assert json.loads(body)["data"]["truncated"] == ["document"]


@pytest.mark.parametrize("event", [cloud_event(), cloud_event(event=None)])
def test_what_cannot_be_made_to_fit_is_refused_for_good(event: CloudEvent) -> None:
    with pytest.raises(PermanentDeliveryError, match="max_size is 480") as caught:
        render(event, replace(STYLE, max_size=480))

    assert caught.value.reason is Reason.TOO_LARGE


# -- CEF -----------------------------------------------------------------------


def fields_of(event: CloudEvent) -> dict[str, str]:
    """Read the extension back, as the format wants it read."""
    extension = as_cef(event, version="1").split("|", 7)[7]
    parts = re.split(r" (?=[a-zA-Z0-9]+=)", extension)
    return dict(part.split("=", 1) for part in parts)


@pytest.mark.parametrize(
    ("severity_text", "expected"),
    [("INFO", "3"), ("WARN", "6"), ("ERROR", "8"), ("?", "3")],
)
def test_severity_of_cef(severity_text: str, expected: str) -> None:
    event = replace(cloud_event(), extensions={"severitytext": severity_text})

    assert as_cef(event, version="1").split("|")[6] == expected


@pytest.mark.parametrize(
    ("what", "extensions", "expected"),
    [
        ("scheduledevent.started", {"eventtype": "Reboot"}, "Reboot started"),
        ("scheduledevent.started", {}, "Event started"),
        ("bridge.imds-unreachable", {}, "Bridge imds unreachable"),
        ("document.changed", {}, "Document changed"),
    ],
)
def test_name_of_cef_is_for_people(
    what: str, extensions: Mapping[str, str | int], expected: str
) -> None:
    event = replace(cloud_event(what), extensions=extensions)

    assert as_cef(event, version="1").split("|")[5] == expected


def test_header_of_cef_is_escaped() -> None:
    event = replace(cloud_event(), extensions={"eventtype": "a|b\\c\nd=e"})
    text = as_cef(event, version="1")

    assert r"|a\|b\\c\\u000ad=e scheduled|" in text


def test_extension_of_cef_is_escaped() -> None:
    reason = "a=b|c\\d\ne\rf\tg\x1b\u2028ü"

    found = fields_of(cloud_event(reason=reason))["reason"]

    assert found == r"a\=b|c\\d\ne\rf\\u0009g\\u001b\\u2028ü"


def test_cef_leaves_out_what_is_not_known() -> None:
    event = cloud_event(
        event={"Resources": "all", "DurationInSeconds": True, "EventType": 7},
        reporter=None,
        notBefore="soon",
        noticeSeconds=None,
    )

    assert fields_of(event) == {
        "rt": "1795255200000",
        "externalId": event.id,
        "cat": event.type,
        "act": "scheduled",
        "cs1": EVENT_ID,
        "cs1Label": "EventId",
        "cs6": event.source,
        "cs6Label": "Source",
    }


def test_cef_keeps_to_the_lengths_of_its_dictionary() -> None:
    event = cloud_event(
        reason="r" * 2000,
        reporter={"vmName": "v" * 200},
        event={"Resources": ["w" * 5000]},
    )
    found = fields_of(event)

    assert [len(found[key]) for key in ("reason", "dvchost", "cs4")] == [
        1023,
        100,
        4000,
    ]


def test_who_approved_is_named() -> None:
    event = cloud_event("startrequest.relayed", request={"approvedBy": "a@b.example"})

    assert fields_of(event)["suser"] == "a@b.example"


@pytest.mark.parametrize(
    ("with_bom", "description", "has_bom"),
    [(True, "ü", True), (True, "u", False), (False, "ü", False)],
)
def test_byte_order_mark_goes_before_what_is_not_ascii(
    with_bom: bool,  # noqa: FBT001 - a parameter of the test
    description: str,
    has_bom: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    event = cloud_event(event={"Description": description})
    style = replace(STYLE, body="cef", with_bom=with_bom)

    _, body = parsed(render(event, style))

    assert body.startswith("\ufeffCEF:0|") is has_bom
    assert body.removeprefix("\ufeff").startswith("CEF:0|")


@pytest.mark.parametrize(
    ("names", "dhost"),
    [
        (["web-1", "WEB-0"], "web-0"),
        (["web-1", "web-2"], "web-1"),
        ("odd", None),
        ([], None),
    ],
)
def test_cef_names_the_machine_that_is_concerned(
    names: object, dhost: str | None
) -> None:
    line = as_cef(cloud_event(event={"Resources": names}), version="1")
    found = re.search(r" dhost=(\S+)", line)

    assert (found and found[1]) == dhost


@pytest.mark.parametrize(
    ("what", "keys"),
    [
        ("scheduledevent.started", ["start"]),
        ("scheduledevent.completed", ["end"]),
        ("bridge.started", []),
    ],
)
def test_cef_says_when_an_event_started_and_ended(what: str, keys: list[str]) -> None:
    line = as_cef(cloud_event(what), version="1")

    assert re.findall(r" (start|end)=1795255200000", line) == keys
