"""Messages with a value that is nested very deep: each is settled, and so is the next.

An error while one message is handled would end the listener, with all that it handles.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.approvals.listener import Listener
from tests.approvals.approval_world import PlayedQueue, World, message, world_of
from tests.support.builders import EVENT_ID, imds_event
from tests.support.nested import HERE, holding, lists, objects

DEPTHS = (90, 500, 970, 985, 995, 1010, 1019, 5000, 60_000)  # JSON of at most 64 KiB


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        yield found


def cloud_event(**data: object) -> dict[str, object]:
    requests = [{"EventId": EVENT_ID}]
    return {
        "specversion": "1.0",
        "type": "sebridge.startrequest.v1",
        "data": {"StartRequests": requests, **data},
    }


async def settled(world: World, *bodies: bytes) -> list[tuple[str, str, str]]:
    """Return how a listener settled these messages, in order of their numbers."""
    world.imds.shows(imds_event())
    queue, stop = PlayedQueue(), asyncio.Event()
    for number, body in enumerate(bodies):
        given = message(body=body, sequence=number, message_id=f"m{number}")
        queue.waiting.put_nowait(given)
    running = asyncio.create_task(Listener(queue, world.context).run(stop))
    async with asyncio.timeout(60):
        while len(queue.settled) < len(bodies) and not running.done():
            await asyncio.sleep(0)
    stop.set()
    await running
    return sorted(queue.settled, key=lambda one: int(one[1].removeprefix("lock-")))


@pytest.mark.parametrize(
    "body",
    [
        cloud_event() | {"unknown": HERE},
        cloud_event(unknown=HERE),
        cloud_event(approvedEvent=imds_event() | {"Unknown": HERE}),
        {"StartRequests": [{"EventId": EVENT_ID, "unknown": HERE}], "unknown": HERE},
    ],
    ids=["of the event", "of data", "of approvedEvent", "of the IMDS body"],
)
async def test_unknown_member_makes_no_difference_or_the_message_invalid(
    world: World, body: object
) -> None:
    bodies = [holding(body, nest(n)) for n in DEPTHS for nest in (lists, objects)]

    found = await settled(world, *[one for one in bodies if len(one) < 2**16])

    for verdict, _, reason in found:
        assert (verdict, reason) in {
            ("complete", ""),
            ("dead-letter", "InvalidMessage"),
        }
    assert found[0][0] == "complete"


@pytest.mark.parametrize(
    "name", ["EventId", "EventType", "Resources", "DurationInSeconds"]
)
async def test_member_of_the_approved_event_makes_it_another_or_none(
    world: World, name: str
) -> None:
    seen = imds_event() | {name: HERE}
    nested = [lists(depth) for depth in DEPTHS]
    bodies = [holding(cloud_event(approvedEvent=seen), one) for one in nested]

    found = await settled(world, *bodies, holding(cloud_event(), ""))

    for verdict, _, reason in found[:-1]:
        assert verdict == "complete" or reason in {"Denied", "InvalidMessage"}
    assert found[-1][0] == "complete"


@pytest.mark.parametrize("name", ["approvedBy", "reason", "expiresAt", "approvedEvent"])
async def test_member_of_the_approval_is_no_text(world: World, name: str) -> None:
    bodies = [holding(cloud_event(**{name: HERE}), lists(depth)) for depth in DEPTHS]

    found = await settled(world, *bodies, holding(cloud_event(), ""))

    for verdict, _, reason in found[:-1]:
        assert verdict == "complete" or reason == "InvalidMessage"
    assert found[-1][0] == "complete"
