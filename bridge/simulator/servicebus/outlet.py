"""The output of one connection, which faults can delay or close."""

import asyncio
import socket
import struct
from collections import deque

from bridge.simulator.servicebus.faults import Faults

_LINGER_NOT = struct.pack("ii", 1, 0)


class Outlet:
    """Writes to the socket in order, delayed if a fault says so.

    Args:
        faults: asked at each write.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._transport: asyncio.Transport | None = None
        self._delayed: deque[bytes | None] = deque()
        self._due = 0.0
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written: the socket is gone, or will be."""
        return self._is_closed

    def open(self, transport: asyncio.BaseTransport) -> None:
        """Start writing to a socket."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._is_closed = False

    def write(self, written: bytes) -> None:
        """Write bytes, now or after the delay."""
        self._put(written)

    def close(self) -> None:
        """Close the socket after everything is written."""
        self._put(None)

    def abort(self) -> None:
        """Reset the connection: a broken network would not close it in order.

        Also one that is closed, and whose client does not answer. One that is gone has
        no socket any more: below TLS and WebSockets, that is known a little earlier.
        """
        if self._transport is None:
            return
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._transport.abort()

    def pause_reading(self, *, paused: bool) -> None:
        """Stop reading from the socket, or continue."""
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _put(self, written: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        delay = self._faults.reply_delay.total_seconds()
        # If a delay ends, later bytes must not overtake earlier ones.
        self._due = max(self._due, loop.time() + delay)
        self._delayed.append(written)
        if self._due > loop.time():
            loop.call_at(self._due, self._put_next)
        else:
            self._put_next()

    def _put_next(self) -> None:
        written = self._delayed.popleft()
        if self._transport is None or self._is_closed:
            return
        if written is not None:
            self._transport.write(written)
        else:
            self._transport.close()
            self._is_closed = True
