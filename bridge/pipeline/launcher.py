"""Begins attempts at due deliveries, as far as slots, pace and circuit allow."""

from collections import deque

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.outbox.delivery import Delivery
from bridge.pipeline.attempt import Trying
from bridge.pipeline.in_flight import Attempt
from bridge.pipeline.policy import is_urgent


class Launcher(Struct):
    """Begins the attempts of one relay.

    Attributes:
        ready: the due deliveries for which no attempt has begun.
    """

    trying: Trying
    clock: Clock
    ready: deque[Delivery] = field(default_factory=deque)
    _begun: set[int] = field(default_factory=set)  # since ``reads`` was called

    def reads(self) -> None:
        """Note that a read of the outbox begins; pass its result to ``take``."""
        self._begun.clear()

    def take(self, due: list[Delivery]) -> None:
        """Replace the ready deliveries by those that were read.

        During the read, attempts may begin, and even end and be recorded. Their
        deliveries are left out, because the rows that were read are out of date.
        """
        self.ready = deque(one for one in due if one.id not in self._begun)

    def begin(self) -> list[Attempt]:
        """Begin attempts at ready deliveries, urgent ones first; keep the others.

        Returns:
            The attempts that have begun. The caller makes each of them.
        """
        begun = list[Attempt]()
        if not self.ready:
            return begun
        now = self.clock.now().timestamp()
        ready, waiting = self.ready, list[Delivery]()
        # Another delivery of the same key may be in flight: an earlier one that is no
        # longer pending, or a later one if a person has retried the earlier one.
        attempts = self.trying.attempts
        busy = attempts.keys
        while ready:
            if attempts.is_full and not is_urgent(ready[0], now):
                break  # the deliveries behind this one may not begin, either
            delivery = ready.popleft()
            if self.trying.is_under_way(delivery):
                continue
            if delivery.key in busy:
                waiting.append(delivery)
                continue
            if attempts.may_begin(delivery, now):
                begun.append(self._noted(attempts.begin(delivery)))
                continue
            waiting.append(delivery)
            if not is_urgent(delivery, now):
                break  # the deliveries behind this one may not begin, either
        ready.extendleft(reversed(waiting))
        return begun

    def begin_beside(self, waiting: list[Delivery], *, repeats: bool) -> Attempt | None:
        """Begin one attempt outside the slots, to check whether the sink is back.

        Args:
            waiting: deliveries that are not due yet.
            repeats: whether a second attempt at a delivery may begin while the first
                hangs.

        Returns:
            The attempt, which the caller makes; None if there is nothing to attempt.
        """
        attempts = self.trying.attempts
        busy = attempts.keys
        for delivery in (*self.ready, *waiting):
            if delivery.id in self._begun:
                continue
            if not (self.trying.is_under_way(delivery) or delivery.key in busy):
                # ``begin`` may not look at ``ready`` until this one is recorded.
                self.ready = deque(one for one in self.ready if one.id != delivery.id)
                return self._noted(attempts.begin(delivery, is_beside=True))
        if not repeats or not self.trying.circuit.is_unreachable:
            return None
        hanging = attempts.hanging(self.clock.now().timestamp())
        if hanging is None:
            return None
        return self._noted(attempts.begin(hanging, is_beside=True, is_second=True))

    def _noted(self, attempt: Attempt) -> Attempt:
        self._begun.add(attempt.delivery.id)
        return attempt
