"""How long to wait after a failed attempt. Pure: the random number is passed in."""

from msgspec import Struct

LONGEST_WISH = 3600.0  # a wrong Retry-After must not stop a sink for days


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    Attributes:
        first: seconds, the upper bound of the wait after the first failure.
        max_backoff: seconds, the upper bound of any wait.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (full jitter).
    """

    first: float = 1.0
    max_backoff: float = 60.0

    def delay(
        self, attempt: int, *, unit: float, retry_after: float | None = None
    ) -> float:
        """Return the seconds to wait after a failed attempt.

        Args:
            attempt: number of the attempt that failed, from 1.
            unit: a random number in [0, 1); passed in so that tests choose it.
            retry_after: the seconds that the other side asks for; used if longer.
        """
        ceiling = min(self.max_backoff, self.first * 2.0 ** min(attempt - 1, 32))
        return max(unit * ceiling, retry_after or 0.0)
