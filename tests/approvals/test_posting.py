"""One POST for all requests for an event, also if some are cancelled or denied."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bridge.approvals.posting import post

from bridge.approvals.policy import Conclusion, Post, Wait
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.vocabulary import OutcomeKind
from tests.approvals.approval_world import World, world_of
from tests.approvals.slow_world import (
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)
from tests.support.builders import EVENT_ID, imds_event
from tests.support.fakes import turns

DENIED = Conclusion(kind=OutcomeKind.DENIED)
ACCEPTED = StartAnswer(result=StartResult.ACCEPTED, status=200)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        found.imds.shows(imds_event())
        yield found


@dataclass(slots=True)
class Asker:
    """A fake request whose decision the test sets."""

    world: World
    step: Conclusion | Wait | None = None
    key: str = EVENT_ID
    began: float = 0.0
    marks: int = 0
    gate: asyncio.Event | None = None
    looks: list[Look] = field(default_factory=list)

    async def decide(self, look: Look) -> Conclusion | Post | Wait:
        self.looks.append(look)
        return self.step or Post(event=look.document.events[EVENT_ID])

    async def mark(self) -> None:
        self.marks += 1
        if self.gate is not None:
            await self.gate.wait()

    def asks(self) -> "asyncio.Task[object]":
        return asyncio.create_task(post(self.world.poller, self))


async def test_requests_are_decided_separately_and_share_a_post(
    world: World,
) -> None:
    askers = [Asker(world), Asker(world, DENIED), Asker(world), Asker(world, Wait())]

    met = await asyncio.gather(*(asker.asks() for asker in askers))

    assert met == [ACCEPTED, DENIED, ACCEPTED, Wait()]
    assert world.imds.posts == [EVENT_ID]
    assert [asker.marks for asker in askers] == [1, 0, 1, 0]
    assert len({id(look) for asker in askers for look in asker.looks}) == 1


async def test_no_post_is_sent_if_no_request_may_be_posted(world: World) -> None:
    first, second = Asker(world, DENIED), Asker(world, DENIED)

    met = await asyncio.gather(*[first.asks(), second.asks()])

    assert met == [DENIED, DENIED]
    assert not world.imds.posts


async def test_request_that_joins_during_the_marks_shares_the_post(
    world: World,
) -> None:
    gate = asyncio.Event()
    first, late, too_late = Asker(world, gate=gate), Asker(world), Asker(world, DENIED)
    tasks = [first.asks()]
    while not first.marks:
        await asyncio.sleep(0)
    tasks += [late.asks(), too_late.asks()]
    await turns()
    gate.set()

    assert await asyncio.gather(*tasks) == [ACCEPTED, ACCEPTED, DENIED]
    assert world.imds.posts == [EVENT_ID]


async def test_cancelled_request_leaves_the_others_in_line(world: World) -> None:
    others = [Asker(world), Asker(world, DENIED), Asker(world)]
    async with world.imds.alone:
        tasks = [asker.asks() for asker in others]
        await turns()
        tasks[1].cancel()
        tasks[2].cancel()
        await turns()

    assert await tasks[0] == ACCEPTED
    assert world.imds.posts == [EVENT_ID]


async def test_cancelled_post_is_in_doubt_for_all_requests(world: World) -> None:
    """The process is ending; other requests must not assume that no POST was sent."""
    world.imds.hanging = asyncio.Event()
    tasks = [Asker(world).asks(), Asker(world).asks()]
    await world.imds.hanging.wait()
    await world.poller.die()

    for met in await asyncio.gather(*tasks):
        assert isinstance(met, StartAnswer)
        assert (met.result, met.status) == (StartResult.IN_DOUBT, None)


async def test_cancelled_request_does_not_cut_the_post_of_the_others(
    world: World,
) -> None:
    first = Asker(world, gate=asyncio.Event())
    tasks = [first.asks(), Asker(world).asks()]
    while not first.marks:
        await asyncio.sleep(0)
    tasks[0].cancel()
    assert first.gate is not None
    first.gate.set()

    assert await tasks[1] == ACCEPTED
    assert world.imds.posts == [EVENT_ID]


async def test_stop_during_the_mark_prevents_the_post(
    world: World,
) -> None:
    gate = asyncio.Event()
    asker = Asker(world, gate=gate)
    task = asker.asks()
    while not asker.marks:
        await asyncio.sleep(0)
    world.poller.stop.set()
    gate.set()

    assert await task is None
    assert not world.imds.posts


async def test_look_with_an_etag_is_not_used_for_an_approval(world: World) -> None:
    """A look with an ETag shows only that nothing changed; an approval needs more."""
    await world.looks()
    assert world.poller.latest is not None
    is_conditional = _without_proof(world.poller.latest)
    world.poller.latest = is_conditional
    asker = Asker(world)

    assert await asker.asks() == ACCEPTED
    assert is_conditional not in asker.looks


def _without_proof(look: Look) -> Look:
    return Look(
        document=look.document,
        watch=look.watch,
        now=look.now,
        began=look.began,
        read=look.read,
        is_unconditional=False,
    )


async def test_look_from_before_the_message_is_not_used(
    world: World,
) -> None:
    await world.looks()
    before = world.poller.latest
    world.clock.pass_by(0.5)
    asker = Asker(world, began=world.clock.monotonic())

    assert await asker.asks() == ACCEPTED
    assert before not in asker.looks


# -- IMDS stops answering while requests wait ------------------------------------------


def test_all_requests_in_line_fail_without_a_document() -> None:
    """None of them waits until the others fail; all are relayed when IMDS answers."""

    async def scenario() -> None:
        names = [f"E{n}" for n in range(40)]
        imds = SlowImds(lambda _: [freeze(one) for one in names], post_seconds=1.0)
        imds.getting = lambda second: 503 if 5.0 <= second < 60.0 else 200
        async with slow_world(imds, approval(1, *names)) as world:
            await asyncio.sleep(59.0)
            before = len(imds.posts)
            assert before < 10
            await world.settles(1)
            kinds = [event.data["outcome"] for event in await world.outcomes()]

        assert kinds == ["relayed"] * 40
        assert sorted(post.event_id for post in imds.posts) == sorted(names)
        assert not [post for post in imds.posts if 7.0 < post.began < 60.0]
        assert imds.least_distance() >= 0.25 - 1e-9
        assert now() < 180.0

    in_virtual_time(scenario())


def test_requests_in_line_fail_at_not_before_without_imds() -> None:
    async def scenario() -> None:
        soon = {"NotBefore": "Mon, 02 Mar 2026 12:01:00 GMT"}
        names = [f"E{n}" for n in range(40)]
        events = [{**freeze(one), **soon} for one in names]
        imds = SlowImds(lambda _: events, post_seconds=1.0)
        imds.getting = lambda second: 503 if second >= 5.0 else 200
        async with slow_world(imds, approval(1, *names)) as world:
            await world.settles(1, within=120.0)
            kinds = [event.data["outcome"] for event in await world.outcomes()]

        assert kinds.count("failed") == 40 - len(imds.posts)

    in_virtual_time(scenario())


def test_mark_without_a_post_is_deleted() -> None:
    """The disk was slow and the event has started: no POST, and no mark of one."""

    def history(second: float) -> list[dict[str, object]]:
        status = "Scheduled" if second < 2.5 else "Started"
        return [{**freeze("E"), "EventStatus": status}]

    async def scenario() -> None:
        imds = SlowImds(history)
        async with slow_world(imds, approval(1, "E"), disk_seconds=1.7) as world:
            await world.settles(1)
            kinds = [event.data["outcome"] for event in await world.outcomes()]
            posted = await world.outbox.approvals.posted()

        assert kinds == ["already-started"]
        assert not imds.posts
        assert not posted

    in_virtual_time(scenario())
