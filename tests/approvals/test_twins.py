"""Equal messages ("twins"): they share one decision.

Twins have the same MessageId and the same content, but different sequence numbers. The
first twin is decided. For each of the others, the same outcome is published once, in
whatever order and however often they are delivered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from bridge.events.cloudevent import hash32
from bridge.servicebus.decode import ReceivedMessage
from tests.approvals.approval_world import ENTITY, World, message, world_of
from tests.approvals.test_approval_deaths import die, live_again
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START, settled

OTHER_ID = "4CAEA225-A741-474D-A72E-428C86FCD853"
FIRST = message(EVENT_ID, sequence=7, reply_to="replies")
SECOND = structs.replace(FIRST, sequence_number=8, lock_token="lock-8")
AGAIN = structs.replace(FIRST, delivery_count=1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        yield found


async def answers(world: World) -> list[object]:
    """Return the replies, oldest first."""
    return [json.loads(str(reply["body"])) for reply in await world.replies()]


def resent(twin: ReceivedMessage, world: World) -> ReceivedMessage:
    """Return a message as if it were sent again now."""
    return structs.replace(twin, enqueued_at=world.clock.now() + timedelta(seconds=1))


async def die_with_a_rest(world: World, approval: ReceivedMessage) -> None:
    """Kill the handling after the first outcome, while the other EventId is unknown."""
    go_on = world.hangs_after_a_look()
    handling = asyncio.create_task(world.handle(approval))
    async with asyncio.timeout(30):
        while not world.counts:
            await settled(world.outbox)  # a loop that never waits starves its thread
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    go_on()


@pytest.mark.parametrize("before", [(imds_event(),), (started(),), ()])
@pytest.mark.parametrize("after", [(imds_event(),), (started(),), ()])
async def test_twins_get_the_same_outcome_and_the_same_reply(
    world: World, before: tuple[object, ...], after: tuple[object, ...]
) -> None:
    """The event may have changed in between: both still get the same outcome."""
    world.imds.shows(*before)
    settled = await world.handle(FIRST)
    posts = len(world.imds.posts)
    world.clock.pass_by(5)
    world.imds.shows(*after)

    assert await world.handle(SECOND) == settled
    first, second = await world.outcomes()
    assert second.data == first.data
    assert second.time == first.time
    assert {first.id, second.id} == {
        hash32([ENTITY, "m1", number, EVENT_ID, first.data["outcome"]])
        for number in (7, 8)
    }
    answer, same = await answers(world)
    assert answer == same
    assert len(world.imds.posts) == posts


@pytest.mark.parametrize("before", [(imds_event(),), (started(),), ()])
@pytest.mark.parametrize("after", [(imds_event(),), (started(),), ()])
async def test_redelivery_after_its_twin_was_decided_is_only_settled(
    world: World, before: tuple[object, ...], after: tuple[object, ...]
) -> None:
    """Its outcome and reply exist, also if it was refused and its twin was not."""
    world.imds.shows(*before)
    settled = await world.handle(FIRST)
    world.imds.shows(*after)
    await world.handle(resent(SECOND, world))
    published, replied = await world.outcomes(), await world.replies()
    posts = len(world.imds.posts)

    assert await world.handle(AGAIN) == settled
    assert await world.outcomes() == published
    assert await world.replies() == replied
    assert len(published) == len(replied) == 2
    assert len(world.imds.posts) == posts


async def test_refused_message_that_is_sent_again_is_decided_again(
    world: World,
) -> None:
    """The sender of a resubmitted dead letter has corrected the cause."""
    world.imds.shows()
    await world.handle(FIRST)
    world.imds.shows(imds_event())

    await world.handle(resent(SECOND, world))

    assert await world.kinds() == ["unknown-event", "relayed"]


async def test_refused_twin_with_other_claims_is_another_message(world: World) -> None:
    """The claims are properties beside the body: one had expired, the other has not."""
    world.imds.shows(imds_event())
    late = START - timedelta(hours=1)
    properties = {"expiresAt": late.isoformat()}
    await world.handle(structs.replace(FIRST, application_properties=properties))

    await world.handle(SECOND)

    assert await world.kinds() == ["expired", "relayed"]


async def test_same_message_id_with_another_body_is_another_message(
    world: World,
) -> None:
    world.imds.shows(imds_event(OTHER_ID))
    await world.handle(FIRST)

    await world.handle(message(OTHER_ID, sequence=8))

    assert await world.kinds() == ["unknown-event", "relayed"]


async def test_each_invalid_twin_gets_one_outcome(world: World) -> None:
    for number in (7, 8, 7, 8):
        world.clock.pass_by(5)
        await world.handle(message(body=b"x", sequence=number, reply_to="replies"))

    first, second = await world.outcomes()
    assert first.data == second.data
    assert first.id != second.id
    assert len(await world.replies()) == 2


async def test_open_event_ids_get_the_outcome_of_the_twin(tmp_path: Path) -> None:
    """One outcome was published for the first twin, all for the second twin."""
    both = message(EVENT_ID, OTHER_ID, sequence=7, reply_to="replies")
    twin = structs.replace(both, sequence_number=8)
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event())
        await die_with_a_rest(world, both)
        assert await world.kinds() == ["relayed"]

    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event(), imds_event(OTHER_ID))
        await world.handle(twin)
        assert world.counts == ["relayed", "relayed"]
        world.imds.shows()
        await live_again(world, both)

        assert await world.kinds() == ["relayed"] * 4
        assert len({event.id for event in await world.outcomes()}) == 4
        answer, same = await answers(world)
        assert answer == same
        assert sorted(world.imds.posts) == [OTHER_ID]


@pytest.mark.parametrize("after", [(imds_event(),), (started(),), ()])
@pytest.mark.parametrize("place", ["look", "post", "settlement"])
async def test_twins_have_one_decision_over_deaths(
    tmp_path: Path, place: str, after: tuple[object, ...]
) -> None:
    """The bridge is killed on the first; the second is decided before the first."""
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event())
        await die(world, place, FIRST)

    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(*after)
        await live_again(world, SECOND)

    for _ in range(2):
        async with world_of(tmp_path / "state.db") as world:
            world.imds.shows()
            await live_again(world, AGAIN)
            found = await world.outcomes()
            assert len({event.id for event in found}) == len(found) == 2
            assert found[0].data == found[1].data
            assert len(await world.replies()) == 2
            assert not world.imds.posts


async def test_twin_does_not_repeat_a_rejected_post(
    world: World,
) -> None:
    """IMDS refuses: both get that outcome, after three POSTs and not six."""
    world.imds.shows(imds_event())
    world.imds.answers.extend([400] * 3)
    await world.handle(FIRST)
    await world.handle(SECOND)

    assert await world.kinds() == ["rejected", "rejected"]
    assert len(world.imds.posts) == 3
