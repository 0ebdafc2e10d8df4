"""Find out which messages of a TCP stream the other side's kernel has acknowledged.

TCP numbers the bytes of a stream. A message is acknowledged when the number of its last
byte is. Messages that were sent after it may still be on their way.
Source: tcp(7) (SIOCOUTQ), linux/tcp.h (struct tcp_info), RFC 4898 (HCThruOctetsAcked)
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_LOOK, _LONGEST_LOOK = 0.001, 0.05  # seconds between two checks
_GROWTH = 1.5  # each pause is longer by this factor, so the last check is not too late


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
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


@dataclass(slots=True, eq=False)
class _Sent:
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
