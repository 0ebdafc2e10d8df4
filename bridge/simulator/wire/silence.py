"""The idle time-outs of a connection: how long each side may send nothing.

Source: AMQP 1.0, part 2: 2.4.5 idle timeout of a connection.
"""

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
