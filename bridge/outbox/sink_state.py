"""The values that a sink saves in the state file for later runs."""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.outbox.store import Outbox


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
        await self.outbox.state.ready()
        return await self.outbox.facts.remembered(self.sink)

    async def recall(self, key: str) -> bytes | None:
        """Return the value of ``key``; None = there is none.

        Raises:
            OutboxError: the state file cannot be read.
        """
        await self.outbox.state.ready()
        return await self.outbox.facts.recalled(self.sink, key)

    async def keep(self, key: str, value: bytes) -> None:
        """Save ``value`` under ``key``, in place of an earlier one."""
        place, now = (self.sink, key), self.clock.now().timestamp()
        save = partial(self.outbox.facts.remember, place, value, now)
        await self.outbox.state.change(save)
