"""One loop reads, decides and posts: no request of one kind keeps another waiting."""

import asyncio
from itertools import pairwise

import pytest

from bridge.approvals.rules import Rule
from bridge.foundation.values import Duration
from tests.approvals.slow_world import (
    Event,
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    slow_world,
)

NAMES = tuple(f"E{number}" for number in range(40))
STARTED = {"EventStatus": "Started", "NotBefore": ""}
SOON = {"NotBefore": "Mon, 02 Mar 2026 12:01:00 GMT"}  # a minute after the start


def test_post_in_doubt_is_not_repeated_before_a_look_of_its_own() -> None:
    """It worked, but its answer is lost; 39 others wait, and reads are 10 s apart."""

    def history(_: float) -> list[Event]:
        begun = {post.event_id for post in imds.posts}
        return [freeze(n) | (STARTED if n in begun else {}) for n in NAMES]

    async def scenario() -> None:
        async with slow_world(imds, approval(1, *NAMES), poll_interval=10.0) as world:
            await world.settles(1)
            outcomes = [event.data for event in await world.outcomes()]

        assert sorted(post.event_id for post in imds.posts) == sorted(NAMES)
        assert [one["outcome"] for one in outcomes] == ["relayed"] * len(NAMES)
        assert [one["confirmed"] for one in outcomes].count(False) == 1

    imds = SlowImds(history, posting=lambda number: 504 if number == 0 else 200)
    in_virtual_time(scenario())


def test_approval_that_comes_among_others_has_its_look_after_one_post() -> None:
    async def scenario() -> None:
        imds = SlowImds(lambda _: [*map(freeze, NAMES), freeze("late")])
        async with slow_world(imds, approval(1, *NAMES), poll_interval=10.0) as world:
            while len(imds.posts) < 5:
                await asyncio.sleep(0.01)
            world.queue.put(approval(2, "late"))
            before = len(imds.requests)
            await asyncio.sleep(1.0)

        assert "GET" in [one.method for one in imds.requests[before : before + 2]]

    in_virtual_time(scenario())


@pytest.mark.parametrize("is_changing", [False, True])
def test_marks_that_take_seconds_delay_no_read(*, is_changing: bool) -> None:
    """Nor do changes of the document: nobody waits until they are on the disk."""

    def history(at: float) -> list[Event]:
        number = int(at) if is_changing else 0
        return [freeze(name, Description=f"change {number}") for name in NAMES]

    async def scenario() -> None:
        imds = SlowImds(history)
        messages = [approval(number, name) for number, name in enumerate(NAMES)]
        async with slow_world(imds, *messages, disk_seconds=3.0):
            await asyncio.sleep(60.0)

        begins = [read.began for read in imds.reads]
        assert max(after - before for before, after in pairwise(begins[1:])) <= 1.26
        assert len(imds.posts) >= 8
        for post in imds.posts:
            assert post.began - imds.read_before(post).ended <= 1.0

    in_virtual_time(scenario())


def test_first_look_is_on_the_disk_before_the_next_read() -> None:
    """Else one that is killed soon after each start would keep nothing."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [*map(freeze, NAMES)])
        async with slow_world(imds, disk_seconds=2.0):
            await asyncio.sleep(20.0)

        first, second, *_ = imds.reads
        assert second.began >= 2.0 > first.ended

    in_virtual_time(scenario())


@pytest.mark.parametrize("comes", [0.0, 40.0])
def test_request_fails_at_its_deadline_during_a_read_that_hangs(comes: float) -> None:
    """After three time-outs a read may take two minutes; NotBefore is after one."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze("E") | SOON], posting=lambda _: 429)
        async with slow_world(imds) as world:
            asyncio.get_running_loop().call_later(
                comes, world.queue.put, approval(1, "E")
            )
            await asyncio.sleep(3.0)
            imds.get_seconds = 1000.0
            await world.settles(1, within=200.0)
            (outcome,) = await world.outcomes()

        assert outcome.data["outcome"] == "failed"
        # The Date of IMDS has no fractions, and is older by the time of the GET.
        assert 55.0 <= world.queue.settled["m1"][2] <= 61.1

    in_virtual_time(scenario())


def test_request_that_came_while_imds_was_away_waits_for_its_delay() -> None:
    """NotBefore passes before the delay is over."""
    later = Rule(name="later", action="allow", delay=Duration(90.0))

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze("E") | SOON])
        imds.getting = lambda second: 503 if 5.0 <= second < 6.5 else 200
        async with slow_world(imds, rules=(later,)) as world:
            await asyncio.sleep(6.2)
            world.queue.put(approval(1, "E"))
            await world.settles(1, within=120.0)
            (outcome,) = await world.outcomes()

        assert outcome.data["outcome"] == "relayed"

    in_virtual_time(scenario())


def test_only_the_next_two_are_marked_as_posted() -> None:
    """A mark that no POST follows would be in doubt after a kill."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [*map(freeze, NAMES)])
        async with slow_world(imds, approval(1, *NAMES)) as world:
            while len(imds.posts) < 5:
                await asyncio.sleep(0.01)
            posts = [post.event_id for post in imds.posts]
            marked = await world.outbox.approvals.posted()

        assert marked
        assert len(marked - set(posts)) <= 2

    in_virtual_time(scenario())
