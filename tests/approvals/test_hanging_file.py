"""A disk that hangs, below a state file with more decisions than memory has."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.rules import Rule
from bridge.foundation.values import Duration
from bridge.servicebus.decode import COMPLETE
from tests.approvals.approval_world import World, message, with_many_decisions, world_of
from tests.support.builders import EVENT_ID, imds_event
from tests.support.outbox_door import Door


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[tuple[World, Door]]:
    async with (
        world_of(tmp_path / "other.db") as world,
        with_many_decisions(tmp_path / "state.db") as door,
    ):
        world.context = replace(world.context, outbox=door.outbox)
        world.imds.shows(imds_event())
        await world.looks()
        door.disk.freeze("SELECT")
        yield world, door


async def test_approval_is_relayed(hanging: tuple[World, Door]) -> None:
    """Whether the event was approved before is not known then."""
    world, _ = hanging

    assert await world.handle(message(EVENT_ID)) == COMPLETE

    assert world.imds.posts == [EVENT_ID]


async def test_rule_waits(hanging: tuple[World, Door]) -> None:
    world, door = hanging
    world.with_terms(rules=(Rule(action="auto-approve", delay=Duration(0)),))
    rules = AutoApprover(world.context)
    async with asyncio.TaskGroup() as flows:
        rules.turn(flows)
    assert not world.imds.posts

    door.disk.thaw()
    await door.healed()
    await world.looks()
    async with asyncio.TaskGroup() as flows:
        rules.turn(flows)

    assert world.imds.posts == [EVENT_ID]
