"""The clock of the whole program: no other file reads the time."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from msgspec import Struct

_ROUNDED, _STALE = 0.5, 2.0  # a Date may be so much later or earlier than it was sent
_SLACK = 1.0  # the machine's clock is not corrected by less
_MOST_DATES = 5
_PATIENCE = 300.0  # without a Date, the machine's clock counts as right after that
_RECENT = 3600.0  # an event that comes later is not told of a pause
_SHORTEST_PAUSE = 3.0  # a Date alone shows no shorter one
_DRIFT = 1e-4  # seconds a second: the clock of a VM may be off by so much
_EARLIEST, _LATEST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Returns the time, and waits.

    ``now`` is the wall clock, which may be set back or forward. ``monotonic`` never
    goes back; only differences of its values mean something. Every wait in the
    forwarder uses ``wait``.
    """

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        ...

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        Args:
            event: ends the wait.
            seconds: the longest wait.
            slack: how many seconds earlier the wait may end, if another wait ends then:
                the process wakes up less often, which saves CPU.
        """
        ...


class Bell(asyncio.Event):
    """An event for which a clock waits with a future instead of ``asyncio.timeout``.

    That needs less CPU, because nothing is cancelled. Use it where a wait begins with
    every poll.

    Attributes:
        waits: the futures of the waits; ``set`` gives each the result True.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = set[asyncio.Future[bool]]()

    def set(self) -> None:
        """Set the event, and end the waits for it."""
        super().set()
        for wait in self.waits:
            if not wait.done():
                wait.set_result(True)


def _asleep() -> float:
    if sys.platform == "win32":
        return 0.0
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux alone has it
    return 0.0 if clock is None else time.clock_gettime(clock) - time.monotonic()


class SystemClock:
    """The clock of this machine.

    Both times are read without a function of Python in between: a poll reads them a
    dozen times, and that is most of what it would cost. ``asleep`` returns for how many
    seconds the machine slept, which ``monotonic`` leaves out on Linux.
    """

    now: Callable[[], datetime] = staticmethod(partial(datetime.now, UTC))
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    asleep: Callable[[], float] = staticmethod(_asleep)

    def __init__(self) -> None:
        # The waits with slack, and from when on each of them may end.
        self._with_slack: dict[asyncio.Future[bool], float] = {}

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        A wait with ``slack`` ends earlier only if its event is a ``Bell``, and only
        together with a wait for a ``Bell`` without slack.
        """
        if event.is_set():
            return True
        if isinstance(event, Bell):
            return await self._wait_for_bell(event, seconds, slack)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    async def _wait_for_bell(self, bell: Bell, seconds: float, slack: float) -> bool:
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[bool] = loop.create_future()
        bell.waits.add(wait)
        until = loop.time() + max(seconds, 0.0)
        if slack:
            self._with_slack[wait] = until - slack
        timer = loop.call_at(until, self._end, wait, slack)
        try:
            return await wait or bell.is_set()
        finally:
            bell.waits.discard(wait)
            self._with_slack.pop(wait, None)
            if loop.time() < until:  # later, the timer has already fired
                timer.cancel()

    def _end(self, wait: "asyncio.Future[bool]", slack: float) -> None:
        """End a wait whose time is over, and the waits with slack that may end now."""
        if not wait.done():
            wait.set_result(False)
        if slack:
            return
        now = asyncio.get_running_loop().time()
        for other, earliest in self._with_slack.items():
            if earliest <= now and not other.done():
                other.set_result(False)


class ReferenceClock:
    """A clock that follows the Date of a server, where this machine's clock is wrong.

    The server is IMDS, whose time Azure keeps. NotBefore is a time of that clock, and a
    VM's own clock may be wrong by hours, or be set at any moment.

        no Date yet              now = the clock of the machine
        it fits the last Dates   now = the clock of the machine
        it does not              now = the time by the last Dates, from there on by the
                                 monotonic clock: a jump of the wall clock adds nothing

    A Date has whole seconds, may be a second old when it is sent, and arrives after a
    round trip: within these bounds, the machine's clock is right. One odd Date moves
    nothing: of the last five, the largest group that agrees with each other counts. The
    machine's clock breaks a tie. If it was set, and agrees with the new Date, earlier
    Dates no longer count: the machine was asleep.

    Args:
        base: the clock of this machine.
    """

    def __init__(self, base: Clock) -> None:
        self.base = base
        self.monotonic = base.monotonic
        self.wait = base.wait
        self._began = base.monotonic()
        self._is_confirmed = False
        # Wall clock minus monotonic clock: by each of the last Dates, as bounds; by all
        # of them; and by the machine at the last Date.
        self._bounds = deque[_Bounds](maxlen=_MOST_DATES)
        self._offset: float | None = None
        self._own: float | None = None
        self._is_own = True  # whether the offset is that of the machine

    def now(self) -> datetime:
        """Return the present time in UTC, as the server has it."""
        now = self.base.now()
        correction = self._correction(now)
        return now + timedelta(seconds=correction) if correction else now

    @property
    def ahead(self) -> float | None:
        """How many seconds the machine's clock is ahead; None = no Date is known."""
        if self._offset is None:
            return None
        return 0.0 - self._correction(self.base.now())

    @property
    def is_settled(self) -> bool:
        """Whether the time is confirmed: by two Dates, or by one and the machine.

        Also true if the server sends no Date, or does not answer for five minutes.
        """
        waited = self.base.monotonic() - self._began
        return self._is_confirmed or (self._offset is None and waited > _PATIENCE)

    def note(self, date: datetime | None, sent: float) -> None:
        """Take the Date of a response that has just arrived.

        Args:
            date: the time; None = the response has none.
            sent: when the request was sent, in monotonic seconds.
        """
        if date is None:
            self._is_confirmed = self._is_confirmed or self._offset is None
        if date is None or not _EARLIEST < date < _LATEST:
            return
        received = self.base.monotonic()
        own = self.base.now().timestamp() - received
        bounds = _Bounds.of(date, sent, received)
        was_set = self._own is not None and abs(own - self._own) > _SLACK
        if was_set and bounds.include(own):
            self._bounds.clear()
        self._own = own
        self._bounds.append(bounds)
        self._follow(own)

    def _follow(self, own: float) -> None:
        """Choose the offset by the last Dates; ``own`` is that of the machine."""
        if all(one.least <= own <= one.most for one in self._bounds):  # the usual case
            self._offset, self._is_own, self._is_confirmed = own, True, True
            return
        votes = [self._votes(one, own) for one in self._bounds]
        most, offset = max(votes), self._offset
        self._is_confirmed = self._is_confirmed or most > 1
        best = [one for one, n in zip(self._bounds, votes, strict=True) if n == most]
        fitting = [one for one in best if offset is not None and one.include(offset)]
        chosen = (fitting or best)[-1]
        if chosen.include(own, margin=_SLACK if self._is_own else 0.0):
            self._offset, self._is_own = own, True
        elif self._is_own or not fitting:
            self._offset, self._is_own = chosen.likely, False

    def _votes(self, bounds: "_Bounds", own: float) -> float:
        """Return how many Dates agree with one; the machine has half a vote."""
        return sum(map(bounds.meet, self._bounds)) + 0.5 * bounds.include(own)

    def _correction(self, now: datetime) -> float:
        """Return how many seconds to add to a time of the machine's clock."""
        if self._offset is None:
            return 0.0
        error = self._offset - (now.timestamp() - self.base.monotonic())
        return error if abs(error) > _SLACK else 0.0


class PauseMeter:
    """Measures for how long this VM, or this process, stood still.

        the monotonic clock ran on   a wait ended too late
        it stood still, too          IMDS's Date ran on without it, and mostly also the
                                     machine's clock; after a sleep the time since boot

    A clock that was set is no pause: IMDS's Date did not jump with it. A Date that
    jumped counts when the machine's clock agrees with it, or the next Date. Without
    IMDS for a day, the clocks may differ by seconds, which is no pause either.

    Attributes:
        total: all pauses of at least three seconds since the start, in seconds.
        ended: when the last one ended, in monotonic seconds.

    Args:
        clock: the clock of the process.
        report: called with the length of each pause, in seconds.
    """

    def __init__(
        self, clock: Clock, report: Callable[[float], None] = lambda _: None
    ) -> None:
        self.total = 0.0
        self.ended = float("-inf")
        self._clock = clock.base if isinstance(clock, ReferenceClock) else clock
        self._report = report
        self._last: _Sight | None = None
        self._odd: _Bounds | None = None  # of a Date that nothing confirms yet

    def late(self, seconds: float) -> None:
        """Note that a wait ended so many seconds after its time."""
        if seconds >= _SHORTEST_PAUSE:
            self.total += seconds
            self.ended = self._clock.monotonic()
            self._report(seconds)

    def note(self, date: datetime | None, sent: float) -> None:
        """Take the Date of a response that has just arrived, as ``ReferenceClock``."""
        received = self._clock.monotonic()
        own = self._clock.now().timestamp() - received
        asleep = self._clock.asleep() if isinstance(self._clock, SystemClock) else 0.0
        bounds = None
        if date is not None and _EARLIEST < date < _LATEST:
            bounds = _Bounds.of(date, sent, received)
        before, seen = self._last, _Sight(received, bounds, own, asleep)
        if before is None or asleep - before.asleep >= _SHORTEST_PAUSE:
            self._last, self._odd = seen, None
            self.late(asleep - before.asleep if before else 0.0)
        elif bounds is not None:
            self._compare(before, seen, bounds)

    def since(self, told: float) -> float:
        """Return the pauses since a former ``total``; 0 if the last was long ago."""
        is_recent = self._clock.monotonic() - self.ended <= _RECENT
        return self.total - told if is_recent else 0.0

    def _compare(self, before: "_Sight", seen: "_Sight", bounds: "_Bounds") -> None:
        """Count a pause that a Date shows, when the time is sure."""
        drift = _DRIFT * (seen.at - before.at)
        if before.bounds is None or before.bounds.meet(bounds, drift):
            self._last, self._odd = seen, None
            return
        own = seen.own - before.own
        is_own = before.bounds.jump(bounds).include(own)
        if is_own or (self._odd is not None and self._odd.meet(bounds)):
            self._last, self._odd = seen, None
            self.late(own if is_own else bounds.likely - before.bounds.likely)
        else:
            self._odd = bounds


class _Sight(Struct, frozen=True):
    """What the clocks showed at a response, for a comparison with the next.

    Attributes:
        at: when it had arrived, in monotonic seconds.
        bounds: by its Date; None = it had none.
        own: wall clock minus monotonic clock.
        asleep: for how many seconds the machine slept since it was booted.
    """

    at: float
    bounds: "_Bounds | None"
    own: float
    asleep: float


class _Bounds(Struct, frozen=True):
    """Between which values wall clock minus monotonic clock is, by one Date."""

    least: float
    most: float

    @classmethod
    def of(cls, date: datetime, sent: float, received: float) -> "_Bounds":
        """Return the bounds by a Date, between two times of the monotonic clock."""
        at = date.timestamp()
        return cls(at - _ROUNDED - received, at + _STALE - sent)

    @property
    def likely(self) -> float:
        """The most likely value: half a second after the Date, which is cut."""
        return min(self.least + 2 * _ROUNDED, self.most)

    def include(self, offset: float, margin: float = 0.0) -> bool:
        """Return whether an offset is within the bounds."""
        return self.least - margin <= offset <= self.most + margin

    def jump(self, later: "_Bounds") -> "_Bounds":
        """Return by how much the offset has grown until a later Date."""
        return _Bounds(later.least - self.most, later.most - self.least)

    def meet(self, other: "_Bounds", margin: float = 0.0) -> bool:
        """Return whether some offset is within the bounds of both."""
        return self.least - margin <= other.most and other.least - margin <= self.most


def own_time(clock: Clock) -> datetime:
    """Return the time of this machine, for what others have computed with it."""
    return clock.base.now() if isinstance(clock, ReferenceClock) else clock.now()


def is_settled(clock: Clock) -> bool:
    """Return whether a clock will not be corrected soon, as it may be after a start."""
    return clock.is_settled if isinstance(clock, ReferenceClock) else True
