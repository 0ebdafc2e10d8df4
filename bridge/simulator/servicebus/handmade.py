"""Encode messages that a test or a person writes, and show properties of messages."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeGuard
from uuid import UUID

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.amqp_values import from_value, to_value
from bridge.simulator.servicebus.values import encode_section
from bridge.simulator.servicebus.wire import SESSION_FIELD, SUBJECT_FIELD
from bridge.simulator.sql.errors import EvaluationError
from bridge.simulator.sql.operators import Value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.errors import EncodeError
from bridge.simulator.wire.message import APPLICATION_PROPERTIES, DATA, PROPERTIES

_KINDS = (bool, int, float, str, bytes, UUID, timedelta)


def compose(
    body: bytes,
    *,
    subject: str | None,
    session_id: str | None,
    application_properties: Mapping[str, object],
) -> bytes:
    """Return a message as a sender encodes it.

    Args:
        body: the bytes of the body, sent as one data section.
        subject: the subject; None: the message has none.
        session_id: the session id; None: the message has none.
        application_properties: texts, numbers, booleans, bytes, UUIDs, times with a
            zone, durations or None by name.

    Raises:
        RefusedError: AMQP cannot represent a property.
        TypeError: the body is a str; the caller has to encode it.
    """
    fields: list[object] = [None] * (SESSION_FIELD + 1)
    fields[SUBJECT_FIELD], fields[SESSION_FIELD] = subject, session_id
    own = {name: _sent(name, each) for name, each in application_properties.items()}
    return (
        encode_section(PROPERTIES, fields)
        + (encode_section(APPLICATION_PROPERTIES, own) if own else b"")
        + encode_section(DATA, bytes(memoryview(body)))
    )


def plain_properties(message: Message) -> Mapping[str, object]:
    """Return the application properties of a message with Python types.

    A time becomes a datetime, and a duration a timedelta. A value without an equivalent
    in Python becomes bytes that describe it.
    """
    return {
        name: _plain(value) for name, value in message.application_properties.items()
    }


def _sent(name: str, value: object) -> object:
    if not _is_value(value):
        raise _refused(name, f"a message cannot have a {type(value).__name__} there")
    try:
        sent = from_value(value, None)
        encode_value(sent)
    except (EncodeError, EvaluationError) as error:
        raise _refused(name, str(error)) from error
    return sent


def _refused(name: str, why: str) -> RefusedError:
    return RefusedError(
        Condition.ARGUMENT_ERROR, f"the application property {name!r}: {why}"
    )


def _is_value(value: object) -> TypeGuard[Value]:
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return value is None or isinstance(value, _KINDS)


def _plain(value: object) -> object:
    try:
        return to_value(value)
    except EvaluationError:
        return repr(value).encode()
