"""One message over several deliveries: which outcomes are published once or again."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from bridge.approvals.listener import Listener
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import ApprovalQueueError, MetadataUnavailableError
from bridge.servicebus.decode import ReceivedMessage, Settlement
from tests.approvals.approval_world import PlayedQueue, World, message, world_of
from tests.support.builders import EVENT_ID, imds_event
from tests.support.fakes import START, settled
from tests.support.schemas import validator

OTHER_ID = "4CAEA225-A741-474D-A72E-428C86FCD853"
NO_ANSWER = MetadataUnavailableError("no answer", outcome="timeout")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        yield found


@dataclass(slots=True)
class RedeliveringQueue(PlayedQueue):
    """The lock ends while the message is settled, so the message is delivered again."""

    again: ReceivedMessage | None = None

    async def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        again, self.again = self.again, None
        if again is None:
            await PlayedQueue.settle(self, message, settlement)
            return
        self.waiting.put_nowait(again)
        while self.waiting.qsize():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise ApprovalQueueError("the lock of a message is lost")


async def test_delivery_that_comes_while_settling_is_settled_too(world: World) -> None:
    """Otherwise its lock would be renewed without end."""
    world.imds.shows(imds_event())
    queue, stop = RedeliveringQueue(), asyncio.Event()
    queue.again = message(EVENT_ID, lock_token="new")
    queue.waiting.put_nowait(message(EVENT_ID, lock_token="old"))
    running = asyncio.create_task(Listener(queue, world.context).run(stop))
    async with asyncio.timeout(60):
        while not queue.settled:
            await asyncio.sleep(0)
    stop.set()
    await running

    assert queue.settled == [("complete", "new", "")]
    assert world.counts == ["relayed"]


async def test_event_that_was_seen_only_while_the_request_waited_has_ended(
    world: World,
) -> None:
    """It waits longer than the reads do after a row of failures."""
    looks = list[float]()

    def look() -> None:
        looks.append(world.clock.monotonic())
        world.imds.shows()

    world.imds.shows(imds_event())
    world.imds.faults.extend([NO_ANSWER] * 8)
    world.imds.on_look = look
    await world.handle(message(EVENT_ID))

    assert len(looks) > 1
    assert await world.kinds() == ["event-ended"]


async def test_repeated_message_gets_the_event_of_the_first_outcome(
    world: World,
) -> None:
    world.imds.shows(imds_event())
    await world.handle(message(EVENT_ID))
    world.imds.shows()

    await world.handle(message(EVENT_ID, sequence=8))

    first, again = await world.outcomes()
    same = ("outcome", "event", "confirmed", "imdsStatus", "reason")
    assert [again.data[name] for name in same] == [first.data[name] for name in same]
    assert _beside_span(again) == _beside_span(first)
    assert again.id != first.id


async def test_repeated_message_about_a_missing_event_has_no_event(
    world: World,
) -> None:
    world.imds.shows(imds_event())
    await world.looks()
    world.imds.answers.append(NO_ANSWER)
    world.imds.shows(imds_event(), next_=())
    world.imds.scenes.append(())
    await world.handle(message(EVENT_ID))

    await world.handle(message(EVENT_ID, sequence=8))

    first, again = await world.outcomes()
    assert first.data["confirmed"] is again.data["confirmed"] is False
    assert first.data["event"] is again.data["event"] is None


async def test_redelivery_decides_only_the_open_event_ids(world: World) -> None:
    """The outcome of an EventId is not published again because another one waits."""
    world.imds.shows(imds_event())
    go_on = world.hangs_after_a_look()  # the other one still waits
    stop = asyncio.Event()
    asked = message(EVENT_ID, OTHER_ID, reply_to="replies")
    handling = asyncio.create_task(world.handle(asked, stop))
    while not world.counts:
        await settled(world.outbox)  # a loop that never waits starves its thread
    stop.set()
    assert await handling is None
    assert not await world.replies()

    go_on()
    world.imds.shows(imds_event(), imds_event(OTHER_ID))
    await world.handle(asked)

    assert world.counts == ["relayed", "relayed"]
    assert sorted(world.imds.posts) == sorted([EVENT_ID, OTHER_ID])
    (reply,) = await world.replies()
    assert str(reply["body"]).count('"relayed"') == 2


@pytest.mark.parametrize(
    "asked",
    [
        message(EVENT_ID, OTHER_ID, reply_to="replies"),
        message(body=[], reply_to="replies"),
    ],
)
async def test_reply_fits_its_schema(world: World, asked: ReceivedMessage) -> None:
    world.imds.shows(imds_event())

    await world.handle(asked)

    (reply,) = await world.replies()
    body = json.loads(str(reply["body"]))
    assert list(validator("approval", "ApprovalReply").iter_errors(body)) == []
    assert body["messageId"] == reply["correlationId"] == asked.message_id


async def test_dead_letter_of_an_invalid_message_has_the_reason(
    world: World,
) -> None:
    settlement = await world.handle(message(body=[]))

    assert settlement is not None
    assert settlement.words == "the body is no JSON object"


async def test_missing_enqueued_time_is_not_invented(world: World) -> None:
    world.imds.shows(imds_event())

    await world.handle(message(EVENT_ID, enqueued_at=None))

    (event,) = await world.outcomes()
    assert event.data["request"] == {
        "messageId": "m1",
        "enqueuedAt": None,
        "approvedBy": None,
        "reason": None,
        "expiresAt": None,
    }


async def test_outcome_contains_the_claims_of_the_sender(world: World) -> None:
    world.imds.shows(imds_event())
    at = START + timedelta(hours=1)
    claims = {"approvedBy": "ada", "reason": "night", "expiresAt": at.isoformat()}

    await world.handle(message(EVENT_ID, application_properties=claims))

    (event,) = await world.outcomes()
    assert event.data["request"] == {
        "messageId": "m1",
        "enqueuedAt": "2026-03-02T12:00:00Z",
        **claims,
        "expiresAt": "2026-03-02T13:00:00Z",
    }


async def test_reply_is_no_larger_than_the_events_it_repeats(world: World) -> None:
    """An event that is too large is also truncated in the reply."""
    world.imds.shows(imds_event(Description="x" * 200_000))

    await world.handle(message(EVENT_ID, reply_to="replies"))

    (reply,) = await world.replies()
    assert len(str(reply["body"])) < 64 * 1024


async def test_message_without_an_id_is_identified_by_its_number(world: World) -> None:
    world.imds.shows(imds_event())
    nameless = message(EVENT_ID, message_id=None)
    await world.handle(nameless)

    await world.handle(nameless)
    await world.handle(structs.replace(nameless, sequence_number=8))

    assert world.counts == ["relayed", "relayed"]
    assert len(world.imds.posts) == 2


def _beside_span(event: CloudEvent) -> dict[str, object]:
    """Return the attributes of an event without its span, which differs like its id."""
    attributes: dict[str, object] = dict(event.extensions)
    attributes.pop("traceparent")
    return attributes
