"""Decides which request to scheduledevents is sent next.

    in line ──turn is free, 250 ms have passed──▶ has the turn ──leaves──▶ removed
       ▲                                               │
       └──────────── steps aside for a read ───────────┘

Only one request is in flight at a time, and requests begin at least 250 ms apart. While
both wait, reads and POSTs alternate. So a hundred approvals cannot stop the reading of
the document, and constant reads cannot stop an approval. Of the POSTs that wait, the
most urgent goes first.

The next request is chosen when the turn becomes free, not before. The holder of the
turn can rely on the newest document, because nothing else reads or posts meanwhile.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
)
from enum import StrEnum

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError
from bridge.foundation.workers import waking

LEAST_INTERVAL = 0.25


class Kind(StrEnum):
    """The two kinds of requests, which alternate."""

    READ = "read"
    POST = "post"


class Place(Struct, eq=False):
    """A place in the line; made by ``Turns``.

    Attributes:
        turns: the line.
        kind: read or POST.
        number: the order of arrival.
        urgency: returns the urgency; the lowest value goes first. Called again
            whenever the line is sorted.
        is_spaced: whether this request keeps the distance of 250 ms.
        error: set by ``dismiss``: the request must not be sent.
        stirred: set when this place should check again whether it has the turn.
    """

    turns: "Turns"
    kind: Kind
    number: int
    urgency: Callable[[], float] = lambda: 0.0
    is_spaced: bool = True
    error: MetadataError | None = None
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    async def come_up(self, stop: asyncio.Event) -> bool:
        """Wait for the turn, unless this place has it; False if ``stop`` is set.

        Raises:
            MetadataError: the line was dismissed.
        """
        async with waking(stop, self.stirred):
            has_turn = await self.turns.take(self, stop)
        if self.error is not None:
            raise self.error
        return has_turn

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Give the turn to a read; no POST is sent until the block is left.

        This place stays in the line.
        """
        self.turns.step_aside(self)
        try:
            yield
        finally:
            self.turns.step_back()

    def begin(self) -> None:
        """Record that the request is sent now: the next one keeps the distance."""
        self.turns.begin()


class _PostLine:
    """The POSTs that wait, the most urgent first.

    Attributes:
        places: all POSTs that wait, by number.
        is_sorted: False if the urgency of all places must be read again.
    """

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.is_sorted = True
        self._order: list[tuple[float, int]] = []  # urgency and number

    def add(self, place: Place) -> None:
        """Add a place."""
        self.places[place.number] = place
        if self.is_sorted:
            heapq.heappush(self._order, (place.urgency(), place.number))

    def first(self) -> Place | None:
        """Return the most urgent place; None if no POST waits.

        Places that have left are removed here.
        """
        if not self.is_sorted:
            self._order = [(place.urgency(), n) for n, place in self.places.items()]
            heapq.heapify(self._order)
            self.is_sorted = True
        while self._order and self._order[0][1] not in self.places:
            heapq.heappop(self._order)
        return self.places[self._order[0][1]] if self._order else None


class _AtOnce(Struct, eq=False):
    """The turn of a read that need not wait in line; almost every read is like this.

    No ``Place`` is created for it: at each poll that would cost more than the rest.
    """

    turns: "Turns"

    async def __aenter__(self) -> None:
        """Take the turn."""
        self.turns.begin_at_once()

    async def __aexit__(self, *_: object) -> None:
        """Give the turn to the next one."""
        self.turns.end_at_once()


class Turns:
    """The line of requests to scheduledevents.

    Args:
        clock: measures the waits.
        spacing: the least time between the beginnings of two requests, in seconds.
    """

    def __init__(self, clock: Clock, spacing: float = LEAST_INTERVAL) -> None:
        self._clock = clock
        self._spacing = spacing
        self._numbers = itertools.count()
        self._reads: dict[int, Place] = {}
        self._posts = _PostLine()
        self._holder: Place | None = None
        self._is_held_back = False  # no POST now: one of them waits for a read
        self._last = Kind.POST
        self._free_at = float("-inf")
        self._at_once = Place(self, Kind.READ, next(self._numbers))

    @property
    def has_posts(self) -> bool:
        """Whether a POST waits for its turn."""
        return bool(self._posts.places)

    def read(self) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of a read, and keep it until the block is left."""
        is_free = self._holder is None and not self._reads and not self._posts.places
        if is_free and self._clock.monotonic() >= self._free_at:
            return _AtOnce(self)
        return self._read_in_line()

    @asynccontextmanager
    async def _read_in_line(self) -> AsyncIterator[None]:
        with self._joined(Kind.READ) as place:
            await self.take(place)
            self.begin()
            yield

    @asynccontextmanager
    async def other(self) -> AsyncIterator[None]:
        """Wait for the turn to read another endpoint, without a distance in time."""
        with self._joined(Kind.READ, is_spaced=False) as place:
            await self.take(place)
            yield

    @contextmanager
    def line_up(self, urgency: Callable[[], float]) -> Iterator[Place]:
        """Keep a place in the line of POSTs until the block is left."""
        with self._joined(Kind.POST, urgency=urgency) as place:
            yield place

    def sort(self) -> None:
        """Read the urgency of all POSTs again: the document has changed."""
        self._posts.is_sorted = False

    def dismiss(self, error: MetadataError) -> None:
        """Let all POSTs that wait fail: the document cannot be read."""
        for place in self._posts.places.values():
            place.error = error
            place.stirred.set()
        self._posts.places.clear()

    async def take(self, place: Place, stop: asyncio.Event | None = None) -> bool:
        """Wait until it is the place's turn, and take it.

        Returns:
            True with the turn; False if ``stop`` is set or the line was dismissed.
        """
        while place.error is None and not (stop and stop.is_set()):
            place.stirred.clear()
            if self._holder is place:
                return True
            if self._next() is not place:
                await place.stirred.wait()
                continue
            if (left := self._left(place)) <= 0:
                self._line(place.kind).pop(place.number)
                self._holder = place
                if not place.is_spaced:  # such a place does not call ``begin``
                    self._last = place.kind
                return True
            await self._clock.wait(place.stirred, left)
            self._stir()  # a more urgent place may have been added meanwhile
        return False

    def begin(self) -> None:
        """Record that the holder of the turn sends its request now.

        A holder that sends nothing must not call this. So its turn does not count for
        the alternation of reads and POSTs.
        """
        self._free_at = self._clock.monotonic() + self._spacing
        if self._holder is not None:
            self._last = self._holder.kind

    def begin_at_once(self) -> None:
        """Give the turn to a read that has no place in the line."""
        self._holder = self._at_once
        self.begin()

    def end_at_once(self) -> None:
        """End the turn of the read that has no place in the line."""
        self._holder = None
        if self._reads or self._posts.places:
            self._stir()

    def step_aside(self, place: Place) -> None:
        """Put the holder of the turn back into the line, and hold all POSTs back."""
        self._holder, self._is_held_back = None, True
        self._add(place)
        self._stir()

    def step_back(self) -> None:
        """Allow POSTs again."""
        self._is_held_back = False
        self._stir()

    @contextmanager
    def _joined(
        self,
        kind: Kind,
        *,
        urgency: Callable[[], float] = lambda: 0.0,
        is_spaced: bool = True,
    ) -> Iterator[Place]:
        place = Place(self, kind, next(self._numbers), urgency, is_spaced)
        self._add(place)
        try:
            yield place
        finally:
            self._line(kind).pop(place.number, None)
            if self._holder is place:
                self._holder = None
            self._stir()

    def _add(self, place: Place) -> None:
        if place.kind is Kind.POST:
            self._posts.add(place)
        else:
            self._reads[place.number] = place

    def _line(self, kind: Kind) -> dict[int, Place]:
        return self._posts.places if kind is Kind.POST else self._reads

    def _left(self, place: Place) -> float:
        return self._free_at - self._clock.monotonic() if place.is_spaced else 0.0

    def _stir(self) -> None:
        if (place := self._next()) is not None:
            place.stirred.set()

    def _next(self) -> Place | None:
        """Return the place that is next; None while another place has the turn."""
        if self._holder is not None:
            return None
        read = next(iter(self._reads.values()), None)
        post = None if self._is_held_back else self._posts.first()
        if read is None or post is None:
            return read or post
        return post if self._last is Kind.READ else read
