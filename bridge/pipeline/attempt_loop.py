"""Makes attempts, and begins the next ones as soon as an attempt has ended.

An attempt runs in a task of its own, or it is one event of a request that others share.
Either way its end begins the attempts at deliveries that are ready, without a read of
the outbox. The relay reads the outbox again when few are ready.
"""

import asyncio
from collections import deque
from functools import partial

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError
from bridge.foundation.rate_limit import Pace
from bridge.outbox.records import Delivery
from bridge.pipeline.attempt import Trying
from bridge.pipeline.in_flight import Attempt
from bridge.pipeline.policy import is_urgent

# -- Begins attempts at due deliveries, as far as slots, pace and circuit allow --------


class Launcher(Struct):
    """Begins the attempts of one relay.

    Attributes:
        ready: the due deliveries for which no attempt has begun.
        begun: ids of deliveries whose attempt has begun since the last read began.
    """

    trying: Trying
    clock: Clock
    ready: deque[Delivery] = field(default_factory=deque)
    begun: set[int] = field(default_factory=set)

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
        busy, ids, landed = attempts.keys, attempts.ids, self.trying.settling.landed
        while ready:
            if attempts.is_full and not is_urgent(ready[0], now):
                break  # the deliveries behind this one may not begin, either
            delivery = ready.popleft()
            if delivery.id in ids or delivery.id in landed:
                continue
            if delivery.key in busy:
                waiting.append(delivery)
                continue
            if attempts.may_begin(delivery, now):
                self.begun.add(delivery.id)
                begun.append(attempts.begin(delivery))
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
        busy, under_way = attempts.keys, self.trying.under_way
        for delivery in (*self.ready, *waiting):
            if delivery.id in self.begun:
                continue
            if not (delivery.id in under_way or delivery.key in busy):
                # ``begin`` may not look at ``ready`` until this one is recorded.
                self.ready = deque(one for one in self.ready if one.id != delivery.id)
                self.begun.add(delivery.id)
                return attempts.begin(delivery, is_beside=True)
        if not repeats or not self.trying.circuit.is_unreachable:
            return None
        hanging = attempts.hanging(self.clock.now().timestamp())
        if hanging is None:
            return None
        self.begun.add(hanging.id)
        return attempts.begin(hanging, is_beside=True, is_second=True)


# -- Makes attempts, and begins the next ones as soon as an attempt has ended ----------


PLENTY = 16  # ready deliveries: with at least so many there is a backlog


class AttemptLoop(Struct):
    """Makes the attempts of one relay.

    Attributes:
        name: the name of the relay; the names of its tasks begin with it.
        trying: makes one attempt.
        launcher: begins attempts at the ready deliveries.
        pace: limits how often an attempt may begin.
        wake: set to make the relay read the outbox again.
        stop: when it is set, no further attempt begins.
    """

    name: str
    trying: Trying
    launcher: Launcher
    pace: Pace
    clock: Clock
    wake: asyncio.Event
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _is_more_due: bool = False  # than were read, as far as is known
    _is_plenty: bool = False  # many were due at the last read, none was urgent
    _goes_on: bool = False  # whether a call of ``_go_on_together`` is scheduled

    def take(self, due: list[Delivery], *, is_plenty: bool) -> None:
        """Replace the ready deliveries by those that the relay has read.

        During the read, attempts may begin, and even end and be recorded. Their
        deliveries are left out, because the rows that were read are out of date.

        Args:
            due: the deliveries.
            is_plenty: whether they are many, and no pending delivery is urgent.
        """
        self._is_more_due = len(due) >= self.trying.policy.ahead
        self._is_plenty = is_plenty
        launcher = self.launcher
        launcher.ready = deque(one for one in due if one.id not in launcher.begun)

    def start(self, begun: list[Attempt], tasks: asyncio.TaskGroup) -> None:
        """Make attempts: each in a task, or as one event of a request."""
        gather = self.trying.gather
        for attempt in begun:
            if gather is None:
                name = f"{self.name}:{attempt.delivery.id}"
                tasks.create_task(self._attempt(attempt, tasks), name=name)
                continue
            attempt.answer = gather(attempt.delivery, tasks)
            attempt.answer.add_done_callback(partial(self._answered, attempt, tasks))

    async def make(
        self, attempt: Attempt, tasks: asyncio.TaskGroup | None
    ) -> list[Attempt]:
        """Make an attempt and settle it.

        Args:
            attempt: the attempt to make.
            tasks: the group for the next attempts; None = begin no other attempt.

        Returns:
            The attempts that have begun since then. The caller makes each of them.
        """
        error, settling = await self.trying.make(attempt), self.trying.settling
        begun = [] if tasks is None else self._go_on()
        if error is not None or attempt.is_void:
            self.wake.set()
            return begun
        has_time = tasks is not None and self._has_time(attempt.delivery)
        if not settling.lands(has_time=has_time):
            return begun
        if tasks is not None:  # the next attempts do not wait for the record
            self.start(begun, tasks)
        await settling.record(self._noted)
        return []

    async def _attempt(self, attempt: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make an attempt, and then those that may begin because it has ended.

        The first of these uses the same task: under a backlog, a new task for each
        delivery would cost a tenth of the attempt.
        """
        while True:
            begun = await self.make(attempt, tasks)
            if not begun:
                return
            if self.trying.gather is not None:  # the sink was opened again
                self.start(begun, tasks)
                return
            attempt, *others = begun
            self.start(others, tasks)

    def _answered(
        self, attempt: Attempt, tasks: asyncio.TaskGroup, _: "asyncio.Future[None]"
    ) -> None:
        """Settle an attempt that shared a request; then begin the next ones."""
        error, settling = self.trying.conclude(attempt), self.trying.settling
        if attempt.is_given_up:
            return
        if error is not None:
            tasks.create_task(self._postpone(attempt, error, tasks))
            return
        if attempt.is_void:
            self.wake.set()
        elif settling.lands(has_time=self._has_time(attempt.delivery)):
            tasks.create_task(settling.record(self._noted), name=f"{self.name}:record")
        if not self._goes_on:  # one call for all attempts that end together
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on_together, tasks)

    async def _postpone(
        self, attempt: Attempt, error: DeliveryError, tasks: asyncio.TaskGroup
    ) -> None:
        await self.trying.postpone(attempt, error)
        self.wake.set()
        self.start(self._go_on(), tasks)

    def _go_on_together(self, tasks: asyncio.TaskGroup) -> None:
        self._goes_on = False
        self.start(self._go_on(), tasks)

    def _go_on(self) -> list[Attempt]:
        """Begin the next attempts; wake the relay if it must read the outbox again.

        Returns:
            The attempts that have begun. The caller makes each of them.
        """
        begun = [] if self.stop.is_set() else self.launcher.begin()
        is_early = self.clock.monotonic() < self.pace.opens_at  # the relay waits for it
        ready = len(self.launcher.ready)
        is_low = self._is_more_due and ready < self.trying.policy.enough
        if not ready or is_early or is_low:
            self._is_more_due = False  # until the next read
            self.wake.set()
        return begun

    def _has_time(self, delivery: Delivery) -> bool:
        """Return whether the record of a success may wait for further successes.

        It may not if the process stops, if a later delivery of the same key may be
        urgent, or if few deliveries are ready.
        """
        if self.stop.is_set() or delivery.urgent_until is not None:
            return False
        slots = self.trying.policy.slots
        return self._is_plenty and len(self.launcher.ready) >= max(slots, PLENTY)

    def _noted(self, is_followed: bool) -> None:  # noqa: FBT001 - a callback
        """Read the outbox again after successes were recorded, if that may help.

        It helps if a later delivery of the same key is due now (it may be more urgent
        than the ready ones), or if few deliveries are ready.
        """
        if is_followed or len(self.launcher.ready) < self.trying.policy.slots:
            self.wake.set()
