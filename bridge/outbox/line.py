"""What waits for one sink: a line for each EventId, and the heads of the lines by time.

Only the head of a line is ever offered: so the deliveries of an EventId keep their
order, and no EventId delays another. While any step of a line is urgent, its head is,
too, because the step must wait for it.

A head is in ``_later`` until it is due, then in ``_ready``. Beside that it is in
``_turns`` until its line becomes urgent, or is not any more: then it is placed anew.
What was read, or left out by the reader, is in ``_aside``: most of it is settled before
the next read, which puts the rest back. The heaps may hold entries that are out of
date: whoever reads one compares it with the delivery.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter

from msgspec import Struct, field

_SLACK = 256  # entries out of date, before the heaps are made anew
_SET_BACK = 1.0  # seconds; by less, the clock is not considered as set back
_NEVER = float("inf")
_FEW = 64  # steps; an empty deque needs 760 bytes

Heap = list[tuple[float, int]]
Rank = tuple[bool, float, int]  # not urgent; the end of the window, or due; id
Window = tuple[float, float]  # from when until when it is urgent


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


Steps = list[Waiting] | deque[Waiting]
_number = attrgetter("id")


class Line(Struct):
    """Several deliveries of one EventId, in their order, and when they are urgent."""

    steps: Steps = field(default_factory=list)
    _soon: list[tuple[float, float, int]] = []  # from, until, id
    _begun: list[tuple[float, float, int]] = []  # -until, from, id

    def add(self, one: Waiting) -> None:
        """Put a delivery into its place."""
        if len(self.steps) == _FEW:
            self.steps = deque(self.steps)
        if self.steps and one.id < self.steps[-1].id:
            insort(self.steps, one, key=_number)
        else:
            self.steps.append(one)
        if one.urgent_from is not None and one.urgent_until is not None:
            heappush(self._soon, (one.urgent_from, one.urgent_until, one.id))

    def window(self, now: float, waiting: Collection[int]) -> Window | None:
        """Return when a step is urgent, now or else next; None = never from now on.

        Args:
            now: seconds since the epoch, not before that of an earlier call.
            waiting: the ids of the steps that still wait.
        """
        soon, begun = self._soon, self._begun
        while soon and (soon[0][0] <= now or soon[0][2] not in waiting):
            since, until, number = heappop(soon)
            heappush(begun, (-until, since, number))
        while begun and (-begun[0][0] <= now or begun[0][2] not in waiting):
            heappop(begun)
        if begun:
            return begun[0][1], -begun[0][0]
        return soon[0][:2] if soon else None

    def renew(self) -> None:
        """Read the times of all steps again."""
        self._begun.clear()
        self._soon = [
            (one.urgent_from, one.urgent_until, one.id)
            for one in self.steps
            if one.urgent_from is not None and one.urgent_until is not None
        ]
        heapify(self._soon)


class Lines(Struct):
    """All that waits for one sink.

    Attributes:
        waiting: every delivery, by its id.
    """

    waiting: dict[int, Waiting] = field(default_factory=dict)
    _lines: dict[str, Waiting | Line] = field(default_factory=dict)  # by key
    _now: float = 0.0  # when it was read last, in seconds since the epoch
    _later: Heap = field(default_factory=list)  # (due, id)
    _ready: list[Rank] = field(default_factory=list)
    _turns: Heap = field(default_factory=list)  # (begin or end of the window, id)
    _urgent: set[int] = field(default_factory=set)  # heads that are urgent now
    _for_sink: set[int] = field(default_factory=set)  # heads that wait for the sink
    _aside: set[int] = field(default_factory=set)
    _removed: int = 0  # since the heaps were looked at

    # -- in and out ----------------------------------------------------------

    def add(self, one: Waiting) -> None:
        """Put a delivery into the line of its key, in the order of the ids."""
        self.waiting[one.id] = one
        if one.key is None:
            self._place(one)
            return
        line = self._lines.get(one.key)
        if line is None:
            self._lines[one.key] = one
            self._place(one)
            return
        if isinstance(line, Waiting):
            first, line = line, Line()
            line.add(first)
            self._lines[one.key] = line
        head = line.steps[0]
        line.add(one)
        if line.steps[0] is not head:
            head.is_head = False
            self._urgent.discard(head.id)
            self._for_sink.discard(head.id)
            self._place(one)
        elif one.urgent_until is not None:
            self._place(head)

    def add_all(self, found: Iterable[Waiting]) -> None:
        """Put many deliveries into their lines."""
        for one in sorted(found, key=_number):
            self.add(one)
        numbers = iter(self.waiting)
        last = next(numbers, 0)
        if any(last > (last := number) for number in numbers):
            self.waiting = {n: self.waiting[n] for n in sorted(self.waiting)}

    def remove(self, one: Waiting) -> None:
        """Take a delivery out of its line."""
        del self.waiting[one.id]
        was_head, one.is_head = one.is_head, False
        self._urgent.discard(one.id)
        self._for_sink.discard(one.id)
        line = None if one.key is None else self._lines.get(one.key)
        if one.key is None or not isinstance(line, Line):
            if one.key is not None:
                self._lines.pop(one.key, None)
            self._tidy()
            return
        if was_head:
            del line.steps[0]
        else:
            line.steps.remove(one)
        head = line.steps[0]
        if len(line.steps) == 1:
            self._lines[one.key] = head
        if was_head or one.urgent_until is not None:
            self._place(head)
        self._tidy()

    def change(self, one: Waiting) -> None:
        """Put a delivery into the place of its new times."""
        if one.is_head:
            self._place(one)

    def _place(self, head: Waiting) -> None:
        """Put the head of a line where it is read, now or later."""
        head.is_head = True
        if not head.is_sendable:
            return
        number, now = head.id, self._now
        since, until = self.window(head) or (_NEVER, _NEVER)
        is_calm = since > now
        (self._urgent.discard if is_calm else self._urgent.add)(number)
        if since != _NEVER:
            heappush(self._turns, (since if is_calm else until, number))
        if head.due > now:
            heappush(self._later, (head.due, number))
        else:
            heappush(self._ready, (is_calm, head.due if is_calm else until, number))
        if head.waits_for_sink:
            self._for_sink.add(number)

    def _tidy(self) -> None:
        """Make the heaps anew when most of them is out of date."""
        if not self.waiting:
            self.waiting, self._lines = {}, {}  # a dict never shrinks by itself
        self._removed += 1
        if self._removed < _SLACK:
            return
        self._removed = 0
        entries = len(self._later) + len(self._ready) + len(self._turns)
        if entries > 4 * len(self.waiting) + _SLACK:
            self.renew()

    # -- what is due ---------------------------------------------------------

    def window(self, one: Waiting) -> Window | None:
        """Return when a delivery is urgent, now or else next; None = it is not.

        A head is urgent when any step of its line is.
        """
        if one.is_head and one.key is not None:
            line = self._lines.get(one.key)
            if isinstance(line, Line):
                return line.window(self._now, self.waiting)
        since, until = one.urgent_from, one.urgent_until
        if since is None or until is None or until <= self._now:
            return None
        return since, until

    def _head(self, number: int) -> Waiting | None:
        one = self.waiting.get(number)
        return one if one is not None and one.is_head and one.is_sendable else None

    def _rank(self, head: Waiting) -> Rank:
        """Return the place of a head among those that are due."""
        since, until = self.window(head) or (_NEVER, _NEVER)
        is_calm = since > self._now
        return is_calm, head.due if is_calm else until, head.id

    def _advance(self, now: float) -> None:
        """Move what has become due or urgent to where it is read."""
        if now < self._now - _SET_BACK:
            self._now = now
            self.renew()
        self._now = now = max(now, self._now)
        while self._later and self._later[0][0] <= now:
            due, number = heappop(self._later)
            if (one := self._head(number)) is not None and one.due == due:
                heappush(self._ready, self._rank(one))
        changed = set[int]()
        while self._turns and self._turns[0][0] <= now:
            changed.add(heappop(self._turns)[1])
        for number in changed:
            if (one := self._head(number)) is not None:
                self._place(one)

    def due(self, now: float, limit: int, but: Collection[int]) -> list[Waiting]:
        """Return what is due: urgent ones first, then those that are due longest.

        Args:
            now: seconds since the epoch.
            limit: the most to return.
            but: ids to leave out.
        """
        self._advance(now)
        back = self._aside.difference(but)
        self._aside -= back
        for number in back:
            if (one := self._head(number)) is not None and one.due <= self._now:
                heappush(self._ready, self._rank(one))
        found, ready = list[Waiting](), self._ready
        while ready and len(found) < limit:
            entry = heappop(ready)
            one = self._head(entry[2])
            if one is None or one.due > self._now or one.id in self._aside:
                continue
            if entry != (rank := self._rank(one)):  # another step is urgent meanwhile
                heappush(ready, rank)
                continue
            self._aside.add(one.id)
            if one.id not in but:
                found.append(one)
        return found

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
        return bool(self._urgent)

    # -- what waits until the sink answers -----------------------------------

    def for_sink(self, now: float, limit: int, but: Collection[int]) -> list[Waiting]:
        """Return heads that wait until the sink answers, urgent ones first."""
        self._advance(now)
        every = (self.waiting[n] for n in self._for_sink if n not in but)
        found = [one for one in every if one.waits_for_sink and one.due > self._now]
        found.sort(key=lambda one: (self._until(one), one.due, one.id))
        return found[:limit]

    def _until(self, one: Waiting) -> float:
        _, until = self.window(one) or (_NEVER, _NEVER)
        return until

    def release(self, now: float, limit: int) -> list[Waiting]:
        """Make heads that wait until the sink answers due now; return them."""
        found = self.for_sink(now, limit, ())
        for one in found:
            one.due = now
            self._place(one)
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
        for heap in (self._later, self._ready, self._turns):
            heap.clear()
        for heads in (self._urgent, self._for_sink, self._aside):
            heads.clear()
        for line in self._lines.values():
            if isinstance(line, Line):
                line.renew()
        for one in self.waiting.values():
            if one.is_head:
                self._place(one)

    # -- lines ---------------------------------------------------------------

    def of(self, key: str | None) -> Iterable[Waiting]:
        """Return what waits in the line of a key, in its order."""
        line = None if key is None else self._lines.get(key)
        if isinstance(line, Line):
            return line.steps
        return () if line is None else (line,)

    def oldest(self) -> Waiting | None:
        """Return what waits longest."""
        return next(iter(self.waiting.values()), None)

    def calm(self, now: float) -> Waiting | None:
        """Return the oldest of the longest line that is not urgent; None = all are.

        What has no key, or is alone with its key, counts as the shortest line.
        """
        self._advance(max(now, self._now))
        lines = sorted(
            (line.steps for line in self._lines.values() if isinstance(line, Line)),
            key=len,
            reverse=True,
        )
        alone = (
            one
            for one in self.waiting.values()
            if (one.key is None or self._lines.get(one.key) is one)
            and not self._is_urgent(one)
        )
        return next(chain(filter(None, map(self._calm_of, lines)), alone), None)

    def _calm_of(self, steps: Steps) -> Waiting | None:
        """Return the first step behind all urgent ones."""
        if not self._is_urgent(steps[0]):
            return steps[0]
        found = None
        for one in reversed(steps):
            if self._is_urgent(one):
                break
            found = one
        return found

    def _is_urgent(self, one: Waiting) -> bool:
        since, _ = self.window(one) or (_NEVER, _NEVER)
        return since <= self._now
