"""A client that speaks AMQP by hand to a running broker, over a socket.

Tests use it for what no SDK at hand says: windows, filters, states of deliveries.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.framing import (
    AMQP_HEADER,
    HEADER_BYTES,
    SASL_FRAME,
    frame,
)
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    SaslInit,
    Transfer,
    read,
    write,
)
from bridge.simulator.wire.values import Described

Said = TypeVar("Said")

_SECONDS = 60.0
_TERMINUS = 11  # the fields of a source, which has more than a target


class Speaker:
    """One connection.

    Args:
        reader: from the broker.
        writer: to the broker.

    Attributes:
        payload: of the transfer that ``hear`` returned last.
        empty_frames: how many frames without a body have come.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._heard: deque[tuple[Performative, bytes]] = deque()
        self.payload = b""
        self.empty_frames = 0

    def say(self, *said: Performative, channel: int = 0, payload: bytes = b"") -> None:
        """Send frames; the payload is that of each."""
        for each in said:
            self._writer.write(frame(channel, write(each) + payload))

    async def begin(self, header: bytes = AMQP_HEADER) -> bytes:
        """Send a protocol header; return the broker's."""
        self._writer.write(header)
        async with asyncio.timeout(_SECONDS):
            return await self._reader.readexactly(HEADER_BYTES)

    async def open(self, window: int = 2048) -> None:
        """Open the connection and a session with this incoming window."""
        await self.begin()
        self.say(
            Open(container_id="by hand"),
            Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=2048),
        )
        await self.hear(Open)
        await self.hear(Begin)

    def sign_in(self, mechanism: str, response: bytes) -> None:
        """Choose a mechanism of SASL."""
        init = SaslInit(mechanism=mechanism, initial_response=response)
        self._writer.write(frame(0, write(init), SASL_FRAME))

    async def hear(self, kind: type[Said]) -> Said:
        """Return the next frame of a kind; frames of other kinds stay for later."""
        for number, (said, payload) in enumerate(self._heard):
            if isinstance(said, kind):
                del self._heard[number]
                self.payload = payload
                return said
        async with asyncio.timeout(_SECONDS):
            while True:
                said, payload = await self._read()
                if isinstance(said, kind):
                    self.payload = payload
                    return said
                self._heard.append((said, payload))

    async def attach(self, attach: Attach) -> Attach:
        """Attach a link; return the broker's answer."""
        self.say(attach)
        return await self.hear(Attach)

    async def receive(self, handle: int, credit: int = 1) -> Transfer:
        """Give credit to a link, and return the next message."""
        self.say(flow(handle, credit))
        return await self.hear(Transfer)

    async def _read(self) -> tuple[Performative, bytes]:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4))
            body = (await self._reader.readexactly(size - 4))[HEADER_BYTES - 4 :]
            if body:
                said, end = read(body)
                return said, body[end:]
            self.empty_frames += 1


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Speaker]:
    """Connect, and say nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Speaker(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def session(port: int, *, window: int = 2048) -> AsyncIterator[Speaker]:
    """Open a connection and a session.

    Args:
        port: the broker's port.
        window: the incoming window that the client announces.
    """
    async with connection(port) as speaker:
        await speaker.open(window)
        yield speaker


def flow(handle: int | None, credit: int | None = None, **fields: object) -> Flow:
    """Return a flow; without other fields, its window is open."""
    given: dict[str, object] = {
        "next_incoming_id": 0,
        "incoming_window": 2048,
        "next_outgoing_id": 0,
        "outgoing_window": 2048,
        "delivery_count": None if handle is None else 0,
        **fields,
    }
    return Flow(handle=handle, link_credit=credit, **given)  # type: ignore[arg-type]  # a test names its fields


def sections(payload: bytes) -> dict[int, object]:
    """Return the sections of a message by their codes."""
    found: dict[int, object] = {}
    at = 0
    while at < len(payload):
        section, at = decode_value(payload, at)
        assert isinstance(section, Described)
        assert isinstance(section.descriptor, int)
        found[int(section.descriptor)] = section.value
    return found


def fields_of(terminus: object) -> list[object]:
    """Return the fields of a source or target; those left out at its end are null."""
    assert isinstance(terminus, Described)
    assert isinstance(terminus.value, list)
    return [*terminus.value, *[None] * (_TERMINUS - len(terminus.value))]
