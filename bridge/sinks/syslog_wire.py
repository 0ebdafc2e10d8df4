"""Syslog on the wire: datagrams, and a stream that is opened anew when it broke.

* UDP (RFC 5426) says nothing of receipt: a message counts as taken once it was sent
  and nobody has said that the port is closed.
* TCP (octet counting, RFC 6587) and TLS (RFC 5425) have no acknowledgement of their
  own. A message counts as taken once the other side's kernel has acknowledged every
  byte of it, where this system can tell (not on Windows), and has not reset the
  connection: a receiver that is unplugged is noticed, one that is killed with
  messages in its memory is not.
"""

import asyncio
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from bridge.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.guard import forbidden

_FIRST_LOOK, _LONGEST_LOOK = 0.001, 0.05  # seconds between looks at what is unsent
_SETTLING = 0.25
_FAREWELL = 1.0
_KEPT_ALIVE_EVERY = 60

MakeContext = Callable[[], ssl.SSLContext]


class Wire(Protocol):
    """A way to a receiver."""

    async def reach(self) -> str:
        """Find the receiver without sending anything, and say what was found.

        Raises:
            DeliveryError: it is not there.
        """
        ...

    async def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            DeliveryError: it did not get there, as far as that can be known.
        """
        ...

    async def close(self) -> None:
        """Let go of the receiver."""
        ...


@asynccontextmanager
async def _errors(target: str, seconds: float) -> AsyncIterator[None]:
    """Bound an attempt, and turn what the network raises into delivery errors."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        text = f"{target} did not answer in time"
        raise TransientDeliveryError(text, Reason.TIMEOUT) from None
    except ssl.SSLError as error:
        what = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        text = f"{target} cannot be reached ({what})"
        raise TransientDeliveryError(text, Reason.CONNECTION) from None
    except OSError as error:
        what = error.strerror or type(error).__name__
        text = f"{target} cannot be reached ({what})"
        raise TransientDeliveryError(text, Reason.CONNECTION) from None


async def _addresses(
    host: str, port: int, kind: socket.SocketKind
) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Look up a host; the platform's own addresses are no place for a log.

    Raises:
        RefusedDeliveryError: it is one of those, or can be no name.
        OSError: it is not known.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=kind)
    except UnicodeError:
        text = f"{host}:{port} is no name of a host"
        raise RefusedDeliveryError(text, Reason.NOT_FOUND) from None
    for _, _, _, _, address in found:
        if (why := forbidden(str(address[0]))) is not None:
            text = f"{host} must not be sent to: {why}"
            raise RefusedDeliveryError(text, Reason.REJECTED)
    return [(family, (str(to[0]), int(to[1]))) for family, _, _, _, to in found]


@dataclass(slots=True, kw_only=True)
class Datagrams:
    """UDP; the name is looked up for each message."""

    host: str
    port: int
    timeout: float

    @property
    def target(self) -> str:
        """How the receiver is named in errors."""
        return f"{self.host}:{self.port}/udp"

    async def reach(self) -> str:
        """Look up the name, which is all that can be found out; see ``Wire``."""
        async with _errors(self.target, self.timeout):
            await _addresses(self.host, self.port, socket.SOCK_DGRAM)
        return f"{self.target} has an address; whether it listens, UDP does not say"

    async def send(self, message: bytes) -> None:
        """Send a datagram; see ``Wire``.

        Raises:
            PermanentDeliveryError: no datagram can be that long.
        """
        async with _errors(self.target, self.timeout):
            found = await _addresses(self.host, self.port, socket.SOCK_DGRAM)
            family, address = found[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.settimeout(0)
                sock.connect(address)
                await self._send(sock, message)

    async def _send(self, sock: socket.socket, message: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(sock, message)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            text = f"{self.target}: {len(message)} bytes are too many for a datagram"
            raise PermanentDeliveryError(text, Reason.TOO_LARGE) from None
        # On this machine, and on some networks soon enough, a closed port says so.
        if fault := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(fault, os.strerror(fault))

    async def close(self) -> None:
        """Do nothing: nothing stays open; see ``Wire``."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """TCP or TLS, each message preceded by its length.

    Attributes:
        make_context: reads certificates, in a thread; None = no TLS.
    """

    host: str
    port: int
    timeout: float
    make_context: MakeContext | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _reader: asyncio.StreamReader | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)

    @property
    def target(self) -> str:
        """How the receiver is named in errors."""
        return f"{self.host}:{self.port}/{'tls' if self.make_context else 'tcp'}"

    async def reach(self) -> str:
        """Connect and part; see ``Wire``."""
        try:
            async with _errors(self.target, self.timeout):
                await self._connected()
        finally:
            await self.close()
        return f"{self.target} takes connections"

    async def send(self, message: bytes) -> None:
        """Send a message with its length; see ``Wire``."""
        writer = None
        try:
            async with _errors(self.target, self.timeout):
                writer = await self._connected()
                writer.write(b"%d %b" % (len(message), message))
                await writer.drain()
                await _acknowledged(writer)
        except TransientDeliveryError:
            if writer is not None:
                writer.transport.abort()  # half a message must not stay in its buffer
            raise

    async def close(self) -> None:
        """Send what is on its way, and part; see ``Wire``."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _FAREWELL)

    async def _connected(self) -> asyncio.StreamWriter:
        """Return a connection that the other side has not closed, as far as known."""
        async with self._lock:
            if self._writer is not None and not self._is_over():
                return self._writer
            await self.close()
            make = self.make_context
            context = await asyncio.to_thread(make) if make else None
            found = await _addresses(self.host, self.port, socket.SOCK_STREAM)
            reader, writer = await _open(found, context, self.host)
            _keep_alive(writer.get_extra_info("socket"))
            if context:
                await _settle(reader, writer)
            self._reader, self._writer = reader, writer
            return writer

    def _is_over(self) -> bool:
        return (
            self._reader is None
            or self._writer is None
            or self._reader.at_eof()
            or self._writer.is_closing()
        )


async def _open(
    found: list[tuple[socket.AddressFamily, tuple[str, int]]],
    context: ssl.SSLContext | None,
    host: str,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers, and to nothing else.

    Raises:
        OSError: none does.
    """
    fault: OSError | None = None
    for family, (address, port) in found:
        try:
            return await asyncio.open_connection(
                address,
                port,
                family=family,
                ssl=context,
                server_hostname=host if context else None,
            )
        except OSError as error:
            fault = error
    raise fault or OSError("no address")


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel ask each minute whether the other side is there.

    Between two events lie days, and what stands between the two sides forgets a
    connection sooner: Azure's load balancer after four minutes.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEPT_ALIVE_EVERY)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def _settle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Give a TLS server the time to refuse us.

    By TLS 1.3 it judges our certificate after our side of the handshake is done: what
    is sent at once would seem to be taken.

    Raises:
        OSError: it has closed the connection.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), _SETTLING)
    if reader.at_eof() or writer.is_closing():
        raise ConnectionAbortedError(
            0, "closed right after the handshake: is a client certificate wanted?"
        )


async def _acknowledged(writer: asyncio.StreamWriter) -> None:
    """Wait until every byte has been acknowledged by the other side's kernel.

    Raises:
        OSError: the connection broke first.
    """
    pause = _FIRST_LOOK
    while not writer.is_closing():
        if not writer.transport.get_write_buffer_size() and not _unacknowledged(writer):
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK)
    raise ConnectionResetError(0, "the connection broke")


if sys.platform == "win32":

    def _unacknowledged(_: asyncio.StreamWriter) -> int:
        return 0  # there is no way to ask

else:
    import fcntl
    import termios

    def _unacknowledged(writer: asyncio.StreamWriter) -> int:
        """Return how many bytes the kernel holds for the other side."""
        number = writer.get_extra_info("socket").fileno()
        answer = fcntl.ioctl(number, termios.TIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])
