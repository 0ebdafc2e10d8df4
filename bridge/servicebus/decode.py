"""A received message: joins the bytes of the SDK's, and decodes its text. Pure."""

import logging
import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import orjson
from msgspec import Struct, field

from bridge.servicebus.salvage import LOST, MARK, WORDS, is_plain, replacement

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage


# The value of an application property of a type that the SDK cannot decode.
UNDECODABLE: Final = object()


class ReceivedMessage(Struct, frozen=True, kw_only=True):
    """A message, as the listener sees it.

    Attributes:
        lock_token: identifies this delivery of the message while its lock is held.
        message_id: None if neither the sender nor the broker has set one.
        sequence_number: set by the broker; the same for all deliveries.
        enqueued_at: when the broker accepted the message, by the broker's clock.
        body: the AMQP data sections joined, or the value body: text in UTF-8, anything
            else as JSON. If the message has a fault: its bytes, unchanged.
        delivery_count: how often the message was delivered before. The limit is a
            setting of the entity that a receiver cannot read.
        application_properties: keys and text values are decoded as UTF-8. A value may
            be ``UNDECODABLE``.
        locked_until: by the broker's clock; the lock is renewed until the message is
            settled.
        fault: why the message could not be decoded; None = it was decoded. With a
            fault, the other fields have what could be read nevertheless.
    """

    lock_token: str
    message_id: str | None
    sequence_number: int | None
    enqueued_at: datetime | None
    body: bytes
    delivery_count: int = 0
    application_properties: Mapping[str, object] = field(default_factory=dict)
    content_type: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    session_id: str | None = None
    locked_until: datetime | None = None
    fault: str | None = None


class Settlement(Struct, frozen=True):
    """How to settle a message.

    Attributes:
        verdict: ``complete``, ``abandon`` or ``dead-letter``.
        reason: the DeadLetterReason; "" for the other verdicts.
        words: the DeadLetterErrorDescription; "" for the other verdicts.
    """

    verdict: Literal["complete", "abandon", "dead-letter"]
    reason: str = ""
    words: str = ""


COMPLETE, ABANDON = Settlement("complete"), Settlement("abandon")


def read(message: "ServiceBusReceivedMessage") -> ReceivedMessage:
    """Convert a message for the listener; never raises."""
    return ReceivedMessage(
        lock_token=str(message.lock_token),
        message_id=_name(message.message_id),
        sequence_number=message.sequence_number,
        enqueued_at=message.enqueued_time_utc,
        body=body_of(message.body),
        delivery_count=message.delivery_count or 0,
        application_properties={
            **_properties(message.application_properties),
            **_lost(message.raw_amqp_message.delivery_annotations),
        },
        content_type=message.content_type,
        reply_to=_name(message.reply_to),
        reply_to_session_id=_name(message.reply_to_session_id),
        session_id=_name(message.session_id),
        locked_until=message.locked_until_utc,
        fault=_fault(message.raw_amqp_message.delivery_annotations),
    )


def _fault(annotations: object) -> str | None:
    """Return why a message could not be decoded; None if it was decoded."""
    is_replaced = isinstance(annotations, Mapping) and MARK in annotations
    return WORDS if is_replaced else None


def _lost(annotations: object) -> dict[str, object]:
    """Return the application properties that cannot be decoded."""
    names = annotations.get(LOST) if isinstance(annotations, Mapping) else None
    if not isinstance(names, (list, tuple)):
        return {}
    return {str(text_of(name)): UNDECODABLE for name in names}


def _name(value: object) -> str | None:
    """Return a name as text; in AMQP it may also be a UUID, a number or bytes."""
    return None if value is None else str(text_of(value))


def body_of(body: object) -> bytes:
    """Return a body (data sections, a value, or a sequence) as bytes."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, Mapping):
        return _json(body)
    if isinstance(body, Iterable):
        parts = list(body)
        if all(isinstance(part, bytes) for part in parts):
            return b"".join(parts)
        return _json(parts)
    return _json(body)


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(text_of(value), default=str)
    except TypeError:  # JSON cannot express it; the parser will call it invalid
        return b""


def _properties(properties: object) -> dict[str, object]:
    """Return the properties; empty if the sender sent something else there."""
    if not isinstance(properties, Mapping):
        return {}
    return {str(text_of(key)): text_of(value) for key, value in properties.items()}


def text_of(value: object) -> object:
    """Decode all text in a value, also nested, since the SDK leaves it as bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(text_of(key)): text_of(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [text_of(inner) for inner in value]
    return value


# -- Protects the receiver from messages that the SDK cannot decode --------------------
#
# The SDK decodes a message while it reads the connection, in any call that reads: to
# receive, to renew a lock, or in the keep-alive task. An error of the decoder is raised
# in that call. A ValueError counts as a time-out and closes the receiver; each later
# call returns an empty list at once. A KeyError ends the AMQP session. Any other error
# breaks the connection. The message stays in the queue and is delivered first again, so
# no message after it is ever received.
#
# So each payload is checked before the SDK decodes it. A payload that cannot be decoded
# is replaced by one with its readable parts (``bridge.servicebus.salvage``) and the
# same delivery tag. The SDK has no public method for this. If the internal names used
# here have changed, messages are received without this protection, and one line in the
# log says so.


log = logging.getLogger(__name__)

Receiver = TypeVar("Receiver")

_MORE, _PAYLOAD = 5, 11  # fields of a transfer frame
_FRAME = (0, 0, bytes(16))  # its delivery tag is valid as a lock token
# The errors that the SDK's decoder raises for unexpected bytes.
_FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError, struct.error),
)
_PROBE = (  # header, annotations, properties, application properties and a body
    b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x72\xc1\x06\x02\xa3\x01x\x54\x01"
    b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01v"
    b"\x00\x53\x75\xa0\x02{}"
)


def guarded(receiver: Receiver) -> Receiver:
    """Protect a receiver of the SDK, which is not opened yet, and return it."""
    try:
        _try_decoder()
        _guard_handlers(receiver)
    except (AttributeError, ImportError) as error:
        _report(error)
    return receiver


def readable(payload: bytes) -> bytes:
    """Return a message unchanged if it can be decoded, else its replacement."""
    return payload if _is_readable(payload) else replacement(payload, _is_readable)


def _is_readable(payload: bytes) -> bool:
    """Return whether the SDK can decode all parts of a message that are used."""
    from azure.servicebus import ServiceBusReceivedMessage  # noqa: PLC0415  costs memory
    from azure.servicebus._pyamqp._decode import decode_payload  # noqa: PLC0415 - costs memory

    if not is_plain(payload):
        return False
    frame: Any = _FRAME
    nobody: Any = None
    try:
        decoded = decode_payload(memoryview(payload))
        message = ServiceBusReceivedMessage(decoded, frame=frame, receiver=nobody)
        read(message)
        _ = message.correlation_id
    except _FAULTS:
        return False
    return True


def _try_decoder() -> None:
    """Check that the decoder works as expected; otherwise it would refuse everything.

    Raises:
        AttributeError, ImportError: the decoder has changed.
    """
    if not _is_readable(_PROBE):
        raise AttributeError("an ordinary message cannot be decoded")


def _report(error: Exception) -> None:
    log.warning(
        "messages that cannot be decoded are not replaced", extra={"fault": str(error)}
    )


def _guard_handlers(receiver: Any) -> None:
    """Protect each handler that the receiver opens, before its first message."""
    create = receiver._create_handler  # noqa: SLF001  see above

    def create_guarded(*args: object) -> None:
        create(*args)
        try:
            _guard_links(receiver._handler)  # noqa: SLF001 - see above
            _guard_answers(receiver._handler)  # noqa: SLF001 - see above
        except AttributeError as error:
            _report(error)

    receiver._create_handler = create_guarded  # noqa: SLF001 - see above


def _guard_links(handler: Any) -> None:
    """Protect each link to the entity that a handler makes, once it is open."""
    open_, on_transfer = handler.open_async, handler._message_received_async  # noqa: SLF001 - see above

    async def open_guarded(*args: object, **options: object) -> None:
        await open_(*args, **options)
        try:
            _guard_session(handler._session, on_transfer)  # noqa: SLF001 - see above
        except AttributeError as error:
            _report(error)

    handler.open_async = open_guarded


def _guard_session(session: Any, on_transfer: object) -> None:
    """Protect the links of a session whose messages go to a callback."""
    make = session.create_receiver_link

    def make_guarded(*args: object, **options: object) -> object:
        link = make(*args, **options)
        try:
            if options["on_transfer"] == on_transfer:
                _guard_link(link)
        except (AttributeError, KeyError) as error:
            _report(error)
        return link

    session.create_receiver_link = make_guarded


def _guard_link(link: Any) -> None:
    """Have ``readable`` look at each message of a link, before the SDK decodes it."""
    take, _ = link._incoming_transfer, link._received_payload  # noqa: SLF001 - see above

    async def take_readable(frame: Any) -> None:
        if not frame[_MORE]:
            whole = bytes(link._received_payload) + bytes(frame[_PAYLOAD])  # noqa: SLF001 - see above
            link._received_payload = bytearray()  # noqa: SLF001 - see above
            fields = [*frame]
            fields[_PAYLOAD] = memoryview(readable(whole))
            frame = fields
        await take(frame)

    link._incoming_transfer = take_readable  # noqa: SLF001 - see above


def _guard_answers(handler: Any) -> None:
    """Protect the response to a request (peek), which contains messages."""
    ask = handler.mgmt_request_async

    async def ask_readable(*args: object, **options: object) -> object:
        status, description, answer = await ask(*args, **options)
        found = answer.value if isinstance(answer.value, dict) else {}
        for entry in found.get(b"messages", ()):
            entry[b"message"] = readable(bytes(entry[b"message"]))
        return status, description, answer

    handler.mgmt_request_async = ask_readable
