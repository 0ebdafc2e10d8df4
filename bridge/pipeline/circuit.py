"""The state of one sink, judged by its answers, and when to try the sink next.

    untried ──first success──▶ ok
    ok ──an attempt fails because of the sink──▶ unreachable ──first success──▶ ok
    ok, unreachable ──three refusals in a row──▶ parked ──first success──▶ ok

    unreachable: an attempt begins at least every 3 s; after the first success, all
                 deliveries that failed because of the sink are due at once
    away:        a probe had no answer: at the first answer, the sink counts as back
    parked:      deliveries wait; one is tried now and then, and each urgent one twice
    any state:   no attempt before hold_until: the sink has sent Retry-After
    any state:   while the sink is full, busy or throttles, an attempt begins once a
                 second at most; after the first success, all goes

Pure: time and random numbers are passed in. Times are monotonic seconds.
"""

from enum import StrEnum

from msgspec import Struct

from bridge.foundation.errors import (
    DeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.pace import LONGEST_WISH, Pause, RetryPolicy

_PARK_AFTER = 3
_LONGEST_PROBE = 300.0
_SPREAD = 0.25
_TRY_EVERY = 3.0  # while the sink is unreachable; plus or minus the spread
_SILENT_AFTER = 5.0  # an attempt without answer for so long may never get one
_RELEASE_EVERY = 2.0  # limits retries of an event that always fails

# These failures are not caused by the event: the sink is unreachable. An unexpected
# error may be caused by the event.
_UNREACHABLE = {Reason.CONNECTION, Reason.SERVER, Reason.TIMEOUT}


class SinkState(StrEnum):
    """The state of a sink, as the status shows it."""

    UNTRIED = "untried"
    EARLY = "early"  # of a command: the time of what waits has not come
    OK = "ok"
    RETRYING = "retrying"
    PARKED = "parked"


class RunningTime(Struct):
    """The running time of a sink: a stop watch for the age of its deliveries.

    It stands still while the forwarder does not run and while the sink is parked.

    Attributes:
        seconds: the running time at ``since``, or when it was stopped.
        since: when it was started, in monotonic seconds; None while it stands still.
    """

    seconds: float = 0.0
    since: float | None = None

    def at(self, now: float) -> float:
        """Return the running time at ``now``, in seconds."""
        return self.seconds + (0.0 if self.since is None else now - self.since)

    def run(self, now: float) -> None:
        """Start the stop watch, or let it run on."""
        self.seconds, self.since = self.at(now), now

    def stand(self, now: float) -> None:
        """Stop the stop watch."""
        self.seconds, self.since = self.at(now), None


class Circuit:
    """The state of a sink, as far as its answers show it.

    Attributes:
        backoff: its longest wait is also the wait before the first probe of a parked
            sink.
        busy: the pause that all sinks of the same Service Bus namespace share.
        last_error: the error of the last attempt; None after a success.
        hold_until: no attempt before this time: the sink has sent Retry-After.
        is_away: whether the address did not answer the last probe.
        is_parked: whether the sink is parked; usually a person must correct something.
        refusals: how many refusals there were in a row.
        is_unreachable: whether the sink was unreachable at the last attempt.
        running: the running time, for the age of deliveries.
        is_release_owed: whether to release: to make due all deliveries that failed
            because of the sink.
    """

    def __init__(self, backoff: RetryPolicy, busy: Pause) -> None:
        self.backoff = backoff
        self.busy = busy
        self._pause = Pause()
        self.last_error: str | None = None
        self.hold_until = 0.0
        self.is_away = False
        self.running = RunningTime()
        self.is_parked = False
        self.refusals = self._probes = 0
        self._probe_at = 0.0
        self.is_unreachable = False
        self._is_timed_out = False  # at the last attempt
        self._try_at = 0.0
        self._succeeded_at = float("-inf")
        self._has_failures = False  # because of the sink, since the last success
        self.is_release_owed = False
        self._may_release_at = float("-inf")

    @property
    def state(self) -> SinkState:
        """The state of the sink."""
        if self.is_parked:
            return SinkState.PARKED
        if self.last_error:
            return SinkState.RETRYING
        return SinkState.OK if self.was_reached else SinkState.UNTRIED

    @property
    def was_reached(self) -> bool:
        """Whether any attempt of this process has succeeded."""
        return self._succeeded_at > float("-inf")

    def began(self, now: float, unit: float) -> None:
        """Record that an attempt or a probe begins; ``unit`` is random, in [0, 1)."""
        spread = 1 - _SPREAD + 2 * _SPREAD * unit  # spreads the attempts of many VMs
        self._try_at = now + _TRY_EVERY * spread
        self._pause.take(now)
        self.busy.take(now)

    def succeeded(self, now: float, began: float) -> None:
        """Record a success of an attempt that began then: the state is ok.

        A wait asked for by the sink remains.
        """
        self._pause.end(began)
        self.busy.end(began)
        self.is_away = self._is_timed_out = False
        self._succeeded_at = now
        if self.last_error is None:
            return  # the usual case
        self.is_release_owed |= self._has_failures
        self._forget()
        self.running.run(now)

    def resume(self, now: float) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self._forget()
        self.hold_until = 0.0
        self._pause.end(now)
        self.busy.end(now)
        self.running.run(now)

    def _forget(self) -> None:
        self.refusals = self._probes = 0
        self.is_parked, self.last_error = False, None
        self.is_unreachable = self._has_failures = False

    def failed(
        self, error: DeliveryError, refusals: int, *, now: float, unit: float
    ) -> None:
        """Record a failed attempt.

        Args:
            error: the error of the attempt.
            refusals: how many refusals there had been when the attempt began. Refusals
                of attempts that ran at the same time count as one.
            now: monotonic seconds.
            unit: a random number in [0, 1).
        """
        self.last_error = str(error)
        self._is_timed_out = error.reason is Reason.TIMEOUT
        if wish := wish_of(error):
            self.hold_until = max(self.hold_until, now + wish)
        is_of_sink = is_fault_of_sink(error)
        self._has_failures = self._has_failures or is_of_sink
        if isinstance(error, RefusedDeliveryError):
            self.refusals += self.refusals == refusals
            if self.is_parked or self.refusals >= _PARK_AFTER:
                self._park(now, unit)
            return
        self.refusals = 0
        if not isinstance(error, TransientDeliveryError):
            self._pause.end(now)  # the sink takes events, though not this one
            return
        if error.reason is Reason.THROTTLED:
            (self.busy if error.is_shared else self._pause).begin(now)
        elif is_of_sink:
            self.is_unreachable = True
        if self.is_parked:
            self._park(now, unit)

    def _park(self, now: float, unit: float) -> None:
        """Park the sink, and plan a probe: the wait doubles each time, up to 300 s."""
        doubled = self.backoff.max_backoff * 2.0 ** min(self._probes, 20)
        self._probes += 1
        self._probe_at = now + min(doubled * (1 + _SPREAD * unit), _LONGEST_PROBE)
        if not self.is_parked:
            self.is_parked = True
            self.running.stand(now)

    def lets_through(self, now: float, *, is_first: bool) -> bool:
        """Return whether the state of the sink allows an attempt now.

        Args:
            now: monotonic seconds.
            is_first: whether no other attempt is in flight.
        """
        if now < self.hold_until:
            return False
        return not self.is_parked or (is_first and now >= self._probe_at)

    def wants_try(self, now: float, oldest: float | None) -> bool:
        """Return whether an attempt must begin now, to check if the sink is back.

        Args:
            now: monotonic seconds.
            oldest: when the oldest attempt in flight began; None = no attempt.
        """
        opens_at = max(self._try_at, self.hold_until, self.opens_at)
        if self.is_parked or now < opens_at:
            return False
        if self.is_unreachable or self.opens_at:
            return True
        return self._is_hanging(now, oldest)

    def is_silent(self, now: float, oldest: float | None) -> bool:
        """Return whether the sink gives no answer: a probe of its address may help.

        Args:
            now: monotonic seconds.
            oldest: when the oldest attempt in flight began; None = no attempt.
        """
        return self._is_timed_out or self._is_hanging(now, oldest)

    def _is_hanging(self, now: float, oldest: float | None) -> bool:
        """Return whether an attempt hangs, and none has succeeded since it began."""
        is_silent = oldest is not None and self._succeeded_at < oldest
        return is_silent and now >= (oldest or 0.0) + _SILENT_AFTER

    def probed(self, *, is_there: bool) -> bool:
        """Record the result of a probe; return whether the address is back."""
        was_away, self.is_away = self.is_away, not is_there
        is_back = was_away and is_there
        if is_back:
            self.is_release_owed = True
        return is_back

    @property
    def opens_at(self) -> float:
        """When the next attempt may begin, even an urgent one; 0 = no pause."""
        return max(self._pause.opens_at, self.busy.opens_at)

    def holds(self, began: float) -> bool:
        """Return whether a pause has begun since an attempt began."""
        return self._pause.holds(began) or self.busy.holds(began)

    def takes_release(self, now: float) -> bool:
        """Return whether the release may be made now; if so, it counts as done."""
        if now < max(self.hold_until, self._may_release_at):
            return False
        self.is_release_owed = False
        if self.was_reached:  # after the first release, the next one need not wait
            self._may_release_at = now + _RELEASE_EVERY
        return True

    def marks(self, oldest: float | None) -> list[float]:
        """Return the times at which the relay must look again.

        Args:
            oldest: when the oldest attempt in flight began; None = no attempt.
        """
        found = [self.hold_until, opens_at := self.opens_at]
        if self.is_parked:
            found.append(self._probe_at)
        elif self.is_unreachable or opens_at:
            found.append(self._try_at)
        elif oldest is not None:
            found.append(max(self._try_at, oldest + _SILENT_AFTER))
        if self.is_release_owed:
            found.append(self._may_release_at)
        return found


def is_left_behind(began: float, other: float) -> bool:
    """Return whether an attempt probably hangs, since a later one has succeeded.

    Args:
        began: when the attempt began.
        other: when the successful attempt began.
    """
    return began <= other - _TRY_EVERY * (1 - _SPREAD)


def is_fault_of_sink(error: DeliveryError) -> bool:
    """Return whether any other delivery would have failed with this error, too."""
    if isinstance(error, RefusedDeliveryError):
        return True
    is_transient = isinstance(error, TransientDeliveryError)
    is_of_sink = error.reason in {*_UNREACHABLE, Reason.THROTTLED}
    return is_transient and is_of_sink and not wish_of(error)


def wish_of(error: DeliveryError) -> float:
    """Return the seconds that the sink asks to wait; 0 = none."""
    return min(getattr(error, "retry_after", None) or 0.0, LONGEST_WISH)
