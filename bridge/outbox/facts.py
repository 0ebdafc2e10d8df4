"""What was published, in memory: so events are built and routed in the event loop.

An event's id depends on how often the same cause was published, its sinks on those that
got an earlier event of the same EventId. The state file has both; memory has the newest
rows. What memory does not have is asked of the file before a commit.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from msgspec import Struct, field

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import observations

_NOBODY = frozenset[str]()
T = TypeVar("T")


class Routed(Struct, frozen=True):
    """An event to publish, and the sinks that get it.

    Attributes:
        before: the sinks that got an earlier event of its EventId.
    """

    outgoing: OutgoingEvent
    sinks: tuple[str, ...]
    before: frozenset[str]


class Facts(Struct):
    """How often each cause was published, and which sinks follow each EventId.

    Attributes:
        order: held from the questions to the file until the commit is in line: commits
            are written in the order of their calls.
        asking: how many commits wait for an answer of the file, or for their turn.
    """

    database: Database
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _followers: dict[str, frozenset[str]] = field(default_factory=dict)
    _is_whole: bool = False  # whether the file has no more rows than memory

    async def load(self) -> None:
        """Read the newest rows of the file; called before the first commit.

        Raises:
            OutboxError: the file cannot be read.
        """
        found = await self.database.read(observations.newest)
        self._counts, self._followers, self._is_whole = found

    async def counts(self, causes: Sequence[str]) -> Mapping[str, int]:
        """Return how often events were published; a cause that is absent: never.

        Raises:
            OutboxError: the file cannot be read.
        """
        async with self.order:
            await self.learn(causes, ())
        return self._counts

    def know(self, events: Sequence[OutgoingEvent]) -> bool:
        """Return whether events can be routed now, without a question to the file."""
        if self.asking:
            return False
        return self._is_whole or keys_of(events) <= self._followers.keys()

    async def learn(self, causes: Collection[str], keys: Collection[str]) -> None:
        """Ask the file for what memory does not have; the caller holds ``order``.

        Raises:
            OutboxError: the file cannot be read.
        """
        if self._is_whole:
            return
        causes = [cause for cause in causes if cause not in self._counts]
        keys = [key for key in keys if key not in self._followers]
        if causes or keys:
            ask = partial(observations.published, causes=causes, keys=keys)
            counts, followers = await self.database.read(ask)
            self._counts |= dict.fromkeys(causes, 0) | counts
            self._followers |= dict.fromkeys(keys, _NOBODY) | followers

    def route(self, events: Sequence[OutgoingEvent], router: Router) -> list[Routed]:
        """Choose the sinks of events that are published now.

        A sink that got one event of an EventId gets all later ones.
        """
        routed = list[Routed]()
        for event in events:
            key, cause = event.key, event.cause
            before = self._followers.get(key, _NOBODY) if key is not None else _NOBODY
            sinks = router.sinks(event.subject, before)
            routed.append(Routed(event, sinks, before))
            self._counts[cause] = self._counts.get(cause, 0) + 1
            if key is not None and _changes(event):
                self._followers[key] = _after(routed[-1])
        if len(self._counts) > 2 * observations.NEWEST:
            self._is_whole = False
            self._counts = _newest_of(self._counts)
            self._followers = _newest_of(self._followers)
        return routed

    def undo(self, routed: Iterable[Routed]) -> None:
        """Forget events that were not written."""
        for one in routed:
            cause, key = one.outgoing.cause, one.outgoing.key
            self._counts[cause] = max(self._counts.get(cause, 0) - 1, 0)
            # A later commit may be written, although this one was not.
            if key is not None and self._followers.get(key) == _after(one):
                self._followers[key] = one.before

    def forget(self, causes: Iterable[str], keys: Iterable[str]) -> None:
        """Forget what was deleted in the file, because it is old."""
        for cause in causes:
            self._counts.pop(cause, None)
        for key in keys:
            self._followers.pop(key, None)


def _changes(event: OutgoingEvent) -> bool:
    """Whether other sinks follow an EventId after this event."""
    return event.is_last or event.subject.transition is not None


def _after(one: Routed) -> frozenset[str]:
    """Return the sinks that follow an EventId after an event."""
    if one.outgoing.is_last:
        return _NOBODY
    return one.before.union(one.sinks) if _changes(one.outgoing) else one.before


def keys_of(events: Sequence[OutgoingEvent]) -> set[str]:
    """Return the EventIds of events."""
    return {event.key for event in events if event.key is not None}


def _newest_of(found: Mapping[str, T]) -> dict[str, T]:
    """Return the entries that were added last."""
    return dict(islice(found.items(), max(len(found) - observations.NEWEST, 0), None))
