"""The attempts of one relay that are in flight, and when a delivery is tried again.

An attempt that hangs is cut off: at its time limit, or as soon as an attempt that began
later has succeeded. After a cut, it is unknown whether the sink accepted the delivery.
So the delivery is tried again, as after any time-out.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
)
from bridge.foundation.pace import Pace, RetryPolicy
from bridge.outbox.records import Delivery
from bridge.pipeline.circuit import Circuit, is_left_behind, wish_of

ATTEMPT_LIMIT = 60.0  # seconds
URGENT_ATTEMPTS = 2  # before NotBefore, even if the sink asks for a longer wait
_LEAST_ATTEMPTS = 3
_UNFORESEEN_ATTEMPTS = 10
_LEAST_DELAY = 0.1  # lower bound: repeated quarters of the notice approach zero
_QUICK = 1.0  # seconds: who answers sooner that the time is over works on nothing
_LONGEST_REST = 30.0
_LAST_SECONDS = 5.0  # before NotBefore; a last attempt needs them
_MOST_BESIDE = 20
_MOST_SECONDS = 3  # second attempts at one delivery at the same time
_SLOW = 0.05  # seconds: a success that took longer is worth another slot
_MORE_SLOTS = 3  # for each such success
_NARROW_FOR = 60.0  # seconds without another slot after a failure


class Attempt(Struct, eq=False):
    """One attempt at a delivery.

    Attributes:
        began: when the attempt began, in monotonic seconds.
        refusals: how often the sink had refused when the attempt began.
        is_beside: whether the attempt takes no slot: it checks if the sink is back.
        is_second: whether another attempt at the same delivery is in flight.
        is_cut: whether the attempt was cut off because the sink is back.
        is_void: whether the result is ignored, because another attempt settles the
            delivery, or because nothing was sent.
        answer: the future of its result: None, or the error that it returns or raises.
    """

    delivery: Delivery
    began: float
    refusals: int
    is_beside: bool = False
    is_second: bool = False
    is_cut: bool = False
    is_void: bool = False
    answer: asyncio.Future[Any] | None = None

    def cut(self) -> None:
        """Cut the attempt off, unless it has ended."""
        if self.answer is not None and self.answer.cancel():
            self.is_cut = True


class Attempts(Struct):
    """All attempts in flight; decides whether one more may begin.

    Attributes:
        least: how many ordinary attempts may be in flight at first.
        most: how many may be in flight while a slow sink takes all of them.
        slots: how many may be in flight now; there is one more slot for urgent ones.
        taken: how many slots are in use.
        was_full: whether all slots were taken when all had begun that might begin.
        pace: limits how often an attempt may begin; holds for urgent ones, too.
        chance: returns a random number in [0, 1) at each call.
        at: the attempts in flight by the id of their delivery, the oldest first.
        keys: how many attempts are in flight by the key of their delivery.
    """

    least: int
    most: int
    circuit: Circuit
    pace: Pace
    clock: Clock
    chance: Callable[[], float]
    slots: int = 0
    taken: int = 0
    was_full: bool = False
    at: dict[int, list[Attempt]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    _wider_from: float = float("-inf")  # no further slot before
    _all: dict[Attempt, None] = field(default_factory=dict)  # the oldest first
    _may_be_urgent: dict[Attempt, None] = field(default_factory=dict)  # in slots
    _spared: set[int] = field(default_factory=set)  # cut once; do not cut again

    def __post_init__(self) -> None:
        self.slots = self.least

    def begin(
        self, delivery: Delivery, *, is_beside: bool = False, is_second: bool = False
    ) -> Attempt:
        """Record that an attempt begins, and return it."""
        now = self.clock.monotonic()
        refusals = self.circuit.refusals
        attempt = Attempt(delivery, now, refusals, is_beside, is_second)
        self._all[attempt] = None
        if (key := delivery.key) is not None:
            self.keys[key] = self.keys.get(key, 0) + 1
        if delivery.urgent_from is not None and not is_beside:
            self._may_be_urgent[attempt] = None
        self.at.setdefault(delivery.id, []).append(attempt)
        self.taken += not is_beside
        self.circuit.began(now, self.chance())
        self.pace.take(now)
        return attempt

    def end(self, attempt: Attempt) -> None:
        """Record that an attempt has ended."""
        del self._all[attempt]
        self._may_be_urgent.pop(attempt, None)
        self.taken -= not attempt.is_beside
        number, key = attempt.delivery.id, attempt.delivery.key
        if key is not None:
            self.keys[key] -= 1
            if not self.keys[key]:
                del self.keys[key]
        self.at[number].remove(attempt)
        if not self.at[number]:
            del self.at[number]
        if not attempt.is_cut:
            self._spared.discard(number)

    def looked(self) -> bool:
        """Note that all has begun that may begin now.

        Returns:
            Whether an attempt must begin all the same, to check if the sink is back.
        """
        self.was_full = self.is_full
        if not self._all:
            self.slots = self.least  # the backlog is over
        now = self.clock.monotonic()
        if now < self.pace.opens_at or len(self._all) - self.taken >= _MOST_BESIDE:
            return False
        return self.circuit.wants_try(now, self.oldest)

    def widen(self, success: Attempt) -> None:
        """Add slots after a slow success, if more deliveries may wait for one."""
        now = self.clock.monotonic()
        is_slow = now - success.began > _SLOW
        if is_slow and self.was_full and now >= self._wider_from:
            self.slots = max(self.slots, min(self.slots + _MORE_SLOTS, self.most))

    def narrow(self) -> None:
        """Go back to the least slots for a while: the sink was too busy, or away."""
        self.slots = self.least
        self._wider_from = self.clock.monotonic() + _NARROW_FOR

    @property
    def oldest(self) -> float | None:
        """When the oldest attempt began, in monotonic seconds; None = no attempt."""
        oldest = next(iter(self._all), None)
        return None if oldest is None else oldest.began

    @property
    def is_full(self) -> bool:
        """Whether no more than an urgent delivery may begin; see ``may_begin``."""
        return self.taken - len(self._may_be_urgent) >= self.slots

    def may_begin(self, delivery: Delivery, now: float) -> bool:
        """Return whether an attempt may begin at ``now`` (seconds since the epoch)."""
        monotonic, taken = self.clock.monotonic(), self.taken
        opens_at = max(self.pace.opens_at, self.circuit.opens_at)
        if taken > self.slots or monotonic < opens_at:
            return False
        if self._goes_first(delivery, now):
            return True
        if taken >= self.slots:
            urgent = sum(is_urgent(a.delivery, now) for a in self._may_be_urgent)
            if taken - urgent >= self.slots:
                return False
        return self.circuit.lets_through(monotonic, is_first=not self._all)

    def may_go_on(self, delivery: Delivery) -> bool:
        """Return whether a delivery whose attempt has begun may still be sent.

        It may not if the sink was busy or has asked for a pause since then, or was
        parked.
        """
        if delivery.urgent_until is not None:
            now = self.clock.now().timestamp()
            if self._goes_first(delivery, now):
                return True
        if self.circuit.holds(self.at[delivery.id][-1].began):
            return False
        monotonic, is_first = self.clock.monotonic(), len(self._all) == 1
        return self.circuit.lets_through(monotonic, is_first=is_first)

    def _goes_first(self, delivery: Delivery, now: float) -> bool:
        """Return whether a delivery is sent even if the sink asks for a pause."""
        if not is_urgent(delivery, now):
            return False
        return not self.circuit.is_parked or delivery.attempts < URGENT_ATTEMPTS

    def hanging(self, now: float) -> Delivery | None:
        """Return the oldest urgent delivery in flight, to try it a second time.

        No other delivery is sent while the sink may be working on it.
        """
        first = (a for a in self._all if not a.is_second and is_urgent(a.delivery, now))
        chosen = next(first, None)
        if chosen is None:
            return None
        seconds = [a for a in self.at[chosen.delivery.id] if a.is_second]
        if len(seconds) >= _MOST_SECONDS:
            seconds[0].is_void = True
            seconds[0].cut()
        return chosen.delivery

    def decided(self, attempt: Attempt) -> None:
        """Cut off all other attempts at a delivery: this one has settled it."""
        for other in self.at[attempt.delivery.id]:
            if other is not attempt:
                other.is_void = True
                other.cut()

    def cut_left_behind(self, success: float) -> None:
        """Cut off attempts that began before the sink was back, and still hang.

        Each delivery is cut off only once. If it is only slow, its next attempt runs to
        its end.

        Args:
            success: when the attempt or probe began that shows that the sink is back.
        """
        for other in self._all:
            is_old = is_left_behind(other.began, success)
            if is_old and other.delivery.id not in self._spared:
                self._spared.add(other.delivery.id)
                other.cut()


# -- When to try a delivery again, and when to give it up. Pure ------------------------
#
# Time and random numbers are passed in. Times are seconds since the epoch.


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
