"""Split a byte stream into protocol headers and frames, and make frames.

Source: AMQP 1.0, part 2: 2.2 version negotiation, 2.3 framing; part 5: 5.3.1.
"""

import struct

from msgspec import Struct

from bridge.simulator.wire.errors import FRAMING_ERROR, WireError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_FRAME, SASL_FRAME = 0, 1

HEADER_BYTES = 8
"""The size of a protocol header, and of the header of a frame."""

SMALLEST_MAX_FRAME_BYTES = 512
"""No side may set a lower limit: the frames that open a connection need this size."""

_WORD_BYTES = 4  # the unit of a frame's data offset
_pack_head = struct.Struct(">IBBH").pack
_unpack_head = struct.Struct(">IBBH").unpack_from


class Frame(Struct, frozen=True):
    """A frame.

    Attributes:
        kind: AMQP_FRAME or SASL_FRAME.
        channel: the session that an AMQP frame belongs to.
        body: a performative and its payload; empty: a frame against idle time-outs.
    """

    kind: int
    channel: int
    body: bytes


class FrameReader:
    """Collects bytes until headers and frames are complete.

    Args:
        max_frame_bytes: a longer frame is refused as soon as its header has arrived.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._most = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, received: bytes) -> None:
        """Add bytes."""
        self._buffer += received

    def clear(self) -> None:
        """Discard the bytes that have not been read."""
        self._buffer.clear()

    def next_header(self) -> bytes | None:
        """Return a protocol header; None: it is not complete yet.

        Raises:
            WireError: the bytes do not begin with a protocol header.
        """
        found = bytes(self._buffer[:HEADER_BYTES])
        if not found.startswith(AMQP_HEADER[: len(found)][:4]):
            raise WireError(FRAMING_ERROR, f"a client begins with AMQP, not {found!r}")
        if len(found) < HEADER_BYTES:
            return None
        del self._buffer[:HEADER_BYTES]
        return found

    def next_frame(self) -> Frame | None:
        """Return the next frame; None: it is not complete yet.

        Raises:
            WireError: the size or the data offset in its header is invalid.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        size, words, kind, channel = _unpack_head(buffer)
        begin = words * _WORD_BYTES
        if not HEADER_BYTES <= size <= self._most:
            allowed = f"{HEADER_BYTES} to {self._most}"
            raise WireError(
                FRAMING_ERROR, f"a frame of {size} bytes; {allowed} are allowed"
            )
        if not HEADER_BYTES <= begin <= size:
            raise WireError(
                FRAMING_ERROR, f"a body at byte {begin} of a frame of {size} bytes"
            )
        if len(buffer) < size:
            return None
        body = bytes(buffer[begin:size])
        del buffer[:size]
        return Frame(kind, channel, body)


def frame(channel: int, body: bytes, kind: int = AMQP_FRAME) -> bytes:
    """Return the bytes of a frame."""
    return _pack_head(len(body) + HEADER_BYTES, 2, kind, channel) + body
