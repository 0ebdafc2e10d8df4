"""The bridge dies while an approval is on its way, and comes back to another world.

Each place to die, times what has become of the event meanwhile: a first listener is
killed there, and a second one on the same state file gets the message again.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bridge.approvals.listener import Listener
from bridge.approvals.received import ReceivedMessage
from tests.builders import EVENT_ID, imds_event, started
from tests.workers.approval_world import PlayedQueue, World, message, world_of

APPROVAL = message(EVENT_ID, reply_to="replies", lock_token="first")
THERE, STARTED, GONE = (imds_event(),), (started(),), ()


@dataclass(slots=True)
class Hanging:
    """A POST, or a settlement, in the middle of which the bridge dies."""

    reached: asyncio.Event

    async def start(self, event_id: str, *, incarnation: int | None) -> int:
        self.reached.set()
        await asyncio.Event().wait()
        return 200


@dataclass(slots=True)
class HangingQueue(PlayedQueue):
    """A queue that never answers a settlement."""

    reached: asyncio.Event | None = None

    async def complete(self, message: ReceivedMessage) -> None:
        if self.reached is not None:
            self.reached.set()
        await asyncio.Event().wait()


async def die(world: World, place: str) -> None:
    """Run a listener until it is where it is to die, and kill it there."""
    reached = asyncio.Event()
    desk, queue = world.desk, PlayedQueue()
    if place == "intent":
        world.imds.on_look = reached.set
        desk = replace(desk, starter=Hanging(asyncio.Event()))
    elif place == "post":
        desk = replace(desk, starter=Hanging(reached))
    else:
        queue = HangingQueue(reached=reached)
    queue.waiting.put_nowait(APPROVAL)
    running = asyncio.create_task(Listener(queue, desk).run(asyncio.Event()))
    async with asyncio.timeout(10):
        await reached.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def live_again(world: World) -> PlayedQueue:
    """Run a listener that gets the message once more, until it is settled."""
    stop, queue = asyncio.Event(), PlayedQueue()
    queue.waiting.put_nowait(replace(APPROVAL, lock_token="second", delivery_count=1))
    running = asyncio.create_task(Listener(queue, world.desk).run(stop))
    async with asyncio.timeout(10):
        while not queue.settled:
            await asyncio.sleep(0)
    stop.set()
    await running
    return queue


@pytest.mark.parametrize("place", ["intent", "post", "settlement"])
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
        was_told = place == "settlement"  # by the first life, which IMDS had answered
        assert event.data["confirmed"] is (confirmed or was_told)
        assert len(world.imds.posts) == (after == THERE and not was_told)
        assert len(await world.replies()) == 1


@pytest.mark.parametrize("after", [THERE, STARTED, GONE])
async def test_other_vm_that_takes_over_finds_out_for_itself(
    tmp_path: Path, after: tuple[object, ...]
) -> None:
    """Its state file knows of no intent: it says what it sees."""
    async with world_of(tmp_path / "first.db") as world:
        world.imds.shows(*THERE)
        await die(world, "post")

    async with world_of(tmp_path / "second.db") as world:
        world.imds.shows(*THERE)
        await world.imds.look()
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
