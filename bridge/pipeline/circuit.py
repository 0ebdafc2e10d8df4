"""The state of one sink: what its answers say, and when it is tried next.

    ok ──a failure for the sink's sake──▶ unreachable ──first success──▶ ok
    ok, unreachable ──three refusals in a row──▶ parked ──first success──▶ ok

    unreachable: an attempt begins at least every 3 s; the first success makes due all
                 that failed for the sink's sake
    parked:      deliveries stay; one is tried now and then, and each urgent one twice

Pure: time and chance are passed in. Times are monotonic seconds, but for those of a
delivery, which are seconds since the epoch.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.retry import LONGEST_WISH, RetryPolicy
from bridge.outbox.deliveries import Delivery

URGENT_ATTEMPTS = 2  # before NotBefore, whatever the sink wishes
_PARK_AFTER = 3
_LONGEST_PROBE = 300.0
_SPREAD = 0.25
_TRY_EVERY = 3.0  # while the sink cannot be reached; more or less by the spread
_SILENT_AFTER = 5.0  # an attempt without an answer: it may be that there is none
_RELEASE_EVERY = 2.0  # one event that always fails must not be tried at each success
_LEAST_ATTEMPTS = 3
_UNFORESEEN_ATTEMPTS = 10
_LEAST_DELAY = 0.1  # a quarter of the notice left, again and again, approaches zero
_LAST_SECONDS = 5.0  # of a notice: an attempt needs them

# What says that the sink cannot be reached, whatever is sent to it. One that is
# throttled is reached, and wants less; an unforeseen error may be the event's.
_UNREACHABLE = {Reason.CONNECTION, Reason.SERVER, Reason.TIMEOUT}


class SinkState(StrEnum):
    """The state of a sink, as the status shows it."""

    OK = "ok"
    RETRYING = "retrying"
    PARKED = "parked"


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


@dataclass(slots=True)
class RunningTime:
    """Seconds during which the deliveries of a sink grew older.

    Stands still while the forwarder does not run and while the sink is parked.

    Attributes:
        seconds: as of ``since``, or of the moment it was stopped.
        since: monotonic seconds from which on it runs; None while it stands still.
    """

    seconds: float = 0.0
    since: float | None = None

    def at(self, now: float) -> float:
        """Return the seconds that have run until ``now``."""
        return self.seconds + (0.0 if self.since is None else now - self.since)

    def run(self, now: float) -> None:
        """Go on, or on."""
        self.seconds, self.since = self.at(now), now

    def stand(self, now: float) -> None:
        """Stand still."""
        self.seconds, self.since = self.at(now), None


@dataclass(slots=True)
class _Parking:
    """How a sink is tried that refuses whatever is sent."""

    refusals: int = 0  # in a row
    is_parked: bool = False
    probes: int = 0
    probe_at: float = 0.0


@dataclass(slots=True)
class Circuit:
    """What is known of a sink by its answers.

    Attributes:
        backoff: whose longest wait is the first between two tries of a parked sink.
        last_error: what the last attempt failed with; None after a success.
        hold_until: as the sink has asked for by Retry-After.
        running: by which deliveries grow older.
    """

    backoff: RetryPolicy
    last_error: str | None = None
    hold_until: float = 0.0
    running: RunningTime = field(default_factory=RunningTime)
    _parking: _Parking = field(default_factory=_Parking)
    _is_unreachable: bool = False
    _try_at: float = 0.0
    _succeeded_at: float = float("-inf")
    _has_failures: bool = False  # since the last success, for the sink's sake
    _owes_release: bool = False
    _release_at: float = float("-inf")

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        if self._parking.is_parked:
            return SinkState.PARKED
        return SinkState.RETRYING if self.last_error else SinkState.OK

    @property
    def is_parked(self) -> bool:
        """Whether a person has to see to the sink."""
        return self._parking.is_parked

    @property
    def refusals(self) -> int:
        """How many refusals there were in a row."""
        return self._parking.refusals

    def began(self, now: float, unit: float) -> None:
        """Note that an attempt begins; ``unit`` is a random number in [0, 1)."""
        spread = 1 - _SPREAD + 2 * _SPREAD * unit  # other VMs try it too
        self._try_at = now + _TRY_EVERY * spread

    def succeeded(self, now: float) -> None:
        """Forget all trouble but the time that the sink has asked for."""
        self._succeeded_at = now
        if self.last_error is None:
            return  # as most of the time
        self._owes_release = self._owes_release or self._has_failures
        self._forget()
        self.running.run(now)

    def resume(self, now: float) -> None:
        """Forget all that keeps deliveries waiting: a person has asked for it."""
        self._forget()
        self.hold_until = 0.0
        self.running.run(now)

    def _forget(self) -> None:
        self._parking, self.last_error = _Parking(), None
        self._is_unreachable = self._has_failures = False

    def failed(
        self, error: DeliveryError, refusals: int, *, now: float, unit: float
    ) -> None:
        """Draw conclusions on the sink from a failure.

        Args:
            error: what an attempt failed with.
            refusals: how many there had been when it began: those of attempts that
                were made at the same time say the same thing, and count as one.
            now: monotonic seconds.
            unit: a random number in [0, 1).
        """
        self.last_error = str(error)
        if wish := wish_of(error):
            self.hold_until = max(self.hold_until, now + wish)
        is_for_sink = is_for_sinks_sake(error)
        self._has_failures = self._has_failures or is_for_sink
        if isinstance(error, RefusedDeliveryError):
            self._refused(refusals, now, unit)
            return
        self._parking.refusals = 0
        self._is_unreachable = self._is_unreachable or is_for_sink
        if self.is_parked and isinstance(error, TransientDeliveryError):
            self._probe_later(now, unit)

    def _refused(self, refusals: int, now: float, unit: float) -> None:
        parking = self._parking
        parking.refusals += parking.refusals == refusals
        if parking.refusals < _PARK_AFTER and not parking.is_parked:
            return
        self._probe_later(now, unit)
        if not parking.is_parked:
            parking.is_parked = True
            self.running.stand(now)

    def _probe_later(self, now: float, unit: float) -> None:
        """Wait for ``max_backoff``, and twice as long each time, to five minutes."""
        parking = self._parking
        doubled = self.backoff.max_backoff * 2.0 ** min(parking.probes, 20)
        wait = min(doubled * (1 + _SPREAD * unit), _LONGEST_PROBE)
        parking.probes += 1
        parking.probe_at = now + wait

    def lets_through(self, now: float, *, is_first: bool) -> bool:
        """Whether an attempt that is due may begin, as far as the sink is concerned.

        Args:
            now: monotonic seconds.
            is_first: whether no other is under way.
        """
        if now < self.hold_until:
            return False
        return not self.is_parked or (is_first and now >= self._parking.probe_at)

    def wants_try(self, now: float, oldest: float | None) -> bool:
        """Whether an attempt has to begin now, due or not, to see if it is back.

        Args:
            now: monotonic seconds.
            oldest: when the oldest attempt that has no answer yet began.
        """
        if self.is_parked or now < max(self._try_at, self.hold_until):
            return False
        if self._is_unreachable:
            return True
        # An attempt hangs, and none has succeeded since it began.
        is_silent = oldest is not None and self._succeeded_at < oldest
        return is_silent and now >= (oldest or 0.0) + _SILENT_AFTER

    @property
    def is_unreachable(self) -> bool:
        """Whether the last that was heard of it is that it cannot be reached."""
        return self._is_unreachable

    def takes_release(self, now: float) -> bool:
        """Whether to make due now what failed for the sink's sake; asked but once."""
        if not self._owes_release or now < self._release_at:
            return False
        self._owes_release = False
        if self._succeeded_at > float("-inf"):  # the first at the start is for free
            self._release_at = now + _RELEASE_EVERY
        return True

    def owe_release(self) -> None:
        """Note that something may wait that is to be made due."""
        self._owes_release = True

    def marks(self, oldest: float | None) -> list[float]:
        """Return the moments at which something may change without any news.

        Args:
            oldest: when the oldest attempt that has no answer yet began.
        """
        found = [self.hold_until]
        if self.is_parked:
            found.append(self._parking.probe_at)
        elif self._is_unreachable:
            found.append(self._try_at)
        elif oldest is not None:
            found.append(max(self._try_at, oldest + _SILENT_AFTER))
        if self._owes_release:
            found.append(self._release_at)
        return found


def is_left_behind(began: float, other: float) -> bool:
    """Whether an attempt hangs for good, seeing that one begun later succeeded.

    Args:
        began: when the attempt began.
        other: when the one began that has succeeded.
    """
    return began <= other - _TRY_EVERY * (1 - _SPREAD)


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


def is_for_sinks_sake(error: DeliveryError) -> bool:
    """Whether any other delivery would have failed with it, too."""
    if isinstance(error, RefusedDeliveryError):
        return True
    is_transient = isinstance(error, TransientDeliveryError)
    return is_transient and error.reason in _UNREACHABLE and not wish_of(error)


def is_urgent(delivery: Delivery, now: float) -> bool:
    """Whether a delivery goes before everything else now."""
    until, since = delivery.urgent_until, delivery.urgent_from
    return until is not None and since is not None and since <= now < until
