"""What waits for one sink: a line for each EventId, and the heads of the lines by time.

Only the head of a line is ever offered: so the deliveries of an EventId keep their
order, and no EventId delays another. A later step that is urgent makes those before it
urgent, because it must wait for them.

A head is in ``_later`` until it is due, then in ``_ready``. Beside that it is in
``_soon`` until it becomes urgent, then in ``_urgent``. The heaps may hold entries that
are out of date: whoever reads one compares it with the delivery.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

_SLACK = 256  # entries out of date, before the heaps are made anew

Heap = list[tuple[float, int]]


class Waiting(Struct, gc=False):
    """One delivery that waits; its content is read before it is sent.

    Attributes:
        id: of its row.
        item: the row of its content.
        due, created: seconds since the epoch.
        urgent_from, urgent_until: between these times it goes before all others.
        born: the running time of the sink when it was added, in seconds.
        waits_for_sink: whether it is due as soon as the sink answers.
        is_sendable: whether it is on the disk, or the disk has not answered in time.
        is_head: whether it is the first of its line.
    """

    id: int
    item: int
    sink: str
    key: str | None
    due: float
    created: float
    attempts: int = 0
    urgent_from: float | None = None
    urgent_until: float | None = None
    last_error: str | None = None
    reason: str | None = None
    born: float = 0.0
    waits_for_sink: bool = False
    is_sendable: bool = True
    is_head: bool = False

    def is_urgent(self, now: float) -> bool:
        """Whether it goes before all others now."""
        since, until = self.urgent_from, self.urgent_until
        return since is not None and until is not None and since <= now < until

    def lend(self, other: "Waiting") -> bool:
        """Make ``other`` as urgent as this one; return whether that changes it."""
        since, until = self.urgent_from, self.urgent_until
        if since is None or until is None:
            return False
        has_since, has_until = other.urgent_from, other.urgent_until
        if has_since is None or has_until is None:
            other.urgent_from, other.urgent_until = since, until
            return True
        if has_since <= since and has_until >= until:
            return False
        other.urgent_from = min(has_since, since)
        other.urgent_until = max(has_until, until)
        return True


_number = attrgetter("id")
Line = Waiting | deque[Waiting]  # mostly one: a deque needs a kilobyte


class Lines(Struct):
    """All that waits for one sink.

    Attributes:
        waiting: every delivery, by its id.
    """

    waiting: dict[int, Waiting] = field(default_factory=dict)
    _lines: dict[str, Line] = field(default_factory=dict)  # by key
    _later: Heap = field(default_factory=list)  # (due, id)
    _ready: Heap = field(default_factory=list)  # (due, id)
    _ready_urgent: Heap = field(default_factory=list)  # (urgent_until, id)
    _soon: Heap = field(default_factory=list)  # (urgent_from, id)
    _urgent: Heap = field(default_factory=list)  # (urgent_until, id)
    _for_sink: list[tuple[float, float, int]] = field(default_factory=list)

    # -- in and out ----------------------------------------------------------

    def add(self, one: Waiting) -> None:
        """Put a delivery into the line of its key, in the order of the ids."""
        self.waiting[one.id] = one
        if one.key is None:
            self._lead(one)
            return
        line = self._lines.get(one.key)
        if line is None:
            self._lines[one.key] = one
            self._lead(one)
            return
        if isinstance(line, Waiting):
            self._lines[one.key] = line = deque((line,))
        head = line[0]
        if one.id > line[-1].id:
            line.append(one)
        else:
            insort(line, one, key=_number)
        self._lend(line, one)
        if line[0] is not head:
            head.is_head = False
            self._lead(one)

    def add_all(self, found: Iterable[Waiting]) -> None:
        """Put many deliveries into their lines."""
        for one in sorted(found, key=_number):
            self.add(one)
        numbers = iter(self.waiting)
        last = next(numbers, 0)
        if any(last > (last := number) for number in numbers):
            self.waiting = {n: self.waiting[n] for n in sorted(self.waiting)}

    def remove(self, one: Waiting) -> bool:
        """Take a delivery out of its line; return whether another one follows."""
        del self.waiting[one.id]
        was_head, one.is_head = one.is_head, False
        line = None if one.key is None else self._lines.get(one.key)
        if line is None or isinstance(line, Waiting):
            if one.key is not None:
                self._lines.pop(one.key, None)
            self._tidy()
            return False
        if was_head:
            line.popleft()
        else:
            line.remove(one)
        if was_head:
            self._lead(line[0])
        if len(line) == 1 and one.key is not None:
            self._lines[one.key] = line[0]
        self._tidy()
        return True

    def change(self, one: Waiting) -> None:
        """Put a delivery into the place of its new times."""
        if one.is_head:
            self._lead(one)

    def _lend(self, line: deque[Waiting], one: Waiting) -> None:
        """Make those before a delivery as urgent as it is."""
        if one.urgent_until is None:
            return
        if line[-1] is one:
            earlier = iter(reversed(line))
            next(earlier)
        else:
            earlier = iter([w for w in reversed(line) if w.id < one.id])
        for before in earlier:
            if not one.lend(before):
                return  # then those before it are as urgent already
            if before.is_head:
                self._lead(before)

    def _lead(self, one: Waiting) -> None:
        """Make a delivery the head of its line, or note the change of a head."""
        one.is_head = True
        if not one.is_sendable:
            return
        heappush(self._later, (one.due, one.id))
        if one.urgent_from is not None:
            heappush(self._soon, (one.urgent_from, one.id))
        if one.waits_for_sink:
            urgency = one.urgent_until or float("inf")
            heappush(self._for_sink, (urgency, one.due, one.id))

    def _tidy(self) -> None:
        """Make the heaps anew when most of them is out of date."""
        if not self.waiting:
            self.waiting, self._lines = {}, {}  # a dict never shrinks by itself
        most = 4 * len(self.waiting) + _SLACK
        heaps: tuple[list[Any], ...] = (
            *(self._later, self._ready, self._ready_urgent),
            *(self._soon, self._urgent, self._for_sink),
        )
        if sum(map(len, heaps)) <= most:
            return
        self.renew()

    # -- what is due ---------------------------------------------------------

    def _head(self, number: int) -> Waiting | None:
        one = self.waiting.get(number)
        return one if one is not None and one.is_head and one.is_sendable else None

    def _advance(self, now: float) -> None:
        """Move what has become due or urgent to where it is read."""
        while self._later and self._later[0][0] <= now:
            due, number = heappop(self._later)
            one = self._head(number)
            if one is not None and one.due == due:
                heappush(self._ready, (due, number))
                if one.is_urgent(now) and one.urgent_until is not None:
                    heappush(self._ready_urgent, (one.urgent_until, number))
        while self._soon and self._soon[0][0] <= now:
            since, number = heappop(self._soon)
            one = self._head(number)
            if one is None or one.urgent_from != since or one.urgent_until is None:
                continue
            heappush(self._urgent, (one.urgent_until, number))
            if one.due <= now:
                heappush(self._ready_urgent, (one.urgent_until, number))

    def due(self, now: float, limit: int, but: Collection[int]) -> list[Waiting]:
        """Return what is due: urgent ones first, then those that are due longest.

        Args:
            now: seconds since the epoch.
            limit: the most to return.
            but: ids to leave out.
        """
        self._advance(now)
        found = dict[int, Waiting]()
        self._take_urgent(found, now, limit, but)
        self._take_ready(found, now, limit, but)
        return list(found.values())

    def _take_urgent(
        self, found: dict[int, Waiting], now: float, limit: int, but: Collection[int]
    ) -> None:
        read = Heap()
        while self._ready_urgent and len(found) < limit:
            entry = heappop(self._ready_urgent)
            one = self._head(entry[1])
            if one is None or one.urgent_until != entry[0] or entry[0] <= now:
                continue
            if one.due > now:
                continue  # ``_later`` has it
            if not one.is_urgent(now):  # the clock was set back
                heappush(self._soon, (one.urgent_from or now, one.id))
                continue
            if one.id in found:
                continue
            read.append(entry)
            if one.id not in but:
                found[one.id] = one
        for entry in read:
            heappush(self._ready_urgent, entry)

    def _take_ready(
        self, found: dict[int, Waiting], now: float, limit: int, but: Collection[int]
    ) -> None:
        read, last = Heap(), None
        while self._ready and len(found) < limit:
            entry = heappop(self._ready)
            one = self._head(entry[1])
            if one is None or one.due != entry[0] or entry == last:
                continue
            if one.due > now:  # the clock was set back
                heappush(self._later, entry)
                continue
            read.append(entry)
            last = entry
            if one.id not in but:
                found.setdefault(one.id, one)
        for entry in read:
            heappush(self._ready, entry)

    def next_due(self, now: float) -> float | None:
        """Return when the next head that is not due yet will be due."""
        self._advance(now)
        while self._later:
            due, number = self._later[0]
            one = self._head(number)
            if one is not None and one.due == due:
                return due
            heappop(self._later)
        return None

    def has_urgent(self, now: float) -> bool:
        """Return whether any head is urgent now, also if it is not due."""
        self._advance(now)
        while self._urgent:
            until, number = self._urgent[0]
            one = self._head(number)
            if one is not None and one.urgent_until == until:
                if one.is_urgent(now):
                    return True
                if until > now:  # the clock was set back
                    heappush(self._soon, (one.urgent_from or now, number))
            heappop(self._urgent)
        return False

    # -- what waits until the sink answers -----------------------------------

    def for_sink(self, now: float, limit: int, but: Collection[int]) -> list[Waiting]:
        """Return heads that wait until the sink answers, urgent ones first."""
        read, found = list[tuple[float, float, int]](), dict[int, Waiting]()
        while self._for_sink and len(found) < limit:
            entry = heappop(self._for_sink)
            one = self._head(entry[2])
            if one is None or not one.waits_for_sink or one.due != entry[1]:
                continue
            if one.due <= now or entry[0] != (one.urgent_until or float("inf")):
                continue
            if one.id in found:
                continue
            read.append(entry)
            if one.id not in but:
                found[one.id] = one
        for entry in read:
            heappush(self._for_sink, entry)
        return list(found.values())

    def release(self, now: float, limit: int) -> list[Waiting]:
        """Make heads that wait until the sink answers due now; return them."""
        found = self.for_sink(now, limit, ())
        for one in found:
            one.due = now
            heappush(self._later, (now, one.id))
        return found

    def shift(self, dues: Iterable[tuple[Waiting, float]]) -> list[Waiting]:
        """Give deliveries other due times; return those that changed."""
        changed = list[Waiting]()
        for one, due in dues:
            if one.due != due:
                one.due = due
                changed.append(one)
        if changed:
            self.renew()
        return changed

    def renew(self) -> None:
        """Read the times of all heads again."""
        for heap in (self._later, self._ready, self._ready_urgent, self._soon):
            heap.clear()
        self._urgent.clear()
        self._for_sink.clear()
        for one in self.waiting.values():
            if one.is_head:
                self._lead(one)

    # -- lines ---------------------------------------------------------------

    def of(self, key: str | None) -> Iterator[Waiting]:
        """Return what waits in the line of a key, in its order."""
        line = None if key is None else self._lines.get(key)
        if line is None:
            return iter(())
        return iter((line,)) if isinstance(line, Waiting) else iter(line)

    def oldest(self) -> Waiting | None:
        """Return what waits longest."""
        return next(iter(self.waiting.values()), None)

    def longest(self) -> list[Iterator[Waiting]]:
        """Return the lines, the longest first; what has no key is one line."""
        lines = sorted(
            (line for line in self._lines.values() if not isinstance(line, Waiting)),
            key=len,
            reverse=True,
        )
        alone = (
            one
            for one in self.waiting.values()
            if one.key is None or self._lines.get(one.key) is one
        )
        return [*map(iter, lines), alone]
