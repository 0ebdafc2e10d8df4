"""Keeps a message that the SDK cannot decode from ending the receiver.

The SDK decodes a message while it reads the connection, whoever reads just then: the
call that receives, the one that renews a lock, the keep-alive task. What its decoder
raises goes wherever that leads: a ValueError counts as a time-out, shuts the receiver
down, and each later call returns an empty list at once; a KeyError ends the AMQP
session; anything else breaks the connection. The message stays, comes first again,
and nothing behind it is ever received.

So each payload is tried before the SDK decodes it, and what cannot be read is put in
place of by what is left of it (``bridge.servicebus.salvage``), under the same delivery
tag. There is no public way to do so. Where the names used here have changed, messages
are received as before, and one line in the log says that nothing is replaced.
"""

import logging
import struct
from typing import Any, TypeVar

from bridge.servicebus.decode import read
from bridge.servicebus.salvage import is_plain, replacement

log = logging.getLogger(__name__)

Receiver = TypeVar("Receiver")

_MORE, _PAYLOAD = 5, 11  # fields of a transfer frame
_FRAME = (0, 0, bytes(16))  # whose delivery tag makes a lock token
# What the SDK's decoder raises on bytes that it does not foresee.
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
    """Return a receiver of the SDK, not opened yet, that no message can break."""
    try:
        _try_decoder()
        _guard_handlers(receiver)
    except (AttributeError, ImportError) as error:
        _report(error)
    return receiver


def readable(payload: bytes) -> bytes:
    """Return a message as it is if it can be read, else what is left of it."""
    return payload if _is_readable(payload) else replacement(payload, _is_readable)


def _is_readable(payload: bytes) -> bool:
    """Whether all that is ever asked of a message can be had from it."""
    from azure.servicebus import ServiceBusReceivedMessage  # noqa: PLC0415  costs memory
    from azure.servicebus._pyamqp._decode import decode_payload  # noqa: PLC0415

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
    """Find out whether the decoder is what it was: else it would refuse everything.

    Raises:
        AttributeError, ImportError: it is not.
    """
    if not _is_readable(_PROBE):
        raise AttributeError("an ordinary message cannot be decoded")


def _report(error: Exception) -> None:
    log.warning(
        "messages that cannot be decoded are not replaced", extra={"fault": str(error)}
    )


def _guard_handlers(receiver: Any) -> None:
    """Guard whatever the receiver opens, before any message comes on it."""
    create = receiver._create_handler  # noqa: SLF001  see above

    def create_guarded(*args: object) -> None:
        create(*args)
        try:
            _guard_links(receiver._handler)  # noqa: SLF001
            _guard_answers(receiver._handler)  # noqa: SLF001
        except AttributeError as error:
            _report(error)

    receiver._create_handler = create_guarded  # noqa: SLF001


def _guard_links(handler: Any) -> None:
    is_ready = handler._client_ready_async  # noqa: SLF001  makes the link, once

    async def is_ready_and_guarded() -> object:
        found = await is_ready()
        try:
            _guard_link(handler._link)  # noqa: SLF001
        except AttributeError as error:
            _report(error)
        return found

    handler._client_ready_async = is_ready_and_guarded  # noqa: SLF001


def _guard_link(link: Any) -> None:
    """Guard a link, once."""
    if "_incoming_transfer" in vars(link):
        return
    take, _ = link._incoming_transfer, link._received_payload  # noqa: SLF001

    async def take_readable(frame: Any) -> None:
        if not frame[_MORE]:
            whole = bytes(link._received_payload) + bytes(frame[_PAYLOAD])  # noqa: SLF001
            link._received_payload = bytearray()  # noqa: SLF001
            fields = [*frame]
            fields[_PAYLOAD] = memoryview(readable(whole))
            frame = fields
        await take(frame)

    link._incoming_transfer = take_readable  # noqa: SLF001


def _guard_answers(handler: Any) -> None:
    """Guard what comes as the answer to a request: messages within a message."""
    ask = handler.mgmt_request_async

    async def ask_readable(*args: object, **options: object) -> object:
        status, description, answer = await ask(*args, **options)
        found = answer.value if isinstance(answer.value, dict) else {}
        for entry in found.get(b"messages", ()):
            entry[b"message"] = readable(bytes(entry[b"message"]))
        return status, description, answer

    handler.mgmt_request_async = ask_readable
