"""Sends messages that the SDK would not: whatever Proton encodes, or any bytes."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, TypeVar

import pytest

from bridge.simulator.servicebus.broker import Broker
from tests.support.oracle import ORACLE

proton = pytest.importorskip("proton", reason=ORACLE)
utils = pytest.importorskip("proton.utils", reason=ORACLE)

T = TypeVar("T")

_SECONDS = 60.0
VALUE_SECTION = 0x77


class Raw:
    """Bytes, as Proton wants something to be sent."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def send(self, link: Any, tag: str | None = None) -> Any:
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


def _is_taken(sender: Any, payload: bytes) -> bool:
    try:
        sender.send(Raw(payload))
    except utils.SendException:
        return False
    return True


def encoded(body: object = "{}", **fields: object) -> bytes:
    """Encode a message by Proton: ``fields`` are those of its ``Message``."""
    options: Any = fields
    return bytes(proton.Message(body=body, **options).encode())


def section(code: int, value: object) -> bytes:
    """Encode one section of a message."""
    data = proton.Data()
    anything: Any = value
    data.put_object(proton.Described(proton.ulong(code), anything))
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
) -> Any:
    """Send a request to a control node, without a token; return the reply."""
    return await asyncio.to_thread(_request, broker.port, address, properties, body)


def _request(port: int, address: str, properties: dict[str, Any], body: object) -> Any:
    with closing(_connect(port)) as connection:
        receiver = connection.create_receiver(address)
        sender = connection.create_sender(address)
        content: Any = body
        sender.send(proton.Message(body=content, id="1", properties=properties))
        return receiver.receive(timeout=_SECONDS)


async def settled(broker: Broker, path: str, settle: Callable[[Any], object]) -> Any:
    """Receive a message and settle it; return the message."""

    def receive(connection: Any) -> Any:
        receiver = connection.create_receiver(path, credit=1)
        message = receiver.receive(timeout=_SECONDS)
        assert receiver.fetcher is not None
        delivery = receiver.fetcher.unsettled.popleft()
        settle(delivery)
        delivery.settle()
        return message

    return await in_connection(broker, receive)


async def in_connection(broker: Broker, use: Callable[[Any], T]) -> T:
    """Return what ``use`` makes of a connection, in a thread; it is closed after."""

    def run() -> T:
        with closing(_connect(broker.port)) as connection:
            return use(connection)

    return await asyncio.to_thread(run)


def _connect(port: int) -> Any:
    url = f"amqp://127.0.0.1:{port}"
    return utils.BlockingConnection(url, timeout=_SECONDS, allowed_mechs="ANONYMOUS")
