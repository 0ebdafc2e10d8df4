"""Waiting approvals do not delay others; limits of active and waiting messages."""

import asyncio

import pytest

from bridge.approvals.listener import MOST_ACTING, MOST_WAITING
from bridge.approvals.rules import Rule
from bridge.foundation.values import Duration
from tests.approvals.slow_world import (
    Event,
    SlowImds,
    SlowWorld,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)

HOUR = Rule(
    name="slowly", action="allow", event_types=("Freeze",), delay=Duration(3600)
)
OTHERS = Rule(name="others", action="allow")
REBOOT = freeze("reboot", EventType="Reboot")


async def relayed_within(world: SlowWorld, seconds: float) -> None:
    """Wait until the Reboot is posted, and check that this was in time."""
    async with asyncio.timeout(seconds):
        while not any(post.event_id == "reboot" for post in world.imds.posts):
            await asyncio.sleep(0.05)


def test_waiting_message_does_not_delay_others() -> None:
    async def scenario() -> None:
        imds = SlowImds(lambda _: [REBOOT])
        async with slow_world(imds, approval(1, "E"), approval(2, "reboot")) as world:
            await world.settles(2)

        assert [*world.queue.settled] == ["m2", "m1"]
        assert world.queue.settled["m2"][:2] == ("complete", "")
        assert world.queue.settled["m1"][:2] == ("dead-letter", "UnknownEvent")

    in_virtual_time(scenario())


@pytest.mark.parametrize("count", [110, 1000])
@pytest.mark.parametrize("is_one_event", [True, False])
def test_approvals_delayed_by_a_rule_do_not_delay_others(
    count: int, *, is_one_event: bool
) -> None:
    names = ["E" if is_one_event else f"E{n}" for n in range(count - 1)]
    events = [*(freeze(name) for name in dict.fromkeys(names)), REBOOT]
    messages = [approval(n, name) for n, name in enumerate(names)]

    async def scenario() -> None:
        imds = SlowImds(lambda _: events)
        last = approval(count, "reboot")
        rules = (HOUR, OTHERS)
        async with slow_world(imds, *messages, last, rules=rules) as world:
            await relayed_within(world, 5.0)

            assert not world.listener.is_full
            assert len(imds.posts) == 1

    in_virtual_time(scenario())


def test_unknown_events_do_not_delay_others() -> None:
    async def scenario() -> None:
        imds = SlowImds(lambda _: [REBOOT])
        count = 2 * MOST_ACTING
        messages = [approval(n, f"E{n}") for n in range(count)]
        async with slow_world(imds, *messages, approval(count, "reboot")) as world:
            await relayed_within(world, 5.0)
            await world.settles(count + 1)

        verdicts = [(verb, why) for verb, why, _ in world.queue.settled.values()]
        assert verdicts.count(("dead-letter", "UnknownEvent")) == count

    in_virtual_time(scenario())


def test_unknown_events_kept_for_another_vm_do_not_delay_others() -> None:
    """Such a message is kept for minutes before it is abandoned."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [REBOOT])
        count = 2 * MOST_ACTING
        messages = [approval(n, f"E{n}", delivery_count=5) for n in range(count)]
        settings = {"on_unknown": "abandon"}
        async with slow_world(imds, *messages, settings=settings) as world:
            await asyncio.sleep(60.0)
            assert not world.queue.settled
            world.queue.put(approval(count, "reboot"))
            await relayed_within(world, 5.0)

    in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("most", "delivered", "verdict"),
    [
        (None, 8, "abandon"),
        (None, 9, "dead-letter"),
        (3, 1, "abandon"),
        (3, 2, "dead-letter"),
        (3, 5, "dead-letter"),
        (1, 0, "dead-letter"),
        (50, 9, "abandon"),
    ],
)
def test_last_delivery_is_set_by_max_delivery_count(
    most: int | None, delivered: int, verdict: str
) -> None:
    async def scenario() -> None:
        settings: dict[str, object] = {"on_unknown": "abandon"}
        settings |= {} if most is None else {"max_delivery_count": most}
        asked = approval(0, "E", delivery_count=delivered)
        async with slow_world(
            SlowImds(lambda _: []), asked, settings=settings
        ) as world:
            await world.settles(1)

        ((found, _, _),) = world.queue.settled.values()
        assert found == verdict

    in_virtual_time(scenario())


def test_approvals_that_imds_refuses_do_not_delay_others() -> None:
    """Each of them is tried again until NotBefore."""

    async def scenario() -> None:
        events = [*(freeze(f"E{n}") for n in range(110)), REBOOT]
        imds = SlowImds(lambda _: events, posting=lambda number: 404)
        messages = [approval(n, f"E{n}") for n in range(110)]
        async with slow_world(imds, *messages) as world:
            await asyncio.sleep(120.0)
            world.queue.put(approval(110, "reboot"))
            await relayed_within(world, 60.0)

    in_virtual_time(scenario())


def test_repeated_messages_do_not_delay_others() -> None:
    """The second of two equal messages waits until the first is decided."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze("E"), REBOOT])
        first = approval(1, "E")
        again = [approval(n, "E", message_id="m1") for n in range(1, 200)]
        rules = (HOUR, OTHERS)
        async with slow_world(imds, first, *again, rules=rules) as world:
            await asyncio.sleep(10.0)
            world.queue.put(approval(500, "reboot"))
            await relayed_within(world, 5.0)

    in_virtual_time(scenario())


def test_approvals_in_line_do_not_delay_others() -> None:
    """IMDS takes 4.5 s for each of two hundred; the last has the nearest NotBefore."""

    async def scenario() -> None:
        soon = {**REBOOT, "NotBefore": "Mon, 02 Mar 2026 12:05:00 GMT"}
        events: list[Event] = [*(freeze(f"E{n}") for n in range(200)), soon]
        imds = SlowImds(lambda _: events, post_seconds=4.5)
        messages = [approval(n, f"E{n}") for n in range(200)]
        async with slow_world(imds, *messages, approval(200, "reboot")) as world:
            await relayed_within(world, 20.0)

    in_virtual_time(scenario())


@pytest.mark.slow
def test_no_message_is_received_while_a_thousand_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each waiting message needs a lock renewal, so their number is limited."""
    count = MOST_WAITING + MOST_ACTING + 50

    async def scenario() -> None:
        document = [freeze(f"E{n}") for n in range(count)]
        rule = Rule(name="slowly", action="allow", delay=Duration(60))
        imds = SlowImds(lambda _: document)
        messages = [approval(n, f"E{n}") for n in range(count)]
        async with slow_world(imds, *messages, rules=(rule,)) as world:
            await asyncio.sleep(30.0)
            held = count - len(world.queue.waiting)

            assert world.listener.is_full
            assert MOST_WAITING <= held <= MOST_WAITING + MOST_ACTING + 10
            assert caplog.messages.count(FULL) == 1

            async with asyncio.timeout(600.0):
                while world.queue.waiting or world.listener.is_full:
                    await asyncio.sleep(1.0)
            assert now() > 60.0

    in_virtual_time(scenario())


@pytest.mark.parametrize(("count", "is_full"), [(999, False), (1000, True)])
def test_limit_is_exactly_a_thousand_waiting_messages(
    count: int, *, is_full: bool
) -> None:
    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze("E")])
        messages = [approval(n, "E") for n in range(count)]
        async with slow_world(imds, *messages, rules=(HOUR,)) as world:
            await asyncio.sleep(60.0)
            assert not world.queue.waiting
            world.queue.put(approval(count, "E"))
            await asyncio.sleep(60.0)

            assert (world.listener.is_full, bool(world.queue.waiting)) == (
                is_full,
                is_full,
            )

    in_virtual_time(scenario())


FULL = "approvals not received while so many wait"


def test_waits_of_one_event_end_together_and_with_one_post() -> None:
    async def scenario() -> None:
        rule = Rule(name="slowly", action="allow", delay=Duration(60))
        imds = SlowImds(lambda _: [freeze("E")], post_seconds=2.0)
        count = MOST_ACTING + 20
        messages = [approval(n, "E") for n in range(count)]
        async with slow_world(imds, *messages, rules=(rule,)) as world:
            await world.settles(count)
            published = await world.outcomes()

        assert len(imds.posts) == 1
        assert [event.data["outcome"] for event in published] == ["relayed"] * count
        assert 60.0 <= imds.posts[0].began <= 64.0

    in_virtual_time(scenario())
