"""The relay of a sink that takes several events in one request: the sink's pauses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.outbox.questions import Selection
from bridge.outbox.store import Outbox
from bridge.pipeline.batches import Batches
from bridge.sinks.base import BatchLimits
from tests.pipeline.test_relay import (
    BUSY,
    REFUSED,
    Rig,
    heartbeat,
    policy_of,
    relay_of,
    soon,
    throttled,
)
from tests.support.book import Book
from tests.support.builders import outgoing, sizes_histogram
from tests.support.fakes import FakeClock, RecordingSink, turns

LIMITS = BatchLimits(most=2, size=100_000, requests=1, alone=1)


@dataclass
class Bulk:
    """A sink by script; each request waits for its gate where there is one.

    Attributes:
        answers: what the next requests get; None = all events are taken.
        gate: closed, it holds each request.
    """

    answers: list[DeliveryError | None] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[list[str]] = field(default_factory=list)

    async def deliver(self, event: CloudEvent) -> None:
        await self.deliver_many([event])

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        self.requests.append([event.id for event in events])
        answer = self.answers.pop(0) if self.answers else None
        await self.gate.wait()
        if answer is not None:
            raise answer
        return [None] * len(events)


@dataclass
class BulkRig(Rig):
    """A relay whose sink takes two events in one request, one request at a time."""

    bulk: Bulk = field(default_factory=Bulk)

    async def answered(self) -> None:
        """Let the sink answer, now and from now on."""
        self.bulk.gate.set()
        await self.look()

    async def attempts(self) -> dict[str | None, tuple[str, int]]:
        """Return state and number of attempts of each delivery."""
        rows = await Book(self.outbox).find(Selection())
        return {row.cloud_event_id: (row.state, row.attempts) for row in rows}


@pytest.fixture
async def rig(outbox: Outbox) -> AsyncIterator[BulkRig]:
    bulk, clock = Bulk(), FakeClock()

    relay = relay_of(outbox, clock=clock, policy=policy_of(slots=6))
    batches = Batches(bulk, LIMITS, clock, relay.may_send, sizes_histogram())
    relay.gather = batches.deliver
    async with asyncio.TaskGroup() as group:
        none = RecordingSink()
        yield BulkRig(outbox, clock, none, relay.metrics, relay, group, bulk=bulk)
        bulk.gate.set()


async def test_event_that_waits_for_a_request_waits_for_the_end_of_a_pause(
    rig: BulkRig,
) -> None:
    """The sink has asked for it after the attempt began, and before it was sent."""
    rig.bulk.answers = [throttled(30)]
    await rig.put(*(outgoing(f"{number}") for number in range(4)))
    await rig.look()

    await rig.answered()
    await rig.pass_by(29)

    assert rig.bulk.requests == [["0", "1"]]


async def test_event_that_was_not_sent_in_a_pause_goes_after_it_at_its_first_attempt(
    rig: BulkRig,
) -> None:
    rig.bulk.answers = [throttled(30)]
    await rig.put(*(outgoing(f"{number}") for number in range(4)))
    await rig.look()
    await rig.answered()
    waiting = await rig.attempts()

    await rig.pass_by(32)

    assert [waiting[name] for name in "0123"] == [("pending", 1)] * 2 + [
        ("pending", 0)
    ] * 2
    assert (await rig.attempts())["3"] == ("delivered", 1)
    assert rig.failures() == {"rate-limited": 2}


async def test_urgent_event_that_waits_for_a_request_goes_in_a_pause(
    rig: BulkRig,
) -> None:
    rig.bulk.answers = [throttled(30)]
    await rig.put(*(outgoing(name) for name in "01"))
    await rig.look()
    urgent = (outgoing(f"u{number}", not_before=soon(600)) for number in range(2))
    await rig.put(*urgent, outgoing("late"))
    await rig.look()

    await rig.answered()

    assert rig.bulk.requests == [["0", "1"], ["u0"], ["u1"]]


async def test_event_that_waits_for_a_request_is_not_sent_to_a_parked_sink(
    rig: BulkRig,
) -> None:
    rig.bulk.answers = [REFUSED] * 3
    rig.bulk.gate.set()
    await rig.put(*(outgoing(name) for name in "01"))
    await rig.look()
    await rig.pass_by(1.5)
    rig.bulk.gate.clear()
    await rig.put(*(outgoing(name) for name in "23"))
    await rig.look()
    await rig.pass_by(4)
    assert rig.bulk.requests == [["0", "1"], ["0", "1"], ["2", "3"]]

    await rig.answered()
    await rig.pass_by(30)

    assert rig.relay.state == "parked"
    assert len(rig.bulk.requests) == 3
    assert (await rig.attempts())["0"] == ("pending", 2)


async def test_event_that_waits_for_a_request_goes_although_others_have_failed(
    rig: BulkRig,
) -> None:
    """A sink that is busy has not asked for a pause."""
    rig.bulk.answers = [BUSY]
    await rig.put(*(outgoing(f"{number}") for number in range(4)))
    await rig.look()

    await rig.answered()

    assert rig.bulk.requests[:2] == [["0", "1"], ["2", "3"]]


async def test_heartbeat_that_was_not_sent_goes_after_the_pause(rig: BulkRig) -> None:
    """And it says nothing of the sink."""
    rig.bulk.answers = [throttled(30)]
    await rig.put(outgoing("0"))
    await rig.look()
    rig.relay.offer(heartbeat("h1"))
    await rig.look()

    await rig.answered()
    assert rig.relay.state == "retrying"
    await rig.pass_by(35)

    assert rig.bulk.requests == [["0"], ["0"], ["h1"]]


async def test_relay_that_is_cancelled_begins_nothing_more(rig: BulkRig) -> None:
    """As when another worker of the forwarder has failed."""
    said: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    await rig.put(*(outgoing(f"{n}", not_before=soon(600)) for n in range(20)))
    running = asyncio.create_task(rig.relay.run(asyncio.Event()))
    async with asyncio.timeout(60):
        while not rig.bulk.requests:
            await asyncio.sleep(0.001)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await turns()

    assert said == []
    assert len(rig.bulk.requests) <= 2
    assert {state for state, _ in (await rig.attempts()).values()} == {"pending"}
