"""When to try a delivery again, and when to give it up.

Pure: time and random numbers are passed in. Times are seconds since the epoch.
"""

from msgspec import Struct

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
)
from bridge.foundation.retry import LONGEST_WISH, RetryPolicy
from bridge.outbox.records import Delivery

ATTEMPT_LIMIT = 60.0  # seconds
URGENT_ATTEMPTS = 2  # before NotBefore, even if the sink asks for a longer wait
_LEAST_ATTEMPTS = 3
_UNFORESEEN_ATTEMPTS = 10
_LEAST_DELAY = 0.1  # lower bound: repeated quarters of the notice approach zero
_QUICK = 1.0  # seconds: who answers sooner that the time is over works on nothing
_LONGEST_REST = 30.0
_LAST_SECONDS = 5.0  # before NotBefore; a last attempt needs them


class RelayPolicy(Struct, frozen=True, kw_only=True):
    """When to try a delivery again, and when to give it up.

    Attributes:
        backoff: the waits between attempts.
        max_age: seconds after which a delivery becomes a dead letter.
        slots: attempts at the same time; there is one more slot for urgent deliveries.
        most_slots: how many there may be while a slow sink takes all; at least slots.
    """

    backoff: RetryPolicy
    max_age: float
    slots: int
    most_slots: int = 0

    def delay(
        self, delivery: Delivery, error: DeliveryError, *, now: float, unit: float
    ) -> float:
        """Return the seconds to wait before the next attempt.

        The wait is shorter if little time is left before NotBefore.

        Args:
            delivery: the delivery that failed.
            error: the error of the attempt.
            now: seconds since the epoch.
            unit: a random number in [0, 1).
        """
        attempt, wish = delivery.attempts + 1, wish_of(error)
        if not is_urgent(delivery, now):
            # After the wait that the sink asks for, one delivery shows how it is.
            is_told = wish > 0 and error.reason is Reason.THROTTLED
            delay = self.backoff.delay(attempt, unit=unit, retry_after=wish)
            delay = wish if is_told else delay
            ahead = (delivery.urgent_from or 0.0) - now
            return max(min(delay, ahead) if ahead > 0 else delay, _LEAST_DELAY)
        left = (delivery.urgent_until or now) - now
        delay = min(self.backoff.delay(attempt, unit=unit), left / 4)
        return max(delay, _granted(wish, left, attempt), _LEAST_DELAY)

    def end_of(
        self, delivery: Delivery, error: DeliveryError, *, age: float
    ) -> Reason | None:
        """Return why to give up a delivery after ``error``; None = try it again.

        Args:
            delivery: the delivery that failed.
            error: the error of the attempt.
            age: how long the delivery was pending, in seconds of the running time.
        """
        if isinstance(error, PermanentDeliveryError):
            return error.reason
        attempts = delivery.attempts + 1
        if error.reason is Reason.UNFORESEEN and attempts >= _UNFORESEEN_ATTEMPTS:
            return error.reason
        if isinstance(error, RefusedDeliveryError):
            return None  # the sink is parked: the delivery waits for a person
        is_old = age > self.max_age and attempts >= _LEAST_ATTEMPTS
        return Reason.EXPIRED if is_old else None


def rest_of(error: DeliveryError, took: float) -> float:
    """Return how long a delivery rests after an attempt without an answer, in seconds.

    The sink may still be working on it.

    Args:
        error: the error of the attempt; 0 is returned if it is an answer.
        took: how long the attempt took, in seconds.
    """
    is_silent = error.reason is Reason.TIMEOUT and took >= _QUICK
    return min(2 * took, _LONGEST_REST) if is_silent else 0.0


def wish_of(error: DeliveryError) -> float:
    """Return the seconds that the sink asks to wait; 0 = none."""
    return min(getattr(error, "retry_after", None) or 0.0, LONGEST_WISH)


def _granted(wish: float, left: float, attempt: int) -> float:
    """Return how long an urgent delivery waits because the sink asks for it.

    Args:
        wish: the seconds that the sink asks for.
        left: the seconds until NotBefore.
        attempt: number of the attempt that failed, from 1.
    """
    latest = left - _LAST_SECONDS
    if attempt >= URGENT_ATTEMPTS or wish <= min(left * 3 / 4, latest):
        return wish
    # The sink asks for more time than is left. Wait for half of the time left, so that
    # the receiver has the other half to act on the event.
    return min(left / 2, latest)


def is_urgent(delivery: Delivery, now: float) -> bool:
    """Return whether a delivery is urgent now: it goes before all others."""
    until, since = delivery.urgent_until, delivery.urgent_from
    return until is not None and since is not None and since <= now < until
