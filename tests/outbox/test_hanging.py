"""The outbox while its disk hangs: nobody waits for it, and nothing is done twice.

The thread is a real one and hangs in a real statement, until the test lets it go on.
"""

import asyncio
import gc
import json
import logging
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.cli.long_running import until_stopped
from bridge.foundation.errors import (
    OutboxError,
    OutboxFullError,
    OutboxThreadDiedError,
    OutboxUnavailableError,
    Reason,
)
from bridge.foundation.workers import run_workers
from bridge.outbox import reads
from bridge.outbox.image import Limits
from bridge.outbox.questions import Selection
from bridge.outbox.records import CHECKPOINT, Checkpoint, Decision, Delivery
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import Connection, File, connect
from bridge.outbox.storage.journal import Timings
from bridge.outbox.store import Outbox
from bridge.pipeline.housekeeping import StateWatch
from tests.support.book import Book
from tests.support.builders import outgoing, patient_outbox, route, router
from tests.support.hanging import Hanging
from tests.support.outboxes import publish_counts

NOW = 1_800_000_000.0
A = "a"
PATIENCE = 0.4
WITHIN = 60.0


@asynccontextmanager
async def opened(
    path: Path,
    disk: Hanging | None = None,
    *,
    limits: Limits | None = None,
    patience: float = PATIENCE,
) -> AsyncIterator[Outbox]:
    """Open a state file on a disk that may hang."""
    disk, timings = disk or Hanging(), Timings(patience=WITHIN, closing=1.0)
    try:
        async with Database.open(
            File(path, may_degrade=True, connect=disk.open), timings=timings
        ) as database:
            disk.follow(database, patience, WITHIN)
            outbox = await Outbox.of(database, router({A: route()}))
            outbox.image.limits = limits or Limits()
            yield outbox
    finally:
        disk.thaw()


async def put(outbox: Outbox, *names: str, key: str | None = "K") -> None:
    events = [outgoing(name, key=key) for name in names]
    checkpoint = Checkpoint(body=names[-1].encode())
    await outbox.commit(events, now=NOW, checkpoint=checkpoint)


async def due(outbox: Outbox, limit: int = 100) -> list[Delivery]:
    found, _ = await outbox.deliveries.due(A, now=NOW, limit=limit)
    return found


async def names(outbox: Outbox) -> list[str | None]:
    return [one.cloud_event_id for one in await due(outbox)]


async def deliver(outbox: Outbox) -> list[str | None]:
    """Deliver everything that becomes due; returns it in order."""
    taken = list[str | None]()
    while found := await due(outbox):
        await outbox.deliveries.delivered(*found, now=NOW)
        taken += [one.cloud_event_id for one in found]
    return taken


async def healed(outbox: Outbox) -> None:
    async with asyncio.timeout(WITHIN):
        while outbox.database.is_degraded:
            await outbox.database.heal()
            await asyncio.sleep(0)


async def on_disk(path: Path) -> list[tuple[str | None, str, bool]]:
    """Return what is on the disk: id, state, whether it was durable when committed."""
    async with patient_outbox(path, router({A: route()})) as outbox:
        found = await Book(outbox).find(Selection())
    return [(one.cloud_event_id, one.state, is_durable(one)) for one in found]


async def times_on_disk(path: Path) -> dict[str, int]:
    async with patient_outbox(path, router({A: route()})) as outbox:
        return await outbox.database.read(
            lambda db: dict(db.execute("SELECT cause, times FROM told"))
        )


def is_durable(delivery: Delivery) -> bool:
    data: dict[str, object] = json.loads(delivery.body)["data"]
    return data.get("durable", True) is True


# -- what goes on ----------------------------------------------------------------


async def test_disk_that_hangs_keeps_no_event_from_being_delivered(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze()
        await put(outbox, "2", key="L")
        await put(outbox, "3", key="M")

        assert outbox.database.is_degraded
        assert outbox.database.is_answering
        assert "not answered" in str(outbox.database.fault)
        assert [(d.cloud_event_id, is_durable(d)) for d in await due(outbox)] == [
            ("1", True),
            ("2", False),
            ("3", False),
        ]
        assert await outbox.observations.load(CHECKPOINT) == b"3"
        assert await publish_counts(outbox, "1", "2", "3") == {
            "1": 1,
            "2": 1,
            "3": 1,
        }
    assert caplog.text.count("going on in memory") == 1


@pytest.mark.integration
async def test_machine_that_stood_still_is_no_disk_that_hangs(state_path: Path) -> None:
    """A live migration stops the thread and whoever watches it, for seconds."""
    disk = Hanging()
    async with opened(state_path, disk, patience=1.5) as outbox:
        timings = outbox.database.timings
        outbox.database.timings = replace(timings, standstill=0.5)
        disk.freeze()
        writing = asyncio.create_task(put(outbox, "first"))
        assert await asyncio.to_thread(disk.hung.wait, WITHIN)
        time.sleep(2.5)  # noqa: ASYNC251 - nothing moves, the loop neither
        await asyncio.sleep(0)
        disk.thaw()
        await writing

        assert not outbox.database.is_degraded
        assert await names(outbox) == ["first"]


async def test_quiet_moment_that_hangs_holds_up_nobody(state_path: Path) -> None:
    disk = Hanging()
    async with opened(state_path, disk, patience=WITHIN) as outbox:
        disk.freeze("PRAGMA wal_checkpoint")
        for number in range(20):
            await put(outbox, str(number), key=None)
        assert await asyncio.to_thread(disk.hung.wait, WITHIN)
        disk.follow(outbox.database, PATIENCE, WITHIN)
        disk.on_change(True)  # noqa: FBT003 - told of one thing

        await put(outbox, "more", key=None)
        assert outbox.database.is_degraded
        disk.thaw()
        await healed(outbox)
    assert len(await on_disk(state_path)) == 21


async def test_what_waits_is_known_while_a_read_hangs(state_path: Path) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze("SELECT")
        with pytest.raises(OutboxUnavailableError):
            await outbox.database.read(lambda db: db.execute("SELECT 1"))

        assert outbox.database.is_degraded
        assert await names(outbox) == ["1"]


async def test_memory_has_each_event_once_while_it_hangs(state_path: Path) -> None:
    """What is sent: not what it was made of, which takes as much again."""

    class Data(dict[str, object]):
        pass

    disk, data = Hanging(), Data(x="y")
    event, made_of = outgoing("1", data=data), ref(data)
    async with opened(state_path, disk) as outbox:
        disk.freeze()
        await outbox.commit([event], now=NOW)
        assert outbox.database.is_degraded
        del event, data
        gc.collect()

        assert made_of() is None


async def test_approvals_are_remembered_while_it_hangs(state_path: Path) -> None:
    disk = Hanging()
    intent = Decision(
        message="m", key="K", event_id="k", sequence=1, state="intent", posted=True
    )
    async with opened(state_path, disk) as outbox:
        disk.freeze()
        await outbox.approvals.save(intent, now=NOW)

        assert await outbox.approvals.posted() == {"K"}
        disk.thaw()
        await healed(outbox)
        assert await outbox.approvals.of_message("m") == {"K": intent}


# -- what is in doubt ------------------------------------------------------------


@pytest.mark.parametrize("is_after", [False, True])
async def test_what_the_disk_did_in_the_end_is_not_done_again(
    state_path: Path, *, is_after: bool
) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze(is_after=is_after)
        await put(outbox, "2")
        await put(outbox, "3")
        assert await deliver(outbox) == ["1", "2", "3"]
        disk.thaw()
        await healed(outbox)

        assert await deliver(outbox) == []
    assert await times_on_disk(state_path) == {"1": 1, "2": 1, "3": 1}
    assert await on_disk(state_path) == [
        ("1", "delivered", True),
        ("2", "delivered", False),
        ("3", "delivered", False),
    ]


async def test_what_the_disk_refused_in_the_end_is_done_before_all_later(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze()
        await put(outbox, "2")
        await put(outbox, "3")
        assert await deliver(outbox) == ["1", "2", "3"]
        disk.thaw(fails=True)
        await healed(outbox)

        assert await deliver(outbox) == []
    assert await times_on_disk(state_path) == {"1": 1, "2": 1, "3": 1}
    assert await on_disk(state_path) == [
        ("1", "delivered", True),
        ("2", "delivered", False),
        ("3", "delivered", False),
    ]


async def test_way_back_may_hang_too(state_path: Path) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        disk.freeze()
        await put(outbox, "1")
        disk.thaw(fails=True)
        await healed(outbox)
        disk.freeze(is_after=True)
        await outbox.database.heal()
        await put(outbox, "2")

        assert outbox.database.is_degraded
        assert await deliver(outbox) == ["1", "2"]
        disk.thaw()
        await healed(outbox)
        assert await deliver(outbox) == []
    assert await times_on_disk(state_path) == {"1": 1, "2": 1}
    assert [state for _, state, _ in await on_disk(state_path)] == ["delivered"] * 2


async def test_heal_fails_at_once_while_the_disk_owes_an_answer(
    state_path: Path,
) -> None:
    """Nothing can be written before it is known what the disk has committed."""
    disk = Hanging()
    async with asyncio.timeout(WITHIN), opened(state_path, disk) as outbox:
        disk.freeze()
        await put(outbox, "1")

        async with asyncio.timeout(PATIENCE / 2):
            await outbox.database.heal()

        assert outbox.database.is_degraded
        disk.thaw()


async def test_page_that_hangs_while_all_that_needs_it_is_settled_is_no_error(
    state_path: Path,
) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, *map(str, range(1100)), key=None)
    disk = Hanging()
    async with asyncio.timeout(WITHIN), opened(state_path, disk) as outbox:
        first = await due(outbox, limit=257)  # the last one is read, with a page
        outbox.deliveries.delivered(*first, now=NOW)
        disk.freeze("SELECT i0")
        assert len(await due(outbox, limit=300)) == 300  # begins to read the next page
        waiting = asyncio.create_task(due(outbox, limit=1100))
        assert await asyncio.to_thread(disk.hung.wait, WITHIN)
        rest = [replace(first[0], id=number) for number in range(258, 1101)]
        outbox.deliveries.delivered(*rest, now=NOW)

        assert await waiting == []


@asynccontextmanager
async def writing_back(
    path: Path, disk: Hanging
) -> AsyncIterator[tuple[Database, "asyncio.Task[None]"]]:
    """Yield a state file, and a heal whose write-back hangs on the disk."""
    async with asyncio.timeout(WITHIN), opened(path, disk) as outbox:
        disk.freeze()
        await put(outbox, "1")
        disk.thaw(fails=True)
        while outbox.database.is_hanging:
            await asyncio.sleep(0)
        disk.follow(outbox.database, WITHIN, WITHIN)
        disk.freeze()
        healing = asyncio.create_task(outbox.database.heal())
        assert await asyncio.to_thread(disk.hung.wait, WITHIN)
        yield outbox.database, healing


@pytest.mark.parametrize("fails", [False, True])
async def test_every_heal_waits_for_the_write_back_that_runs(
    state_path: Path, *, fails: bool
) -> None:
    disk = Hanging()
    async with writing_back(state_path, disk) as (database, first):
        second = asyncio.create_task(database.heal())
        for _ in range(10):
            await asyncio.sleep(0)

        assert not first.done()
        assert not second.done()
        disk.thaw(fails=fails)
        await first
        await second
        assert database.is_degraded == fails


async def test_heal_that_is_cancelled_goes_on(state_path: Path) -> None:
    disk = Hanging()
    async with writing_back(state_path, disk) as (database, healing):
        healing.cancel()
        await asyncio.wait({healing})

        assert database.is_answering
        disk.thaw()
        while database.is_degraded:
            await database.heal()


async def test_closed_state_file_cannot_be_healed(state_path: Path) -> None:
    async with Database.open(File(state_path)) as database:
        pass

    async with asyncio.timeout(WITHIN):
        with pytest.raises(OutboxError, match="closed"):
            await database.heal()


async def test_event_dropped_in_memory_stays_dropped_on_the_disk(
    state_path: Path,
) -> None:
    """Otherwise it would take the id of the next one, which was delivered."""
    disk = Hanging()
    async with opened(state_path, disk, limits=Limits(events=1)) as outbox:
        disk.freeze()
        await outbox.commit([], now=NOW, named={"x": b"y"})
        await put(outbox, "1")
        await outbox.commit([outgoing("dropped", key="L")], now=NOW)
        assert await deliver(outbox) == ["1"]
        await put(outbox, "2", key="M")
        assert await deliver(outbox) == ["2"]
        await put(outbox, "3", key="N")
        disk.thaw()
        await healed(outbox)
        assert await names(outbox) == ["3"]
    assert [name for name, _, _ in await on_disk(state_path)] == ["1", "2", "3"]


@pytest.mark.parametrize("at", ["PRAGMA", "SELECT"])
async def test_start_on_a_disk_that_hangs_is_in_memory(
    at: str, state_path: Path
) -> None:
    """The file is being opened, or read for the first time."""
    async with opened(state_path) as outbox:
        await put(outbox, "1", key="L")
    disk, timings = Hanging(), Timings(patience=PATIENCE, closing=1.0)
    disk.freeze(at)
    async with Database.open(
        File(state_path, may_degrade=True, connect=disk.open), timings=timings
    ) as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "2")
        assert not outbox.state.knows_earlier_runs
        assert await names(outbox) == ["2"]

        disk.thaw()
        await healed(outbox)
        assert sorted(map(str, await deliver(outbox))) == ["1", "2"]
        assert await outbox.observations.load(CHECKPOINT) == b"2"
    found = {(name, state) for name, state, _ in await on_disk(state_path)}
    assert found == {("1", "delivered"), ("2", "delivered")}


async def test_ids_of_a_file_that_was_not_read_are_given_to_nobody_else(
    state_path: Path,
) -> None:
    """Otherwise what was delivered from memory would pass for what is on the disk."""
    async with opened(state_path) as outbox:
        await put(outbox, "1", "2", key=None)
        copy = state_path.with_name("left behind")
        for suffix in ("", "-wal"):  # what a kill leaves: all is in the log
            shutil.copy(f"{state_path}{suffix}", f"{copy}{suffix}")
    other = sqlite3.connect(copy, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    async with opened(copy, patience=WITHIN) as outbox:
        assert outbox.database.is_degraded
        await put(outbox, "new", key=None)
        assert "new" in await names(outbox)
        assert "new" in await deliver(outbox)
        other.execute("ROLLBACK")
        other.close()
        await healed(outbox)
        assert await deliver(outbox) == ["1", "2"]


# -- what memory holds -----------------------------------------------------------


async def test_event_whose_earlier_step_is_only_on_the_disk_waits(
    state_path: Path,
) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, *map(str, range(reads.PAGE)), key="M")
        await put(outbox, "first", key="K")
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "second", key="K")
        await put(outbox, "other", key="L")
        disk.freeze("SELECT")

        assert "other" in await deliver(outbox)
        assert outbox.database.is_degraded
        outbox.wakeups.of(A).clear()
        disk.thaw()
        await healed(outbox)
        assert outbox.wakeups.of(A).is_set()
        assert await deliver(outbox) == ["first", "second"]


class Counted(Hanging):
    """Counts how often contents are read."""

    count = 0

    @contextmanager
    def waiting(self, sql: str) -> Iterator[None]:
        self.count += sql.startswith("SELECT id, kind")
        with super().waiting(sql):
            yield


@pytest.mark.parametrize("per_key", [1, 5])
async def test_backlog_is_read_a_page_at_a_time_whatever_is_due_first(
    state_path: Path, per_key: int
) -> None:
    count = 2000
    async with opened(state_path) as outbox:
        for key in range(0, count, per_key):
            await put(outbox, *map(str, range(key, key + per_key)), key=f"K{key}")
        for one in await due(outbox, count):
            await outbox.deliveries.postpone(
                one, due=NOW - one.id * 7 % count, error="", reason=Reason.SERVER
            )
    disk, taken = Counted(), 0
    async with opened(state_path, disk) as outbox:
        while found := await due(outbox, limit=9):
            await outbox.deliveries.delivered(*found, now=NOW)
            taken += len(found)

    assert taken == count
    assert disk.count < 40


@pytest.mark.slow
async def test_order_is_kept_with_12000_pending(state_path: Path) -> None:
    """And a Preempt that comes meanwhile is delivered."""
    count, again = 12_000, 3_000
    async with opened(state_path, patience=WITHIN) as outbox:
        first = [outgoing(f"{n} first", key=f"K{n}") for n in range(count)]
        for begin in (0, count // 2):
            await outbox.commit(first[begin : begin + count // 2], now=NOW)
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        disk.freeze()
        second = [
            outgoing(f"{n} second", key=f"K{n}") for n in range(count - again, count)
        ]
        await outbox.commit(second, now=NOW)
        soon = datetime.fromtimestamp(NOW + 30, UTC)
        await outbox.commit([outgoing("preempt", key="P", not_before=soon)], now=NOW)
        assert (await names(outbox))[0] == "preempt"
        taken = await deliver(outbox)
        disk.thaw()
        await healed(outbox)
        taken += await deliver(outbox)

    assert Counter(taken).most_common(1)[0][1] == 1
    assert len(taken) == count + again + 1
    place = {name: n for n, name in enumerate(taken)}
    wrong = [
        n
        for n in range(count - again, count)
        if place[f"{n} first"] > place[f"{n} second"]
    ]
    assert wrong == []


async def test_what_was_committed_just_before_the_disk_hangs_is_known_in_memory(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk) as outbox:
        await put(outbox, "1", key="K")
        await put(outbox, "2", key="L")
        disk.freeze("SELECT")

        assert await names(outbox) == ["1", "2"]


# -- room ------------------------------------------------------------------------


async def test_room_counts_what_waits_and_not_what_was_published(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk, limits=Limits(events=3)) as outbox:
        await put(outbox, "on disk")
        disk.freeze()
        await outbox.commit([], now=NOW, named={"x": b"y"})
        for number in range(10):
            await put(outbox, f"{number}", f"{number}b", f"{number}c", key=None)
            with pytest.raises(OutboxFullError):
                await put(outbox, "too many", key=None)
            assert f"{number}" in await deliver(outbox)


async def test_urgent_one_is_delivered_although_memory_is_full(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk, limits=Limits(events=10)) as outbox:
        disk.freeze()
        await outbox.commit([], now=NOW, named={"x": b"y"})
        await put(outbox, *(str(n) for n in range(10)), key=None)
        with pytest.raises(OutboxFullError):
            await put(outbox, "more", key=None)

        soon = datetime.fromtimestamp(NOW + 30, UTC)
        preempt = outgoing("preempt", key="P", not_before=soon)
        await outbox.commit([preempt], now=NOW, checkpoint=Checkpoint(body=b"p"))

        assert (await names(outbox))[0] == "preempt"


# -- the end ---------------------------------------------------------------------


async def test_stop_does_not_wait_for_a_disk_that_hangs(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Hanging()
    async with asyncio.timeout(WITHIN), opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze()
        await put(outbox, "2")

    assert "the next start publishes the changes again" in caplog.text
    assert await names_on(state_path) in (["1"], ["1", "2"])


async def test_stop_does_not_wait_for_a_disk_that_hangs_just_then(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with asyncio.timeout(WITHIN), opened(state_path, disk) as outbox:
        await put(outbox, "1")
        disk.freeze("SELECT")
        asking = outbox.database.read(lambda db: db.execute("SELECT 1"))
        reading = asyncio.ensure_future(asking)
        await asyncio.to_thread(disk.hung.wait, WITHIN)

    with pytest.raises(OutboxUnavailableError):
        await reading


async def names_on(path: Path) -> list[str | None]:
    return [name for name, _, _ in await on_disk(path)]


def dies() -> None:
    raise SystemExit


def runs_out_of_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("death", [dies, runs_out_of_memory])
@pytest.mark.parametrize("is_read", [False, True])
async def test_dead_thread_ends_the_forwarder_at_once(
    state_path: Path,
    death: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    *,
    is_read: bool,
) -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(WITHIN), opened(state_path) as outbox:
        database = outbox.database
        work = database.read if is_read else database.run
        running = asyncio.ensure_future(
            run_workers([StateWatch(database)], stop, grace=lambda: 1.0)
        )
        with pytest.raises(OutboxThreadDiedError):
            await work(lambda _: death())
        with pytest.raises(ExceptionGroup) as ended:
            await running
        with pytest.raises(OutboxThreadDiedError):
            await put(outbox, "1")

        assert not database.is_answering
        assert isinstance(ended.value.exceptions[0], OutboxThreadDiedError)
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.getMessage() == "thread of the state file died"


async def test_thread_that_dies_in_a_transaction_ends_all_that_wait(
    state_path: Path,
) -> None:
    is_poor = False

    class Poor(Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql.startswith("BEGIN") and is_poor:
                raise MemoryError
            return super().execute(sql, parameters)

    opening = Database.open(
        File(state_path, may_degrade=True, connect=lambda path: connect(path, Poor))
    )
    async with asyncio.timeout(WITHIN), opening as database:
        is_poor = True
        ended = await asyncio.gather(
            *(database.run(lambda _: None) for _ in range(3)), return_exceptions=True
        )

    assert [type(error) for error in ended] == [OutboxThreadDiedError] * 3


async def test_thread_that_writes_back_may_die_too(state_path: Path) -> None:
    class Deadly(Hanging):
        is_deadly = False

        @contextmanager
        def waiting(self, sql: str) -> Iterator[None]:
            with super().waiting(sql):
                if self.is_deadly:
                    raise SystemExit
                yield

    disk = Deadly()
    async with asyncio.timeout(WITHIN), opened(state_path, disk) as outbox:
        disk.freeze()
        await put(outbox, "1")
        disk.is_deadly = True
        disk.thaw(fails=True)
        with pytest.raises(OutboxThreadDiedError):
            await healed(outbox)


def test_process_of_a_dead_thread_ends_with_1_and_says_why(
    state_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(stop: asyncio.Event) -> None:
        async with opened(state_path) as outbox, asyncio.TaskGroup() as group:
            watch = StateWatch(outbox.database)
            group.create_task(run_workers([watch], stop, grace=lambda: 1.0))
            await outbox.database.run(lambda _: dies())

    with pytest.raises(SystemExit) as ended:
        until_stopped(work)

    assert ended.value.code == 1
    text = "sebridge: the thread of the state file has died (SystemExit)\n"
    assert capsys.readouterr().err == text


async def test_watch_ends_with_the_stop(state_path: Path) -> None:
    stop = asyncio.Event()
    async with opened(state_path) as outbox:
        running = asyncio.ensure_future(StateWatch(outbox.database).run(stop))
        stop.set()

        await running


# -- whatever happens ------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put"] * 4
            + ["deliver"] * 3
            + ["freeze", "freeze after", "freeze reads"]
            + ["thaw", "thaw", "fail"]
            + ["heal"] * 3
            + ["restart"]
        ),
        st.integers(0, 2),
    ),
    max_size=30,
)


@dataclass
class Model:
    """What was put and what was taken."""

    put: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[str, int]] = field(default_factory=list)

    async def step(self, outbox: Outbox, disk: Hanging, what: str, key: int) -> None:
        match what:
            case "put":
                await self.publish(outbox, f"K{key}")
            case "deliver":
                await self.deliver(outbox, limit=key + 1)
            case "freeze":
                disk.thaw()
                disk.freeze()
            case "freeze after":
                disk.thaw()
                disk.freeze(is_after=True)
            case "freeze reads":
                disk.thaw()
                disk.freeze("SELECT")
            case "thaw" | "fail":
                disk.thaw(fails=what == "fail")
            case _:
                await outbox.database.heal()

    async def publish(self, outbox: Outbox, cause: str) -> None:
        """Publish the same once more, as the poller does: ``n`` makes it another."""
        count = (await outbox.observations.counts([cause])).get(cause, 0)
        event = outgoing(f"{cause}/{count}", key=cause, cause=cause)
        await outbox.commit([event], now=NOW)
        self.put.append((cause, (await publish_counts(outbox, cause))[cause] - 1))

    async def deliver(self, outbox: Outbox, limit: int = 100) -> bool:
        found = await due(outbox, limit)
        for one in found:
            cause, _, n = str(one.cloud_event_id).partition("/")
            self.taken.append((cause, int(n)))
        if found:
            await outbox.deliveries.delivered(*found, now=NOW)
        return bool(found)

    def judge(self) -> None:
        """Each id was given once, nothing is lost or comes twice, all in order."""
        assert len(set(self.put)) == len(self.put), "an id was given twice"
        assert sorted(self.taken) == sorted(self.put)
        for cause in {cause for cause, _ in self.put}:
            order = [n for name, n in self.taken if name == cause]
            assert order == list(range(len(order)))


@pytest.mark.slow
@settings(max_examples=60)
@given(steps=STEPS, patience=st.sampled_from([0.002, 0.01]))
async def test_whenever_the_disk_hangs_nothing_is_lost_doubled_or_out_of_order(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    patience: float,
) -> None:
    """With no patience at all, threads are relieved at any moment."""
    path = tmp_path_factory.mktemp("outbox") / "state.db"
    model, disk, left = Model(), Hanging(), list(steps)
    while True:
        async with opened(path, disk, patience=patience) as outbox:
            await healed(outbox)  # it may have begun without the file
            while left:
                what, key = left.pop(0)
                if what == "restart":
                    disk.thaw()
                    await healed(outbox)
                    break
                await model.step(outbox, disk, what, key)
            else:
                disk.thaw()
                await healed(outbox)
                while await model.deliver(outbox):
                    pass
                await healed(outbox)
                break
    model.judge()
    counts = Counter(cause for cause, _ in model.put)
    assert await times_on_disk(path) == counts
    assert {state for _, state, _ in await on_disk(path)} <= {"delivered"}


async def test_thread_that_dies_at_a_commit_of_an_event_ends_the_forwarder(
    state_path: Path,
) -> None:
    class Torn(Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if is_torn and sql.startswith("BEGIN"):
                error = sqlite3.DatabaseError("database disk image is malformed")
                error.sqlite_errorname = "SQLITE_CORRUPT"
                raise error
            return super().execute(sql, parameters)

    is_torn = False
    opening = Database.open(
        File(state_path, may_degrade=True, connect=lambda path: connect(path, Torn))
    )
    async with asyncio.timeout(WITHIN), opening as database:
        outbox = await Outbox.of(database, router({A: route()}))
        is_torn = True
        assert not await outbox.commit([outgoing("1")], now=NOW)

        with pytest.raises(OutboxThreadDiedError):
            await database.died()
