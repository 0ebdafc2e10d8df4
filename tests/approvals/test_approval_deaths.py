"""The bridge is killed while it handles an approval, and the event then changes.

All places of the death are combined with all changes of the event: a first listener is
killed, and a second listener on the same state file gets the message again.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.approvals.listener import Listener
from bridge.servicebus.decode import ReceivedMessage, Settlement
from tests.approvals.approval_world import (
    PlayedQueue,
    World,
    message,
    world_of,
)
from tests.support.builders import EVENT_ID, imds_event, started

APPROVAL = message(EVENT_ID, reply_to="replies", lock_token="first")
THERE, STARTED, GONE = (imds_event(),), (started(),), ()


@dataclass(slots=True)
class HangingQueue(PlayedQueue):
    """A queue that never answers a settlement."""

    reached: asyncio.Event | None = None

    async def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        if self.reached is not None:
            self.reached.set()
        await asyncio.Event().wait()


async def die(world: World, place: str, approval: ReceivedMessage = APPROVAL) -> None:
    """Run a listener until it reaches the place of its death, and kill it."""
    reached = asyncio.Event()
    queue = PlayedQueue()
    if place == "look":
        await world.looks()
        world.imds.gate = asyncio.Event()  # which is never set
    elif place == "post":
        world.imds.hanging = reached
    else:
        queue = HangingQueue(reached=reached)
    queue.waiting.put_nowait(approval)
    running = asyncio.create_task(Listener(queue, world.context).run(asyncio.Event()))
    async with asyncio.timeout(60):
        while place == "look" and world.poller.reads < 2:
            await asyncio.sleep(0)
        if place != "look":
            await reached.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def live_again(world: World, approval: ReceivedMessage = APPROVAL) -> PlayedQueue:
    """Run a listener that gets the message again, until the message is settled."""
    stop, queue = asyncio.Event(), PlayedQueue()
    queue.waiting.put_nowait(replace(approval, lock_token="second", delivery_count=1))
    running = asyncio.create_task(Listener(queue, world.context).run(stop))
    async with asyncio.timeout(60):
        while not queue.settled:
            await asyncio.sleep(0)
    stop.set()
    await running
    return queue


@pytest.mark.parametrize("place", ["post", "settlement"])
@pytest.mark.parametrize(
    ("after", "confirmed"), [(THERE, True), (STARTED, False), (GONE, False)]
)
async def test_approval_survives_the_bridge(
    tmp_path: Path, place: str, after: tuple[object, ...], *, confirmed: bool
) -> None:
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*THERE)
        await die(world, place)

    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*after)
        queue = await live_again(world)

        assert queue.settled == [("complete", "second", "")]
        (event,) = await world.outcomes()
        assert event.data["outcome"] == "relayed"
        was_published = (
            place == "settlement"
        )  # by the first run, to which IMDS had answered
        assert event.data["confirmed"] is (confirmed or was_published)
        assert len(world.imds.posts) == (after == THERE and not was_published)
        assert len(await world.replies()) == 1


@pytest.mark.parametrize(
    ("after", "outcome", "settled"),
    [
        (THERE, "relayed", ("complete", "second", "")),
        (STARTED, "already-started", ("complete", "second", "")),
        (GONE, "event-ended", ("complete", "second", "")),
    ],
)
async def test_approval_without_a_post_is_decided_as_a_first_delivery(
    tmp_path: Path,
    after: tuple[object, ...],
    outcome: str,
    settled: tuple[str, str, str],
) -> None:
    """No POST was begun, so this bridge has not changed the event."""
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*THERE)
        await die(world, "look")
        assert not world.imds.posts

    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*after)
        queue = await live_again(world)

        assert queue.settled == [settled]
        (event,) = await world.outcomes()
        assert event.data["outcome"] == outcome
        assert event.data["confirmed"] is (True if after == THERE else None)
        assert len(world.imds.posts) == (after == THERE)


@pytest.mark.parametrize("after", [STARTED, GONE])
@pytest.mark.parametrize(
    ("terms", "properties", "reason"),
    [
        ({"allow_event_types": ("Reboot",)}, {}, None),
        ({}, {"expiresAt": "2020-01-01T00:00:00Z"}, "Expired"),
    ],
)
async def test_forbidden_approval_is_never_relayed_after_a_restart(
    tmp_path: Path,
    after: tuple[object, ...],
    terms: dict[str, object],
    properties: dict[str, str],
    reason: str | None,
) -> None:
    """The type is not allowed, or the request expired years ago."""
    approval = replace(APPROVAL, application_properties=properties)
    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(**terms)
        world.imds.shows(*THERE)
        await die(world, "look", approval)

    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(**terms)
        world.imds.shows(*after)
        queue = await live_again(world, approval)

        kind = "already-started" if after == STARTED else "event-ended"
        assert await world.kinds() == ["expired" if reason else kind]
        assert [found for _, _, found in queue.settled] == [reason or ""]
        assert not world.imds.posts


async def test_refused_post_of_a_message_is_no_post_of_its_repetition(
    tmp_path: Path,
) -> None:
    """IMDS had refused the first message; for the second, no POST was begun."""
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*THERE)
        world.imds.answers.extend([400] * 3)
        await world.handle(APPROVAL)
        assert await world.kinds() == ["rejected"]
        later = world.clock.now() + timedelta(seconds=1)
        again = replace(APPROVAL, sequence_number=8, enqueued_at=later)
        await die(world, "look", again)

    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*STARTED)
        await live_again(world, again)

        assert await world.kinds() == ["rejected", "already-started"]


@pytest.mark.parametrize("after", [THERE, STARTED, GONE])
async def test_another_vm_decides_by_the_document(
    tmp_path: Path, after: tuple[object, ...]
) -> None:
    """Its state file has no intent, so it decides only by the document."""
    async with world_of(tmp_path / "first.db") as world:
        world.imds.shows(*THERE)
        await die(world, "post")

    async with world_of(tmp_path / "second.db") as world:
        world.imds.shows(*THERE)
        await world.looks()
        world.imds.shows(*after)
        queue = await live_again(world)

        expected = [
            (THERE, "relayed"),
            (STARTED, "already-started"),
            (GONE, "event-ended"),
        ]
        assert queue.settled == [("complete", "second", "")]
        kinds = [kind for events, kind in expected if events == after]
        assert await world.kinds() == kinds
