"""One connection, from the server's side: takes bytes, returns events.

States:
    greeting → signing in → greeting → opening → open → closed
    greeting → opening, if the client does not sign in
    any state → closed, after bytes that break the protocol, or after an idle time-out

The caller passes received bytes to ``receive``. It then calls ``next_event`` until that
returns None, and writes the bytes that ``take_output`` returns. The connection itself
sends every answer that AMQP requires; the caller answers only links and deliveries.
When ``is_finished`` is true, the caller closes the socket.

Source: AMQP 1.0, part 2: 2.2 version negotiation, 2.4 connections.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto

from msgspec import Struct

from bridge.simulator.wire.events import (
    ConnectionClosed,
    Event,
    Opened,
    SessionBegun,
    SessionEnded,
)
from bridge.simulator.wire.framing import (
    AMQP_FRAME,
    AMQP_HEADER,
    ANONYMOUS,
    SASL_HEADER,
    SMALLEST_MAX_FRAME_BYTES,
    Credentials,
    Frame,
    FrameReader,
    SaslServer,
    accept_all,
    frame,
)
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    read,
    write,
)
from bridge.simulator.wire.session import HANDLE_MAX, INCOMING_WINDOW, Session
from bridge.simulator.wire.values import (
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
    WireError,
)

# -- The values that a server uses for each of its connections -------------------------


MAX_FRAME_BYTES = 1024 * 1024


class Terms(Struct, frozen=True, kw_only=True):
    """The server's values for a connection.

    Attributes:
        container_id: the name of the server.
        max_frame_bytes: the longest frame that the server accepts.
        idle_seconds: clients have to send a frame in this time. The server waits twice
            as long before it closes the connection; None: for ever.
        mechanisms: the SASL mechanisms that clients may use; they may also use none.
        is_known: returns whether a client with these credentials is accepted.
    """

    container_id: str
    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_seconds: float | None = None
    mechanisms: tuple[str, ...] = (ANONYMOUS,)
    is_known: Callable[[Credentials], bool] = accept_all


# -- One connection, from the server's side: takes bytes, returns events ---------------


CHANNEL_MAX = 65_535

SessionPerformative = Attach | Flow | Transfer | Disposition | Detach | End

_EMPTY_FRAME = frame(0, b"")


class _State(Enum):
    GREETING = auto()
    SIGNING_IN = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSED = auto()


class Connection:
    """The server's end of a connection.

    Args:
        terms: the server's values for the connection.

    Attributes:
        max_frame_bytes: the longest frame that the client accepts.
        is_finished: whether to close the socket after the output is written.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._frames = FrameReader(terms.max_frame_bytes)
        self._sasl = SaslServer(terms.mechanisms, terms.is_known)
        self._state = _State.GREETING
        self._sessions: dict[int, Session] = {}
        self._ended: set[int] = set()
        self._unflushed: dict[Session, None] = {}
        self._events: deque[Event] = deque()
        self._output = bytearray()
        self._silence = Silence(terms.idle_seconds)
        self.max_frame_bytes = SMALLEST_MAX_FRAME_BYTES
        self._channel_max = CHANNEL_MAX
        self.is_finished = False

    @property
    def credentials(self) -> Credentials | None:
        """The client's credentials; None: the client has not signed in."""
        return self._sasl.credentials

    def receive(self, received: bytes) -> None:
        """Take bytes from the client; ``next_event`` then returns their events."""
        if self._state is not _State.CLOSED:
            self._silence.has_input = True
            self._frames.feed(received)

    def next_event(self) -> Event | None:
        """Return the next event; None: more bytes are needed."""
        while not self._events:
            if self._state is _State.CLOSED:
                return None
            try:
                if not self._step():
                    return None
            except WireError as error:
                self._fail(error)
        return self._events.popleft()

    def take_output(self) -> bytes:
        """Return the bytes for the client since the last call."""
        for session in self._unflushed:
            session.flush()
        self._unflushed.clear()
        found = bytes(self._output)
        self._output.clear()
        return found

    def tick(self, now: float) -> float | None:
        """Send an empty frame if one is due, or close an idle connection.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            When to be called again, by the same clock; None: never.
        """
        if self._state is _State.CLOSED:
            return None
        self._silence.has_output |= bool(self._output)
        if self._silence.is_frame_due(now):
            self._output += _EMPTY_FRAME
        if self._silence.is_client_idle(now):
            description = f"no frame for {self._silence.client_seconds:g} seconds"
            self._fail(WireError(RESOURCE_LIMIT_EXCEEDED, description))
            return None
        return self._silence.next_due()

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection, with the reason if there is one."""
        if self._state is _State.CLOSED:
            return
        if self._state is _State.OPENING:
            self._send(0, self._open())
        if self._state in {_State.OPENING, _State.OPEN}:
            for session in self._sessions.values():
                session.flush()
            self._send(0, Close(error=error))
        self._end()

    def send_frame(self, channel: int, body: bytes) -> None:
        """Send a frame; the sessions call this."""
        self._output += frame(channel, body)

    def flush_later(self, session: Session) -> None:
        """Flush a session before the output is taken; the sessions call this."""
        self._unflushed[session] = None

    # -- a step for each header or frame --------------------------------------------

    def _step(self) -> bool:
        """Handle a header or a frame; return whether there was one."""
        if self._state is _State.GREETING:
            header = self._frames.next_header()
            if header is not None:
                self._on_header(header)
            return header is not None
        found = self._frames.next_frame()
        if found is None:
            return False
        if self._state is _State.SIGNING_IN:
            self._output += self._sasl.receive(found)
            if self._sasl.credentials is None:
                raise WireError(UNAUTHORIZED_ACCESS, "this sign-in is not accepted")
            self._state = _State.GREETING
        else:
            self._on_frame(found)
        return True

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER and not self._sasl.is_over:
            self._output += self._sasl.begin()
            self._state = _State.SIGNING_IN
        elif header == AMQP_HEADER:
            self._output += AMQP_HEADER
            self._state = _State.OPENING
        else:
            raise WireError(NOT_IMPLEMENTED, f"no protocol begins with {header!r}")

    def _on_frame(self, found: Frame) -> None:
        if found.kind != AMQP_FRAME:
            raise WireError(FRAMING_ERROR, f"a frame of the unknown type {found.kind}")
        if not found.body:
            return
        performative, end = read(found.body)
        if isinstance(performative, Transfer):
            payload = found.body[end:]
        elif end != len(found.body):
            name = type(performative).__name__
            raise WireError(
                FRAMING_ERROR, f"{len(found.body) - end} bytes too many after {name}"
            )
        else:
            payload = b""
        if self._state is _State.OPENING:
            self._on_open(performative)
        else:
            events = self._on_performative(found.channel, performative, payload)
            self._events.extend(events)

    def _on_open(self, performative: Performative) -> None:
        if not isinstance(performative, Open):
            name = type(performative).__name__
            raise WireError(ILLEGAL_STATE, f"a connection begins with Open, not {name}")
        size = performative.max_frame_size
        if size < SMALLEST_MAX_FRAME_BYTES:
            least = SMALLEST_MAX_FRAME_BYTES
            raise WireError(NOT_ALLOWED, f"max-frame-size is {size}; {least} is least")
        self.max_frame_bytes = min(size, MAX_FRAME_BYTES)
        self._channel_max = min(performative.channel_max, CHANNEL_MAX)
        self._silence.limit_own(performative.idle_time_out)
        self._send(0, self._open())
        self._state = _State.OPEN
        self._events.append(Opened(performative))

    def _on_performative(
        self, channel: int, performative: Performative, payload: bytes
    ) -> Iterable[Event]:
        match performative:
            case Begin():
                return self._on_begin(channel, performative)
            case Close():
                return self._on_close(performative)
            case Attach() | Flow() | Disposition() | Detach() | End() | Transfer():
                return self._on_session(channel, performative, payload)
        name = type(performative).__name__
        raise WireError(ILLEGAL_STATE, f"{name} came on an open connection")

    def _on_session(
        self, channel: int, performative: SessionPerformative, payload: bytes
    ) -> Iterable[Event]:
        session = self._sessions.get(channel)
        if session is None and channel in self._ended:
            return ()  # some clients detach links after they have ended the session
        if session is None:
            raise WireError(NOT_ALLOWED, f"channel {channel} has no session")
        if isinstance(performative, Transfer):
            return session.on_transfer(performative, payload)
        if isinstance(performative, End):
            return self._on_end(channel, performative)
        return session.on_performative(performative)

    def _on_begin(self, channel: int, begin: Begin) -> Iterator[Event]:
        if channel in self._sessions:
            raise WireError(NOT_ALLOWED, f"channel {channel} has a session already")
        if channel > self._channel_max:
            raise WireError(
                NOT_ALLOWED, f"channel {channel}; {self._channel_max} is the highest"
            )
        self._ended.discard(channel)
        session = self._sessions[channel] = Session(self, channel, begin)
        self._send(
            channel,
            Begin(
                remote_channel=channel,
                next_outgoing_id=0,
                incoming_window=INCOMING_WINDOW,
                outgoing_window=INCOMING_WINDOW,
                handle_max=HANDLE_MAX,
            ),
        )
        yield SessionBegun(session)

    def _on_end(self, channel: int, end: End) -> Iterator[Event]:
        session = self._sessions.pop(channel)
        session.flush()
        session.end()
        self._ended.add(channel)
        self._send(channel, End())
        yield SessionEnded(session, end.error)

    def _on_close(self, close: Close) -> Iterator[Event]:
        self.close()
        yield ConnectionClosed(close.error)

    # -- the end ------------------------------------------------------------------

    def _fail(self, error: WireError) -> None:
        """Close the connection: the client broke the protocol, or was idle."""
        reason = AmqpError(error.condition, error.description)
        if self._state is _State.GREETING:
            # AMQP: a server that refuses a protocol header sends one that it supports.
            self._output += AMQP_HEADER if self._sasl.is_over else SASL_HEADER
        self.close(reason)
        self._events.append(ConnectionClosed(reason, is_violation=True))

    def _end(self) -> None:
        self._state = _State.CLOSED
        self._frames.clear()
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        self.is_finished = True

    def _open(self) -> Open:
        idle = self._terms.idle_seconds
        return Open(
            container_id=self._terms.container_id,
            max_frame_size=self._terms.max_frame_bytes,
            channel_max=self._channel_max,
            idle_time_out=None if idle is None else round(idle * 1000),
        )

    def _send(self, channel: int, performative: Open | Begin | End | Close) -> None:
        self.send_frame(channel, write(performative))


# -- The idle time-outs of a connection: how long each side may send nothing -----------
#
# Source: AMQP 1.0, part 2: 2.4.5 idle timeout of a connection.


HALF = 0.5
"""A side sends a frame after this part of the other side's idle time-out."""

OWN_SECONDS = 30.0
"""The server sends a frame in this time, even to a client without an idle time-out.

Two silent minutes are too long for the keep-alive of some clients.
"""


class Silence:
    """Measures how long the client and the server have sent nothing.

    A connection has no clock: bytes get the time of the first tick after them.

    Args:
        idle_seconds: the client has to send a frame in this time; None: it need not.

    Attributes:
        client_seconds: how long the client may send nothing; None: for ever.
        own_seconds: how long the server may send nothing; None: for ever, before the
            connection is open.
        has_input: whether the client has sent bytes since the last tick.
        has_output: whether the server has sent bytes since the last tick.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self.client_seconds = None if idle_seconds is None else idle_seconds / HALF
        self.own_seconds: float | None = None
        self.has_input = self.has_output = True
        self._last_input = self._last_output = 0.0

    def limit_own(self, idle_milliseconds: int | None) -> None:
        """Send frames from now on, as often as the client's idle time-out needs."""
        idle = (idle_milliseconds or 0) / 1000 * HALF
        self.own_seconds = min(idle or OWN_SECONDS, OWN_SECONDS)

    def is_frame_due(self, now: float) -> bool:
        """Return whether the server has to send a frame; the caller then sends it."""
        length = self.own_seconds
        is_over = length is not None and now >= self._last_output + length
        if self.has_output or is_over:
            is_over = is_over and not self.has_output
            self._last_output, self.has_output = now, False
        return is_over

    def is_client_idle(self, now: float) -> bool:
        """Return whether the client has sent nothing for too long."""
        if self.has_input:
            self._last_input, self.has_input = now, False
        length = self.client_seconds
        return length is not None and now >= self._last_input + length

    def next_due(self) -> float | None:
        """Return when the first of the two times is over; None: neither is limited."""
        ends = [
            last + length
            for last, length in (
                (self._last_input, self.client_seconds),
                (self._last_output, self.own_seconds),
            )
            if length is not None
        ]
        return min(ends, default=None)
