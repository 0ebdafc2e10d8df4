"""Split a byte stream into AMQP frames, and read one field of a transfer.

Proton hides the message-format of a transfer, and only this field tells a batch from a
message. So each frame is read here before Proton gets it.

Source: AMQP 1.0, part 2: 2.2 version negotiation, 2.3 framing, 2.7.5 transfer.
"""

from collections.abc import Iterator

from bridge.simulator.servicebus.values import decode_value
from bridge.simulator.wire.values import Described

MAX_FRAME_BYTES = 1024 * 1024

_PROTOCOL_HEADER_BYTES = 8
_FRAME_HEADER_BYTES = 8
_TRANSFER = b"\x00\x53\x14"
_MESSAGE_FORMAT_FIELD = 3


class FrameSplitter:
    """Collects bytes until frames are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Add bytes; return the protocol headers and frames that are now complete.

        Bytes that cannot be a frame are returned unchanged: Proton answers them.
        """
        self._buffer += received
        while len(self._buffer) >= _PROTOCOL_HEADER_BYTES:
            size = self._next_size()
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield frame

    def _next_size(self) -> int:
        if self._buffer.startswith(b"AMQP"):
            return _PROTOCOL_HEADER_BYTES
        size = int.from_bytes(self._buffer[:4])
        if _FRAME_HEADER_BYTES <= size <= MAX_FRAME_BYTES:
            return size
        return len(self._buffer)


def message_format(frame: bytes) -> int | None:
    """Return the message-format of a transfer frame, or None.

    The later frames of one message may omit the message-format: the result is None.
    """
    body = frame[4] * 4 if not frame.startswith(b"AMQP") else len(frame)
    if frame[body : body + len(_TRANSFER)] != _TRANSFER:
        return None
    performative, _ = decode_value(frame, body)
    fields = performative.value if isinstance(performative, Described) else ()
    if not isinstance(fields, list) or len(fields) <= _MESSAGE_FORMAT_FIELD:
        return None
    value = fields[_MESSAGE_FORMAT_FIELD]
    return value if isinstance(value, int) else None
