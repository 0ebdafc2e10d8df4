"""Begins attempts at due deliveries, as far as slots, pace and circuit allow."""

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.rate_limit import Pace
from bridge.outbox.delivery import Delivery
from bridge.pipeline.attempt import Trying
from bridge.pipeline.in_flight import Attempt
from bridge.pipeline.policy import is_urgent

Start = Callable[[Attempt, asyncio.TaskGroup], None]


class Launcher(Struct):
    """Begins the attempts of one relay.

    Attributes:
        start: starts an attempt.
        ready: the due deliveries for which no attempt has begun.
    """

    trying: Trying
    clock: Clock
    start: Start
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

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Begin attempts at ready deliveries, urgent ones first; keep the others."""
        if not self.ready:
            return
        now = self.clock.now().timestamp()
        ready, waiting = self.ready, list[Delivery]()
        # Another delivery of the same key may be in flight: an earlier one that is no
        # longer pending, or a later one if a person has retried the earlier one.
        attempts = self.trying.attempts
        busy = attempts.keys
        while ready:
            delivery = ready.popleft()
            if self.trying.is_under_way(delivery):
                continue
            if delivery.key in busy:
                waiting.append(delivery)
                continue
            if attempts.may_begin(delivery, now):
                self._launch(tasks, attempts.begin(delivery))
                continue
            waiting.append(delivery)
            if not is_urgent(delivery, now):
                break  # the deliveries behind this one may not begin, either
        ready.extendleft(reversed(waiting))

    def begin_beside(
        self, tasks: asyncio.TaskGroup, waiting: list[Delivery], *, repeats: bool
    ) -> None:
        """Begin one attempt outside the slots, to check whether the sink is back.

        Args:
            tasks: the group in which the attempt runs.
            waiting: deliveries that are not due yet.
            repeats: whether a second attempt at a delivery may begin while the first
                hangs.
        """
        attempts = self.trying.attempts
        busy = attempts.keys
        for delivery in (*self.ready, *waiting):
            if delivery.id in self._begun:
                continue
            if not (self.trying.is_under_way(delivery) or delivery.key in busy):
                self._launch(tasks, attempts.begin(delivery, is_beside=True))
                return
        if not repeats or not self.trying.circuit.is_unreachable:
            return
        hanging = attempts.hanging(self.clock.now().timestamp())
        if hanging is not None:
            again = attempts.begin(hanging, is_beside=True, is_second=True)
            self._launch(tasks, again)

    def _launch(self, tasks: asyncio.TaskGroup, attempt: Attempt) -> None:
        self._begun.add(attempt.delivery.id)
        self.start(attempt, tasks)


class HeartbeatSlot(Struct):
    """Holds the latest heartbeat until no stored delivery is more important.

    Attributes:
        waiting: the heartbeat; None after its attempt has begun.
    """

    trying: Trying
    pace: Pace
    clock: Clock
    slots: int
    waiting: Delivery | None = None

    def begin(self, *, is_idle: bool, is_alone: bool) -> Attempt | None:
        """Begin the attempt at the heartbeat, unless a stored delivery comes first.

        Args:
            is_idle: whether nothing is due and nothing is in flight.
            is_alone: whether, in addition, no delivery is due later.
        """
        attempts, circuit = self.trying.attempts, self.trying.circuit
        if self.waiting is None or attempts.taken >= self.slots:
            return None
        opens_at = max(circuit.hold_until, self.pace.opens_at)
        if 0 in attempts.ids or self.clock.monotonic() < opens_at:
            return None
        is_in_trouble = circuit.last_error is not None
        is_first = is_alone if is_in_trouble else is_idle
        if (is_in_trouble or self.pace.rate is not None) and not is_first:
            return None
        beat, self.waiting = attempts.begin(self.waiting), None
        return beat
