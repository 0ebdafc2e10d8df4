"""Idle time-outs: who of a connection has said nothing for how long.

Source: AMQP 1.0, part 2: 2.4.5 idle timeout of a connection.
"""

HALF = 0.5
"""Of the time after which a side gives up: when the other shows that it lives."""


class Silence:
    """Who has said nothing for how long.

    Bytes count from the tick that follows them: they have no time of their own here.

    Args:
        idle_seconds: what we ask of the client; None: nothing.

    Attributes:
        patience: how long the client may be silent; None: for ever.
        ours: how long we may be; None: for ever.
        has_input: whether the client has sent bytes since the last tick.
        has_output: whether we have.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self.patience = None if idle_seconds is None else idle_seconds / HALF
        self.ours: float | None = None
        self.has_input = self.has_output = True
        self._last_input = self._last_output = 0.0

    def is_ours_over(self, now: float) -> bool:
        """Return whether a sign of life is due; it then counts as given."""
        is_over = self.ours is not None and now >= self._last_output + self.ours
        if self.has_output or is_over:
            is_over = is_over and not self.has_output
            self._last_output, self.has_output = now, False
        return is_over

    def is_theirs_over(self, now: float) -> bool:
        """Return whether the client has been silent for too long."""
        if self.has_input:
            self._last_input, self.has_input = now, False
        return self.patience is not None and now >= self._last_input + self.patience

    def next_due(self) -> float | None:
        """Return when the next of both is over."""
        ends = [
            last + length
            for last, length in (
                (self._last_input, self.patience),
                (self._last_output, self.ours),
            )
            if length is not None
        ]
        return min(ends, default=None)
