"""The CloudEvent value: what is written, and that it reads back."""

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.cloudevent import CloudEvent
from tests.support.strategies import JSON_VALUES


def event(**fields: object) -> CloudEvent:
    values: dict[str, object] = {
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2026-03-02T12:00:00Z",
        "dataschema": "urn:x",
    }
    return CloudEvent(**(values | fields))  # type: ignore[arg-type]  # fields of CloudEvent


def test_attributes_stand_in_the_order_of_the_contract() -> None:
    found = event(subject="s", extensions={"eventtype": "Freeze", "severitynumber": 9})

    assert list(found.attributes().items()) == [
        ("specversion", "1.0"),
        ("id", "1"),
        ("source", "/s"),
        ("type", "t"),
        ("subject", "s"),
        ("time", "2026-03-02T12:00:00Z"),
        ("datacontenttype", "application/json"),
        ("dataschema", "urn:x"),
        ("eventtype", "Freeze"),
        ("severitynumber", 9),
    ]


def test_attribute_that_is_not_set_is_left_out_rather_than_null() -> None:
    assert "subject" not in orjson.loads(event().to_json())


def test_data_is_the_value_itself_and_no_text() -> None:
    assert orjson.loads(event(data={"a": [1]}).to_json())["data"] == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "text"), [("eventtype", "Freeze"), ("severitynumber", "9"), ("no", None)]
)
def test_extension_is_read_as_text(name: str, text: str | None) -> None:
    found = event(extensions={"eventtype": "Freeze", "severitynumber": 9})

    assert found.text(name) == text


@given(
    st.none() | st.text(min_size=1),
    st.dictionaries(
        st.sampled_from(["eventtype", "correlationid", "severitynumber", "extensions"]),
        st.text() | st.integers(-(2**31), 2**31 - 1),
    ),
    st.dictionaries(st.text(), JSON_VALUES, max_size=3),
)
def test_what_was_written_reads_back_the_same(
    subject: str | None, extensions: dict[str, str | int], data: dict[str, object]
) -> None:
    written = event(subject=subject, extensions=extensions, data=data)

    assert CloudEvent.from_json(written.to_json()) == written


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b"{}", b'{"id": 1}', event().to_json()[:-1], b"\xff"],
)
def test_body_that_nobody_here_wrote_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        CloudEvent.from_json(body)
