"""From the SDK's message to ours: AMQP lets a name be more than text."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest

from bridge.servicebus.decode import read
from tests.support.fakes import START

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

ID = "12345678-1234-5678-1234-567812345678"


@dataclass(frozen=True)
class Raw:
    """What lies below it."""

    delivery_annotations: dict[bytes, object] | None = None


@dataclass(frozen=True)
class SdkMessage:
    """What is read of the SDK's message, with the types that it really has."""

    message_id: object = None
    reply_to: object = None
    reply_to_session_id: object = None
    session_id: object = None
    application_properties: dict[bytes, object] | None = None
    lock_token: str = ID
    sequence_number: int = 7
    enqueued_time_utc: datetime = START
    locked_until_utc: datetime | None = None
    delivery_count: int | None = None
    content_type: str | None = None
    body: bytes = b"{}"
    raw_amqp_message: Raw = Raw()


@pytest.mark.parametrize(
    "name", ["message_id", "reply_to", "reply_to_session_id", "session_id"]
)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("m1", "m1"),
        ("", ""),
        (None, None),
        (UUID(ID), ID),
        (5, "5"),
        (b"\xff", "\ufffd"),
    ],
)
def test_name_of_any_type_is_read_as_text(
    name: str, value: object, expected: str | None
) -> None:
    """An id is hashed: one that is no text would end the listener at each delivery."""
    sent = replace(SdkMessage(), **{name: value})  # type: ignore[arg-type]  # one of the names above

    found = read(cast("ServiceBusReceivedMessage", sent))

    assert getattr(found, name) == expected


@pytest.mark.parametrize("properties", [b"approvedBy", [1], 7, "x"])
def test_properties_that_are_no_map_are_none(properties: object) -> None:
    """Found by fuzzing: the SDK hands on whatever a stranger has put there."""
    sent = replace(SdkMessage(), application_properties=properties)  # type: ignore[arg-type]  # what the wire allows

    found = read(cast("ServiceBusReceivedMessage", sent))

    assert found.application_properties == {}
