"""What waits for a POST to IMDS: all requests for one EventId share it.

The poller grants the turn, when its newest document is new enough. Each request is
decided separately then. Those that may be posted are marked on disk, and one POST
serves them all. No read comes between the decision and the POST.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Protocol

from bridge.approvals.policy import Conclusion, Post, Wait
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look, Watcher
from bridge.events.start_result import StartAnswer
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError

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
    """

    key: str
    watcher: Watcher
    waiting: list[_Entry] = field(default_factory=list)
    agreed: list[_Entry] = field(default_factory=list)

    @property
    def since(self) -> float:
        """When the last of the requests began, in monotonic seconds."""
        return max(one.began for one, _ in [*self.agreed, *self.waiting])

    def urgency(self) -> float:
        """Return NotBefore in seconds since the epoch: the nearest goes first."""
        known = self.watcher.watch.known.get(self.key)
        not_before = known.event.not_before if known else None
        return not_before.timestamp() if not_before else math.inf

    async def decide(self, look: Look) -> ScheduledEvent | None:
        """Decide about all requests, also about those that join meanwhile.

        Returns:
            The event to post; None if no request may be posted.
        """
        self.waiting, self.agreed = [*self.agreed, *self.waiting], []
        event: ScheduledEvent | None = None
        while self.waiting:
            marked = len(self.agreed)
            while self.waiting:
                applicant, future = self.waiting[0]
                step = None if future.done() else await applicant.decide(look)
                entry = self.waiting.pop(0)
                if isinstance(step, Post):
                    event = step.event
                    self.agreed.append(entry)
                else:
                    _set_result(future, step)
            await asyncio.gather(*(one.mark() for one, _ in self.agreed[marked:]))
        return event

    def settle(self, result: StartAnswer | MetadataError | None) -> None:
        """Give the result to all requests that still wait."""
        for _, future in [*self.agreed, *self.waiting]:
            _set_result(future, result)


def _set_result(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():  # done if the caller was cancelled meanwhile
        future.set_result(result)


async def post(watcher: Watcher, applicant: Applicant) -> Result:
    """Wait for the turn, decide, and send the POST if it is still allowed."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    group = watcher.line.get(applicant.key)
    if not isinstance(group, _Group):
        group = _Group(applicant.key, watcher)
    group.waiting.append((applicant, future))
    watcher.line_up(applicant.key, group)
    return await future


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
