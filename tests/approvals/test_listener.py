"""Approvals, from the message to its settlement, over a real outbox.

Each row of the decision table has a test, and so has each place at which the bridge may
be killed.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from bridge.approvals.context import intent_of
from bridge.approvals.listener import Listener
from bridge.approvals.message_flow import key_of
from bridge.events.cloudevent import hash32
from bridge.foundation.errors import (
    ApprovalQueueError,
    MetadataError,
    MetadataUnavailableError,
)
from bridge.outbox.lookups import Approvals
from bridge.outbox.records import Decision
from bridge.servicebus.decode import ReceivedMessage, Settlement
from tests.approvals.approval_world import (
    ENTITY,
    PlayedQueue,
    World,
    message,
    world_of,
)
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START, FakeClock

COMPLETE = Settlement("complete")
NO_ANSWER = MetadataUnavailableError("no answer", outcome="timeout")
OTHER_ID = "4CAEA225-A741-474D-A72E-428C86FCD853"


def dead(settlement: Settlement | None) -> str | None:
    assert settlement is not None
    return settlement.reason if settlement.verdict == "dead-letter" else None


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        yield found


# -- the decision table --------------------------------------------------------


async def test_event_in_the_document_is_relayed(world: World) -> None:
    world.imds.shows(imds_event())

    settlement = await world.handle(message(EVENT_ID.lower()))

    assert settlement == COMPLETE
    assert world.imds.posts == [EVENT_ID]  # in the document's spelling
    (event,) = await world.outcomes()
    assert event.type == "sebridge.startrequest.relayed.v1"
    assert event.data["confirmed"] is True
    assert event.data["imdsStatus"] == 200
    assert world.counts == ["relayed"]


async def test_outcome_has_the_id_of_its_cause(world: World) -> None:
    world.imds.shows(imds_event())

    await world.handle(message(EVENT_ID))

    (event,) = await world.outcomes()
    assert event.id == hash32([ENTITY, "m1", 7, EVENT_ID, "relayed"])


async def test_started_event_needs_nothing(world: World) -> None:
    world.imds.shows(started())

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert await world.kinds() == ["already-started"]
    assert not world.imds.posts


async def test_event_never_seen_is_unknown_after_unknown_grace(world: World) -> None:
    world.imds.shows()

    settlement = await world.handle(message(EVENT_ID))

    assert dead(settlement) == "UnknownEvent"
    assert await world.kinds() == ["unknown-event"]
    assert world.clock.now() >= START + timedelta(seconds=15)


async def test_event_that_appears_within_the_grace_is_relayed(world: World) -> None:
    world.imds.shows()
    handling = asyncio.create_task(world.handle(message(EVENT_ID)))
    while len(world.clock.waits) < 3:
        await asyncio.sleep(0)
    world.imds.shows(imds_event())

    assert await handling == COMPLETE
    assert await world.kinds() == ["relayed"]


async def test_event_that_was_seen_and_is_gone_has_ended_at_once(world: World) -> None:
    world.imds.shows(imds_event())
    await world.looks()
    world.imds.shows()

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert await world.kinds() == ["event-ended"]
    assert not world.clock.waits


async def test_approval_of_a_held_event_waits(
    world: World,
) -> None:
    world.imds.shows(imds_event())
    await world.looks()
    world.imds.incarnation = -5  # the incarnation falls: the VM has moved
    world.imds.shows()
    handling = asyncio.create_task(world.handle(message(EVENT_ID)))
    while len(world.clock.waits) < 3:
        await asyncio.sleep(0)
    world.imds.shows(imds_event())

    assert await handling == COMPLETE
    assert await world.kinds() == ["relayed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"[]",
        b"{}",
        {"StartRequests": []},
        {"StartRequests": [{"EventId": EVENT_ID}, {"EventId": 5}]},
        {"StartRequests": [{"EventId": str(n)} for n in range(101)]},
        {"StartRequests": [{"EventId": EVENT_ID}], "padding": "x" * 65536},
    ],
)
async def test_message_that_cannot_be_read_is_invalid(
    world: World, body: object
) -> None:
    world.imds.shows(imds_event())

    settlement = await world.handle(message(body=body))

    assert dead(settlement) == "InvalidMessage"
    assert await world.kinds() == ["invalid"]
    assert not world.imds.posts


async def test_message_that_could_not_be_decoded_is_invalid_whatever_is_left_of_it(
    world: World,
) -> None:
    world.imds.shows(imds_event())

    settlement = await world.handle(message(EVENT_ID, fault="it cannot be decoded"))

    assert settlement == Settlement(
        "dead-letter", "InvalidMessage", "it cannot be decoded"
    )
    assert await world.kinds() == ["invalid"]
    assert not world.imds.posts


async def test_request_past_its_expiry_is_refused(world: World) -> None:
    world.imds.shows(imds_event())
    at = (START - timedelta(seconds=61)).isoformat()

    settlement = await world.handle(
        message(EVENT_ID, application_properties={"expiresAt": at})
    )

    assert dead(settlement) == "Expired"
    assert not world.imds.posts


async def test_request_within_the_skew_of_its_expiry_is_relayed(world: World) -> None:
    world.imds.shows(imds_event())
    at = (START - timedelta(seconds=59)).isoformat()

    settlement = await world.handle(
        message(EVENT_ID, application_properties={"expiresAt": at})
    )

    assert settlement == COMPLETE


async def test_request_older_than_max_age_is_refused(world: World) -> None:
    world.imds.shows(imds_event())
    old = START - timedelta(days=1, seconds=61)

    assert dead(await world.handle(message(EVENT_ID, enqueued_at=old))) == "Expired"


async def test_event_type_that_is_not_allowed_is_denied(world: World) -> None:
    world.with_terms(allow_event_types=("reboot",))
    world.imds.shows(imds_event(EventType="Freeze"))

    assert dead(await world.handle(message(EVENT_ID))) == "Denied"
    assert not world.imds.posts


@pytest.mark.parametrize(
    "change",
    [
        {"EventType": "Redeploy"},
        {"DurationInSeconds": 60},
        {"DurationInSeconds": -1},
        {"Resources": ["vm-1", "vm-2"]},
    ],
)
async def test_event_that_changed_for_the_worse_is_denied(
    world: World, change: dict[str, object]
) -> None:
    seen = imds_event(EventType="Freeze", DurationInSeconds=5, Resources=["VM-1"])
    world.imds.shows({**seen, **change})

    settlement = await world.handle(message(body=approval_of(seen)))

    assert dead(settlement) == "Denied"
    (event,) = await world.outcomes()
    assert event.data["reason"] == "EventChanged"


async def test_event_that_changed_for_the_better_is_relayed(world: World) -> None:
    seen = imds_event(DurationInSeconds=9, Resources=["_VM-1", "vm-2"])
    world.imds.shows({**seen, "DurationInSeconds": 5, "Resources": ["vm-1"]})

    assert await world.handle(message(body=approval_of(seen))) == COMPLETE


def approval_of(seen: dict[str, object]) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": "1",
        "source": "test",
        "type": "sebridge.startrequest.v1",
        "data": {
            "StartRequests": [{"EventId": EVENT_ID}],
            "approvedBy": "ada",
            "reason": "night",
            "approvedEvent": seen,
        },
    }


async def test_refusal_by_imds_counts_after_three_within_five_seconds(
    world: World,
) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.extend([400, 400, 400])

    settlement = await world.handle(message(EVENT_ID))

    assert dead(settlement) == "RejectedByImds"
    assert len(world.imds.posts) == 3
    assert world.clock.now() <= START + timedelta(seconds=5)
    assert world.clock.now() >= START + timedelta(seconds=3)  # not at once


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([400, 400, 503, 400, 400], "relayed"),
        ([400, NO_ANSWER, 400, 400], "relayed"),
        ([400, 400, 503, 400, 400, 400], "rejected"),
        ([400, 400], "relayed"),
    ],
)
async def test_only_three_refusals_in_a_row_count(
    answers: list[int | MetadataError], outcome: str, world: World
) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.extend(answers)

    await world.handle(message(EVENT_ID))

    assert await world.kinds() == [outcome]
    assert len(world.imds.posts) == len(answers) + (outcome == "relayed")


@pytest.mark.parametrize("status", [403, 404, 405, 410, 429, 500, 302])
async def test_anything_else_is_tried_until_it_works(world: World, status: int) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.extend([status, status])

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert len(world.imds.posts) == 3
    assert await world.kinds() == ["relayed"]


async def test_retry_after_of_imds_is_obeyed(world: World) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.append(
        MetadataUnavailableError("busy", outcome="429", retry_after=60)
    )

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert world.clock.now() >= START + timedelta(seconds=60)
    (event,) = await world.outcomes()
    assert (event.data["imdsStatus"], event.data["confirmed"]) == (200, True)


async def test_event_that_starts_after_a_refused_post_was_not_relayed_here(
    world: World,
) -> None:
    """IMDS has refused the POST, so this bridge has not started the event."""
    world.imds.shows(imds_event(), next_=(started(),))
    world.imds.answers.append(
        MetadataUnavailableError("busy", outcome="429", retry_after=1)
    )

    await world.handle(message(EVENT_ID))

    assert await world.kinds() == ["already-started"]


async def test_endless_failure_ends_at_not_before(world: World) -> None:
    world.imds.shows(imds_event())  # NotBefore is 15 minutes ahead
    world.imds.answers.extend([404] * 10_000)

    settlement = await world.handle(message(EVENT_ID))

    assert dead(settlement) == "ImdsUnavailable"
    assert await world.kinds() == ["failed"]
    assert world.clock.now() <= START + timedelta(minutes=16)


async def test_approval_waits_for_a_readable_document(world: World) -> None:
    world.imds.shows(imds_event())
    world.imds.faults.extend([NO_ANSWER] * 3)

    assert await world.handle(message(EVENT_ID)) == COMPLETE


async def test_post_in_doubt_of_an_event_that_then_starts_was_relayed(
    world: World,
) -> None:
    world.imds.shows(imds_event(), next_=(started(),))
    world.imds.answers.append(NO_ANSWER)

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    (event,) = await world.outcomes()
    assert event.data["outcome"] == "relayed"
    assert event.data["confirmed"] is False


async def test_event_that_changes_between_two_tries_is_denied(world: World) -> None:
    seen = imds_event(EventType="Freeze")
    world.imds.shows(seen, next_=({**seen, "EventType": "Redeploy"},))
    world.imds.answers.append(503)

    assert dead(await world.handle(message(body=approval_of(seen)))) == "Denied"
    assert len(world.imds.posts) == 1


# -- several EventIds ----------------------------------------------------------


async def test_one_good_outcome_completes_a_message(world: World) -> None:
    world.imds.shows(imds_event())

    assert await world.handle(message(OTHER_ID, EVENT_ID)) == COMPLETE
    assert sorted(await world.kinds()) == ["relayed", "unknown-event"]


async def test_first_reason_in_body_order_dead_letters_a_message(world: World) -> None:
    world.with_terms(allow_event_types=("Reboot",))
    world.imds.shows(imds_event(EventType="Freeze"))

    assert dead(await world.handle(message(OTHER_ID, EVENT_ID))) == "UnknownEvent"


async def test_repeated_event_id_is_posted_once(world: World) -> None:
    world.imds.shows(imds_event())

    await world.handle(message(EVENT_ID, EVENT_ID.lower()))

    assert world.imds.posts == [EVENT_ID]


# -- redeliveries and restarts -------------------------------------------------


async def test_same_delivery_again_is_only_settled(world: World) -> None:
    world.imds.shows(imds_event())
    await world.handle(message(EVENT_ID, reply_to="replies"))

    assert await world.handle(message(EVENT_ID, reply_to="replies")) == COMPLETE
    assert len(world.imds.posts) == 1
    assert len(await world.outcomes()) == 1
    assert len(await world.replies()) == 1


async def test_same_message_sent_again_gets_the_same_outcome_without_a_post(
    world: World,
) -> None:
    world.imds.shows(imds_event())
    await world.handle(message(EVENT_ID))

    assert await world.handle(message(EVENT_ID, sequence=8)) == COMPLETE
    assert len(world.imds.posts) == 1
    assert world.counts == ["relayed", "relayed"]
    _, again = await world.outcomes()
    assert again.id == hash32([ENTITY, "m1", 8, EVENT_ID, "relayed"])


async def test_outcome_of_a_redelivered_invalid_message_is_published_once(
    world: World,
) -> None:
    await world.handle(message(body=b"x"))

    assert dead(await world.handle(message(body=b"x"))) == "InvalidMessage"
    assert world.counts == ["invalid"]


async def test_outcome_of_an_invalid_message_sent_twice_is_published_twice(
    world: World,
) -> None:
    """The second message is no redelivery, so its sender gets an outcome, too."""
    for sequence in (7, 8):
        settlement = await world.handle(message(body=b"x", sequence=sequence))
        assert dead(settlement) == "InvalidMessage"

    first, second = await world.outcomes()
    assert world.counts == ["invalid", "invalid"]
    assert first.id == hash32([ENTITY, "m1", 7, None, "invalid"])
    assert second.id == hash32([ENTITY, "m1", 8, None, "invalid"])


async def died(world: World, *, posted: bool = True) -> None:
    """Store the rows of a bridge that was killed while its POST hung, or before."""
    approval = message(EVENT_ID)
    task = asyncio.create_task(world.handle(approval))
    if posted:
        world.imds.hanging = asyncio.Event()
        await world.imds.hanging.wait()
    else:
        world.imds.faults.append(NO_ANSWER)
        while not world.clock.waits:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await world.poller.die()
    world.imds.hanging = None
    world.imds.faults.clear()


@pytest.mark.parametrize("posted", [False, True])
async def test_event_still_present_after_a_kill_is_posted(
    world: World, *, posted: bool
) -> None:
    world.imds.shows(imds_event())
    await died(world, posted=posted)

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    (event,) = await world.outcomes()
    assert event.data["confirmed"] is True


@pytest.mark.parametrize("now", [(started(),), ()])
async def test_event_started_or_gone_after_a_kill_was_relayed(
    world: World, now: tuple[object, ...]
) -> None:
    """The POST was successful, and its event took this VM down."""
    world.imds.shows(imds_event())
    await died(world)
    world.imds.shows(*now)
    world.imds.incarnation += 1

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    (event,) = await world.outcomes()
    assert event.data["outcome"] == "relayed"
    assert event.data["confirmed"] is False


async def test_intent_for_an_event_never_seen_proves_nothing(world: World) -> None:
    key = key_of(world.context, message(EVENT_ID))
    intent = replace(intent_of(key, EVENT_ID, 7), posted=True)
    await world.outbox.approvals.save(intent, now=START.timestamp())
    world.imds.shows()

    assert dead(await world.handle(message(EVENT_ID))) == "UnknownEvent"


async def test_stop_leaves_the_message_for_the_next_start(world: World) -> None:
    world.imds.shows()
    stop = asyncio.Event()
    handling = asyncio.create_task(world.handle(message(EVENT_ID), stop))
    while not world.clock.waits:
        await asyncio.sleep(0)
    stop.set()

    assert await handling is None
    assert not await world.outcomes()
    assert not await world.outbox.approvals.of_message("?")


# -- unknown events that another VM may know -----------------------------------


async def test_message_about_an_unknown_event_is_abandoned_after_a_wait(
    tmp_path: Path,
) -> None:
    async with world_of(tmp_path / "state.db", abandons_unknown=True) as world:
        world.imds.shows()

        settlement = await world.handle(message(EVENT_ID, delivery_count=2))

        assert settlement == Settlement("abandon")
        assert world.clock.waits[-1] == 40.0
        assert not await world.outcomes()


async def test_unknown_event_is_dead_lettered_on_the_last_delivery(
    tmp_path: Path,
) -> None:
    async with world_of(tmp_path / "state.db", abandons_unknown=True) as world:
        world.imds.shows()

        settlement = await world.handle(message(EVENT_ID, delivery_count=9))

        assert dead(settlement) == "UnknownEvent"
        assert await world.kinds() == ["unknown-event"]


# -- replies -------------------------------------------------------------------


async def test_reply_holds_the_outcomes_in_body_order(world: World) -> None:
    world.imds.shows(imds_event())

    await world.handle(
        message(OTHER_ID, EVENT_ID, reply_to="replies", reply_to_session_id="s1")
    )

    (reply,) = await world.replies()
    body = json.loads(str(reply["body"]))
    assert (reply["entity"], reply["sessionId"]) == ("replies", "s1")
    assert reply["correlationId"] == body["messageId"] == "m1"
    assert [o["eventId"] for o in body["outcomes"]] == [OTHER_ID, EVENT_ID]


@pytest.mark.parametrize("entity", ["other", ENTITY, "", None])
async def test_reply_is_sent_only_to_allowed_entities(
    world: World, entity: str | None
) -> None:
    world.imds.shows(imds_event())

    await world.handle(message(EVENT_ID, reply_to=entity))

    assert not await world.replies()


# -- the loop ------------------------------------------------------------------


async def listening(world: World, queue: PlayedQueue, until: int) -> None:
    """Run a listener until so many messages are settled."""
    stop = asyncio.Event()
    listener = Listener(queue, world.context)
    running = asyncio.create_task(listener.run(stop))
    async with asyncio.timeout(60):
        while len(queue.settled) < until:
            await asyncio.sleep(0)
    stop.set()
    await running


async def test_receive_is_tried_again_after_an_error(world: World) -> None:
    world.imds.shows(imds_event())
    queue = PlayedQueue()
    queue.waiting.put_nowait(ApprovalQueueError("gone"))
    queue.waiting.put_nowait(message(EVENT_ID))

    await listening(world, queue, until=1)

    assert queue.settled == [("complete", "lock-7", "")]
    assert world.clock.waits[0] >= 0.5


@pytest.mark.parametrize(("is_refusal", "most"), [(False, 3.0), (True, 30.0)])
async def test_receive_is_tried_again_within_seconds(
    world: World, caplog: pytest.LogCaptureFixture, *, is_refusal: bool, most: float
) -> None:
    """An approval may be valid for 30 s only; a refusal needs a person's correction."""
    world.context = replace(world.context, chance=lambda: 1.0)
    world.imds.shows(imds_event())
    queue = PlayedQueue()
    for _ in range(50):
        error = ApprovalQueueError("gone", is_refusal=is_refusal)
        queue.waiting.put_nowait(error)
    queue.waiting.put_nowait(message(EVENT_ID))

    await listening(world, queue, until=1)

    waits = world.clock.waits[:50]
    assert max(waits) == most
    assert waits[0] == 1.0
    said = caplog.messages.count("approvals not received")
    assert sum(waits) / 60 - 1 <= said <= sum(waits) / 60 + 1


async def test_redelivery_during_handling_is_settled_with_its_lock(
    world: World,
) -> None:
    world.imds.shows()
    queue = PlayedQueue()
    queue.waiting.put_nowait(message(EVENT_ID, lock_token="old"))
    queue.waiting.put_nowait(message(EVENT_ID, lock_token="new"))

    await listening(world, queue, until=1)

    assert queue.settled == [("dead-letter", "new", "UnknownEvent")]
    assert world.counts == ["unknown-event"]


class RedeliveringQueue(PlayedQueue):
    """Delivers a message again while its first delivery is being settled."""

    async def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        if message.lock_token == "old":
            self.waiting.put_nowait(structs.replace(message, lock_token="new"))
            while not self.waiting.empty():
                await asyncio.sleep(0)
            for _ in range(20):  # until the listener has it
                await asyncio.sleep(0)
        await super().settle(message, settlement)


async def test_message_redelivered_during_its_settlement_is_settled_too(
    world: World,
) -> None:
    """Otherwise that delivery would come again when its lock ends."""
    world.imds.shows(imds_event())
    queue = RedeliveringQueue()
    queue.waiting.put_nowait(message(EVENT_ID, lock_token="old"))

    await listening(world, queue, until=2)

    assert [lock for _, lock, _ in queue.settled] == ["old", "new"]
    assert world.counts == ["relayed"]
    assert len(world.imds.posts) == 1


async def test_message_sent_twice_at_once_is_relayed_once(world: World) -> None:
    world.imds.shows(imds_event())
    queue = PlayedQueue()
    queue.waiting.put_nowait(message(EVENT_ID, sequence=1))
    queue.waiting.put_nowait(message(EVENT_ID, sequence=2))

    await listening(world, queue, until=2)

    assert len(world.imds.posts) == 1
    assert world.counts == ["relayed", "relayed"]


async def test_failed_settlement_does_not_end_the_listener(world: World) -> None:
    world.imds.shows(imds_event())
    queue = PlayedQueue(broken=1)
    queue.waiting.put_nowait(message(EVENT_ID, sequence=1))
    running = asyncio.create_task(listening(world, queue, until=1))
    while queue.broken:
        await asyncio.sleep(0)

    queue.waiting.put_nowait(message(EVENT_ID, sequence=1))
    await running

    assert queue.settled == [("complete", "lock-1", "")]
    assert len(world.imds.posts) == 1


async def test_no_more_than_a_hundred_are_handled_at_once(world: World) -> None:
    world.context = replace(world.context, clock=FakeClock())
    world.imds.shows(*(imds_event(str(n)) for n in range(108)))
    world.imds.gate = asyncio.Event()
    queue = PlayedQueue()
    for n in range(108):
        queue.waiting.put_nowait(message(str(n), message_id=str(n), sequence=n))
    running = asyncio.create_task(listening(world, queue, until=108))
    while queue.waiting.qsize() > 8:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)

    assert queue.waiting.qsize() == 8
    world.imds.gate.set()
    await running
    assert sorted(world.imds.posts) == sorted(map(str, range(108)))


async def test_post_in_doubt_gets_one_more_look_before_it_fails(world: World) -> None:
    """At NotBefore the event starts, and the POST may have started it."""
    world.imds.shows(imds_event(NotBefore="Mon, 02 Mar 2026 12:02:00 GMT"))
    world.imds.answers.extend([NO_ANSWER] * 500)
    handling = asyncio.create_task(world.handle(message(EVENT_ID)))
    while world.clock.now() < START + timedelta(minutes=1):
        await asyncio.sleep(0)
    world.imds.shows(started())

    assert await handling == COMPLETE
    assert await world.kinds() == ["relayed"]


async def test_post_in_doubt_fails_without_another_look(world: World) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.append(NO_ANSWER)
    world.imds.faults.append(NO_ANSWER)
    handling = asyncio.create_task(world.handle(message(EVENT_ID)))
    while not world.imds.posts:
        await asyncio.sleep(0)
    world.imds.faults.extend([NO_ANSWER] * 500)

    assert dead(await handling) == "ImdsUnavailable"


async def test_old_look_is_repeated_before_the_post(world: World) -> None:
    """The machine froze in between: the document may have changed."""
    world.imds.shows(imds_event())

    class Freezing(Approvals):
        async def save(self, decision: Decision, *, now: float) -> None:
            await super().save(decision, now=now)
            if decision.posted:
                world.clock.pass_by(60)
                world.imds.shows(started())

    world.outbox.approvals = Freezing(world.outbox.state)

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert not world.imds.posts
    assert await world.kinds() == ["already-started"]


async def test_last_look_decides_a_post_in_doubt(world: World) -> None:
    """The last try fails at NotBefore; one more look shows the event as Started."""
    world.imds.shows(imds_event(), next_=(started(),))
    world.imds.answers.append(NO_ANSWER)
    at_the_end = iter([True, False])
    end = START + timedelta(minutes=15)
    world.imds.is_dark = lambda: (
        bool(world.imds.posts) and (world.clock.now() < end or next(at_the_end))
    )

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    (event,) = await world.outcomes()
    assert (event.data["outcome"], event.data["confirmed"]) == ("relayed", False)


async def test_redelivery_waits_for_imds_after_a_reboot(
    world: World,
) -> None:
    """The relayed event is over; IMDS may take two minutes to answer after a reboot."""
    world.imds.shows(imds_event())
    await died(world)
    world.clock.pass_by(20 * 60)
    world.imds.shows()
    world.imds.incarnation += 1
    world.imds.faults.extend([NO_ANSWER] * 5)

    assert await world.handle(message(EVENT_ID)) == COMPLETE
    assert await world.kinds() == ["relayed"]


async def test_stop_after_a_post_in_doubt_keeps_the_intent(world: World) -> None:
    world.imds.shows(imds_event())
    world.imds.answers.extend([NO_ANSWER] * 500)
    stop = asyncio.Event()
    approval = message(EVENT_ID)
    handling = asyncio.create_task(world.handle(approval, stop))
    while not world.imds.posts:
        await asyncio.sleep(0)
    stop.set()

    assert await handling is None
    kept = await world.outbox.approvals.of_message(key_of(world.context, approval))
    assert kept[EVENT_ID].posted


async def test_nothing_is_posted_after_a_stop(world: World) -> None:
    stop = asyncio.Event()
    world.imds.shows(imds_event())
    world.imds.on_look = stop.set

    assert await world.handle(message(EVENT_ID), stop) is None
    assert not world.imds.posts


async def test_huge_max_age_means_no_limit(world: World) -> None:
    world.with_terms(max_age=1e12)
    world.imds.shows(imds_event())

    assert await world.handle(message(EVENT_ID)) == COMPLETE


async def test_abandon_is_passed_to_the_queue(tmp_path: Path) -> None:
    async with world_of(tmp_path / "state.db", abandons_unknown=True) as world:
        world.imds.shows()
        queue = PlayedQueue()
        queue.waiting.put_nowait(message(EVENT_ID))

        await listening(world, queue, until=1)

        assert queue.settled == [("abandon", "lock-7", "")]


async def test_waiting_message_is_abandoned_at_the_stop(
    world: World,
) -> None:
    world.imds.shows()
    world.imds.gate = asyncio.Event()
    queue, stop = PlayedQueue(), world.poller.stop
    queue.waiting.put_nowait(message(EVENT_ID))
    running = asyncio.create_task(Listener(queue, world.context).run(stop))
    while queue.waiting.qsize():
        await asyncio.sleep(0)
    stop.set()
    await running

    assert queue.settled == [("abandon", "lock-7", "")]
