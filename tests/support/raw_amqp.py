"""Sends messages that the SDK would not: whatever Proton encodes, or any bytes."""

import asyncio
from collections.abc import Iterable
from typing import Any

from proton import Data, Delivery, Described, Message, Sender, ulong
from proton.utils import BlockingConnection, BlockingSender, SendException

from bridge.simulator.servicebus.broker import Broker

_SECONDS = 60.0
VALUE_SECTION = 0x77


class Raw:
    """Bytes, as Proton wants something to be sent."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def send(self, link: Sender, tag: str | None = None) -> Delivery:
        delivery = link.delivery(tag or link.delivery_tag())
        link.stream(self._payload)
        link.advance()
        return delivery


async def send_raw(broker: Broker, path: str, payloads: Iterable[bytes]) -> int:
    """Send messages as they are; return how many the broker has taken."""
    return await asyncio.to_thread(_send, broker.port, path, list(payloads))


def _send(port: int, path: str, payloads: list[bytes]) -> int:
    url = f"amqp://127.0.0.1:{port}"
    connection = BlockingConnection(url, timeout=_SECONDS, allowed_mechs="ANONYMOUS")
    try:
        sender = connection.create_sender(path)
        return sum(_is_taken(sender, payload) for payload in payloads)
    finally:
        connection.close()


def _is_taken(sender: BlockingSender, payload: bytes) -> bool:
    try:
        sender.send(Raw(payload))  # type: ignore[arg-type]  # it has what is called
    except SendException:
        return False
    return True


def encoded(body: object = "{}", **fields: object) -> bytes:
    """Encode a message by Proton: ``fields`` are those of its ``Message``."""
    options: Any = fields
    return bytes(Message(body=body, **options).encode())  # type: ignore[arg-type]  # any


def section(code: int, value: object) -> bytes:
    """Encode one section of a message."""
    data = Data()
    anything: Any = value
    data.put_object(Described(ulong(code), anything))
    return bytes(data.encode())


def nested(depth: int) -> bytes:
    """Return a value section of lists in lists."""
    value = b"\x45"  # an empty list
    for _ in range(depth):
        size = len(value) + 4
        value = b"\xd0" + size.to_bytes(4) + (1).to_bytes(4) + value
    return b"\x00\x53" + bytes([VALUE_SECTION]) + value
