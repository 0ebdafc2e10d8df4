"""What is known of EventIds, in memory: so that a commit is decided in one step.

An event's id depends on how often the same cause was published, its sinks on those that
got an earlier event of the same EventId. The state file has all rows of the retention;
memory has the newest of each table, and all of a small file. What it does not have is
asked of the file before. Each change is a row for the journal.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.reads import BY_KEY, RECENT, Asked
from bridge.outbox.records import (
    AGAIN,
    CHECKPOINT,
    Checkpoint,
    Decision,
    Success,
    json_of,
)
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Rows

_ASKED = {"told", "approvals", *BY_KEY}
Place = tuple[str, str]  # of a decision: its message and key
Decided = dict[Place, tuple[Decision, float]]  # and when


class Saved(Struct, frozen=True):
    """A success, and the times of its row.

    Attributes:
        at: renewed as long as the EventId is in the document.
    """

    success: Success
    at: float


class Facts(Struct):
    """What is known of causes, EventIds and messages.

    Attributes:
        order: held from the questions to the file until the commit is decided: commits
            are decided in the order of their calls.
        asking: how many commits wait for an answer of the file, or for their turn.
        told: how often events of a cause were published.
        meta: the named values.
        posted: the records of a POST that has begun, by message and key.
        intents: the intents of rules that have no outcome, by message and key.
        outcomes: data of the last outcomes, oldest first.
        results: the last events about commands, oldest first.
    """

    database: Database
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: int = 0
    told: dict[str, int] = field(default_factory=dict)
    meta: dict[str, bytes | float] = field(default_factory=dict)
    posted: set[Place] = field(default_factory=set)
    intents: dict[Place, Decision] = field(default_factory=dict)
    outcomes: dict[Place, bytes] = field(default_factory=dict)
    results: list[bytes] = field(default_factory=list)
    _whole: set[str] = field(default_factory=set)  # the file has no more rows of these
    _keys: dict[str, None] = field(default_factory=dict)  # all is known of these
    _followers: dict[str, frozenset[str]] = field(default_factory=dict)
    _sightings: dict[str, None] = field(default_factory=dict)
    _appearances: dict[str, int] = field(default_factory=dict)
    _successes: dict[str, dict[str, Saved]] = field(default_factory=dict)
    _decisions: dict[str, Decided] = field(default_factory=dict)  # by message
    _memory: dict[Place, bytes] = field(default_factory=dict)  # by sink and key

    # -- what the file has ---------------------------------------------------

    def load(self, found: reads.Part) -> None:
        """Take the newest rows of the file, beside what is known already."""
        self._whole = set(found.whole)
        for cause, times in found.rows["told"]:
            self.told[cause] = self.told.get(cause, 0) + times
        for table in BY_KEY:
            self._keys.update(dict.fromkeys(row[0] for row in found.rows[table]))
        self._take(found.rows)
        if not found.whole >= BY_KEY:
            self._keys.clear()
        earlier = {
            place: (at, one.data)
            for decisions in self._decisions.values()
            for place, (one, at) in decisions.items()
            if one.data is not None and place not in self.outcomes
        }
        last = sorted(earlier, key=lambda place: earlier[place][0])[-RECENT:]
        self.outcomes = {place: earlier[place][1] for place in last} | self.outcomes
        self.results = [*found.results, *self.results][-RECENT:]
        values = {(s, k): v for s, k, v in found.rows["sink_memory"]}
        self._memory = values | self._memory

    def load_meta(self, found: Mapping[str, bytes | float]) -> None:
        """Take the named values of the file that are not written anew."""
        is_unwritten = self.database.journal.has
        ours = {n: v for n, v in self.meta.items() if is_unwritten(("meta", (n,)))}
        kept = {n: v for n, v in found.items() if not is_unwritten(("meta", (n,)))}
        self.meta = kept | ours

    def _take(self, rows: Mapping[str, Iterable[Any]]) -> None:
        """Take rows by key and message; what is known already is newer."""
        followers = dict[str, set[str]]()
        for key, sink in rows["followers"]:
            followers.setdefault(key, set()).add(sink)
        for key, sinks in followers.items():
            self._followers.setdefault(key, frozenset(sinks))
        self._sightings |= dict.fromkeys(key for (key,) in rows["sightings"])
        for key, n in rows["appearances"]:
            self._appearances.setdefault(key, n)
        for key, sink, appearance, content, at, succeeded in rows["command_successes"]:
            success = Success(
                sink=sink,
                key=key,
                appearance=appearance,
                content=content,
                at=succeeded if succeeded > 0 else at,
            )
            self._successes.setdefault(key, {}).setdefault(sink, Saved(success, at))
        for row in rows["approvals"]:
            place, at = (row[0], row[1]), row[8]
            is_known = place in self._decisions.get(_base(row[0]), {})
            if not is_known and not self.database.journal.has(("approvals", place)):
                decision = reads.decision_of(row)
                if decision is not None:
                    self._keep(place, decision, at)

    async def counts(self, causes: Sequence[str]) -> Mapping[str, int]:
        """Return how often events were published; a cause that is absent: never."""
        asked = Asked(causes=causes)
        if self.asking or self.unknown(asked) is not None:
            async with self.order:
                await self.learn(asked)
        return self.told

    def unknown(self, of: Asked) -> Asked | None:
        """Return of which of these not all is known; None = of none."""
        whole, keys, messages = self._whole, self._keys, self._decisions
        if whole >= _ASKED:
            return None
        left = Asked(
            [c for c in of.causes if "told" not in whole and c not in self.told],
            [k for k in of.keys if not whole >= BY_KEY and k not in keys],
            [m for m in of.messages if "approvals" not in whole and m not in messages],
        )
        return left if left.causes or left.keys or left.messages else None

    async def learn(self, of: Asked) -> None:
        """Ask the file for what memory does not have, if it answers."""
        with suppress(OutboxUnavailableError):
            await self.demand(of)

    async def demand(self, of: Asked) -> None:
        """Ask the file for what memory does not have.

        Raises:
            OutboxError: the file does not answer.
        """
        if (left := self.unknown(of)) is not None:
            ask, learned = partial(reads.of, asked=left), partial(self._learned, left)
            await self.database.read(ask, then=learned)

    def _learned(self, asked: Asked, found: reads.Part) -> None:
        told = dict(found.rows["told"])
        for cause in asked.causes:
            self.told.setdefault(cause, told.get(cause, 0))
        self._take(found.rows)
        self._keys.update(dict.fromkeys(asked.keys))
        for message in asked.messages:
            self._decisions.setdefault(message, {})

    def forget(self, gone: Mapping[str, Iterable[Any]]) -> None:
        """Forget the rows with these keys, which were deleted in the file."""
        is_unwritten = self.database.journal.has
        deleted = {
            table: [key for key in keys if not is_unwritten((table, key))]
            for table, keys in gone.items()
        }
        for known, table in (
            (self.told, "told"),
            (self._sightings, "sightings"),
            (self._appearances, "appearances"),
        ):
            for (key,) in deleted[table]:
                known.pop(key, None)
        for place in deleted["sink_memory"]:
            self._memory.pop(place, None)
        for key, sink in deleted["followers"]:
            self._followers[key] = self._followers.get(key, frozenset()) - {sink}
        for sink, key in deleted["command_successes"]:
            self._successes.get(key, {}).pop(sink, None)
        for place in deleted["approvals"]:
            self._drop(place)

    def trim(self) -> None:
        """Forget what was used first, if there is much and the file has it."""
        if self.database.journal.with_disk or self.database.journal.gathering:
            return
        parts: tuple[tuple[dict[Any, Any], Iterable[str]], ...] = (
            (self.told, {"told"}),
            (self._keys, BY_KEY),
            (self._decisions, {"approvals"}),
            (self._memory, {"sink_memory"}),
        )
        for known, tables in parts:
            if len(known) <= 2 * reads.NEWEST:
                continue
            for key in list(islice(known, len(known) - reads.NEWEST)):
                del known[key]
            self._whole.difference_update(tables)
            if known is self._keys:
                for of_key in (
                    *(self._followers, self._sightings),
                    *(self._appearances, self._successes),
                ):
                    for key in of_key.keys() - self._keys.keys():
                        del of_key[key]

    # -- causes and EventIds -------------------------------------------------

    def followers(self, key: str | None) -> frozenset[str]:
        """Return the sinks that got an earlier event of an EventId."""
        return frozenset() if key is None else self._followers.get(key, frozenset())

    def tell(
        self, event: OutgoingEvent, router: Router, now: float, rows: Rows
    ) -> tuple[str, ...]:
        """Note that an event is published, and who follows it; return its sinks."""
        cause, key = event.cause, event.key
        before = self.followers(key)
        sinks = router.sinks(event.subject, before)
        times = self.told[cause] = self.told.get(cause, 0) + 1
        rows["told", (cause,)] = (times, now, key)
        if key is None:
            return sinks
        self._keys[key] = self._keys.pop(key, None)
        if event.is_last:
            self._gone(key, now, rows)
        elif event.subject.transition is not None and sinks:
            self._followers[key] = before.union(sinks)
            for sink in sinks:
                rows["followers", (key, sink)] = (now,)
        return sinks

    def _gone(self, key: str, now: float, rows: Rows) -> None:
        """Note that an EventId has gone: another with its name is another event."""
        for sink in self._followers.pop(key, frozenset()):
            rows["followers", (key, sink)] = None
        for sink in self._successes.pop(key, {}):
            rows["command_successes", (sink, key)] = None
        n = self._appearances[key] = self._appearances.get(key, 0) + 1
        rows["appearances", (key,)] = (n, now)

    def note(self, checkpoint: Checkpoint, now: float, rows: Rows) -> None:
        """Save what is known of the document from now on."""
        self.name({CHECKPOINT: checkpoint.body}, rows)
        for key in checkpoint.again:
            self.name({f"{AGAIN}{key}": None}, rows)
        for key in checkpoint.sightings:
            self._sightings[key] = None
            rows["sightings", (key,)] = (now,)

    def was_seen(self, key: str) -> bool:
        """Whether an EventId was in a document within the retention."""
        return key in self._sightings

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

    # -- successes of commands -----------------------------------------------

    def appearance(self, key: str) -> int:
        """Return how often an EventId has gone, from 0."""
        return self._appearances.get(key, 0)

    def successes(self, key: str) -> list[Success]:
        """Return the successes for an EventId that still count, in order of sinks."""
        now, found = self.appearance(key), self._successes.get(key, {})
        return [
            found[sink].success
            for sink in sorted(found)
            if found[sink].success.appearance == now
        ]

    def succeed(self, success: Success, rows: Rows) -> None:
        """Save a success, unless the event has gone while the command ran."""
        if self.appearance(success.key) == success.appearance:
            self._save(Saved(success, success.at), rows)

    def _save(self, saved: Saved, rows: Rows) -> None:
        one = saved.success
        self._successes.setdefault(one.key, {})[one.sink] = saved
        row = (one.appearance, one.content, saved.at, one.at)
        rows["command_successes", (one.sink, one.key)] = row

    def void(self, sink: str, key: str, rows: Rows) -> None:
        """Forget the success of a command for an EventId."""
        self._successes.get(key, {}).pop(sink, None)
        rows["command_successes", (sink, key)] = None

    def move_successes(self, when: Callable[[float], float], rows: Rows) -> None:
        """Give the successes other times, because the clock was set."""
        for found in self._successes.values():
            for saved in list(found.values()):
                at = when(saved.success.at)
                if at != saved.success.at:
                    self._save(Saved(replace(saved.success, at=at), saved.at), rows)

    # -- decisions -----------------------------------------------------------
    #
    # A message is identified by a hash of its content and by its sequence number; a
    # copy of the message has the same hash. The newest decision is stored under the
    # hash. Decisions on other messages with the same hash are under ``hash#number``.

    def decide(self, decision: Decision, now: float, rows: Rows) -> None:
        """Save the decision on one EventId of an approval.

        ``posted`` stays set until a new intent follows a decision: no POST has begun
        for the new try. A decision on another message with the same hash is moved to
        ``hash#number``, because that message may be delivered again.
        """
        place = (decision.message, decision.key)
        known = self._decisions.setdefault(_base(decision.message), {})
        earlier, at = known.get(place, (None, now))
        if earlier is not None and _is_of_other(earlier, decision):
            moved = (f"{decision.message}#{earlier.sequence}", decision.key)
            self._write(moved, replace(earlier, message=moved[0]), at, rows)
            earlier = None
        if earlier is not None:
            is_new_try = decision.is_intent and not earlier.is_intent
            decision = replace(
                decision,
                posted=decision.posted or (earlier.posted and not is_new_try),
                data=earlier.data if decision.data is None else decision.data,
            )
        self._write(place, decision, now, rows)

    def _write(self, place: Place, one: Decision, at: float, rows: Rows) -> None:
        self._keep(place, one, at)
        rows["approvals", place] = (
            one.event_id,
            one.sequence,
            one.state,
            int(one.posted),
            one.data,
            one.rule,
            at,
        )
        if one.data is not None:
            self.outcomes.pop(place, None)
            self.outcomes[place] = one.data
            if len(self.outcomes) > RECENT:
                del self.outcomes[next(iter(self.outcomes))]

    def _keep(self, place: Place, one: Decision, at: float) -> None:
        self._drop(place)
        self._decisions.setdefault(_base(place[0]), {})[place] = (one, at)
        if one.posted:
            self.posted.add(place)
        if one.is_intent and one.rule is not None:
            self.intents[place] = one

    def _drop(self, place: Place) -> None:
        self._decisions.get(_base(place[0]), {}).pop(place, None)
        self.posted.discard(place)
        self.intents.pop(place, None)

    def delete(self, message: str, key: str, rows: Rows) -> None:
        """Forget the decision on one EventId of a message."""
        self._drop((message, key))
        self.outcomes.pop((message, key), None)
        rows["approvals", (message, key)] = None

    def of_message(self, message: str, sequence: int | None) -> dict[str, Decision]:
        """Return the decisions on a message, by the key of the EventId.

        A decision on the message with this number goes before one on a copy of it.
        """
        known = self._decisions.get(_base(message), {})
        found = {key: one for (name, key), (one, _) in known.items() if name == message}
        own = f"{message}#{sequence}"
        return found | {
            key: one for (name, key), (one, _) in known.items() if name == own
        }

    def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes as JSON, newest first."""
        found = reversed(self.outcomes.values())
        return [data for data in found if json_of(data) is not None][:limit]

    # -- values of sinks -----------------------------------------------------

    def remember(self, place: Place, value: bytes, now: float, rows: Rows) -> None:
        """Save a value of a sink; ``place`` is the sink and the key."""
        self._memory[place] = value
        rows["sink_memory", place] = (value, now)

    async def remembered(self, sink: str) -> dict[str, bytes]:
        """Return all values of a sink, by their keys.

        Raises:
            OutboxError: the state file cannot be read.
        """
        if "sink_memory" not in self._whole:
            found = await self.database.read(lambda db: reads.memory(db, sink))
            self._memory = {(s, k): v for s, k, v in found} | self._memory
        return {key: v for (name, key), v in self._memory.items() if name == sink}

    async def recalled(self, sink: str, key: str) -> bytes | None:
        """Return a value of a sink; None = there is none."""
        if (sink, key) not in self._memory:
            await self.remembered(sink)
        return self._memory.get((sink, key))


def _is_of_other(earlier: Decision, decision: Decision) -> bool:
    """Whether an outcome is of another message with the same content."""
    numbers = (earlier.sequence, decision.sequence)
    return not earlier.is_intent and None not in numbers and numbers[0] != numbers[1]


def _base(message: str) -> str:
    return message.split("#", 1)[0]
