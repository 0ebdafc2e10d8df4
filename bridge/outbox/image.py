"""The image: all that waits, in memory. The journal writes each change to the disk.

    commit ──▶ waits, not sendable ──on the disk, or 3 s──▶ sendable ──settled──▶ gone
                                                              ▲  │
                                                              └──┘ postponed

A delivery that waits is a small record (``bridge.outbox.line``). Its content stays in
memory until it is on the disk; after that only that of the newest and of those that
were read last does. The rest is read again shortly before it is sent.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from bridge.foundation.errors import OutboxError, Reason
from bridge.outbox import reads
from bridge.outbox.line import Lines, Waiting, Window
from bridge.outbox.records import Delivery, DeliveryState, Item, Tally
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Rows

_MOST_READ = 1024  # contents of what is on the disk, that stay in memory
_MOST_BYTES = 4 * 1024 * 1024
_item_of = attrgetter("item")


class Limits(Struct, frozen=True):
    """How much may wait.

    Attributes:
        events: events that only memory has; urgent ones may exceed this by a tenth.
        size: bytes of what only memory has.
        waiting: deliveries in all; beyond, the oldest of the longest line that are not
            urgent become dead letters.
    """

    events: int = 10_000
    size: int = 64 * 1024 * 1024
    waiting: int = 100_000


class Held(Struct, gc=False):
    """A content that is not on the disk yet.

    Attributes:
        uses: how many deliveries of it wait.
        is_event: whether it counts against the room.
    """

    item: Item
    uses: int
    is_event: bool = False


Added = tuple[Item, list[Waiting]]  # an item, and its deliveries


class Image(Struct):
    """All deliveries that wait, and how many there are of the others.

    Attributes:
        lost: called with the sink of each delivery that is given up here.
        woken: called with each sink for which there may be work.
        next_item, next_delivery: the ids that the next rows get.
        steps: the deliveries of EventIds to sinks that act, by sink and key; of those
            that were asked for.
    """

    database: Database
    lost: Callable[[str], None]
    woken: Callable[[str], None]
    limits: Limits = field(default_factory=Limits)
    next_item: int = 1
    next_delivery: int = 1
    sinks: dict[str, Lines] = field(default_factory=partial(defaultdict, Lines))
    steps: dict[tuple[str, str], dict[int, reads.Step]] = field(default_factory=dict)
    _held: dict[int, Held] = field(default_factory=dict)  # not on the disk yet
    _read: dict[int, Item] = field(default_factory=dict)  # on the disk
    _read_bytes: int = 0
    _unsent: set[int] = field(default_factory=set)  # of the last page
    _reading: asyncio.Future[Any] | None = None  # the next page
    _events: int = 0  # events in ``_held`` that wait for a delivery
    _counts: dict[str, dict[str, int]] = field(default_factory=dict)
    _dead_errors: dict[str, str | None] = field(default_factory=dict)
    _total: int = 0

    # -- room ----------------------------------------------------------------

    def has_room(self, more: int, *, is_urgent: bool) -> bool:
        """Return whether memory may take another event, beside ``more``."""
        most = self.limits.events
        if is_urgent:
            most += most // 10
        if self._events + more >= most:
            return False
        return self.database.journal.bytes < self.limits.size

    # -- in ------------------------------------------------------------------

    def add(self, item: Item, places: Sequence[Waiting], rows: Rows) -> None:
        """Add the deliveries of a new item, which are not sendable yet."""
        is_event = item.kind == "event"
        if places:
            self._held[item.id] = Held(item, len(places), is_event)
            self._events += is_event
        rows["items", (item.id,)] = item.row
        for one in places:
            put(rows, one, "pending")
            self.sinks[one.sink].add(one)
            self._total += 1
            if self.steps and (one.sink, one.key or "") in self.steps:
                step = ("pending", item.body)
                self.steps[one.sink, one.key or ""][one.id] = step
        if self._total > self.limits.waiting:
            self._bound(item.created, rows)

    def _bound(self, now: float, rows: Rows) -> None:
        """Make dead letters of what waits beyond the limit: see ``Limits.waiting``."""
        while self._total > self.limits.waiting:
            sink = max(self.sinks, key=lambda name: len(self.sinks[name].waiting))
            if (one := self.sinks[sink].calm(now)) is None:
                return
            error = ("more wait than the state file may hold", Reason.BACKLOG.value)
            self.end(one, "dead", rows, now=now, error=error)
            self.lost(sink)

    def sendable(self, places: Iterable[Waiting]) -> None:
        """Offer deliveries from now on: they are on the disk, or it does not answer."""
        for one in places:
            if not one.is_sendable:
                one.is_sendable = True
                lines = self.sinks[one.sink]
                if lines.waiting.get(one.id) is one:
                    lines.change(one)
            self.woken(one.sink)

    def written(self, added: Iterable[Added]) -> None:
        """Note that items are on the disk."""
        found = list[Item]()
        for item, _ in added:
            held = self._held.pop(item.id, None)
            if held is not None:
                self._events -= held.is_event
                found.append(held.item)
        self._remember(found)

    def replace(self, item: Item, rows: Rows) -> None:
        """Take another content in place of one, if that still waits."""
        held = self._held.get(item.id)
        if held is not None:
            held.item = item
            rows["items", (item.id,)] = item.row

    def waits(self, one: Waiting) -> bool:
        """Return whether a delivery still waits."""
        lines = self.sinks.get(one.sink)
        return lines is not None and lines.waiting.get(one.id) is one

    def _remember(self, items: Iterable[Item]) -> None:
        """Keep contents that are on the disk; forget what was read first."""
        kept, last = self._read, 0
        for item in items:
            if item.id not in kept:
                kept[item.id], last = item, item.id
                self._read_bytes += len(item.body or b"")
        while len(kept) > _MOST_READ or self._read_bytes > _MOST_BYTES:
            number = next(iter(kept))
            if number == last:
                return
            self._read_bytes -= len(kept.pop(number).body or b"")

    # -- out -----------------------------------------------------------------

    def revive(self, found: Sequence[tuple[Waiting, Delivery]]) -> None:
        """Let deliveries wait that were settled; their contents are on the disk."""
        sinks = dict[str, list[Waiting]]()
        for one, was in found:
            self.count(one.sink, was.state, -1)
            sinks.setdefault(one.sink, []).append(one)
            if (known := self.steps.get((one.sink, one.key or ""))) is not None:
                known[one.id] = ("pending", was.body)
        for sink, more in sinks.items():
            self.sinks[sink].add_all(more)
        self._total += len(found)

    def find(self, delivery: Delivery) -> Waiting | None:
        """Return the record of a delivery; None if it does not wait any more."""
        lines = self.sinks.get(delivery.sink)
        return None if lines is None else lines.waiting.get(delivery.id)

    def end(
        self,
        one: Waiting,
        state: DeliveryState,
        rows: Rows,
        *,
        now: float,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Settle a delivery."""
        if state != "discarded":
            one.attempts += error is None or error[1] != "backlog"
            one.last_error, one.reason = error or (None, None)
        put(rows, one, state, settled=now)
        self.count(one.sink, state)
        if state == "dead":
            self._dead_errors[one.sink] = one.last_error
        known = self.steps.get((one.sink, one.key or "")) if self.steps else None
        if known is not None and one.id in known:
            known[one.id] = (state, known[one.id][1])
        self.sinks[one.sink].remove(one)
        self._total -= 1
        held = self._held.get(one.item)
        if held is not None:
            held.uses -= 1
            if not held.uses:
                self._events -= held.is_event
                del self._held[one.item]

    def count(self, sink: str, state: str, by: int = 1) -> None:
        """Count deliveries of a sink that are in a state."""
        counts = self._counts.setdefault(sink, {})
        counts[state] = counts.get(state, 0) + by
        if state == "dead" and not counts[state]:
            self._dead_errors.pop(sink, None)

    def tallies(self, as_set_now: Callable[[float], float]) -> dict[str, Tally]:
        """Return the tally of each sink that ever had a delivery."""
        return {
            sink: self._tally(sink, as_set_now)
            for sink in sorted({*self.sinks, *self._counts})
        }

    def _tally(self, sink: str, as_set_now: Callable[[float], float]) -> Tally:
        counts, lines = self._counts.get(sink, {}), self.sinks.get(sink)
        oldest = None if lines is None else lines.oldest()
        error = None if oldest is None else oldest.last_error
        return Tally(
            pending=0 if lines is None else len(lines.waiting),
            dead=counts.get("dead", 0),
            delivered=counts.get("delivered", 0),
            discarded=counts.get("discarded", 0),
            oldest=None if oldest is None else as_set_now(oldest.created),
            last_error=error or self._dead_errors.get(sink),
        )

    # -- contents ------------------------------------------------------------

    def contents(self, numbers: Iterable[int]) -> dict[int, Item | None]:
        """Return contents, if they are in memory."""
        held, read = self._held, self._read
        return {n: held[n].item if n in held else read.get(n) for n in numbers}

    async def deliveries(
        self,
        found: Sequence[Waiting],
        ahead: Callable[[], Sequence[Waiting]] = tuple,
    ) -> list[Delivery]:
        """Return deliveries with their contents, without those that cannot be read.

        If the disk does not answer, only these have to wait.

        Args:
            found: the deliveries.
            ahead: what will be due next. If a content must be read, theirs are read
                with it, and the oldest ones.
        """
        if not found:
            return []
        lines, known = self.sinks[found[0].sink], self.contents(map(_item_of, found))
        self._unsent.difference_update(known)
        missing = [number for number, item in known.items() if item is None]
        if missing and self._reading is not None:
            await asyncio.wait({self._reading})  # it may be in that page
            known |= self.contents(missing)
            missing = [number for number in missing if known[number] is None]
            found = [one for one in found if self.waits(one)]
        if missing:
            with suppress(OutboxError):  # the disk does not answer: they have to wait
                known |= await self._read_page(self._page(missing, lines, ahead))
            more = self.contents(missing).items()
            known |= {number: item for number, item in more if item is not None}
            found = [one for one in found if self.waits(one)]
        elif 0 < len(self._unsent) < reads.PAGE:
            page = self._page((), lines, ahead)
            self._unsent.clear()
            with suppress(OutboxError):
                self._reading = self._read_page(page)
                self._reading.add_done_callback(asyncio.Future.exception)  # it is seen
        return [
            delivery(one, item, lines.window(one))
            for one in found
            if (item := known[one.item]) is not None
        ]

    def _page(
        self,
        missing: Sequence[int],
        lines: Lines,
        ahead: Callable[[], Sequence[Waiting]],
    ) -> list[int]:
        """Return what is read together: the contents that are missing, and a page."""
        held, read = self._held, self._read
        numbers = (one.item for one in chain(ahead(), lines.waiting.values()))
        unknown = (n for n in numbers if n not in read and n not in held)
        page = dict.fromkeys(islice(unknown, 2 * reads.PAGE))
        return [*(page | dict.fromkeys(missing))]

    def _read_page(self, numbers: Sequence[int]) -> asyncio.Future[dict[int, Item]]:
        job, then = partial(reads.items, numbers=numbers), partial(self._keep, numbers)
        return self.database.read(job, then)

    def _keep(
        self, numbers: Sequence[int], read: Mapping[int, Item]
    ) -> dict[int, Item]:
        """Keep contents that were read; return all that were asked for."""
        self._unsent = set(numbers)
        found = (read[number] for number in reversed(numbers) if number in read)
        self._remember(one for one in found if one.damage is None)  # the next one last
        return {number: read.get(number, reads.LOST) for number in numbers}

    # -- what the file has ---------------------------------------------------

    def adopt(self, found: "reads.Snapshot", *, counts: bool) -> bool:
        """Take over what an earlier run has left in the file.

        What is in memory is newer than the file.

        Args:
            found: what the file has.
            counts: whether what is settled there was not counted yet.

        Returns:
            Whether something waits now that did not.
        """
        is_unwritten = self.database.journal.has
        fresh = dict[str, list[Waiting]]()
        keys = dict[str | None, str | None]()  # one object for each: they share memory
        for row in found.waiting:
            lines = self.sinks.get(row.sink)
            is_known = lines is not None and row.id in lines.waiting
            if is_known or is_unwritten(("deliveries", (row.id,))):
                continue
            row.sink = sys.intern(row.sink)
            row.key = keys.setdefault(row.key, row.key)
            fresh.setdefault(row.sink, []).append(row)
        for sink, more in fresh.items():
            self.sinks[sink].add_all(more)
            self._total += len(more)
        contents = found.contents.values()
        self._remember(
            one for one in contents if one.damage is None and one.id not in self._held
        )
        for sink, states in found.counts.items() if counts else ():
            for state, n in states.items():
                self.count(sink, state, n)
        if counts:
            self._dead_errors = found.dead_errors | self._dead_errors
        self.next_item = max(self.next_item, found.last_item + 1)
        self.next_delivery = max(self.next_delivery, found.last_delivery + 1)
        return bool(fresh)

    def forget(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Count deliveries no more that were deleted in the file."""
        for (sink, state), gone in counts.items():
            self.count(sink, state, -gone)


def delivery(
    one: Waiting,
    item: Item,
    window: Window | None,
    state: DeliveryState = "pending",
) -> Delivery:
    """Return a delivery with its content; it says if it must not be sent.

    Args:
        one: the record of the delivery.
        item: its content.
        window: when it is urgent; None = it is not.
        state: its state.
    """
    damage = item.damage
    urgent_from, urgent_until = window or (None, None)
    if damage is None and one.attempts < 0:
        damage = "a number beside it cannot be read in the state file"
    if damage is None and item.kind == "event" and item.key != one.key:
        damage = "it names the content of another event in the state file"
    return Delivery(  # by place: it is made for each attempt
        one.id,
        one.sink,
        item.kind,  # type: ignore[arg-type]  # any text, if damaged
        state,
        one.key,
        item.event_id,
        item.cloud_event_id,
        item.type,
        b"" if damage is not None else item.body,
        max(one.attempts, 0),
        one.due,
        item.created,
        item.not_before,
        urgent_from,
        urgent_until,
        one.last_error,
        one.born,
        damage,
    )


def put(
    rows: Rows, one: Waiting, state: DeliveryState, *, settled: float | None = None
) -> None:
    """Add the row of a delivery to what is written."""
    rows["deliveries", (one.id,)] = (
        one.item,
        one.sink,
        one.key,
        state,
        one.attempts,
        one.due,
        one.urgent_from,
        one.urgent_until,
        one.last_error,
        one.reason,
        settled,
        one.born,
        int(one.waits_for_sink),
    )
