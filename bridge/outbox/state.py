"""The state in memory that all topics of the outbox share, and its way to the disk."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec import Struct, field

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.facts import Facts
from bridge.outbox.image import Added, Image
from bridge.outbox.line import Waiting
from bridge.outbox.reads import Asked
from bridge.outbox.records import CHECKPOINT, Item
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import MUCH, Connection, give_back
from bridge.outbox.storage.journal import Rows

_RUNNING = "running:"
_NOTHING: Asked = {}

# -- Wakes the relays, and the rules, when there may be work for them ------------------


class Wakeups(Struct):
    """One asyncio.Event for each sink; the sink's relay waits for it and clears it.

    Attributes:
        rules: called when a command has ended: a rule may come to a new decision.
    """

    rules: Callable[[], None] = lambda: None
    _events: defaultdict[str, asyncio.Event] = field(
        default_factory=partial(defaultdict, asyncio.Event)
    )

    def of(self, sink: str) -> asyncio.Event:
        """Return the event that is set when there may be work for ``sink``."""
        return self._events[sink]

    def wake(self, sink: str) -> None:
        """Wake the relay of a sink."""
        self._events[sink].set()

    def wake_all(self) -> None:
        """Wake all relays and the rules: what waits was changed."""
        self.rules()
        for event in self._events.values():
            event.set()


# -- The running time of each sink, the clock for the ages of its deliveries ----------


class Ages(Struct):
    """The running time of each sink, in seconds.

    It is the time for which the forwarder has run and the sink was not parked. Each
    delivery stores the running time of its insertion (``born``). The difference to the
    present running time is its age, which does not depend on the wall clock.

    Attributes:
        clocks: by the sink's name, a function that returns its running time now. For a
            sink without a function, the saved running time counts.
    """

    facts: Facts
    clocks: dict[str, Callable[[], float]] = field(default_factory=dict)

    def at(self, sink: str, rows: Rows) -> float:
        """Return the running time of a sink; save it if it may be new."""
        clock = self.clocks.get(sink)
        if clock is None or ("meta", (f"{_RUNNING}{sink}",)) in rows:
            return self.saved(sink)
        now = clock()
        self.facts.name({f"{_RUNNING}{sink}": now}, rows)
        return now

    def saved(self, sink: str) -> float:
        """Return the saved running time of a sink; 0 = there is none."""
        found = self.facts.meta.get(f"{_RUNNING}{sink}")
        return float(found) if isinstance(found, int | float) else 0.0

    def note(self, sink: str, seconds: float, rows: Rows) -> None:
        """Save the running time of a sink together with other rows."""
        self.facts.name({f"{_RUNNING}{sink}": seconds}, rows)

    def save(self, sink: str, seconds: float) -> None:
        """Save the running time of a sink; nobody waits for it."""
        rows: Rows = {}
        self.note(sink, seconds, rows)
        self.facts.database.put(rows)


# -- The state in memory, and its way to the disk --------------------------------------


class State:
    """What is known and what waits.

    Attributes:
        reads: how often memory was filled from the file; 2 = it was read late.
        is_joining: whether the file was read late, and no document was compared with
            the checkpoint of the earlier run yet.
        read_late: called when the file of an earlier run can be read only now, with its
            checkpoint, that of this run (None = it has none yet), and the keys of all
            EventIds that this run has seen; returns the checkpoint of both, None = as
            it is.

    Args:
        database: the file.
        lost: called with the sink of each delivery that is given up.
    """

    def __init__(self, database: Database, lost: Callable[[str], None]) -> None:
        self.database = database
        self.wakeups = Wakeups()
        self.facts = Facts(database)
        self.image = Image(database, lost, self.wakeups.wake)
        self.ages = Ages(self.facts)
        self.read_late: (
            Callable[[bytes, bytes | None, Collection[str]], bytes | None] | None
        ) = None
        self.reads = 0
        self.is_joining = False

    # -- what the file has ---------------------------------------------------

    @property
    def knows_earlier_runs(self) -> bool:
        """Whether it is known what earlier runs did: the file may not be readable."""
        return not (self.database.is_blank or self.is_joining)

    async def load(self) -> None:
        """Read what the file has, before anything else.

        Raises:
            OutboxError: the file cannot be read.
        """
        database = self.database
        database.snapshot, database.adopt = self._look, self._adopt
        database.healed = self.wakeups.wake_all
        try:
            await database.read(self._look, then=self._adopt)
        except OutboxUnavailableError:
            if not database.is_degraded:
                raise
            database.is_blank = True  # the disk has failed since the opening
            await database.read(self._look, then=self._adopt)

    async def in_turn(
        self,
        decide: Callable[[], "asyncio.Future[bool]"],
        asked: Asked,
    ) -> "asyncio.Future[bool]":
        """Decide something in one step, after all that was called before.

        If the caller is cancelled, it is decided all the same.

        Args:
            decide: decides, and returns the future of ``write``.
            asked: of these the file is asked before, if memory does not know them.
        """
        facts = self.facts
        if not facts.asking and not facts.unknown(asked):
            return decide()
        facts.asking += 1
        return await asyncio.shield(asyncio.ensure_future(self._ask(asked, decide)))

    async def change(
        self, change: Callable[[Rows], object], asked: Asked = _NOTHING
    ) -> None:
        """Change something in one step, after all that was called before.

        It ends when the change is on the disk, or the disk does not answer.

        Args:
            change: gets the rows that it adds to.
            asked: as for ``in_turn``.
        """

        def decide() -> "asyncio.Future[bool]":
            rows: Rows = {}
            change(rows)
            return self.write(rows)

        await asyncio.shield(await self.in_turn(decide, asked))

    async def _ask(
        self,
        asked: Asked,
        decide: Callable[[], "asyncio.Future[bool]"],
    ) -> "asyncio.Future[bool]":
        try:
            async with self.facts.order:
                await self.facts.learn(asked)
                return decide()
        finally:
            self.facts.asking -= 1

    def _look(self, db: Connection) -> tuple[reads.Snapshot, reads.Part | None]:
        is_first = not self.reads or self.database.is_blank
        return reads.snapshot(db), reads.newest(db) if is_first else None

    def _adopt(self, found: tuple[reads.Snapshot, reads.Part | None]) -> None:
        """Take over what the file has: an earlier run wrote it."""
        snapshot, part = found
        if part is not None:
            self._take_over(snapshot, part)
        self.facts.load_meta(snapshot.meta)
        self.image.steps.clear()
        if self.image.adopt(snapshot, counts=part is not None) or part is not None:
            self.wakeups.wake_all()
        if len(snapshot.waiting) > MUCH:
            give_back()  # in the loop: 8 ms for 100,000 at the start

    def _take_over(self, snapshot: reads.Snapshot, part: reads.Part) -> None:
        """Take over what an earlier run knew, before anything is written."""
        self.reads += 1
        facts, earlier = self.facts, snapshot.meta.get(CHECKPOINT)
        unwritten = self.database.journal.unwritten()
        seen = {str(key[0]) for table, key in unwritten if table == "sightings"}
        facts.load(part)
        rows: Rows = {}
        # What was counted from 0 without the file goes on from its counts.
        for (table, key), ours in unwritten.items():
            theirs = part.rows["told"].get(str(key[0]), {}).get(key)
            if table == "told" and ours is not None and theirs is not None:
                facts.put(table, key, (theirs[0] + ours[0], *ours[1:]), rows)
        if isinstance(earlier, bytes) and self.read_late is not None:
            self.is_joining = True
            both = self.read_late(earlier, facts.value(CHECKPOINT), seen)
            if both is not None:
                facts.name({CHECKPOINT: both}, rows)
        if rows:
            self.database.put(rows)

    def add(
        self,
        item: Item,
        sinks: Sequence[str],
        rows: Rows,
        window: tuple[float | None, float | None] = (None, None),
    ) -> Added:
        """Add an item, which gets its id, and a delivery of it for each sink."""
        image, now = self.image, item.created
        if image.next_item == 1 and self.database.is_blank:
            # The file may have rows: no id of them may be given again.
            image.next_item = image.next_delivery = int(now * 1000)
        item = item._replace(id=image.next_item)
        image.next_item += 1
        key = item.key if item.kind == "event" else None
        places = list[Waiting]()
        for sink in sinks:
            one = Waiting(
                id=image.next_delivery,
                item=item.id,
                sink=sink,
                key=key,
                due=now,
                created=now,
                urgent_from=window[0],
                urgent_until=window[1],
                born=self.ages.at(sink, rows),
                is_sendable=False,
            )
            image.next_delivery += 1
            places.append(one)
        image.add(item, places, rows)
        return item, places

    def write(
        self,
        rows: Rows,
        added: Sequence[Added] = (),
        told: Callable[[bool], None] | None = None,
    ) -> "asyncio.Future[bool]":
        """Give rows to the journal.

        Args:
            rows: what is written in one transaction.
            added: the items among them, and their deliveries.
            told: called with the answer before the deliveries are offered; None = it is
                not needed.

        Returns:
            A future: whether it is on the disk, or the disk has not answered.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def then(is_written: bool) -> None:  # noqa: FBT001 - a callback
            nonlocal told
            if is_written and added:
                self.image.written(added)
            if future.done():
                return  # the disk has answered late
            if told is not None:
                told(is_written)
                told = None  # it has the events, and a disk may hang for hours
            for _, places in added:
                self.image.sendable(places)
            future.set_result(is_written)

        self.database.put(rows, then)
        return future
