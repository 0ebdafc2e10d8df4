"""How old a delivery is: time that it was pending while the forwarder ran."""

import pytest

from bridge.outbox.questions import Selection
from bridge.outbox.records import REPLIES, Reply
from bridge.outbox.store import Outbox
from tests.pipeline.test_relay import (
    BUSY,
    REFUSED,
    SLOW_DOWN,
    Rig,
    rig_of,
    running,
    throttled,
)
from tests.pipeline.test_relay_recovery import live
from tests.support.book import Book
from tests.support.builders import SINK, outgoing

HOUR, DAY = 3600.0, 86400.0


async def failing(rig: Rig, seconds: float = 0.0) -> None:
    """Let an event be pending at a sink that fails."""
    rig.sink.always = BUSY
    await rig.look()
    await rig.put(outgoing("1"))
    await rig.look()
    await rig.pass_by(seconds)


async def age(rig: Rig) -> float:
    """Return how old the delivery is, as the relay sees it."""
    (delivery,) = await Book(rig.outbox).find(Selection())
    return rig.outbox.ages.clocks[SINK]() - delivery.born


@pytest.mark.parametrize("days", [2, 3650])
async def test_clock_put_right_after_the_boot_makes_nothing_older(
    outbox: Outbox, days: float
) -> None:
    async with rig_of(outbox, max_age=DAY) as rig:
        await failing(rig, 18)

        rig.clock.jump(days * DAY)
        await rig.pass_by(60)

        assert len(rig.sink.tried) > 3
        assert (await rig.tally).dead == 0
        assert await age(rig) == pytest.approx(78)


async def test_clock_set_back_keeps_nothing_beyond_its_age(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=600) as rig:
        await failing(rig)
        rig.clock.jump(-2 * DAY)

        await rig.pass_by(590)
        assert (await rig.tally).dead == 0
        await rig.pass_by(20)

        assert (await rig.tally).dead == 1


async def test_outage_of_the_sink_counts(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=DAY) as rig:
        await failing(rig, 900)

        assert await age(rig) == pytest.approx(900)


async def test_waiting_behind_an_earlier_step_counts(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=600) as rig:
        rig.sink.always = SLOW_DOWN
        await rig.look()
        await rig.put(outgoing("1", key="K"), outgoing("2", key="K"))
        await rig.pass_by(1000)

        assert (await rig.tally).dead == 2


async def test_time_while_the_sink_is_parked_does_not_count(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=600) as rig:
        rig.sink.always = REFUSED
        await rig.look()
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.pass_by(10)
        assert rig.relay.state == "parked"
        before = await age(rig)

        await rig.pass_by(2 * HOUR)
        assert await age(rig) == before
        rig.sink.always = BUSY
        rig.relay.resume()
        await rig.look()
        await rig.pass_by(300)

        assert await age(rig) == pytest.approx(before + 300, abs=1)
        assert (await rig.tally).dead == 0


async def test_time_while_the_forwarder_was_stopped_does_not_count(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox, max_age=600) as rig:
        rig.sink.always = BUSY
        async with running(rig):
            await rig.put(outgoing("1"))
            await live(rig, 100, step=10)
    async with rig_of(outbox, max_age=600) as rig:
        rig.sink.always = BUSY
        rig.clock.jump(DAY)
        await rig.look()
        assert await age(rig) == pytest.approx(100, abs=1)

        await rig.pass_by(490)
        assert (await rig.tally).dead == 0
        await rig.pass_by(20)

        assert (await rig.tally).dead == 1


async def test_kill_takes_a_minute_at_most_off_the_age(outbox: Outbox) -> None:
    """Also where nothing was tried in the meantime: the sink wants to be left alone."""
    async with rig_of(outbox) as rig:
        rig.sink.always = throttled(3600)
        await rig.look()
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.pass_by(1000)
        assert len(rig.sink.tried) == 1
    async with rig_of(outbox) as rig:
        await rig.look()

        assert 940 <= await age(rig) <= 1000


async def test_kill_after_a_month_of_silence_keeps_nothing_for_a_month(
    outbox: Outbox,
) -> None:
    """Where nothing is pending, nothing is written; what comes then writes it."""
    async with rig_of(outbox) as rig:
        await rig.look()
        rig.clock.pass_by(30 * DAY)
        await rig.put(outgoing("1"))
    async with rig_of(outbox, max_age=600) as rig:
        rig.sink.always = BUSY
        await rig.look()
        await rig.pass_by(700)

        assert (await rig.tally).dead == 1


async def test_nothing_is_written_while_nothing_is_pending(outbox: Outbox) -> None:
    async with rig_of(outbox) as rig:
        await rig.look()
        await rig.put(outgoing("1"))
        await rig.look()
        before = outbox.ages.saved(SINK)

        await rig.pass_by(1000)

        assert outbox.ages.saved(SINK) == before


async def test_what_came_before_the_relay_was_there_is_as_old_as_it_is_kept(
    outbox: Outbox,
) -> None:
    outbox.ages.save(SINK, 5000)
    await outbox.commit([outgoing("1")], now=0)

    async with rig_of(outbox) as rig:
        rig.sink.always = BUSY
        await rig.look()
        await rig.pass_by(10)

        assert await age(rig) == pytest.approx(10)


async def test_what_a_person_sends_again_is_new(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=600) as rig:
        await failing(rig, 700)
        assert (await rig.tally).dead == 1
        ledger = Book(outbox)
        await ledger.retry(Selection(), now=rig.clock.now().timestamp(), force=False)

        await rig.look()
        await rig.pass_by(60)

        assert (await rig.tally).dead == 0


async def test_reply_is_not_given_up_because_the_clock_is_put_right(
    outbox: Outbox,
) -> None:
    """Replies to approvals are tried for an hour, by the same clock as events."""
    outbox.ages.clocks[REPLIES] = lambda: 77.0
    await outbox.commit([], now=0, reply=Reply(key="m", body=b"{}"))
    (reply,), _ = await outbox.deliveries.due(REPLIES, now=1, limit=1)

    assert reply.born == 77.0
    assert outbox.ages.saved(REPLIES) == 77.0
