"""What of a stream the other side's kernel has acknowledged, message by message.

TCP numbers the bytes of a stream. A message is acknowledged once the number where it
ends is, whatever was sent after it: others may still be on their way.

Source: tcp(7) (SIOCOUTQ), linux/tcp.h (struct tcp_info), RFC 4898 (HCThruOctetsAcked)
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_LOOK, _LONGEST_LOOK = 0.001, 0.05  # seconds between looks at what is unsent
_GROWTH = 1.5  # of the pause from look to look: how much too late one may come


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Bytes of one stream, as the kernel counts them.

    Attributes:
        acknowledged: how many the other side has acknowledged since the connection
            began; None where this system does not say.
        held: how many are kept until it has.
    """

    acknowledged: int | None
    held: int


Counting = Callable[[socket.socket], Count]


if sys.platform == "win32":

    def counted(_: socket.socket) -> Count:
        """Return nothing: there is no way to ask."""
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
        """Ask the kernel; both numbers are of the same moment."""
        while True:
            acknowledged = _acknowledged(sock)
            count = Count(acknowledged=acknowledged, held=_held(sock))
            if _acknowledged(sock) == acknowledged:
                return count


@dataclass(slots=True, eq=False)
class _Sent:
    """A message that was written.

    Attributes:
        end: the number of its last byte in the stream; None = it is still to be
            encrypted.
    """

    end: int | None = None


class Acknowledged:
    """Writes messages to a connection, and waits for their acknowledgement.

    Args:
        writer: what is written to; encrypts, where there is TLS.
        wire: what puts the bytes, encrypted where they are, into the socket.
        counting: asks the kernel.
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
            OSError: the connection broke first.
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
        if count.acknowledged is None:  # then only silence says so
            return not (count.held or self._waiting() or self._unencrypted())
        return sent.end is not None and count.acknowledged >= sent.end

    def _number(self) -> None:
        """Say of each message that has left TLS where it ends.

        Done before each write, too: only then is no moment missed in which TLS held
        nothing back.
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
        """Return how many bytes TLS holds back, since the socket takes no more."""
        transport = self.writer.transport
        return 0 if transport is self._wire else transport.get_write_buffer_size()
