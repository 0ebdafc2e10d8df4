"""The state of one sink: what its answers say, and when it is tried next.

    ok ──a failure for the sink's sake──▶ unreachable ──first success──▶ ok
    ok, unreachable ──three refusals in a row──▶ parked ──first success──▶ ok

    unreachable: an attempt begins at least every 3 s; the first success makes due all
                 that failed for the sink's sake
    parked:      deliveries stay; one is tried now and then, and each urgent one twice

Pure: time and chance are passed in. Times are monotonic seconds.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from bridge.foundation.errors import (
    DeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.retry import RetryPolicy
from bridge.pipeline.policy import wish_of

_PARK_AFTER = 3
_LONGEST_PROBE = 300.0
_SPREAD = 0.25
_TRY_EVERY = 3.0  # while the sink cannot be reached; more or less by the spread
_SILENT_AFTER = 5.0  # an attempt without an answer: it may be that there is none
_RELEASE_EVERY = 2.0  # one event that always fails must not be tried at each success

# What says that the sink cannot be reached, whatever is sent to it. One that is
# throttled is reached, and wants less; an unforeseen error may be the event's.
_UNREACHABLE = {Reason.CONNECTION, Reason.SERVER, Reason.TIMEOUT}


class SinkState(StrEnum):
    """The state of a sink, as the status shows it."""

    OK = "ok"
    RETRYING = "retrying"
    PARKED = "parked"


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

    longest_backoff: float
    refusals: int = 0  # in a row
    is_parked: bool = False
    probes: int = 0
    probe_at: float = 0.0

    def refused(self, earlier: int, now: float, unit: float) -> bool:
        """Note a refusal; return whether the sink is parked by it.

        Args:
            earlier: how many there had been when the attempt began.
            now: monotonic seconds.
            unit: a random number in [0, 1).
        """
        self.refusals += self.refusals == earlier
        if self.refusals < _PARK_AFTER and not self.is_parked:
            return False
        self.probe_later(now, unit)
        was_parked, self.is_parked = self.is_parked, True
        return not was_parked

    def probe_later(self, now: float, unit: float) -> None:
        """Wait for the longest backoff, twice as long each time, to five minutes."""
        doubled = self.longest_backoff * 2.0 ** min(self.probes, 20)
        wait = min(doubled * (1 + _SPREAD * unit), _LONGEST_PROBE)
        self.probes += 1
        self.probe_at = now + wait


@dataclass(slots=True)
class _Release:
    """Whether what failed for the sink's sake is to be made due: the sink is back."""

    is_owed: bool = False
    may_at: float = float("-inf")
    is_first: bool = True  # the first after the start is for free

    def take(self, now: float) -> bool:
        """Whether to do so now; asked but once."""
        if not self.is_owed or now < self.may_at:
            return False
        self.is_owed = False
        if not self.is_first:
            self.may_at = now + _RELEASE_EVERY
        return True


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
    _parking: _Parking = field(init=False)
    _is_unreachable: bool = False
    _try_at: float = 0.0
    _succeeded_at: float = float("-inf")
    _has_failures: bool = False  # since the last success, for the sink's sake
    _release: _Release = field(default_factory=_Release)

    def __post_init__(self) -> None:
        self._parking = _Parking(self.backoff.max_backoff)

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
        self._succeeded_at, self._release.is_first = now, False
        if self.last_error is None:
            return  # as most of the time
        self._release.is_owed |= self._has_failures
        self._forget()
        self.running.run(now)

    def resume(self, now: float) -> None:
        """Forget all that keeps deliveries waiting: a person has asked for it."""
        self._forget()
        self.hold_until = 0.0
        self.running.run(now)

    def _forget(self) -> None:
        self._parking, self.last_error = _Parking(self.backoff.max_backoff), None
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
            if self._parking.refused(refusals, now, unit):
                self.running.stand(now)
            return
        self._parking.refusals = 0
        self._is_unreachable = self._is_unreachable or is_for_sink
        if self.is_parked and isinstance(error, TransientDeliveryError):
            self._parking.probe_later(now, unit)

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
        return self._release.take(now)

    def owe_release(self) -> None:
        """Note that something may wait that is to be made due."""
        self._release.is_owed = True

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
        if self._release.is_owed:
            found.append(self._release.may_at)
        return found


def is_left_behind(began: float, other: float) -> bool:
    """Whether an attempt hangs for good, seeing that one begun later succeeded.

    Args:
        began: when the attempt began.
        other: when the one began that has succeeded.
    """
    return began <= other - _TRY_EVERY * (1 - _SPREAD)


def is_for_sinks_sake(error: DeliveryError) -> bool:
    """Whether any other delivery would have failed with it, too."""
    if isinstance(error, RefusedDeliveryError):
        return True
    is_transient = isinstance(error, TransientDeliveryError)
    return is_transient and error.reason in _UNREACHABLE and not wish_of(error)
