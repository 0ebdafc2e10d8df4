"""Housekeeping: old rows go in steps, and a file that is removed is noticed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.events.build import EventContext
from bridge.foundation.errors import OutboxCorruptError
from bridge.foundation.workers import Worker
from bridge.imds.poller import Poller
from bridge.outbox import statefile
from bridge.outbox.pruning import Pruning, size
from bridge.outbox.questions import Selection
from bridge.outbox.records import Decision
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File, connect
from bridge.outbox.store import Outbox
from bridge.pipeline.housekeeping import Housekeeping
from bridge.pipeline.observer import Observer
from bridge.telemetry.metrics import Metrics
from tests.support.book import Book
from tests.support.builders import (
    EVENT_ID,
    SINK,
    body_of,
    imds_event,
    observed,
    outgoing,
    router,
)
from tests.support.fakes import FakeClock, FakeMetadata, settled
from tests.support.hanging import Hanging

WEEK = 7 * 86400.0
DECISION = Decision(
    message="m", key=EVENT_ID, event_id=EVENT_ID, sequence=1, state="relayed"
)
_WORKER: type[Worker] = Housekeeping


@pytest.fixture
def poller(
    metadata: FakeMetadata, observer: Observer, clock: FakeClock, metrics: Metrics
) -> Poller:
    return Poller(metadata, observer, clock, metrics)


@pytest.fixture
def observer(
    outbox: Outbox,
    metadata: FakeMetadata,
    event_context: EventContext,
    clock: FakeClock,
    metrics: Metrics,
) -> Observer:
    return observed(metadata, outbox, event_context, clock, metrics)[1]


@pytest.fixture
def housekeeping(outbox: Outbox, observer: Observer, clock: FakeClock) -> Housekeeping:
    return Housekeeping(
        outbox=outbox,
        observer=observer,
        clock=clock,
        retention=WEEK,
        max_size=256 * 1024 * 1024,
    )


async def delivered(outbox: Outbox, clock: FakeClock, count: int) -> None:
    """Leave deliveries behind that were made just now."""
    now = clock.now().timestamp()
    await outbox.commit([outgoing(f"{n}") for n in range(count)], now=now)
    found, _ = await outbox.deliveries.due(SINK, now=now, limit=count)
    await asyncio.gather(*(outbox.deliveries.delivered(one, now=now) for one in found))


async def left(outbox: Outbox) -> int:
    return len(await Book(outbox).find(Selection()))


def make(sql: str) -> Callable[[Any], Any]:
    return lambda db: db.execute(sql).fetchone()


# -- pruning -------------------------------------------------------------------


@pytest.mark.parametrize(("age", "kept"), [(WEEK - 1, 3), (WEEK + 1, 0)])
async def test_what_was_delivered_is_kept_for_the_retention(
    age: float, kept: int, housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await delivered(housekeeping.outbox, clock, 3)
    clock.pass_by(age)

    await housekeeping.step()

    assert await left(housekeeping.outbox) == kept


async def test_much_is_pruned_in_steps_so_that_nobody_waits_long(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await delivered(housekeeping.outbox, clock, 1200)
    clock.pass_by(WEEK + 1)

    kept = []
    for _ in range(4):
        await housekeeping.step()
        kept.append(await left(housekeeping.outbox))

    assert kept == [700, 200, 0, 0]


async def test_pruning_is_done_once_an_hour(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await housekeeping.step()
    await delivered(housekeeping.outbox, clock, 1)
    housekeeping.retention = 10

    clock.pass_by(3599)
    await housekeeping.step()
    assert await left(housekeeping.outbox) == 1

    clock.pass_by(1)
    await housekeeping.step()
    assert await left(housekeeping.outbox) == 0


async def test_wall_clock_set_ahead_prunes_no_sooner(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await housekeeping.step()
    await delivered(housekeeping.outbox, clock, 1)

    clock.jump(10 * WEEK)
    await housekeeping.step()

    assert await left(housekeeping.outbox) == 1


@pytest.mark.parametrize("jumps", [[2], [400], [-400, 400], [400, -400]])
async def test_clock_that_is_set_makes_nothing_older_that_is_kept(
    jumps: list[float], housekeeping: Housekeeping, clock: FakeClock
) -> None:
    """What was decided on an approval is known for the retention, whatever it says."""
    housekeeping.retention = 86400
    outbox = housekeeping.outbox
    await housekeeping.step()
    await delivered(outbox, clock, 1)
    await outbox.commit([], now=clock.now().timestamp(), decisions=[DECISION])
    for days in jumps:
        clock.jump(days * 86400)
        await housekeeping.step()

    clock.pass_by(86400 - 10)
    await housekeeping.step()
    assert await outbox.approvals.of_message("m")
    assert await left(outbox) == 1

    clock.pass_by(2 * 3600)
    await housekeeping.step()
    if jumps[-1] > 0:  # what was written ahead is of the moment that it is found
        assert not await outbox.approvals.of_message("m")
        assert not await left(outbox)


async def test_clock_that_is_set_writes_no_row_anew(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    """With a million rows that would be one write of minutes."""
    await housekeeping.step()
    await delivered(housekeeping.outbox, clock, 500)
    before = await housekeeping.outbox.database.read(lambda db: db.total_changes)

    clock.jump(2 * 86400)
    await housekeeping.step()

    after = await housekeeping.outbox.database.read(lambda db: db.total_changes)
    assert after - before < 10


async def test_clock_set_ahead_and_back_in_part_keeps_the_age(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    housekeeping.retention = 86400
    await housekeeping.step()
    await delivered(housekeeping.outbox, clock, 1)
    for days in (1, 4, -3, 7):
        clock.pass_by(60)
        clock.jump(days * 86400)
        await housekeeping.step()

    clock.pass_by(86400 - 300)
    await housekeeping.step()
    assert await left(housekeeping.outbox) == 1

    clock.pass_by(3600)
    await housekeeping.step()
    assert not await left(housekeeping.outbox)


async def test_what_a_clock_that_was_ahead_has_left_is_not_kept_for_ever(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    clock.jump(3650 * 86400)
    await delivered(housekeeping.outbox, clock, 1)
    now = clock.now().timestamp()
    await housekeeping.outbox.commit([], now=now, decisions=[DECISION])
    clock.jump(-3650 * 86400)
    await housekeeping.step()

    clock.pass_by(WEEK + 3600)
    await housekeeping.step()

    assert not await left(housekeeping.outbox)
    assert not await housekeeping.outbox.approvals.of_message("m")


async def test_clock_put_right_makes_what_waits_no_older_in_the_status(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await housekeeping.step()
    await housekeeping.outbox.commit([outgoing("1")], now=clock.now().timestamp())
    clock.pass_by(18)
    clock.jump(2 * 86400)

    await housekeeping.step()

    oldest = (await housekeeping.outbox.deliveries.tallies())[SINK].oldest
    assert oldest == clock.now().timestamp() - 18


async def test_what_is_not_delivered_is_kept_whatever_its_age(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await housekeeping.outbox.commit([outgoing("1")], now=clock.now().timestamp())
    clock.pass_by(10 * WEEK)

    await housekeeping.step()

    assert await left(housekeeping.outbox) == 1


async def test_event_still_in_the_document_is_remembered_whatever_its_age(
    housekeeping: Housekeeping, poller: Poller, metadata: FakeMetadata, clock: FakeClock
) -> None:
    """It may be announced further ahead than the retention."""
    metadata.says(body_of(imds_event()))
    await poller.step()
    clock.pass_by(WEEK + 1)

    await housekeeping.step()

    assert await housekeeping.outbox.observations.was_seen(EVENT_ID)


async def test_event_that_is_gone_is_forgotten_after_the_retention(
    housekeeping: Housekeeping, poller: Poller, metadata: FakeMetadata, clock: FakeClock
) -> None:
    metadata.says(body_of(imds_event()), body_of(incarnation=3))
    await poller.step()
    await poller.step()
    clock.pass_by(WEEK + 1)

    await housekeeping.step()

    assert not await housekeeping.outbox.observations.was_seen(EVENT_ID)


# -- size ------------------------------------------------------------------------


async def large(outbox: Outbox, clock: FakeClock, *names: str) -> None:
    now = clock.now().timestamp()
    for name in names:
        await outbox.commit([outgoing(name, data={"x": "y" * 10_000})], now=now)


async def test_file_that_grows_too_large_drops_what_is_delivered_oldest_first(
    housekeeping: Housekeeping, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, now = housekeeping.outbox, clock.now().timestamp()
    await large(outbox, clock, *(f"{n}" for n in range(40)))
    for n in range(30):
        (one,) = await outbox.deliveries.of_cloud_event(SINK, f"{n}")
        await outbox.deliveries.delivered(one, now=now)
    await large(outbox, clock, "new")
    (one,) = await outbox.deliveries.of_cloud_event(SINK, "new")
    await outbox.deliveries.delivered(one, now=now)
    housekeeping.max_size = await outbox.database.read(size) - 1

    await housekeeping.step()

    found = await Book(outbox).find(Selection())
    kept = [one.cloud_event_id for one in found]
    assert kept == [*(f"{n}" for n in range(20, 40)), "new"]
    assert caplog.records == []


async def test_what_is_not_delivered_is_never_dropped_for_size(
    housekeeping: Housekeeping, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await large(housekeeping.outbox, clock, *(f"{n}" for n in range(5)))
    housekeeping.max_size = 1000

    for _ in range(3):
        await housekeeping.step()
        clock.pass_by(60)

    assert await left(housekeeping.outbox) == 5
    assert [r.message.split(":")[0] for r in caplog.records] == [
        "state file is larger than state.max_size"
    ]


async def test_much_is_dropped_in_steps(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await delivered(housekeeping.outbox, clock, 50)
    housekeeping.max_size = 1000

    counts = []
    for _ in range(4):
        await housekeeping.step()
        counts.append(await left(housekeeping.outbox))

    assert counts == [30, 10, 0, 0]


# -- a file that is removed ------------------------------------------------------


async def test_look_at_an_unchanged_file_does_not_ask_its_thread(
    housekeeping: Housekeeping, state_path: Path
) -> None:
    disk = Hanging()
    async with Database.open(
        File(state_path, may_degrade=True, connect=disk.open)
    ) as database:
        housekeeping = replaced(housekeeping, await Outbox.of(database, router()))
        await housekeeping.step()
        await housekeeping.step()
        disk.freeze("")  # each statement would hang
        await housekeeping.step()
        disk.thaw()

    assert not disk.hung.is_set()


@pytest.mark.parametrize("removed", ["", ".lock"])
async def test_file_that_was_removed_is_noticed_at_the_next_look(
    removed: str, housekeeping: Housekeeping, tmp_path: Path
) -> None:
    path = tmp_path / "own.db"
    with statefile.locked(path) as lock:
        async with statefile.open_database(path, "VM", lock=lock) as database:
            housekeeping = replaced(housekeeping, await Outbox.of(database, router()))
            await housekeeping.step()
            Path(f"{path}{removed}").unlink()
            await housekeeping.step()

            assert database.is_degraded


def replaced(housekeeping: Housekeeping, outbox: Outbox) -> Housekeeping:
    """Return the housekeeping of another state file."""
    return Housekeeping(
        outbox=outbox,
        observer=housekeeping.observer,
        clock=housekeeping.clock,
        retention=WEEK,
        max_size=256 * 1024 * 1024,
    )


# -- while the state file is in trouble ------------------------------------------


async def test_state_file_that_cannot_be_written_is_logged_once_and_tried_again(
    housekeeping: Housekeeping, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk must not end the forwarder: pruning is what may help it."""
    await delivered(housekeeping.outbox, clock, 1)
    clock.pass_by(WEEK + 1)
    await housekeeping.outbox.database.read(make("PRAGMA query_only = ON"))

    for _ in range(3):
        await housekeeping.step()
    assert caplog.messages == ["housekeeping of the state file failed"]

    await housekeeping.outbox.database.read(make("PRAGMA query_only = OFF"))
    await housekeeping.step()
    assert await left(housekeeping.outbox) == 0


async def test_state_file_held_by_another_process_is_no_reason_to_end(
    housekeeping: Housekeeping, state_path: Path
) -> None:
    await housekeeping.outbox.database.run(make("PRAGMA busy_timeout = 10"))
    other = connect(state_path)
    other.execute("BEGIN IMMEDIATE")

    await housekeeping.step()

    other.close()


async def test_what_is_in_memory_goes_to_disk_as_soon_as_it_can(
    housekeeping: Housekeeping, clock: FakeClock, state_path: Path
) -> None:
    async with statefile.open_database(state_path, None) as database:
        housekeeping.outbox = await Outbox.of(database, router())
        await database.read(make("PRAGMA busy_timeout = 50"))
        other = connect(state_path)
        other.execute("BEGIN IMMEDIATE")
        await housekeeping.outbox.commit([outgoing("1")], now=clock.now().timestamp())
        await housekeeping.step()
        assert database.is_degraded
        other.close()

        await housekeeping.step()

        assert not database.is_degraded
        assert await left(housekeeping.outbox) == 1


async def test_trouble_is_logged_again_after_it_was_over(
    housekeeping: Housekeeping, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await housekeeping.outbox.database.read(make("PRAGMA query_only = ON"))
        clock.pass_by(3600)
        await housekeeping.step()
        await housekeeping.outbox.database.read(make("PRAGMA query_only = OFF"))
        await housekeeping.step()

    assert len(caplog.messages) == 2


class DamagedFile(Pruning, frozen=True):
    """A file that turns out to be damaged when it is pruned."""

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        raise OutboxCorruptError("the state file is damaged")


async def test_damaged_state_file_ends_the_forwarder(
    housekeeping: Housekeeping,
) -> None:
    """It is moved aside at the next start."""
    housekeeping.outbox.pruning = DamagedFile(housekeeping.outbox.state)

    with pytest.raises(OutboxCorruptError):
        await housekeeping.step()


# -- the loop --------------------------------------------------------------------


async def test_upkeep_looks_about_every_two_seconds_until_asked_to_stop(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    stop = asyncio.Event()
    task = asyncio.ensure_future(housekeeping.run(stop))
    for _ in range(3):
        await settled(housekeeping.outbox)
        await clock.advance(2.5)
    await settled(housekeeping.outbox)
    assert not task.done()

    stop.set()
    await task

    assert set(clock.waits) == {2.5}  # or 1.5, together with a look at IMDS
    assert len(clock.waits) == 4


async def test_nothing_is_begun_after_a_stop(
    housekeeping: Housekeeping, clock: FakeClock
) -> None:
    await delivered(housekeeping.outbox, clock, 1)
    clock.pass_by(WEEK + 1)
    stop = asyncio.Event()
    stop.set()

    await housekeeping.run(stop)

    assert await left(housekeeping.outbox) == 1
