"""Syslog on the wire: datagrams, or a stream that reconnects when it breaks.

* UDP (RFC 5426) has no receipts. A message counts as delivered when it was sent and no
  error has reported a closed port.
* TCP (octet counting, RFC 6587) and TLS (RFC 5425) have no acknowledgement of their
  own. A message counts as delivered when the other side's kernel has acknowledged every
  byte of it and has not reset the connection. So an unplugged receiver is noticed, but
  not a receiver that is killed with messages in its memory.
  Linux reports this for each message. Other systems report only when no byte at all is
  unacknowledged, and Windows reports nothing.
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

from msgspec import Struct

from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.net.addresses import addresses

# -- Find out which messages of a TCP stream the other side's kernel has acknowledged --
#
# TCP numbers the bytes of a stream. A message is acknowledged when the number of its
# last byte is. Messages that were sent after it may still be on their way. Source:
# tcp(7) (SIOCOUTQ), linux/tcp.h (struct tcp_info), RFC 4898 (HCThruOctetsAcked)


_FIRST_LOOK, _LONGEST_LOOK = 0.001, 0.05  # seconds between two checks
_GROWTH = 1.5  # each pause is longer by this factor, so the last check is not too late


class Count(Struct, frozen=True, kw_only=True):
    """Bytes of one stream, as the kernel counts them.

    Attributes:
        acknowledged: how many bytes the other side has acknowledged on this connection;
            None if this system does not say.
        held: how many bytes the kernel keeps until they are acknowledged.
    """

    acknowledged: int | None
    held: int


Counting = Callable[[socket.socket], Count]


if sys.platform == "win32":

    def counted(_: socket.socket) -> Count:
        """Return no numbers: Windows has no way to ask."""
        return Count(acknowledged=None, held=0)

else:
    import fcntl
    import termios

    def _held(sock: socket.socket) -> int:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])

    if sys.platform == "linux":
        _ACKNOWLEDGED = struct.Struct("=120xQ")  # tcpi_bytes_acked, since Linux 4.1

        def _acknowledged(sock: socket.socket) -> int | None:
            size = _ACKNOWLEDGED.size
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
            if len(info) < size:
                return None
            return int(_ACKNOWLEDGED.unpack(info)[0])

    else:

        def _acknowledged(_: socket.socket) -> int | None:
            return None

    def counted(sock: socket.socket) -> Count:
        """Ask the kernel for both numbers at the same moment."""
        while True:
            acknowledged = _acknowledged(sock)
            count = Count(acknowledged=acknowledged, held=_held(sock))
            if _acknowledged(sock) == acknowledged:
                return count


class _Sent(Struct, eq=False):
    """A message that was written.

    Attributes:
        end: the number of its last byte in the stream; None = not encrypted yet.
    """

    end: int | None = None


class Acknowledged:
    """Writes messages to a connection, and waits for their acknowledgement.

    Args:
        writer: the connection; encrypts, if there is TLS.
        wire: the transport that writes the (encrypted) bytes to the socket.
        counting: returns the counts of the kernel.
    """

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        wire: asyncio.WriteTransport,
        counting: Counting = counted,
    ) -> None:
        self.writer = writer
        self._wire = wire
        self._counting = counting
        self._unnumbered: list[_Sent] = []

    async def send(self, data: bytes) -> None:
        """Write a message, and wait until every byte of it is acknowledged.

        Raises:
            OSError: the connection broke before that.
        """
        self._number()
        self.writer.write(data)
        self._unnumbered.append(sent := _Sent())
        self._number()
        await self.writer.drain()
        pause = _FIRST_LOOK
        while not self.writer.is_closing():
            if self._is_acknowledged(sent):
                return
            await asyncio.sleep(pause)
            pause = min(_GROWTH * pause, _LONGEST_LOOK)
        raise ConnectionResetError(0, "the connection broke")

    def _is_acknowledged(self, sent: _Sent) -> bool:
        self._number()
        count = self._count()
        if count.acknowledged is None:  # only an empty send buffer shows it
            return not (count.held or self._waiting() or self._unencrypted())
        return sent.end is not None and count.acknowledged >= sent.end

    def _number(self) -> None:
        """Note for each message that has left TLS where it ends in the stream.

        It is also called before each write: otherwise a moment in which TLS held
        nothing back could be missed.
        """
        if self._unnumbered and not self._unencrypted():
            count = self._count()
            end = (count.acknowledged or 0) + count.held + self._waiting()
            for sent in self._unnumbered:
                sent.end = end
            self._unnumbered.clear()

    def _count(self) -> Count:
        return self._counting(self._wire.get_extra_info("socket"))

    def _waiting(self) -> int:
        return self._wire.get_write_buffer_size()

    def _unencrypted(self) -> int:
        """Return how many bytes TLS holds back because the socket accepts no more."""
        transport = self.writer.transport
        return 0 if transport is self._wire else transport.get_write_buffer_size()


# -- Syslog on the wire: datagrams, or a stream that reconnects when it breaks ---------


_SETTLING = 0.25
_FAREWELL = 1.0
_KEPT_ALIVE_EVERY = 60

MakeContext = Callable[[], ssl.SSLContext]


class Wire(Protocol):
    """A connection to a receiver."""

    async def reach(self) -> str:
        """Test the connection without sending anything; return what was found.

        Raises:
            DeliveryError: the receiver cannot be reached.
        """
        ...

    async def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            DeliveryError: it did not arrive, as far as that can be known.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


@asynccontextmanager
async def _errors(target: str, seconds: float) -> AsyncIterator[None]:
    """Limit the time of an attempt; turn network errors into delivery errors."""
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


class Datagrams(Struct, kw_only=True):
    """UDP; the host name is looked up for each message."""

    host: str
    port: int
    timeout: float

    @property
    def target(self) -> str:
        """The name of the receiver in errors."""
        return f"{self.host}:{self.port}/udp"

    async def reach(self) -> str:
        """Look up the name; UDP allows no more. See ``Wire``."""
        async with _errors(self.target, self.timeout):
            await addresses(self.host, self.port, socket.SOCK_DGRAM)
        return f"{self.target} has an address; UDP does not show whether it listens"

    async def send(self, message: bytes) -> None:
        """Send a datagram; see ``Wire``.

        Raises:
            PermanentDeliveryError: the message is too long for a datagram.
        """
        async with _errors(self.target, self.timeout):
            found = await addresses(self.host, self.port, socket.SOCK_DGRAM)
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
        # A closed port is reported at once on this machine, and soon on some networks.
        if fault := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(fault, os.strerror(fault))

    async def close(self) -> None:
        """Do nothing: no socket stays open. See ``Wire``."""


class _Connection(Struct, frozen=True, kw_only=True):
    """An open stream.

    Attributes:
        sending: sends messages over it, and waits for their acknowledgement.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sending: Acknowledged

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed it, as far as is known."""
        return self.reader.at_eof() or self.writer.is_closing()


@dataclass(slots=True, kw_only=True)
class Stream:
    """TCP or TLS; each message is preceded by its length.

    Attributes:
        make_context: reads certificates, in a thread; None = no TLS.
        counting: asks the kernel which bytes are acknowledged.
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
        """The name of the receiver in errors."""
        return f"{self.host}:{self.port}/{'tls' if self.make_context else 'tcp'}"

    async def reach(self) -> str:
        """Connect and disconnect; see ``Wire``."""
        try:
            async with _errors(self.target, self.timeout):
                await self._connected()
        finally:
            await self.close()
        return f"{self.target} accepts connections"

    async def send(self, message: bytes) -> None:
        """Send a message with its length; see ``Wire``."""
        connection = None
        try:
            async with _errors(self.target, self.timeout):
                connection = await self._connected()
                await connection.sending.send(b"%d %b" % (len(message), message))
        except TransientDeliveryError:
            if connection is not None:  # drop it: half a message may be in its buffer
                connection.writer.transport.abort()
            raise

    async def close(self) -> None:
        """Send the rest, and disconnect; see ``Wire``."""
        connection, self._open = self._open, None
        if connection is not None:
            connection.writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(connection.writer.wait_closed(), _FAREWELL)

    async def _connected(self) -> _Connection:
        """Return a connection that is still open, as far as is known."""
        async with self._lock:
            if self._open is not None and not self._open.is_over:
                return self._open
            await self.close()
            make = self.make_context
            context = await asyncio.to_thread(make) if make else None
            found = await addresses(self.host, self.port, socket.SOCK_STREAM)
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
    """Connect to the first of the looked-up addresses that answers.

    Raises:
        OSError: no address answers.
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
    """Start TLS on a connection; close the connection if that fails.

    Raises:
        OSError: the certificate of the other side is wrong, or the connection broke.
    """
    wire = writer.transport
    try:
        await writer.start_tls(context, server_hostname=host)
    except BaseException:
        wire.abort()
        raise


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel check each minute whether the other side is there.

    There may be days between two events, and middleboxes forget an idle connection
    sooner: Azure's load balancer after four minutes.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEPT_ALIVE_EVERY)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def _settle(new: _Connection) -> None:
    """Give a TLS server the time to refuse our certificate.

    With TLS 1.3 the server checks it after our side of the handshake is done. A message
    that is sent at once would seem to be accepted.

    Raises:
        OSError: the server has closed the connection.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(new.reader.read(1), _SETTLING)
    if new.is_over:
        raise ConnectionAbortedError(
            0, "closed right after the handshake: is a client certificate required?"
        )
