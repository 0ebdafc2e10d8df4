"""Posts StartRequests to IMDS: decides in the turn, and one POST serves all who ask.

    in line ──▶ turn ──newest document new enough──▶ decide ──▶ mark on disk ──▶ POST
       ▲         │ no                                  │ nothing may be posted
       └─ a read ┘                                     └──▶ the turn is given up

However long the line is, and however slow IMDS: nothing is read between the decision
and the POST, and the document was read just before. All requests for one EventId stand
in line as one. Each of them is decided on its own, those that may be posted are marked
on disk, and one POST answers them all.
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

# What a request comes back with: the answer to its POST; or without any POST, why not:
# what was decided, or no document to decide on. None = it was asked to stop.
Met = StartAnswer | Conclusion | Wait | MetadataError | None


class Applicant(Protocol):
    """A request that wants an EventId to be posted."""

    @property
    def key(self) -> str:
        """The EventId as it is compared."""
        ...

    @property
    def began(self) -> float:
        """When the message was there, of monotonic time."""
        ...

    async def decide(self, look: Look) -> Conclusion | Post | Wait:
        """Decide on a look, as of now."""
        ...

    async def mark(self) -> None:
        """Note on disk that a POST is begun."""
        ...


_Asked = tuple[Applicant, "asyncio.Future[Met]"]


@dataclass(slots=True)
class _Group:
    """All requests for one EventId.

    Attributes:
        waiting: are to be decided in the turn.
        agreed: may be posted, by what was decided in this turn.
        met: what came of the POST that they share.
    """

    waiting: list[_Asked]
    agreed: list[_Asked] = field(default_factory=list)
    met: Met = None

    def begin_anew(self) -> None:
        """Let all be decided once more."""
        self.waiting, self.agreed = [*self.agreed, *self.waiting], []

    def settle(self) -> None:
        """Tell those that still wait what came of it."""
        for _, future in [*self.agreed, *self.waiting]:
            _tell(future, self.met)


def _tell(future: "asyncio.Future[Met]", met: Met) -> None:
    if not future.done():  # whoever asked was cancelled meanwhile
        future.set_result(met)


@dataclass(slots=True)
class Poster:
    """The only way of a StartRequest to IMDS; shared by all that approve.

    Attributes:
        poll_interval: a document may be so old before a POST, and a second at least.
    """

    turns: Turns
    watcher: Watcher
    starter: Starter
    clock: Clock
    poll_interval: float
    _groups: dict[str, _Group] = field(default_factory=dict)

    async def post(self, applicant: Applicant, stop: asyncio.Event) -> Met:
        """Post for an applicant as soon as it is its turn, if it may be then.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        future: asyncio.Future[Met] = asyncio.get_running_loop().create_future()
        key = applicant.key
        if (group := self._groups.get(key)) is not None:
            group.waiting.append((applicant, future))
            return await future
        group = self._groups[key] = _Group([(applicant, future)])
        try:
            with self.turns.line_up(lambda: self._urgency(key)) as place:
                await self._serve(key, group, place, stop)
        except MetadataError as error:
            group.met = error
        finally:
            self._close(key, group)
            group.settle()
        return future.result()

    async def _serve(
        self, key: str, group: _Group, place: Place, stop: asyncio.Event
    ) -> None:
        while await place.come_up(stop):
            group.begin_anew()
            look = self.watcher.latest
            if look is None or not self._is_good(look, group):
                with place.aside():
                    await self._read(stop)
                continue
            event = await self._decide(look, group)
            if event is None:
                return
            if stop.is_set() or self._is_old(look):
                continue  # marking it took so long: decide once more
            self._close(key, group)
            place.begin()
            group.met = _CUT_SHORT
            group.met = await self.starter.start(
                event.event_id, incarnation=look.document.incarnation
            )
            return

    async def _read(self, stop: asyncio.Event) -> None:
        """Let the document be read; where it cannot be had, nobody need wait on."""
        try:
            await unless(stop, self.watcher.fresh())
        except MetadataError as error:
            self.turns.dismiss(error)
            raise

    async def _decide(self, look: Look, group: _Group) -> ScheduledEvent | None:
        """Decide for all of a group, those too that come meanwhile.

        Returns:
            What is to be posted for those that are left; None where none is.
        """
        event: ScheduledEvent | None = None
        while group.waiting:
            marked = len(group.agreed)
            while group.waiting:
                applicant, future = group.waiting[0]
                step = await applicant.decide(look)
                asked = group.waiting.pop(0)
                if isinstance(step, Post):
                    event = step.event
                    group.agreed.append(asked)
                else:
                    _tell(future, step)
            await asyncio.gather(*(one.mark() for one, _ in group.agreed[marked:]))
        return event

    def _is_good(self, look: Look, group: _Group) -> bool:
        """Whether a look may be decided on, for all of a group."""
        since = max((one.began for one, _ in group.waiting), default=-math.inf)
        return look.is_unconditional and look.began >= since and not self._is_old(look)

    def _is_old(self, look: Look) -> bool:
        """Whether so much time passed since the look that another is due."""
        now = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        elapsed = look.read.elapsed(now)
        most = max(_LEAST_AGE, self.poll_interval)
        return elapsed is None or elapsed > most

    def _urgency(self, key: str) -> float:
        """Return the NotBefore of an event: the nearest goes first."""
        known = self.watcher.watch.known.get(key)
        not_before = known.event.not_before if known else None
        return not_before.timestamp() if not_before else math.inf

    def _close(self, key: str, group: _Group) -> None:
        """Let nobody join a group any more."""
        if self._groups.get(key) is group:
            del self._groups[key]
