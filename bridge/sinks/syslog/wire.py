"""Syslog on the wire: datagrams, and a stream that is opened anew when it broke.

* UDP (RFC 5426) says nothing of receipt: a message counts as taken once it was sent
  and nobody has said that the port is closed.
* TCP (octet counting, RFC 6587) and TLS (RFC 5425) have no acknowledgement of their
  own. A message counts as taken once the other side's kernel has acknowledged every
  byte of it, whatever was sent after it, and has not reset the connection: a receiver
  that is unplugged is noticed, one that is killed with messages in its memory is not.
  Only Linux says so of each message; other systems say when nothing is on its way any
  more, and Windows does not say.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.ssrf_guard import forbidden
from bridge.sinks.syslog.acks import Acknowledged, Counting, counted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """A stream that was opened.

    Attributes:
        sending: what sends messages over it, and waits for their acknowledgement.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sending: Acknowledged

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed it, as far as known."""
        return self.reader.at_eof() or self.writer.is_closing()


@dataclass(slots=True, kw_only=True)
class Stream:
    """TCP or TLS, each message preceded by its length.

    Attributes:
        make_context: reads certificates, in a thread; None = no TLS.
        counting: asks the kernel what of a connection is acknowledged.
    """

    host: str
    port: int
    timeout: float
    make_context: MakeContext | None = None
    counting: Counting = counted
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _open: _Connection | None = field(default=None, init=False)

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
        connection = None
        try:
            async with _errors(self.target, self.timeout):
                connection = await self._connected()
                await connection.sending.send(b"%d %b" % (len(message), message))
        except TransientDeliveryError:
            if connection is not None:  # half a message must not stay in its buffer
                connection.writer.transport.abort()
            raise

    async def close(self) -> None:
        """Send what is on its way, and part; see ``Wire``."""
        connection, self._open = self._open, None
        if connection is not None:
            connection.writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(connection.writer.wait_closed(), _FAREWELL)

    async def _connected(self) -> _Connection:
        """Return a connection that the other side has not closed, as far as known."""
        async with self._lock:
            if self._open is not None and not self._open.is_over:
                return self._open
            await self.close()
            make = self.make_context
            context = await asyncio.to_thread(make) if make else None
            found = await _addresses(self.host, self.port, socket.SOCK_STREAM)
            new = await _connect(found, context, self.host, self.counting)
            _keep_alive(new.writer.get_extra_info("socket"))
            if context:
                await _settle(new)
            self._open = new
            return new


async def _connect(
    found: list[tuple[socket.AddressFamily, tuple[str, int]]],
    context: ssl.SSLContext | None,
    host: str,
    counting: Counting,
) -> _Connection:
    """Connect to the first address that answers, and to nothing else.

    Raises:
        OSError: none does.
    """
    fault: OSError | None = None
    for family, (address, port) in found:
        try:
            reader, writer = await asyncio.open_connection(address, port, family=family)
            wire = writer.transport
            if context:
                await _encrypt(writer, context, host)
        except OSError as error:
            fault = error
        else:
            sending = Acknowledged(writer, wire, counting)
            return _Connection(reader=reader, writer=writer, sending=sending)
    raise fault or OSError("no address")


async def _encrypt(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, host: str
) -> None:
    """Begin TLS on a connection, or give it up.

    Raises:
        OSError: the other side is not who it should be, or not there any more.
    """
    wire = writer.transport
    try:
        await writer.start_tls(context, server_hostname=host)
    except BaseException:
        wire.abort()
        raise


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


async def _settle(new: _Connection) -> None:
    """Give a TLS server the time to refuse us.

    By TLS 1.3 it judges our certificate after our side of the handshake is done: what
    is sent at once would seem to be taken.

    Raises:
        OSError: it has closed the connection.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(new.reader.read(1), _SETTLING)
    if new.is_over:
        raise ConnectionAbortedError(
            0, "closed right after the handshake: is a client certificate wanted?"
        )
