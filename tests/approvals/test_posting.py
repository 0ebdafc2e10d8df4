"""One POST for all requests for an event, also if some are cancelled or denied."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.approvals.context import Pending, intent_of
from bridge.approvals.message import Approval
from bridge.approvals.policy import Conclusion, Request
from bridge.approvals.requests import Requests
from bridge.approvals.rules import Rule
from bridge.events.vocabulary import OutcomeKind
from bridge.foundation.values import Duration
from tests.approvals.approval_world import World, world_of
from tests.approvals.slow_world import (
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START, settled, turns

DENY = Rule(name="no", action="deny")
LATER = Rule(name="later", action="allow", delay=Duration(600.0))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        found.imds.shows(imds_event(), next_=(started(),))
        yield found


class Asker(Pending):
    """A request, and whether its mark hangs on the disk until ``gate`` is set."""

    gate: asyncio.Event | None = None
    marks: int = 0

    async def mark(self) -> None:
        self.marks += 1
        if self.gate is not None:
            await self.gate.wait()
        await super().mark()

    def asks(self) -> "asyncio.Task[Conclusion | None]":
        return asyncio.create_task(Requests.pursue(self))


def asker(
    world: World, *rules: Rule, name: str = "m", gate: asyncio.Event | None = None
) -> Asker:
    """Return a request that these rules decide."""
    terms = replace(world.context.terms, rules=rules)
    request = Request(
        approval=Approval(event_ids=(EVENT_ID,)), event_id=EVENT_ID, enqueued_at=START
    )
    context = replace(world.context, terms=terms)
    return Asker(
        context, request, intent_of(name, EVENT_ID), was_tried=False, gate=gate
    )


def kinds(met: list[Conclusion | None]) -> list[OutcomeKind | None]:
    return [None if one is None else one.kind for one in met]


async def test_requests_are_decided_separately_and_share_a_post(
    world: World,
) -> None:
    rules: list[tuple[Rule, ...]] = [(), (DENY,), (), (LATER,)]
    askers = [asker(world, *own, name=str(n)) for n, own in enumerate(rules)]

    met = await asyncio.gather(*(one.asks() for one in askers))

    assert kinds(met) == [
        OutcomeKind.RELAYED,
        OutcomeKind.DENIED,
        OutcomeKind.RELAYED,
        OutcomeKind.ALREADY_STARTED,
    ]
    assert world.imds.posts == [EVENT_ID]
    assert [one.marks for one in askers] == [1, 0, 1, 0]


async def test_no_post_is_sent_if_no_request_may_be_posted(world: World) -> None:
    askers = [asker(world, DENY, name=name) for name in "ab"]

    met = await asyncio.gather(*(one.asks() for one in askers))

    assert kinds(met) == [OutcomeKind.DENIED] * 2
    assert not world.imds.posts


async def marking(one: Asker) -> None:
    """Wait until its mark is being stored."""
    async with asyncio.timeout(30):
        while not one.marks:
            await asyncio.sleep(0)


async def test_request_that_joins_during_the_marks_shares_the_post(
    world: World,
) -> None:
    gate = asyncio.Event()
    first, late = asker(world, gate=gate), asker(world, name="late", gate=gate)
    too_late = asker(world, DENY, name="too late")
    tasks = [first.asks()]
    await marking(first)
    tasks += [late.asks(), too_late.asks()]
    await marking(late)
    gate.set()

    met = await asyncio.gather(*tasks)
    relayed, denied = OutcomeKind.RELAYED, OutcomeKind.DENIED
    assert kinds(met) == [relayed, relayed, denied]
    assert world.imds.posts == [EVENT_ID]


async def test_cancelled_request_leaves_the_others_in_line(world: World) -> None:
    rules: list[tuple[Rule, ...]] = [(), (DENY,), ()]
    others = [asker(world, *own, name=str(n)) for n, own in enumerate(rules)]
    async with world.poller.alone:
        tasks = [one.asks() for one in others]
        await turns()
        tasks[1].cancel()
        tasks[2].cancel()
        await turns()

    assert kinds([await tasks[0]]) == [OutcomeKind.RELAYED]
    assert world.imds.posts == [EVENT_ID]


async def test_cut_post_is_in_doubt_for_all_requests(world: World) -> None:
    """The process is ending; the next one must not assume that no POST was sent."""
    world.imds.hanging = asyncio.Event()
    askers = [asker(world, name=name) for name in "ab"]
    tasks = [one.asks() for one in askers]
    await world.imds.hanging.wait()
    await world.poller.die()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert all(one.standing.was_posted for one in askers)
    assert await world.outbox.approvals.posted() == {EVENT_ID}


async def test_cancelled_request_does_not_cut_the_post_of_the_others(
    world: World,
) -> None:
    first = asker(world, gate=asyncio.Event())
    tasks = [first.asks(), asker(world, name="second").asks()]
    await marking(first)
    tasks[0].cancel()

    assert kinds([await tasks[1]]) == [OutcomeKind.RELAYED]
    assert world.imds.posts == [EVENT_ID]


async def test_stop_during_the_mark_prevents_the_post(world: World) -> None:
    one = asker(world, gate=asyncio.Event())
    task = one.asks()
    await marking(one)
    world.poller.stop.set()
    await turns()
    assert one.gate is not None
    one.gate.set()

    assert await task is None
    assert not world.imds.posts
    assert not await world.outbox.approvals.posted()


async def test_look_with_an_etag_is_not_used_for_an_approval(world: World) -> None:
    """A look with an ETag shows only that nothing changed; an approval needs more."""
    look = replace(await world.looks(), is_unconditional=False, number=99)
    world.poller.latest = look
    before = world.poller.reads

    assert kinds([await asker(world).asks()]) == [OutcomeKind.RELAYED]
    assert world.poller.reads == before + 1


async def test_look_from_before_the_message_is_not_used(world: World) -> None:
    await world.looks()
    before = world.poller.reads

    assert kinds([await asker(world).asks()]) == [OutcomeKind.RELAYED]
    assert world.poller.reads == before + 1


async def test_look_that_was_under_way_when_the_message_came_is_not_used(
    world: World,
) -> None:
    gate = world.imds.gate = asyncio.Event()
    look = asyncio.create_task(world.looks())
    await turns()
    task = asker(world).asks()
    await settled(world.outbox)
    assert world.poller.reads == 1
    gate.set()
    await look

    assert kinds([await task]) == [OutcomeKind.RELAYED]
    assert world.poller.reads == 2


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
