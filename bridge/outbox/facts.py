"""What is known of EventIds, in memory: so that a commit is decided in one step.

An event's id depends on how often the same cause was published, its sinks on those that
got an earlier event of the same EventId. The state file has all rows of the retention;
memory has the newest of each table, and all of a small file. What it does not have is
asked of the file before. Each change is a row for the journal.

Rows are here as the journal has them, in groups: those of a cause, of an EventId or of
a message. Of a group all rows are known, or its rows are those that were changed.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter

from msgspec import Struct, field

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.reads import (
    ASKED_BY,
    GROUP_OF,
    RECENT,
    TABLES_OF,
    Asked,
    Key,
    Row,
)
from bridge.outbox.records import AGAIN, CHECKPOINT, INTENT, Checkpoint
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Rows

_STATE, _POSTED, _RULE = 2, 3, 5  # columns of approvals
_NO_ROWS: dict[Key, Row] = {}


def _no_rows() -> reads.Known:
    return {table: {} for table in ASKED_BY}


def _none_known() -> dict[str, dict[str, None]]:
    return {column: {} for column in TABLES_OF}


class Facts(Struct):
    """What is known of causes, EventIds and messages.

    Attributes:
        order: held from the questions to the file until the commit is decided: commits
            are decided in the order of their calls.
        asking: how many commits wait for an answer of the file, or for their turn.
        meta: the named values.
        posted: the keys of the decisions whose POST has begun.
        intents: the intents of rules that have no outcome.
        decided: the last decisions of this run, oldest first: the clock may go back.
        results: the last events about commands, oldest first.
    """

    database: Database
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: int = 0
    meta: dict[str, bytes | float] = field(default_factory=dict)
    posted: set[Key] = field(default_factory=set)
    intents: dict[Key, Row] = field(default_factory=dict)
    decided: dict[Key, None] = field(default_factory=dict)
    results: list[bytes] = field(default_factory=list)
    _rows: reads.Known = field(default_factory=_no_rows)
    _known: dict[str, dict[str, None]] = field(default_factory=_none_known)
    _whole: set[str] = field(default_factory=set)  # the file has no more rows of these

    # -- rows ----------------------------------------------------------------

    def rows(self, table: str, group: str | None) -> Mapping[Key, Row]:
        """Return the rows of a cause, EventId or message, by their keys."""
        return self._rows[table].get(group or "", _NO_ROWS)

    def every(self, table: str) -> Iterator[tuple[Key, Row]]:
        """Yield all rows of a table that memory has."""
        for found in [*self._rows[table].values()]:
            yield from [*found.items()]

    def has_all(self, table: str) -> bool:
        """Whether the file has no row of a table that memory does not have."""
        return table in self._whole

    def put(self, table: str, key: Key, row: Row | None, rows: Rows) -> None:
        """Change a row in memory and, with ``rows``, in the file; None = delete it."""
        rows[table, key] = row
        group = GROUP_OF[table](key)
        column = ASKED_BY[table]
        known = self._known[column]
        if group in known or TABLES_OF[column] <= self._whole:
            known[group] = known.pop(group, None)  # it was used last
        if row is None:
            self._drop(table, group, key)
        else:
            self._rows[table].setdefault(group, {})[key] = row
            if table == "approvals":
                self._note(key, row)

    def _drop(self, table: str, group: str, key: Key) -> None:
        known = self._rows[table]
        if (found := known.get(group)) is not None:
            found.pop(key, None)
            if not found:
                del known[group]
        if table == "approvals":
            self._note(key, None)

    def _note(self, key: Key, row: Row | None) -> None:
        """Note whether a decision has a POST, and whether it is open and of a rule."""
        self.posted.discard(key)
        self.intents.pop(key, None)
        if row is not None and row[_POSTED]:
            self.posted.add(key)
        if row is not None and row[_STATE] == INTENT and row[_RULE] is not None:
            self.intents[key] = row

    # -- what the file has ---------------------------------------------------

    def load(self, found: reads.Part) -> None:
        """Take the newest rows of the file, beside what is known already."""
        self._whole = set(found.whole)
        self._take(found.rows)
        self._known = {
            column: dict.fromkeys(found.groups.get(column, ())) for column in TABLES_OF
        }
        self.results = [*found.results, *self.results][-RECENT:]

    def load_meta(self, found: Mapping[str, bytes | float]) -> None:
        """Take the named values of the file that are not written anew."""
        is_unwritten = self.database.journal.has
        ours = {n: v for n, v in self.meta.items() if is_unwritten(("meta", (n,)))}
        kept = {n: v for n, v in found.items() if not is_unwritten(("meta", (n,)))}
        self.meta = kept | ours

    def _take(self, rows: reads.Known) -> None:
        """Take rows; what is known of them already is newer."""
        is_written = not self.database.journal.waiting()
        for table, groups in rows.items():
            if is_written and table != "approvals" and not self._rows[table]:
                self._rows[table] = groups  # as at each start
            else:
                for found in groups.values():
                    self._merge(table, found)

    def _merge(self, table: str, found: Mapping[Key, Row]) -> None:
        is_unwritten = self.database.journal.has
        for key, row in found.items():
            group = GROUP_OF[table](key)
            if key not in self.rows(table, group) and not is_unwritten((table, key)):
                self._rows[table].setdefault(group, {})[key] = row
                if table == "approvals":
                    self._note(key, row)

    def unknown(self, asked: Asked) -> Asked:
        """Return of which of these not all is known; empty = of none."""
        left: dict[str, list[str]] = {}
        for column, groups in asked.items():
            if not TABLES_OF[column] <= self._whole:
                known = self._known[column]
                if more := [group for group in groups if group not in known]:
                    left[column] = more
        return left

    async def learn(self, asked: Asked) -> None:
        """Ask the file for what memory does not have, if it answers."""
        with suppress(OutboxUnavailableError):
            await self.demand(asked)

    async def demand(self, asked: Asked) -> None:
        """Ask the file for what memory does not have.

        Raises:
            OutboxError: the file does not answer.
        """
        if left := self.unknown(asked):
            ask, learned = partial(reads.of, asked=left), partial(self._learned, left)
            await self.database.read(ask, then=learned)

    def _learned(self, asked: Asked, found: reads.Known) -> None:
        self._take(found)
        for column, groups in asked.items():
            self._known[column].update(dict.fromkeys(groups))

    def forget(self, gone: Mapping[str, Iterable[Key]]) -> None:
        """Forget the rows with these keys, which were deleted in the file."""
        is_unwritten = self.database.journal.has
        for table, keys in gone.items():
            for key in keys:
                if not is_unwritten((table, key)):
                    self._drop(table, GROUP_OF[table](key), key)

    def trim(self) -> None:
        """Forget what was used first, if there is much and the file has it."""
        if self.database.journal.with_disk or self.database.journal.gathering:
            return
        for column, known in self._known.items():
            if len(known) <= 2 * reads.NEWEST:
                continue
            for group in list(islice(known, len(known) - reads.NEWEST)):
                del known[group]
            for table in TABLES_OF[column]:
                rows = self._rows[table]
                for group in rows.keys() - known.keys():
                    del rows[group]
            self._whole -= TABLES_OF[column]

    # -- named values --------------------------------------------------------

    def name(self, values: Mapping[str, bytes | float | None], rows: Rows) -> None:
        """Save values under their names; None = forget it."""
        for name, value in values.items():
            if value is None:
                self.meta.pop(name, None)
            else:
                self.meta[name] = value
            rows["meta", (name,)] = None if value is None else (value,)

    def value(self, name: str) -> bytes | None:
        """Return a named value; None = there is none, b"" = it is damaged."""
        found = self.meta.get(name)
        return found if isinstance(found, bytes) else None


# -- Reads and saves what was observed and published, and named values -----------------


class Observations(Struct):
    """What the bridge needs to know about its earlier runs.

    Attributes:
        again: keys of the EventIds whose events must be published again from the
            document, because one of these events was damaged before its delivery.
    """

    facts: Facts
    again: frozenset[str] = frozenset()

    # -- published -----------------------------------------------------------

    async def counts(self, causes: Sequence[str]) -> dict[str, int]:
        """Return how often events of these causes were published."""
        facts, asked = self.facts, {"cause": causes}
        if facts.asking or facts.unknown(asked):
            async with facts.order:
                await facts.learn(asked)
        found = dict[str, int]()
        for cause in causes:
            (found[cause], *_) = facts.rows("told", cause).get((cause,), (0,))
        return found

    def followers(self, key: str | None) -> frozenset[str]:
        """Return the sinks that got an earlier event of an EventId."""
        return frozenset(map(itemgetter(1), self.facts.rows("followers", key)))

    def tell(
        self, event: OutgoingEvent, router: Router, now: float, rows: Rows
    ) -> tuple[str, ...]:
        """Note that an event is published, and who follows it; return its sinks."""
        put, cause, key = self.facts.put, event.cause, event.key
        sinks = router.sinks(event.subject, self.followers(key))
        (times, *_) = self.facts.rows("told", cause).get((cause,), (0,))
        put("told", (cause,), (times + 1, now, key), rows)
        if key is not None and event.is_last:
            self._gone(key, now, rows)
        elif key is not None and event.subject.transition is not None:
            for sink in sinks:
                put("followers", (key, sink), (now,), rows)
        return sinks

    def _gone(self, key: str, now: float, rows: Rows) -> None:
        """Note that an EventId has gone: another with its name is another event."""
        facts = self.facts
        for table in ("followers", "command_successes"):
            for place in list(facts.rows(table, key)):
                facts.put(table, place, None, rows)
        row = facts.rows("appearances", key).get((key,), (0,))
        facts.put("appearances", (key,), (row[0] + 1, now), rows)

    # -- observed ------------------------------------------------------------

    def note(self, checkpoint: Checkpoint, now: float, rows: Rows) -> None:
        """Save what is known of the document from now on."""
        facts = self.facts
        self.again -= checkpoint.again
        facts.name({CHECKPOINT: checkpoint.body}, rows)
        for key in checkpoint.again:
            facts.name({f"{AGAIN}{key}": None}, rows)
        for key in checkpoint.sightings:
            facts.put("sightings", (key,), (now,), rows)

    async def was_seen(self, key: str) -> bool:
        """Whether it is known that a document had an EventId within the retention."""
        facts = self.facts
        if not facts.rows("sightings", key):
            await facts.learn({"key": (key,)})
        return bool(facts.rows("sightings", key))

    async def load_again(self) -> None:
        """Add to ``again`` the keys that earlier runs have saved."""
        names = self.facts.meta
        found = (name for name in names if name.startswith(AGAIN))
        self.again |= {name.removeprefix(AGAIN) for name in found}

    def publish_again(self, key: str, rows: Rows) -> None:
        """Have the events of an EventId published again from the document."""
        if key not in self.again:
            self.again |= {key}
            self.facts.name({f"{AGAIN}{key}": b""}, rows)

    # -- named values --------------------------------------------------------

    async def load(self, name: str) -> bytes | None:
        """Return the value saved as ``name``; None = not found, b"" = damaged."""
        return self.facts.value(name)

    async def save(self, named: Mapping[str, bytes]) -> None:
        """Save values under their names; nobody waits for the disk."""
        rows: Rows = {}
        self.facts.name(named, rows)
        self.facts.database.put(rows)
