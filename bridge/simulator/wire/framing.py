"""Split a byte stream into protocol headers and frames, make frames, sign in with SASL.

Source: AMQP 1.0, part 2: 2.2 version negotiation, 2.3 framing; part 5: 5.3 SASL;
        RFC 4616, PLAIN.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from bridge.simulator.wire.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    read,
    write,
)
from bridge.simulator.wire.values import FRAMING_ERROR, WireError

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


# -- sign-in with SASL, before AMQP begins ---------------------------------------------
#
#     header → mechanisms offered → init → outcome ok      → AMQP
#                                        → outcome refused → closed
#
# Service Bus checks tokens later, at ``$cbs``. So ANONYMOUS, EXTERNAL and MSSBCBS carry
# no credentials here; only PLAIN carries a name and a password.

ANONYMOUS, EXTERNAL, MSSBCBS, PLAIN = "ANONYMOUS", "EXTERNAL", "MSSBCBS", "PLAIN"

_OK, _REFUSED = 0, 1
_PLAIN_PARTS = 3  # authorization identity, name, password


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a client signs in with.

    Attributes:
        mechanism: e.g. ANONYMOUS.
        name: the name given with PLAIN; empty with the other mechanisms.
        password: the password given with PLAIN; never shown.
    """

    mechanism: str
    name: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.name!r})"


def accept_all(_credentials: Credentials) -> bool:
    """Accept every client: tokens are checked later, at ``$cbs``."""
    return True


class SaslServer:
    """The server's side of the sign-in.

    Args:
        mechanisms: the mechanisms that are offered.
        is_known: returns whether a client with these credentials is accepted.

    Attributes:
        credentials: the client's credentials; None: the client is not accepted yet.
        is_over: whether the client has chosen a mechanism; the sign-in then ends.
    """

    def __init__(
        self, mechanisms: tuple[str, ...], is_known: Callable[[Credentials], bool]
    ) -> None:
        self._mechanisms = mechanisms
        self._is_known = is_known
        self.credentials: Credentials | None = None
        self.is_over = False

    def begin(self) -> bytes:
        """Return the bytes that offer the mechanisms."""
        return SASL_HEADER + _frame(SaslMechanisms(mechanisms=self._mechanisms))

    def receive(self, received: Frame) -> bytes:
        """Take the client's choice of a mechanism; return the outcome.

        Raises:
            WireError: the frame is not a SASL init.
        """
        if received.kind != SASL_FRAME:
            raise WireError(
                FRAMING_ERROR, "an AMQP frame came before the end of the sign-in"
            )
        init, end = read(received.body)
        if not isinstance(init, SaslInit) or end != len(received.body):
            raise WireError(
                FRAMING_ERROR, f"a client sends SaslInit, not {type(init).__name__}"
            )
        self.is_over = True
        credentials = self._credentials(init)
        if credentials is None or not self._is_known(credentials):
            return _frame(SaslOutcome(code=_REFUSED))
        self.credentials = credentials
        return _frame(SaslOutcome(code=_OK))

    def _credentials(self, init: SaslInit) -> Credentials | None:
        if init.mechanism not in self._mechanisms:
            return None
        if init.mechanism != PLAIN:
            return Credentials(str(init.mechanism))
        try:
            parts = (init.initial_response or b"").decode().split("\0")
        except UnicodeDecodeError:
            return None
        if len(parts) != _PLAIN_PARTS or not parts[1]:
            return None
        return Credentials(PLAIN, parts[1], parts[2])


def _frame(performative: SaslMechanisms | SaslOutcome) -> bytes:
    return frame(0, write(performative), SASL_FRAME)
