"""Cases that an outbox gets wrong easily, each as small as it can be."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from bridge.foundation.errors import OutboxFullError, Reason
from bridge.outbox.records import Decision
from tests.support.builders import outgoing
from tests.support.outbox_door import Door, is_durable

DECISION = Decision(message="m", key="K", event_id="k", sequence=1, state="relayed")


@pytest.fixture
def door(state_path: Path) -> Door:
    return Door(state_path)


async def test_commit_that_must_ask_the_file_is_not_lost_with_its_caller(
    door: Door,
) -> None:
    async with door:
        await door.with_old_facts()
        calling = asyncio.create_task(door.commit(outgoing("1", key="NEW")))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await door.commit(outgoing("2", key="NEW"))

        assert await door.names() == ["1"]
        assert await door.times("1") == 1


async def test_cancelled_commit_on_a_disk_that_hangs_keeps_its_place(
    door: Door,
) -> None:
    async with door:
        door.disk.freeze()
        calling = asyncio.create_task(door.commit(outgoing("1", key="K")))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await door.commit(outgoing("2", key="K"))

        assert await door.names() == ["1"]
        door.disk.thaw()
        await door.healed()
        await door.reopen()
        assert await door.names() == ["1"]


@pytest.mark.parametrize("is_failing", [False, True])
async def test_end_of_what_does_not_wait_changes_nothing(
    door: Door, *, is_failing: bool
) -> None:
    async with door:
        await door.commit(outgoing("1", key="K"), outgoing("2", key="K"))
        (first,) = await door.due()
        await door.settle(first)
        door.disk.is_full = is_failing
        await door.settle(first, "dead")
        await door.postpone(first, 0.0)
        await door.settle(first)

        assert await door.names() == ["2"]
        tally = (await door.tallies())["a"]
        assert (tally.delivered, tally.dead, tally.pending) == (1, 0, 1)


async def test_commit_of_a_checkpoint_without_room_changes_nothing(
    state_path: Path,
) -> None:
    async with Door(state_path, room=2) as door:
        door.disk.is_full = True
        await door.commit(outgoing("1"), checkpoint=b"1")
        for events in ("2", "3"), ("4", "5", "6"):
            with pytest.raises(OutboxFullError):
                await door.commit(
                    *(outgoing(name, cause="c") for name in events),
                    checkpoint=b"no",
                    decisions=[DECISION],
                )

        assert await door.names() == ["1"]
        assert await door.checkpoint() == b"1"
        assert await door.decisions("m") == {}
        assert await door.times("c") == 0
        await door.commit(outgoing("7"), checkpoint=b"7")
        assert await door.names() == ["1", "7"]


async def test_commit_of_decisions_without_room_keeps_them(state_path: Path) -> None:
    async with Door(state_path, room=0) as door:
        door.disk.is_full = True
        await door.written()
        await door.commit(outgoing("1", cause="c"), decisions=[DECISION])

        assert await door.names() == []
        assert await door.times("c") == 0
        assert await door.decisions("m") == {"K": DECISION}
        door.disk.is_full = False
        await door.healed()
        await door.reopen()
        assert await door.names() == []
        assert await door.decisions("m") == {"K": DECISION}


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
@pytest.mark.parametrize("is_sent", [False, True], ids=["waiting", "sent"])
async def test_answer_after_a_hang_is_right_in_either_order(
    door: Door, *, is_after: bool, fails: bool, is_sent: bool
) -> None:
    async with door:
        door.disk.freeze(is_after=is_after)
        await door.commit(outgoing("1", key="K"))
        await door.commit(outgoing("2", key="K"))
        assert not is_durable((await door.due())[0])
        if is_sent:
            await door.settle((await door.due())[0])
        door.disk.thaw(fails=fails)
        await door.healed()
        if not is_sent:
            await door.settle((await door.due())[0])
        await door.commit(outgoing("3", key="K"))

        assert await door.names() == ["2"]
        await door.reopen()
        assert await door.names() == ["2"]
        assert [await door.times(name) for name in "123"] == [1, 1, 1]


async def test_what_another_process_retries_and_discards_counts(door: Door) -> None:
    async with door:
        await door.commit(*(outgoing(f"{n}", key="KKKL"[n]) for n in range(4)))
        zero, three = await door.due()
        await door.settle(zero, "dead")
        await door.settle(three, "dead")

        assert await door.retry(event_id="K") == (["0"], [])
        assert await door.names() == ["0"]
        assert await door.discard(event_id="K") == ["0", "1", "2"]
        await door.settle(zero)
        assert await door.names() == []
        assert (await door.tallies())["a"].delivered == 0
        assert await door.names("b") == ["0", "3"]


async def test_retried_one_lends_its_urgency_to_no_later_one(door: Door) -> None:
    async with door:
        await door.commit(outgoing("calm", key="C"))
        soon = door.clock.now() + timedelta(seconds=100)
        door.clock.pass_by(1.0)
        await door.commit(outgoing("1", key="K", not_before=soon))
        await door.commit(outgoing("2", key="K"))
        first = (await door.due())[0]
        assert first.cloud_event_id == "1"
        await door.settle(first, "dead")
        await door.retry()
        await door.settle((await door.due())[0])

        assert await door.names() == ["calm", "2"]


async def test_settlement_that_the_file_alone_refuses_is_sent_again_by_the_next_run(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """What shares its transaction is written, and this run settles it once."""
    async with door:
        await door.commit(outgoing("1", key="K"), outgoing("2", key="L"))
        refused, other = await door.due()

        deliveries = door.outbox.deliveries
        changes = (
            deliveries.dead_letter(
                refused, now=door.now, error="\ud800", reason=Reason.REJECTED
            ),
            deliveries.delivered(other, now=door.now),
        )

        assert [await one for one in changes] == [False, True]
        assert "change lost on its way to disk" in caplog.text
        tally = (await door.tallies())["a"]
        assert (tally.pending, tally.dead, tally.delivered) == (0, 1, 1)
        await door.reopen()
        assert await door.names() == ["1"]


async def test_due_too_far_ahead_is_due_at_a_start(door: Door) -> None:
    async with door:
        await door.commit(outgoing("1"), outgoing("2"))
        one, two = await door.due()
        await door.postpone(one, 7200.0)
        await door.postpone(two, 200.0)
        await door.reopen()
        await door.follow_restart(300.0)

        assert await door.names() == ["1"]
        door.clock.pass_by(200.0)
        assert await door.names() == ["1", "2"]


@pytest.mark.parametrize("is_failing", [False, True])
async def test_corrected_due_time_is_not_set_back(
    door: Door, *, is_failing: bool
) -> None:
    async with door:
        await door.commit(outgoing("1"), outgoing("2"))
        await door.postpone((await door.due())[0], 10.0)
        door.disk.is_full = is_failing
        await door.written()
        await door.set_clock(-3600.0)
        door.disk.is_full = False
        await door.healed()
        await door.discard("b")
        door.clock.pass_by(10.0)

        assert sorted(await door.names()) == ["1", "2"]
        await door.reopen()
        assert sorted(await door.names()) == ["1", "2"]


async def test_released_one_stays_due_on_a_disk_that_answers_again(door: Door) -> None:
    async with door:
        await door.commit(outgoing("1"), outgoing("2"))
        for one in await door.due():
            await door.postpone(one, 30.0, waits_for_sink=True)

        assert await door.release() == 2
        await door.discard("b")
        assert await door.names() == ["1", "2"]
