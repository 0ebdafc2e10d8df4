"""The output of one connection, which faults can delay or close."""

import asyncio
import socket
import struct
from collections import deque

from bridge.simulator.servicebus.faults import Faults

# SO_LINGER with 0 s: closing the socket resets the connection.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Outlet:
    """Writes to the socket in order, delayed if a fault says so.

    Args:
        faults: say how long each write is delayed.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._transport: asyncio.Transport | None = None
        self._delayed: deque[bytes | None] = deque()
        self._due = 0.0
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be written, because the socket is closed."""
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
        """Reset the connection, without an orderly close, as if the network broke.

        This also ends a connection that was closed here, but whose client does not
        answer. A lost connection may have no socket any more: TLS and WebSockets drop
        the socket a little before they report the loss.
        """
        if self._transport is None:
            return
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
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
        # After the fault ends, new bytes must not overtake bytes that are delayed.
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
