"""Sends messages that the SDK would not: whatever Proton encodes, or any bytes."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, TypeVar

from proton import Data, Delivery, Described, Message, Sender, ulong
from proton.utils import BlockingConnection, BlockingSender, SendException

from bridge.simulator.servicebus.broker import Broker

T = TypeVar("T")

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
    with closing(_connect(port)) as connection:
        sender = connection.create_sender(path)
        return sum(_is_taken(sender, payload) for payload in payloads)


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


async def request(
    broker: Broker, address: str, properties: dict[str, Any], body: object = None
) -> Message:
    """Send a request to a control node, without a token; return the reply."""
    return await asyncio.to_thread(_request, broker.port, address, properties, body)


def _request(
    port: int, address: str, properties: dict[str, Any], body: object
) -> Message:
    with closing(_connect(port)) as connection:
        receiver = connection.create_receiver(address)
        sender = connection.create_sender(address)
        content: Any = body
        sender.send(Message(body=content, id="1", properties=properties))
        reply: Message = receiver.receive(timeout=_SECONDS)
        return reply


async def settled(
    broker: Broker, path: str, settle: Callable[[Delivery], object]
) -> Message:
    """Receive a message and settle it; return the message."""

    def receive(connection: BlockingConnection) -> Message:
        receiver = connection.create_receiver(path, credit=1)
        message: Message = receiver.receive(timeout=_SECONDS)
        assert receiver.fetcher is not None
        delivery = receiver.fetcher.unsettled.popleft()
        settle(delivery)
        delivery.settle()
        return message

    return await in_connection(broker, receive)


async def in_connection(broker: Broker, use: Callable[[BlockingConnection], T]) -> T:
    """Return what ``use`` makes of a connection, in a thread; it is closed after."""

    def run() -> T:
        with closing(_connect(broker.port)) as connection:
            return use(connection)

    return await asyncio.to_thread(run)


def _connect(port: int) -> BlockingConnection:
    url = f"amqp://127.0.0.1:{port}"
    return BlockingConnection(url, timeout=_SECONDS, allowed_mechs="ANONYMOUS")
