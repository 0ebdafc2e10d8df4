"""The attempts of one relay that are under way: how many, at what, since when.

An attempt is cut off when it hangs: at the limit of its time, and as soon as one that
was begun later has shown that the sink is back. Nobody learns from a cut whether the
sink has taken the delivery, so it goes again, as after any time-out.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock
from bridge.foundation.rate_limit import Pace
from bridge.outbox.delivery import Delivery
from bridge.pipeline.circuit import Circuit, is_left_behind
from bridge.pipeline.policy import URGENT_ATTEMPTS, is_urgent

_MOST_BESIDE = 20
_MOST_SECONDS = 3  # further attempts at one delivery at a time


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a delivery.

    Attributes:
        began: monotonic seconds.
        refusals: how many of the sink there had been when it began.
        is_beside: whether it takes no slot: it is to show whether the sink is back.
        is_second: whether it is made beside another at the same delivery.
        is_cut: whether it was cut off because the sink is back.
        is_void: whether nothing follows from it: another one decides.
        scope: the limit of its time while it lasts.
    """

    delivery: Delivery
    began: float
    refusals: int
    is_beside: bool = False
    is_second: bool = False
    is_cut: bool = False
    is_void: bool = False
    scope: asyncio.Timeout | None = None

    def cut(self) -> None:
        """Cut it off, unless it is just ending."""
        if self.scope is not None and not self.scope.expired():
            self.is_cut = True
            self.scope.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Attempts:
    """All attempts under way, and whether one more may begin.

    Attributes:
        slots: so many ordinary ones at a time; one more is kept for urgent ones.
        pace: how often one may begin, an urgent one too.
        chance: a random number in [0, 1) at each call.
    """

    slots: int
    circuit: Circuit
    pace: Pace
    clock: Clock
    chance: Callable[[], float]
    _all: list[Attempt] = field(default_factory=list)
    _at: dict[int, list[Attempt]] = field(default_factory=dict)  # each delivery
    _beside: int = 0
    _spared: set[int] = field(default_factory=set)  # cut once: not cut again

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def begin(
        self, delivery: Delivery, *, is_beside: bool = False, is_second: bool = False
    ) -> Attempt:
        """Note that one begins, and return it."""
        now = self.clock.monotonic()
        refusals = self.circuit.refusals
        attempt = Attempt(delivery, now, refusals, is_beside, is_second)
        self._all.append(attempt)
        self._at.setdefault(delivery.id, []).append(attempt)
        self._beside += is_beside
        self.pace.take(now)
        self.circuit.began(now, self.chance())
        return attempt

    def end(self, attempt: Attempt) -> None:
        """Note that one has ended."""
        self._all.remove(attempt)
        self._beside -= attempt.is_beside
        number = attempt.delivery.id
        self._at[number].remove(attempt)
        if not self._at[number]:
            del self._at[number]
        if not attempt.is_cut:
            self._spared.discard(number)

    @property
    def ids(self) -> AbstractSet[int]:
        """The deliveries that are tried, now and later."""
        return self._at.keys()

    @property
    def keys(self) -> set[str]:
        """The events of which a step is tried: no other step may be."""
        keys = (attempt.delivery.key for attempt in self._all)
        return {key for key in keys if key is not None}

    @property
    def oldest(self) -> float | None:
        """When the oldest one began."""
        return min((attempt.began for attempt in self._all), default=None)

    @property
    def taken(self) -> int:
        """How many slots are taken."""
        return len(self._all) - self._beside

    def may_begin(self, delivery: Delivery, now: float) -> bool:
        """Whether one may begin at ``now``, in seconds since the epoch."""
        circuit, monotonic = self.circuit, self.clock.monotonic()
        if self.taken > self.slots or monotonic < self.pace.opens_at:
            return False
        if is_urgent(delivery, now) and (
            not circuit.is_parked or delivery.attempts < URGENT_ATTEMPTS
        ):
            return True
        in_slots = (a.delivery for a in self._all if not a.is_beside)
        if sum(not is_urgent(d, now) for d in in_slots) >= self.slots:
            return False
        return circuit.lets_through(monotonic, is_first=not self._all)

    @property
    def is_one_wanted(self) -> bool:
        """Whether one has to begin now, to see whether the sink is back."""
        now = self.clock.monotonic()
        if now < self.pace.opens_at or self._beside >= _MOST_BESIDE:
            return False
        return self.circuit.wants_try(now, self.oldest)

    def hanging(self, now: float) -> Delivery | None:
        """Return what to try a second time beside what hangs: the most urgent one."""
        first = [a for a in self._all if not a.is_second and a.delivery.id]
        if not first:
            return None
        chosen = min(first, key=lambda a: (not is_urgent(a.delivery, now), a.began))
        seconds = [a for a in self._at[chosen.delivery.id] if a.is_second]
        if len(seconds) >= _MOST_SECONDS:
            seconds[0].is_void = True
            seconds[0].cut()
        return chosen.delivery

    def decided(self, attempt: Attempt) -> None:
        """Cut off all other attempts at a delivery: this one has decided."""
        for other in self._at[attempt.delivery.id]:
            if other is not attempt:
                other.is_void = True
                other.cut()

    def cut_left_behind(self, success: Attempt) -> None:
        """Cut off what hangs since before the sink was back, each delivery but once.

        One that only is slow is left alone at its next attempt.
        """
        for other in self._all:
            is_old = is_left_behind(other.began, success.began)
            if is_old and other.delivery.id not in self._spared:
                self._spared.add(other.delivery.id)
                other.cut()
