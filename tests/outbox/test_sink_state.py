"""What a sink keeps in the state file: its own, and as long as the event lives."""

import asyncio
from pathlib import Path

from bridge.outbox.reads import NEWEST
from bridge.outbox.records import Checkpoint
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.store import Outbox
from bridge.sinks.base import Memory
from tests.support.builders import patient_outbox, router
from tests.support.fakes import START, FakeClock

NOW = START.timestamp()
_MEMORY: type[Memory] = SinkMemory


def memory_of(outbox: Outbox, sink: str = "ops") -> SinkMemory:
    return SinkMemory(outbox, sink, FakeClock())


async def test_what_is_kept_is_known_in_the_next_life(state_path: Path) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        memory = memory_of(outbox)
        await memory.keep("E", b"first")
        await memory.keep("E", b"second")
        await memory.keep("F", b"other")

    async with patient_outbox(state_path, router()) as outbox:
        memory = memory_of(outbox)
        assert await memory.recall("E") == b"second"
        assert await memory.recall("G") is None
        assert await memory.all() == {"E": b"second", "F": b"other"}


async def test_sinks_know_nothing_of_each_other(state_path: Path) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        await memory_of(outbox, "ops").keep("E", b"ops")
        await memory_of(outbox, "night").keep("E", b"night")

        assert await memory_of(outbox, "ops").all() == {"E": b"ops"}
        assert await memory_of(outbox, "night").recall("E") == b"night"


async def test_value_among_many_is_found_after_a_look_at_its_event(
    state_path: Path,
) -> None:
    """A look notes that an EventId was seen, and asks the file for nothing."""
    async with patient_outbox(state_path, router()) as outbox:
        memory = memory_of(outbox)
        await asyncio.gather(*(memory.keep(f"K{n}", b"x") for n in range(NEWEST)))

    async with patient_outbox(state_path, router()) as outbox:
        seen = Checkpoint(body=b"{}", sightings=frozenset({"K7"}), again=frozenset())
        await outbox.commit([], now=NOW, checkpoint=seen)

        assert await memory_of(outbox).recall("K7") == b"x"


async def test_it_goes_with_retention_but_not_while_the_event_lives(
    state_path: Path,
) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        memory = memory_of(outbox)
        for key in ("ALIVE", "GONE"):
            await memory.keep(key, b"x")

        later = NOW + 1000
        await outbox.pruning.prune(
            before=NOW + 1, now=later, alive=frozenset({"ALIVE"})
        )

        assert await memory.all() == {"ALIVE": b"x"}
