"""Parse the bytes of a message on arrival, and encode it again for delivery.

The sender's sections (properties, application properties, body, footer) stay unchanged;
the header and the annotations are encoded anew. There are exceptions: a message without
a message id gets one. A dead letter gets two application properties. A settlement, or
the action of a rule, may change properties.

Source: AMQP 1.0, part 3: 3.2 message format. Azure Service Bus, AMQP 1.0 protocol
        guide: message annotations.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.servicebus.message import DeadLetter, Delivery, Message, State
from bridge.simulator.servicebus.sessions import check_session_id
from bridge.simulator.servicebus.values import (
    Condition,
    RefusedError,
    decode_value,
    encode_section,
    to_timestamp,
    value_end,
)
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.values import Int32, Symbol, UInt, ULong

BATCH_FORMAT = 0x80013700
"""The message-format of a batch."""

_SHORT_DESCRIPTOR = b"\x00\x53"
_HEADER = 0x70
_DELIVERY_ANNOTATIONS = 0x71
_MESSAGE_ANNOTATIONS = 0x72
_PROPERTIES = 0x73
_APPLICATION_PROPERTIES = 0x74
_DATA = 0x75
_LAST_SECTION = 0x78
_BODIES = range(_DATA, _LAST_SECTION)

_LIMITED = {_MESSAGE_ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES}
MOST_PROPERTY_BYTES, MOST_PROPERTIES_BYTES = 32 * 1024, 64 * 1024
"""The size of one property, and of all of a message, as encoded."""

_TTL_FIELD = 2
_DELIVERY_COUNT_FIELD = 4
SUBJECT_FIELD, SESSION_FIELD = 3, 10
"""The index of two fields in the properties section."""

# The properties that a correlation filter can name, with their index in the section.
_FILTER_FIELDS = {
    "MessageId": 0,
    "To": 2,
    "Label": SUBJECT_FIELD,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": SESSION_FIELD,
    "ReplyToSessionId": 12,
}
_LOCK_TOKEN = Symbol("x-opt-lock-token")
_SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")


class Section(Struct, frozen=True):
    """One section of a message: its code, the bytes of its value, and all its bytes."""

    code: int
    value: bytes
    encoded: bytes

    def decode(self) -> object:
        """Return the value."""
        return decode_value(self.value, 0)[0]


def entity_path(address: str) -> str:
    """Return the path in an address, which may include a scheme and a host."""
    _, scheme, rest = address.partition("://")
    path = rest.partition("/")[2] if scheme else address
    return path.strip("/")


def split_sections(encoded: bytes) -> Iterator[Section]:
    """Split a message into its sections.

    Raises:
        RefusedError: the bytes are not a message.
    """
    offset = 0
    while offset < len(encoded):
        code, start = _section_code(encoded, offset)
        end = value_end(encoded, start)
        yield Section(code, encoded[start:end], encoded[offset:end])
        offset = end


def split_batch(encoded: bytes) -> list[bytes]:
    """Return the messages in a batch: each is one data section.

    Raises:
        RefusedError: the bytes are not a batch.
    """
    found = [s.decode() for s in split_sections(encoded) if s.code == _DATA]
    return [bytes(message) for message in found if isinstance(message, bytes)]


def parse_message(encoded: bytes) -> Message:
    """Read a message as its sender encoded it.

    Raises:
        RefusedError: the bytes are not a message.
    """
    sections = list(split_sections(encoded))
    first = {section.code: section for section in reversed(sections)}
    header = _fields(first.get(_HEADER))
    properties = _fields(first.get(_PROPERTIES))
    annotations = _mapping(first.get(_MESSAGE_ANNOTATIONS))
    content = b"".join(s.encoded for s in sections if s.code >= _PROPERTIES)
    if not properties or properties[0] is None:
        properties = (str(uuid4()), *properties[1:])
        content = _replace_section(content, _PROPERTIES, list(properties))
    _check_properties(sections)
    texts = _texts(properties)
    check_session_id(texts.get("SessionId"))
    return Message(
        message_id=texts["MessageId"],
        content=content,
        header=header,
        annotations=annotations,
        delivery_annotations=_mapping(first.get(_DELIVERY_ANNOTATIONS)),
        session_id=texts.get("SessionId"),
        time_to_live=_seconds(_field(header, _TTL_FIELD)),
        scheduled_for=_seconds(annotations.get(_SCHEDULED_TIME)),
        properties=texts,
        application_properties={
            str(name): value
            for name, value in _mapping(first.get(_APPLICATION_PROPERTIES)).items()
        },
    )


def _check_properties(sections: Sequence[Section]) -> None:
    """Check the size of the properties: 32 KB for one, 64 KB for all.

    Raises:
        RefusedError: one of them, or all together, are too large.
    """
    found = [s for s in sections if s.code in _LIMITED]
    size = sum(len(section.encoded) for section in found)
    if size > MOST_PROPERTIES_BYTES:
        raise RefusedError(
            Condition.MESSAGE_SIZE_EXCEEDED,
            f"the properties have {size} bytes; {MOST_PROPERTIES_BYTES} are allowed",
        )
    if size <= MOST_PROPERTY_BYTES:
        return
    own = next((s for s in found if s.code == _APPLICATION_PROPERTIES), None)
    for name, value in _mapping(own).items():
        if len(encode_value(value)) > MOST_PROPERTY_BYTES:
            raise RefusedError(
                Condition.MESSAGE_SIZE_EXCEEDED,
                f"the property {str(name)[:100]!r} has more than "
                f"{MOST_PROPERTY_BYTES} bytes",
            )


def body_text(content: bytes, most: int) -> str:
    """Return the beginning of a message's body as text, for people.

    Args:
        content: the sections of the message from the properties on.
        most: the maximum number of characters.
    """
    try:
        bodies = [s.decode() for s in split_sections(content) if s.code in _BODIES]
    except RefusedError:
        return ""
    text = " ".join(map(_body_text, bodies))
    return text if len(text) <= most else f"{text[:most]}…"


def _body_text(body: object) -> str:
    if not isinstance(body, bytes):
        return body if isinstance(body, str) else repr(body)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex(" ")


def modify(message: Message, changes: Mapping[str, object]) -> Message:
    """Return a message with some of its application properties changed."""
    if not changes:
        return message
    return replace(
        message,
        content=_change_properties(message.content, changes),
        application_properties={**message.application_properties, **changes},
    )


def rewrite_message(
    message: Message,
    properties: Mapping[str, str | None],
    application_properties: Mapping[str, object],
) -> Message:
    """Return a message with other properties.

    Args:
        message: the message before the change.
        properties: all properties that a correlation filter can name; None removes a
            property. A message without a MessageId gets a new one.
        application_properties: all application properties.
    """
    sections = {s.code: s for s in split_sections(message.content)}
    fields = list(_fields(sections.get(_PROPERTIES)))
    fields += [None] * (max(_FILTER_FIELDS.values()) + 1 - len(fields))
    for name, place in _FILTER_FIELDS.items():
        text = properties.get(name)
        if text != message.properties.get(name):
            fields[place] = Symbol(text) if text and name == "ContentType" else text
    fields[0] = str(uuid4()) if fields[0] is None else fields[0]
    content = _replace_section(message.content, _PROPERTIES, fields)
    content = _replace_section(
        content, _APPLICATION_PROPERTIES, dict(application_properties)
    )
    texts = _texts(tuple(fields))
    return replace(
        message,
        message_id=texts["MessageId"],
        content=content,
        session_id=texts.get("SessionId"),
        properties=texts,
        application_properties=application_properties,
    )


def with_time_to_live(
    header: tuple[object, ...], seconds: float | None
) -> tuple[object, ...]:
    """Return a header with another time to live; None: without a time to live."""
    fields = [*header, *[None] * (_TTL_FIELD + 1 - len(header))]
    most = 2**32 - 1
    fields[_TTL_FIELD] = (
        None if seconds is None else UInt(min(max(round(seconds * 1000), 0), most))
    )
    return tuple(fields)


def cap_time_to_live(message: Message, most: timedelta | None) -> Message:
    """Return a message whose time to live is at most that of its entity."""
    limit = None if most is None else most.total_seconds()
    sent = message.time_to_live
    if limit is None or (sent is not None and sent <= limit):
        return message
    header = with_time_to_live(message.header, limit)
    return replace(message, header=header, time_to_live=limit)


def encode_delivery(delivery: Delivery) -> bytes:
    """Return the bytes of a message as its receiver gets it."""
    content = delivery.message.content
    if delivery.dead_letter is not None:
        changes = _dead_letter_properties(delivery.dead_letter)
        content = _change_properties(content, changes)
    return (
        encode_section(_HEADER, _header(delivery))
        + encode_section(_DELIVERY_ANNOTATIONS, _annotate_delivery(delivery))
        + encode_section(_MESSAGE_ANNOTATIONS, _annotate(delivery))
        + content
    )


def _section_code(encoded: bytes, offset: int) -> tuple[int, int]:
    if encoded[offset : offset + 2] == _SHORT_DESCRIPTOR and len(encoded) > offset + 2:
        code, start = encoded[offset + 2], offset + 3
    else:
        descriptor, start = decode_value(encoded, offset + 1)
        code = descriptor if isinstance(descriptor, ULong) else -1
    if encoded[offset] != 0 or not _HEADER <= code <= _LAST_SECTION:
        raise RefusedError(Condition.DECODE_ERROR, "this is not an AMQP message")
    return code, start


def _header(delivery: Delivery) -> list[object]:
    fields = list(delivery.message.header[:_DELIVERY_COUNT_FIELD])
    fields += [None] * (_DELIVERY_COUNT_FIELD - len(fields))
    return [*fields, UInt(delivery.delivery_count)]


def _annotate_delivery(delivery: Delivery) -> dict[object, object]:
    found = dict(delivery.message.delivery_annotations)
    if delivery.lock_token is not None:
        found[_LOCK_TOKEN] = delivery.lock_token
    return found


def _annotate(delivery: Delivery) -> dict[object, object]:
    added: dict[str, object] = {
        "x-opt-sequence-number": delivery.sequence_number,
        "x-opt-enqueued-time": to_timestamp(delivery.enqueued_at),
    }
    # The SDK's own tests expect neither of these on a message that was just sent.
    if delivery.enqueued_sequence_number != delivery.sequence_number:
        added["x-opt-enqueue-sequence-number"] = delivery.enqueued_sequence_number
    if delivery.state is not State.ACTIVE:
        added["x-opt-message-state"] = Int32(delivery.state)
    if delivery.locked_until is not None:
        added["x-opt-locked-until"] = to_timestamp(delivery.locked_until)
    if delivery.dead_letter is not None and delivery.dead_letter.is_forwarded:
        added["x-opt-deadletter-source"] = delivery.dead_letter.source
    named: dict[object, object] = {Symbol(key): value for key, value in added.items()}
    return {**delivery.message.annotations, **named}


def _dead_letter_properties(dead_letter: DeadLetter) -> Mapping[str, object]:
    found = {
        "DeadLetterReason": dead_letter.reason,
        "DeadLetterErrorDescription": dead_letter.description,
    }
    return {name: value for name, value in found.items() if value is not None}


def _change_properties(content: bytes, changes: Mapping[str, object]) -> bytes:
    sections = {s.code: s for s in split_sections(content)}
    properties = dict(_mapping(sections.get(_APPLICATION_PROPERTIES)))
    properties.update(changes.items())
    return _replace_section(content, _APPLICATION_PROPERTIES, properties)


def _replace_section(content: bytes, code: int, value: object) -> bytes:
    sections = list(split_sections(content))
    before = b"".join(s.encoded for s in sections if s.code < code)
    after = b"".join(s.encoded for s in sections if s.code > code)
    return before + encode_section(code, value) + after


def _fields(section: Section | None) -> tuple[object, ...]:
    value = [] if section is None else section.decode()
    if not isinstance(value, list):
        raise RefusedError(Condition.DECODE_ERROR, "a section is not a list")
    return tuple(value)


def _mapping(section: Section | None) -> Mapping[object, object]:
    value = {} if section is None else section.decode()
    if not isinstance(value, dict):
        raise RefusedError(Condition.DECODE_ERROR, "a section is not a map")
    return value


def _field(fields: tuple[object, ...], place: int) -> object:
    return fields[place] if place < len(fields) else None


def _texts(properties: tuple[object, ...]) -> dict[str, str]:
    return {
        name: str(value)
        for name, place in _FILTER_FIELDS.items()
        if (value := _field(properties, place)) is not None
    }


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int) else None
