"""When a delivery is tried again, and when it is given up.

Pure: time and chance are passed in. Times of a delivery are seconds since the epoch.
"""

from dataclasses import dataclass

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
)
from bridge.foundation.retry import LONGEST_WISH, RetryPolicy
from bridge.outbox.delivery import Delivery

URGENT_ATTEMPTS = 2  # before NotBefore, whatever the sink wishes
_LEAST_ATTEMPTS = 3
_UNFORESEEN_ATTEMPTS = 10
_LEAST_DELAY = 0.1  # a quarter of the notice left, again and again, approaches zero
_LAST_SECONDS = 5.0  # of a notice: an attempt needs them


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPolicy:
    """When a delivery is tried again, and when it is given up.

    Attributes:
        backoff: the waits between attempts.
        max_age: seconds after which a delivery becomes a dead letter.
        slots: attempts at a time; one more is kept for urgent deliveries.
    """

    backoff: RetryPolicy
    max_age: float
    slots: int

    def delay(
        self, delivery: Delivery, error: DeliveryError, *, now: float, unit: float
    ) -> float:
        """Return the wait before the next attempt; short of a notice that runs out.

        Args:
            delivery: what failed.
            error: what it failed with.
            now: seconds since the epoch.
            unit: a random number in [0, 1).
        """
        attempt, wish = delivery.attempts + 1, wish_of(error)
        if not is_urgent(delivery, now):
            delay = self.backoff.delay(attempt, unit=unit, retry_after=wish)
            ahead = (delivery.urgent_from or 0.0) - now
            return max(min(delay, ahead) if ahead > 0 else delay, _LEAST_DELAY)
        left = (delivery.urgent_until or now) - now
        delay = min(self.backoff.delay(attempt, unit=unit), left / 4)
        return max(delay, _granted(wish, left, attempt), _LEAST_DELAY)

    def end_of(
        self, delivery: Delivery, error: DeliveryError, *, age: float
    ) -> Reason | None:
        """Return why a delivery is given up after ``error``; None: it is tried again.

        Args:
            delivery: what failed.
            error: what it failed with.
            age: seconds that it was pending while the forwarder ran.
        """
        if isinstance(error, PermanentDeliveryError):
            return error.reason
        attempts = delivery.attempts + 1
        if error.reason is Reason.UNFORESEEN and attempts >= _UNFORESEEN_ATTEMPTS:
            return error.reason
        if isinstance(error, RefusedDeliveryError):
            return None  # what waits for a person is not given up
        is_old = age > self.max_age and attempts >= _LEAST_ATTEMPTS
        return Reason.EXPIRED if is_old else None


def wish_of(error: DeliveryError) -> float:
    """Return how many seconds the sink wishes to be left alone."""
    return min(getattr(error, "retry_after", None) or 0.0, LONGEST_WISH)


def _granted(wish: float, left: float, attempt: int) -> float:
    """Return for how long an urgent delivery is put off at the wish of the sink.

    Args:
        wish: seconds that the sink asks for.
        left: seconds of the notice.
        attempt: number of the attempt that failed, from 1.
    """
    latest = left - _LAST_SECONDS
    if attempt >= URGENT_ATTEMPTS or wish <= min(left * 3 / 4, latest):
        return wish
    # It asks for more than there is. Half of the notice gives it the most rest that
    # leaves as much time to act on what it is told.
    return min(left / 2, latest)


def is_urgent(delivery: Delivery, now: float) -> bool:
    """Whether a delivery goes before everything else now."""
    until, since = delivery.urgent_until, delivery.urgent_from
    return until is not None and since is not None and since <= now < until
