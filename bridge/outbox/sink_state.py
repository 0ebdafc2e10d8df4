"""What one sink has in the state file: the values that it saves, and its runs.

The deliveries of a sink that acts, such as ``command``, differ from those of other
sinks: a later step may replace an earlier one, and the commit that settles a delivery
also publishes the command's result. A discarded delivery is no step.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.outbox import reads
from bridge.outbox.reads import Step
from bridge.outbox.records import Delivery, DeliveryState, Item, Success
from bridge.outbox.storage.journal import Rows
from bridge.outbox.store import Outbox, Settlement


class SinkMemory(Struct, frozen=True):
    """The values of one sink; see ``bridge.sinks.base.Memory``.

    Attributes:
        outbox: keeps the values.
        sink: the sink's name.
        clock: gives the time of saving, by which a value is pruned later.
    """

    outbox: Outbox
    sink: str
    clock: Clock

    async def all(self) -> Mapping[str, bytes]:
        """Return all values by their keys.

        Raises:
            OutboxError: the state file cannot be read.
        """
        facts, sink, found = self.outbox.facts, self.sink, dict[str, bytes]()
        if not facts.has_all("sink_memory"):
            found = await self.outbox.database.read(lambda db: reads.memory(db, sink))
        known = facts.every("sink_memory")  # newer, if it is not on the disk yet
        return found | {key: row[0] for (name, key), row in known if name == sink}

    async def recall(self, key: str) -> bytes | None:
        """Return the value of ``key``; None = there is none.

        Raises:
            OutboxError: the state file cannot be read.
        """
        facts, place = self.outbox.facts, (self.sink, key)
        if place not in facts.rows("sink_memory", key):
            await facts.demand({"key": (key,)})
        row = facts.rows("sink_memory", key).get(place)
        return None if row is None else row[0]

    async def keep(self, key: str, value: bytes) -> None:
        """Save ``value`` under ``key``, in place of an earlier one."""
        place, row = (self.sink, key), (value, self.clock.now().timestamp())
        save = partial(self.outbox.facts.put, "sink_memory", place, row)
        await self.outbox.state.change(save, {"key": (key,)})


# -- the runs of a sink that acts ------------------------------------------------------

_MOST = 1000


class Standing(Struct, frozen=True, kw_only=True):
    """What is known about the EventId of a step, for one sink.

    Attributes:
        newer: the event of the newest later step; None = there is no later step.
        older: the event of the step before this one; None = it is not stored.
        appearance: how often the EventId has gone.
        success: the last success of this sink that still counts.
    """

    newer: bytes | None
    older: bytes | None
    appearance: int
    success: Success | None


class Runs(Struct, frozen=True):
    """The deliveries of one sink that acts."""

    outbox: Outbox
    sink: str

    async def pending(self, now: float) -> list[Delivery]:
        """Return the pending deliveries, oldest first; dead-letter damaged ones."""
        return await self.outbox.deliveries.pending(self.sink, now=now, limit=_MOST)

    async def standings(self, deliveries: Sequence[Delivery]) -> dict[int, Standing]:
        """Return the standing of each delivery's EventId, by the delivery's id."""
        keys = {delivery.key for delivery in deliveries if delivery.key is not None}
        steps = await self.outbox.commands.steps(self.sink, keys)
        await self.outbox.facts.learn({"key": keys})
        return {d.id: self._standing(d, steps.get(d.key or "", {})) for d in deliveries}

    def _standing(self, delivery: Delivery, steps: dict[int, Step]) -> Standing:
        key, number, known = delivery.key or "", delivery.id, self.outbox.commands
        there = {n: body for n, (state, body) in steps.items() if state != "discarded"}
        later = max(there, default=number)
        earlier = max((n for n in there if n < number), default=None)
        return Standing(
            newer=there[later] if later > number else None,
            older=None if earlier is None else there[earlier],
            appearance=known.appearance(key),
            success=known.known_successes(key).get(self.sink),
        )

    async def add(self, event: CloudEvent, *, now: float) -> None:
        """Add a delivery of an event without EventId, for this sink only."""
        item = Item(0, "event", None, None, event.id, event.type, event.to_json(), now)
        rows, state = Rows(), self.outbox.state
        added = state.add(item, (self.sink,), rows)
        await asyncio.shield(state.write(rows, [added]))

    async def void(self, key: str) -> None:
        """Delete the success for an EventId: the command now undoes or repeats it."""
        await self.outbox.state.change(
            partial(self.outbox.commands.void, self.sink, key)
        )

    async def settle(  # noqa: PLR0913 - what one commit holds
        self,
        delivery: Delivery,
        state: DeliveryState,
        results: Sequence[OutgoingEvent],
        *,
        now: float,
        error: tuple[str, str] | None = None,
        success: Success | None = None,
    ) -> None:
        """Settle a delivery and publish its result in one commit.

        Args:
            delivery: what is settled.
            state: ``delivered``, ``dead`` or ``skipped``.
            results: the events that are published.
            now: seconds since the epoch.
            error: why it failed, in words and as a label.
            success: the success to save, which approvals may require.
        """
        end = Settlement(delivery, state, error, success)
        await self.outbox.commit(results, now=now, settle=end)
        self.outbox.wakeups.rules()
