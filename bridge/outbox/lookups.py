"""Decisions, successes of commands, running times and named values, for other packages.

What memory does not have is asked of the file.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.reads import Asked
from bridge.outbox.records import (
    AGAIN,
    CommandStanding,
    Decision,
    Success,
    value_of,
)
from bridge.outbox.state import State
from bridge.outbox.storage.journal import Rows

_MOST_STEPS = 1000  # EventIds whose steps memory keeps

# -- Reads and saves the decisions on approvals ----------------------------------------


class Approvals(Struct):
    """The intents and outcomes of approval messages and of rules."""

    state: State

    async def save(self, decision: Decision, *, now: float) -> None:
        """Save an intent, or record that its POST has begun."""
        asked = Asked(messages=(decision.message,))
        save = partial(self.state.facts.decide, decision, now)
        await self.state.change(save, asked)

    async def claim(self, decision: Decision, *, now: float) -> Decision:
        """Save a record unless its message has one; return the one that is there."""
        found = await self.of_message(decision.message)
        if (earlier := found.get(decision.key)) is not None:
            return earlier
        rows: Rows = {}  # no other claim comes in between
        self.state.facts.decide(decision, now, rows)
        await asyncio.shield(self.state.write(rows))
        return decision

    async def of_message(
        self, message: str, sequence: int | None = None
    ) -> dict[str, Decision]:
        """Return the decisions on a message, by the key of the EventId.

        Args:
            message: the hash of its content.
            sequence: its sequence number. A decision on the message with this number
                takes precedence over a decision on a copy of the message.

        Raises:
            OutboxError: the state file cannot be read.
        """
        await self.state.ready()
        facts = self.state.facts
        await facts.demand(Asked(messages=(message,)))
        return facts.of_message(message, sequence)

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules that have no outcome yet."""
        await self.state.ready()
        return list(self.state.facts.intents.values())

    async def delete(self, message: str, key: str) -> None:
        """Delete an intent for which no POST was sent.

        Otherwise a redelivery of the message would treat the outcome as unknown.
        """
        await self.state.change(partial(self.state.facts.delete, message, key))

    async def posted(self) -> frozenset[str]:
        """Return the keys of the EventIds for which a POST has begun."""
        await self.state.ready()
        return frozenset(key for _, key in self.state.facts.posted)

    async def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes as JSON, newest first."""
        await self.state.ready()
        return self.state.facts.recent_outcomes(limit)


# -- Reads the successes and results of commands ---------------------------------------


class Commands(Struct, frozen=True):
    """The successes and results of the commands of all sinks."""

    state: State

    async def successes(self, key: str) -> list[Success]:
        """Return the successes for an EventId that still count."""
        await self.state.ready()
        await self.state.facts.learn(Asked(keys=(key,)))
        return self.state.facts.successes(key)

    async def standings(
        self, key: str, sinks: Sequence[str]
    ) -> dict[str, CommandStanding]:
        """Return how far the command of each sink has come for an EventId.

        A success that is not on the disk yet is pending: after a kill nothing would
        show that the command has run, so no rule may approve the event yet.
        """
        found = {success.sink: success for success in await self.successes(key)}
        steps = {sink: await self.steps(sink, (key,)) for sink in sinks}
        is_unwritten = self.state.database.journal.has
        standings = dict[str, CommandStanding]()
        for sink in sinks:
            is_unsaved = is_unwritten(("command_successes", (sink, key)))
            ended = [
                number
                for number, (state, _) in steps[sink][key].items()
                if state != "pending"
            ]
            lines = self.state.image.sinks.get(sink)
            is_waiting = lines is not None and any(lines.of(key))
            standings[sink] = CommandStanding(
                success=None if is_unsaved else found.get(sink),
                is_pending=is_unsaved or is_waiting,
                last=steps[sink][key][max(ended)][0] if ended else None,  # type: ignore[arg-type]  # a state
            )
        return standings

    async def steps(
        self, sink: str, keys: Iterable[str]
    ) -> dict[str, dict[int, reads.Step]]:
        """Return the steps of EventIds for a sink that acts; memory keeps them."""
        known, wanted = self.state.image.steps, set(keys)
        found = {key: known[sink, key] for key in wanted if (sink, key) in known}
        missing = sorted(wanted - found.keys())
        if not missing:
            return found
        try:
            read = await self.state.database.read(
                lambda db: reads.steps(db, sink, missing),
                then=partial(self._learned, sink),
            )
        except OutboxUnavailableError:  # what memory has is all that is known
            read = self._with_unwritten(sink, {key: {} for key in missing})
        return found | read

    def _learned(
        self, sink: str, found: dict[str, dict[int, reads.Step]]
    ) -> dict[str, dict[int, reads.Step]]:
        """Keep the steps of EventIds that were read."""
        known = self.state.image.steps
        for key, steps in self._with_unwritten(sink, found).items():
            while len(known) >= _MOST_STEPS:
                del known[next(iter(known))]
            known[sink, key] = steps
        return found

    def _with_unwritten(
        self, sink: str, found: dict[str, dict[int, reads.Step]]
    ) -> dict[str, dict[int, reads.Step]]:
        """Add the steps that are not on the disk yet."""
        bodies, steps = dict[Any, Any](), list[tuple[str, Any, Any, Any]]()
        for (table, place), row in self.state.database.journal.unwritten().items():
            if row is not None and table == "items":
                bodies[place[0]] = row[5]
            elif row is not None and table == "deliveries" and row[1] == sink:
                steps.append((str(row[2]), place[0], row[3], row[0]))
        for key, number, state, item in steps:
            if key in found:
                before = found[key].get(number, (None, None))[1]
                found[key][number] = (state, bodies.get(item, before))
        return found

    async def recent_results(self, limit: int) -> list[dict[str, object]]:
        """Return the last events about commands, newest first."""
        await self.state.ready()
        found = map(value_of, reversed(self.state.facts.results))
        return [event for event in found if event is not None][:limit]


# -- Reads and saves the running times of the sinks ------------------------------------


class Ages(Struct, frozen=True):
    """The running times in seconds; ``bridge.outbox.state`` explains them."""

    state: State

    @property
    def clocks(self) -> dict[str, Callable[[], float]]:
        """By the sink's name, a function that returns its running time now."""
        return self.state.clocks

    async def load(self, sink: str) -> float:
        """Return the saved running time of a sink."""
        await self.state.ready()
        return self.state.saved_running(sink)

    async def save(self, sink: str, seconds: float) -> None:
        """Save the running time of a sink; nobody waits for it."""
        rows: Rows = {}
        self.state.save_running(sink, seconds, rows)
        self.state.database.put(rows)


# -- Reads and saves what was observed and published, and named values -----------------


class Observations(Struct):
    """What the bridge needs to know about its earlier runs.

    Attributes:
        again: keys of the EventIds whose events must be published again from the
            document, because one of these events was damaged before its delivery.
    """

    state: State
    again: frozenset[str] = frozenset()

    async def load(self, name: str) -> bytes | None:
        """Return the value saved as ``name``; None = not found, b"" = damaged."""
        await self.state.ready()
        return self.state.facts.value(name)

    async def save(self, named: Mapping[str, bytes]) -> None:
        """Save values under their names; nobody waits for the disk."""
        await self.state.ready()
        rows: Rows = {}
        self.state.facts.name(named, rows)
        self.state.database.put(rows)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId was in a document within the retention.

        Raises:
            OutboxError: the state file does not answer.
        """
        await self.state.ready()
        facts = self.state.facts
        if not facts.was_seen(key):
            await facts.demand(Asked(keys=(key,)))
        return facts.was_seen(key)

    async def load_again(self) -> None:
        """Add to ``again`` the keys that earlier runs have saved."""
        await self.state.ready()
        names = self.state.facts.meta
        found = (name for name in names if name.startswith(AGAIN))
        self.again |= {name.removeprefix(AGAIN) for name in found}

    def publish_again(self, key: str, rows: Rows) -> None:
        """Have the events of an EventId published again from the document."""
        self.again |= {key}
        self.state.facts.name({f"{AGAIN}{key}": b""}, rows)
