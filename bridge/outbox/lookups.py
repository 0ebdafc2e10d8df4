"""What is known of approvals and commands, for other packages.

Each has its rows in ``bridge.outbox.facts``: what memory does not have is asked of the
file.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, starmap
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.reads import RECENT, Key, Row
from bridge.outbox.records import (
    CommandStanding,
    Decision,
    Success,
    json_of,
    value_of,
)
from bridge.outbox.state import State
from bridge.outbox.storage.journal import Rows

_MOST_STEPS = 1000  # EventIds whose steps memory keeps

# -- Reads and saves the decisions on approvals ----------------------------------------


class Approvals(Struct):
    """The intents and outcomes of approval messages and of rules.

    A message is identified by a hash of its content and by its sequence number; a copy
    of the message has the same hash. The newest decision is stored under the hash.
    Decisions on other messages with the same hash are under ``hash#number``.
    """

    state: State

    def decide(self, decision: Decision, now: float, rows: Rows) -> None:
        """Save the decision on one EventId of an approval.

        ``posted`` stays set: an intent is saved with it. A decision on another message
        with the same hash is moved to ``hash#number``, because that message may be
        delivered again.
        """
        place = (decision.message, decision.key)
        row = self.state.facts.rows("approvals", decision.message).get(place)
        earlier = None if row is None else _decision(place, row)
        if row is not None and earlier is not None and _is_of_other(earlier, decision):
            moved = f"{decision.message}#{earlier.sequence}"
            self._put(replace(earlier, message=moved), row[-1], rows)
            earlier = None
        if earlier is not None:
            decision = replace(
                decision,
                posted=decision.posted or earlier.posted,
                data=earlier.data if decision.data is None else decision.data,
            )
        self._put(decision, now, rows)
        last = self.state.facts.decided
        last[place] = last.pop(place, None)
        if len(last) > RECENT:
            del last[next(iter(last))]

    def _put(self, one: Decision, at: float, rows: Rows) -> None:
        message, key, event_id, sequence, state, posted, data, rule = astuple(one)
        row = (event_id, sequence, state, int(posted), data, rule, at)
        self.state.facts.put("approvals", (message, key), row, rows)

    async def save(self, decision: Decision, *, now: float) -> None:
        """Save an intent, or record that its POST has begun."""
        asked = {"message": (decision.message,)}
        await self.state.change(partial(self.decide, decision, now), asked)

    async def claim(self, decision: Decision, *, now: float) -> Decision:
        """Save a record unless its message has one; return the one that is there."""
        found = await self.of_message(decision.message)
        if (earlier := found.get(decision.key)) is not None:
            return earlier
        rows: Rows = {}  # no other claim comes in between
        self.decide(decision, now, rows)
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
        facts = self.state.facts
        await facts.demand({"message": (message,)})
        found, own = facts.rows("approvals", message), f"{message}#{sequence}"
        return {
            place[1]: _decision(place, found[place])
            for name in (message, own)
            for place in found
            if place[0] == name
        }

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules that have no outcome yet."""
        return list(starmap(_decision, self.state.facts.intents.items()))

    async def delete(self, message: str, key: str) -> None:
        """Delete an intent for which no POST was sent.

        Otherwise a redelivery of the message would treat the outcome as unknown.
        """
        put = self.state.facts.put
        await self.state.change(partial(put, "approvals", (message, key), None))

    async def posted(self) -> frozenset[str]:
        """Return the keys of the EventIds for which a POST has begun."""
        return frozenset(key for _, key in self.state.facts.posted)

    async def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes as JSON, newest first."""
        facts = self.state.facts
        turns = {place: turn for turn, place in enumerate(facts.decided, 1)}
        rows = [*facts.every("approvals")]
        rows.sort(key=lambda one: (turns.get(one[0], 0), one[1][-1]))
        found = (data for _, (*_, data, _, _) in reversed(rows) if data is not None)
        return list(
            islice((data for data in found if json_of(data) is not None), limit)
        )


def _decision(place: Key, row: Row) -> Decision:
    event_id, sequence, state, posted, data, rule, _ = row
    return Decision(
        message=place[0],
        key=place[1],
        event_id=event_id,
        sequence=sequence,
        state=state,
        posted=bool(posted),
        data=data,
        rule=rule,
    )


def _is_of_other(earlier: Decision, decision: Decision) -> bool:
    """Whether an outcome is of another message with the same content."""
    numbers = (earlier.sequence, decision.sequence)
    return not earlier.is_intent and None not in numbers and numbers[0] != numbers[1]


# -- Reads and saves the successes and results of commands -----------------------------


class Commands(Struct, frozen=True):
    """The successes and results of the commands of all sinks."""

    state: State

    def appearance(self, key: str) -> int:
        """Return how often an EventId has gone, from 0."""
        row = self.state.facts.rows("appearances", key).get((key,))
        return 0 if row is None else int(row[0])

    def known_successes(self, key: str) -> dict[str, Success]:
        """Return the successes that still count and that memory has, by their sinks."""
        now, found = self.appearance(key), dict[str, Success]()
        rows = self.state.facts.rows("command_successes", key)
        for sink, _ in sorted(rows):
            appearance, content, _, at = rows[sink, key]
            if appearance == now:
                found[sink] = Success(
                    sink=sink, key=key, appearance=now, content=content, at=at
                )
        return found

    def succeed(self, success: Success, rows: Rows) -> None:
        """Save a success, unless the event has gone while the command ran."""
        if self.appearance(success.key) == success.appearance:
            row = (success.appearance, success.content, success.at, success.at)
            place = (success.sink, success.key)
            self.state.facts.put("command_successes", place, row, rows)

    def void(self, sink: str, key: str, rows: Rows) -> None:
        """Forget the success of a command for an EventId."""
        self.state.facts.put("command_successes", (sink, key), None, rows)

    async def successes(self, key: str) -> list[Success]:
        """Return the successes for an EventId that still count, in order of sinks."""
        await self.state.facts.learn({"key": (key,)})
        return list(self.known_successes(key).values())

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
        found = map(value_of, reversed(self.state.facts.results))
        return [event for event in found if event is not None][:limit]
