"""Posts StartRequests to IMDS, each after a decision within its turn.

    in line ──▶ turn ──newest document new enough──▶ decide ──▶ mark on disk ──▶ POST
       ▲         │ no                                  │ nothing may be posted
       └─ a read ┘                                     └──▶ the turn is passed on

The document is read just before the decision, and no read comes between the decision
and the POST, even if the line is long or IMDS is slow. All requests for one EventId
share a place in the line. Each request is decided separately. Those that may be posted
are marked on disk, and one POST serves them all.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Protocol

from bridge.approvals.policy import Conclusion, Post, Wait
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look, Starter, Watcher
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.watch import Moment
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError
from bridge.foundation.workers import unless
from bridge.imds.turns import Place, Turns

_LEAST_AGE = 1.0
_CUT_SHORT = StartAnswer(
    result=StartResult.IN_DOUBT, text="the POST to IMDS was cut short"
)

# The result for a request: the answer to the POST, or the decision not to post, or the
# error when the document was read. None = ``stop`` was set.
Result = StartAnswer | Conclusion | Wait | MetadataError | None


class Applicant(Protocol):
    """A request for a POST of one EventId."""

    @property
    def key(self) -> str:
        """The EventId in capitals, for comparisons."""
        ...

    @property
    def began(self) -> float:
        """When the request began, in monotonic seconds."""
        ...

    async def decide(self, look: Look) -> Conclusion | Post | Wait:
        """Decide by a look, for the present time."""
        ...

    async def mark(self) -> None:
        """Store that a POST begins."""
        ...


_Entry = tuple[Applicant, "asyncio.Future[Result]"]


@dataclass(slots=True)
class _Group:
    """All requests for one EventId.

    Attributes:
        waiting: requests to decide in the turn.
        agreed: requests that may be posted, by the decision in this turn.
        result: the result of the POST that they share.
    """

    waiting: list[_Entry]
    agreed: list[_Entry] = field(default_factory=list)
    result: Result = None

    def reset(self) -> None:
        """Prepare to decide all requests again."""
        self.waiting, self.agreed = [*self.agreed, *self.waiting], []

    def settle(self) -> None:
        """Give the result to all requests that still wait."""
        for _, future in [*self.agreed, *self.waiting]:
            _set_result(future, self.result)


def _set_result(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():  # done if the caller was cancelled meanwhile
        future.set_result(result)


@dataclass(slots=True)
class Poster:
    """Sends all StartRequests to IMDS; shared by listeners and auto-approvers.

    Attributes:
        poll_interval: the greatest age of the document at a POST, in seconds; an age
            of up to one second is always accepted.
        has_one_post_a_look: whether a POST needs a look that no other POST has used:
            api_version ``2017-03-01`` sends its DocumentIncarnation, and IMDS compares.
    """

    turns: Turns
    watcher: Watcher
    starter: Starter
    clock: Clock
    poll_interval: float
    has_one_post_a_look: bool = False
    _used: Look | None = None
    _groups: dict[str, _Group] = field(default_factory=dict)

    async def post(self, applicant: Applicant, stop: asyncio.Event) -> Result:
        """Wait for the turn, decide, and send the POST if it is still allowed.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        key = applicant.key
        if (group := self._groups.get(key)) is not None:
            group.waiting.append((applicant, future))
            return await future
        group = self._groups[key] = _Group([(applicant, future)])
        try:
            with self.turns.line_up(lambda: self._urgency(key)) as place:
                await self._serve(key, group, place, stop)
        except MetadataError as error:
            group.result = error
        finally:
            self._close(key, group)
            group.settle()
        return future.result()

    async def _serve(
        self, key: str, group: _Group, place: Place, stop: asyncio.Event
    ) -> None:
        while await place.come_up(stop):
            group.reset()
            look = self.watcher.latest
            if look is None or not self._is_good(look, group):
                with place.aside():
                    await self._read(stop)
                continue
            event = await self._decide(look, group)
            if event is None:
                return
            if stop.is_set() or self._is_old(look):
                continue  # storing the mark took too long: decide again
            self._close(key, group)
            place.begin()
            self._used, group.result = look, _CUT_SHORT
            group.result = await self.starter.start(
                event.event_id, incarnation=look.document.incarnation
            )
            return

    async def _read(self, stop: asyncio.Event) -> None:
        """Read the document; if that fails, let all requests in the line fail."""
        try:
            await unless(stop, self.watcher.fresh())
        except MetadataError as error:
            self.turns.dismiss(error)
            raise

    async def _decide(self, look: Look, group: _Group) -> ScheduledEvent | None:
        """Decide about all requests of a group, also about those that join meanwhile.

        Returns:
            The event to post; None if no request may be posted.
        """
        event: ScheduledEvent | None = None
        while group.waiting:
            marked = len(group.agreed)
            while group.waiting:
                applicant, future = group.waiting[0]
                step = await applicant.decide(look)
                entry = group.waiting.pop(0)
                if isinstance(step, Post):
                    event = step.event
                    group.agreed.append(entry)
                else:
                    _set_result(future, step)
            await asyncio.gather(*(one.mark() for one, _ in group.agreed[marked:]))
        return event

    def _is_good(self, look: Look, group: _Group) -> bool:
        """Return whether a look is new enough for all requests of a group."""
        since = max((one.began for one, _ in group.waiting), default=-math.inf)
        is_used = self.has_one_post_a_look and look is self._used
        is_fresh = look.is_unconditional and look.began >= since and not is_used
        return is_fresh and not self._is_old(look)

    def _is_old(self, look: Look) -> bool:
        """Return whether a look is too old for a decision."""
        now = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        elapsed = look.read.elapsed(now)
        most = max(_LEAST_AGE, self.poll_interval)
        return elapsed is None or elapsed > most

    def _urgency(self, key: str) -> float:
        """Return NotBefore in seconds since the epoch: the nearest goes first."""
        known = self.watcher.watch.known.get(key)
        not_before = known.event.not_before if known else None
        return not_before.timestamp() if not_before else math.inf

    def _close(self, key: str, group: _Group) -> None:
        """Close a group: later requests for the EventId form a new one."""
        if self._groups.get(key) is group:
            del self._groups[key]


# -- Waits until an event may be approved; all requests for an EventId share a wait ----


_LOOK_AGAIN = 1.0
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired


@dataclass(frozen=True, slots=True)
class _Wait:
    end: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Waits:
    """The present waits, by EventId."""

    watcher: Watcher
    clock: Clock
    _running: dict[str, _Wait] = field(default_factory=dict)

    async def wait(self, key: str, seconds: float, stop: asyncio.Event) -> None:
        """Wait for some seconds, but only as long as the event does not change.

        If a wait for the same event is running and ends no later, join it.
        """
        end = self.clock.monotonic() + min(seconds, _LONGEST_WAIT)
        running = self._running.get(key)
        if running is not None and running.end <= end:
            await running.over.wait()
            return
        own = self._running[key] = _Wait(end)
        try:
            await self._until(own.end, key, stop)
        finally:
            if self._running.get(key) is own:
                del self._running[key]
            own.over.set()

    async def _until(self, end: float, key: str, stop: asyncio.Event) -> None:
        shown = self._shown(key)
        while (left := end - self.clock.monotonic()) > 0 and self._shown(key) == shown:
            if await self.clock.wait(stop, min(left, _LOOK_AGAIN)):
                return

    def _shown(self, key: str) -> ScheduledEvent | None:
        known = self.watcher.watch.known.get(key)
        return known.event if known else None
