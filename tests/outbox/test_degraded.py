"""The outbox while its disk is full or held by another: in memory, and then back.

The full disk is a real one: a file system of a megabyte, mounted for the test.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bridge.foundation.errors import OutboxFullError, OutboxUnavailableError, Reason
from bridge.outbox import statefile
from bridge.outbox.image import Limits
from bridge.outbox.questions import Selection
from bridge.outbox.records import CHECKPOINT, Checkpoint, Decision, Delivery
from bridge.outbox.statefile import owner_of
from bridge.outbox.store import Outbox
from bridge.signing.dsse import SignedEvent, Verdict, judge
from bridge.signing.own_key import EventSigner
from tests.signing.test_dsse import KEY
from tests.support.book import Book, sent_to
from tests.support.builders import outgoing, patient_outbox, route, router
from tests.support.disks import Disk
from tests.support.outbox_door import Door
from tests.support.outboxes import publish_counts

NOW = 1_800_000_000.0
A = "a"


@asynccontextmanager
async def opened(path: Path, limits: Limits | None = None) -> AsyncIterator[Outbox]:
    async with patient_outbox(path, router({A: route()})) as outbox:
        outbox.image.limits = limits or Limits()
        yield outbox


async def put(outbox: Outbox, *names: str, body: bytes = b"{}") -> None:
    events = [outgoing(name, key="K") for name in names]
    await outbox.commit(events, now=NOW, checkpoint=Checkpoint(body=body))


async def deliver(outbox: Outbox, name: str) -> None:
    (one,) = await outbox.deliveries.of_cloud_event(A, name)
    await outbox.deliveries.delivered(one, now=NOW)


async def states(outbox: Outbox) -> dict[str | None, str]:
    found = await Book(outbox).find(Selection())
    return {one.cloud_event_id: one.state for one in found}


async def waiting(outbox: Outbox) -> int:
    """Return how many deliveries wait, also while nothing can be written."""
    return (await outbox.deliveries.tallies())[A].pending


def is_durable(delivery: Delivery) -> bool:
    data: dict[str, object] = json.loads(delivery.body)["data"]
    return data.get("durable", True) is True


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let another process, so to say, write without end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


# -- a full disk -----------------------------------------------------------------


async def test_full_disk_keeps_no_event_from_being_delivered(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2", body=b"two")

        assert outbox.database.is_degraded
        assert "full" in str(outbox.database.fault)
        assert await outbox.observations.load(CHECKPOINT) == b"two"
        await deliver(outbox, "1")
        (one,), _ = await outbox.deliveries.due(A, now=NOW, limit=9)
        assert (one.cloud_event_id, is_durable(one)) == ("2", False)
        assert await publish_counts(outbox, "1", "2") == {"1": 1, "2": 1}


async def test_event_that_was_numbered_in_memory_keeps_its_number_on_the_disk(
    disk: Disk,
) -> None:
    async def publish(outbox: Outbox) -> None:
        count = (await outbox.observations.counts(["c"])).get("c", 0)
        await outbox.commit([outgoing(f"c/{count}", key="K", cause="c")], now=NOW)

    async with opened(disk.state) as outbox:
        await publish(outbox)
        disk.fill()
        await publish(outbox)
        await publish(outbox)
        disk.clear()
        await outbox.database.heal()

        assert not outbox.database.is_degraded
        assert [*await states(outbox)] == ["c/0", "c/1", "c/2"]


async def test_what_was_in_memory_is_on_disk_when_there_is_room_again(
    disk: Disk,
) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2", "3", body=b"three")
        await deliver(outbox, "1")
        await deliver(outbox, "2")
        disk.clear()

        await outbox.database.heal()

        assert not outbox.database.is_degraded
        assert outbox.database.fault is None
        await put(outbox, "4", body=b"four")
    async with patient_outbox(disk.state, router({A: route()})) as outbox:
        found = await Book(outbox).find(Selection())
        assert [(one.cloud_event_id, one.state) for one in found] == [
            ("1", "delivered"),
            ("2", "delivered"),
            ("3", "pending"),
            ("4", "pending"),
        ]
        assert [is_durable(one) for one in found] == [True, False, False, True]
        assert await outbox.observations.load(CHECKPOINT) == b"four"
        tally = (await outbox.deliveries.tallies())[A]
        assert (tally.pending, tally.delivered) == (2, 2)


async def test_clock_set_back_while_the_disk_is_full_is_followed_on_the_disk_too(
    disk: Disk,
) -> None:
    """Else what has failed before would wait there for as long as the clock went."""
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        (one,), _ = await outbox.deliveries.due(A, now=NOW, limit=9)
        reason = Reason.THROTTLED
        await outbox.deliveries.postpone(
            one, due=NOW + 7230, error="429", reason=reason
        )
        disk.fill()
        await put(outbox, "2")
        await outbox.deliveries.make_earlier(A, 7200)
        disk.clear()
        await outbox.database.heal()

        (found,), _ = await outbox.deliveries.due(A, now=NOW + 30, limit=9)

        assert found.cloud_event_id == "1"


async def test_disk_that_is_still_full_changes_nothing(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2")
        for _ in range(3):
            await outbox.database.heal()
        await put(outbox, "3")

        assert outbox.database.is_degraded
        assert await waiting(outbox) == 3
        assert len(caplog.records) == 1


async def test_healthy_disk_has_nothing_to_heal(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await outbox.database.heal()

        assert outbox.database.fault is None


async def test_end_writes_what_is_in_memory_if_there_is_room(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2")
        disk.clear()

    async with opened(disk.state) as outbox:
        assert await states(outbox) == {"1": "pending", "2": "pending"}


async def test_end_on_a_full_disk_leaves_what_the_next_start_goes_on_from(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1", body=b"one")
        disk.fill()
        await put(outbox, "2", body=b"two")
    disk.clear()

    assert "the next start publishes the changes again" in caplog.text
    async with opened(disk.state) as outbox:
        assert await outbox.observations.load(CHECKPOINT) == b"one"
        assert await publish_counts(outbox, "2") == {}


async def test_what_has_passed_by_then_is_not_written_later(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2")
        (one,), _ = await outbox.deliveries.due(A, now=NOW, limit=9)
        for _ in range(1000):
            await outbox.deliveries.postpone(
                one, due=NOW + 60, error="busy", reason=Reason.SERVER
            )
            await outbox.observations.save({"x": b"y"})

        assert len(outbox.database.journal.unwritten()) < 10


async def test_approvals_are_remembered_in_memory(disk: Disk) -> None:
    intent = Decision(
        message="m", key="K", event_id="k", sequence=1, state="intent", posted=True
    )
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2")
        await outbox.approvals.save(intent, now=NOW)

        assert await outbox.approvals.posted() == {"K"}
        disk.clear()
        await outbox.database.heal()
        assert await outbox.approvals.of_message("m") == {"K": intent}


async def test_start_on_a_full_disk_knows_what_the_last_life_knew(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1", body=b"one")
    disk.fill()

    async with statefile.open_database(disk.state, "vm-1") as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "2")
        assert database.is_degraded
        assert await publish_counts(outbox, "1", "2") == {"1": 1, "2": 1}
        disk.clear()
        await database.heal()
        assert await states(outbox) == {"1": "pending", "2": "pending"}


async def test_start_on_a_full_disk_takes_no_old_state_for_the_last_one(
    disk: Disk,
) -> None:
    """What is in SQLite's log alone cannot be read there, if its index is gone."""
    parts = [Path(f"{disk.state}{suffix}") for suffix in ("", "-wal")]
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
    async with opened(disk.state) as outbox:
        await put(outbox, "2")
        images = [part.read_bytes() for part in parts]
    for part, image in zip(parts, images, strict=True):
        part.write_bytes(image)
    disk.fill()

    async with statefile.open_database(disk.state, "vm-1") as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "3")
        assert database.is_blank
        disk.clear()
        await database.heal()
        every = {"1": "pending", "2": "pending", "3": "pending"}
        assert await states(outbox) == every


async def test_first_start_on_a_full_disk_begins_in_memory(disk: Disk) -> None:
    disk.fill()

    async with statefile.open_database(disk.state, "vm-1") as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "1")
        assert await outbox.observations.load(CHECKPOINT) == b"{}"
        disk.clear()
        await database.heal()
        assert not database.is_degraded

    async with opened(disk.state) as outbox:
        assert await states(outbox) == {"1": "pending"}
        assert await owner_of(outbox.database) == "vm-1"


async def test_events_of_an_earlier_run_are_listed_beside_those_of_a_blank_start(
    state_path: Path,
) -> None:
    """Between the numbers of both lie a hundred million pages without an event."""
    async with opened(state_path) as outbox:
        await put(outbox, "1")
    kept = state_path.rename(state_path.with_name("kept"))
    state_path.mkdir()

    async with statefile.open_database(state_path, "vm-1") as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "2")
        assert outbox.database.is_blank
        state_path.rmdir()
        kept.rename(state_path)
        await database.heal()
        book = Book(outbox)
        async with asyncio.timeout(5):
            found = await book.published(newest=50)
            assert [one.deliveries[0].cloud_event_id for one in found] == ["1", "2"]
            assert await book.published(after=found[0].number, newest=9) == found[1:]
            assert await book.at(NOW).observed("k") == ["K"]


async def test_what_keeps_the_file_from_being_used_now_is_said(
    state_path: Path,
) -> None:
    state_path.mkdir()

    async with statefile.open_database(state_path, "vm-1") as database:
        assert "is not a file: move it away" in str(database.fault)
        state_path.rmdir()
        with sqlite3.connect(state_path) as other:
            other.execute("CREATE TABLE precious (x)")
        await database.heal()
        assert database.fault == "it is a database of another program"


# -- limits ----------------------------------------------------------------------


async def test_memory_has_its_limit_too(disk: Disk) -> None:
    async with opened(disk.state, Limits(events=3)) as outbox:
        await put(outbox, "0", body=b"zero")
        disk.fill()
        await put(outbox, "1", "2", "3", body=b"three")

        with pytest.raises(OutboxFullError):
            await put(outbox, "4", body=b"four")

        assert await outbox.observations.load(CHECKPOINT) == b"three"
        await deliver(outbox, "0")
        disk.clear()
        await outbox.database.heal()
        await put(outbox, "4", body=b"four")
        assert await outbox.observations.load(CHECKPOINT) == b"four"


async def test_what_was_decided_is_kept_although_it_cannot_be_published(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    decision = Decision(
        message="m", key="K", event_id="k", sequence=1, state="relayed", data=b"{}"
    )
    async with opened(disk.state) as outbox:
        await put(outbox, "0")
        disk.fill()
        await put(outbox, body=b" " * 100_000)
        assert outbox.database.is_degraded
        outbox.image.limits = Limits(events=0)
        lost: list[str] = []
        outbox.image.lost = lost.append
        await outbox.commit([outgoing("1", key="K")], now=NOW, decisions=[decision])

        assert await outbox.approvals.of_message("m") == {"K": decision}
        assert await waiting(outbox) == 1
    assert "event dropped" in caplog.text
    assert lost == [A]


async def test_disk_that_became_read_only_is_gone_around(disk: Disk) -> None:
    async with opened(disk.state) as outbox:
        await put(outbox, "1")
    disk.remount("ro")

    async with statefile.open_database(disk.state, None) as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "2")
        assert database.is_degraded
        assert await publish_counts(outbox, "1", "2") == {"1": 1, "2": 1}
        await database.heal()
        assert database.is_degraded
        disk.remount("rw")
        await database.heal()
        assert not database.is_degraded
        assert await states(outbox) == {"1": "pending", "2": "pending"}


# -- other reasons ---------------------------------------------------------------


async def test_lock_of_another_process_is_waited_for_and_then_gone_around(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(state_path) as outbox:
        await put(outbox, "1")
        await outbox.database.read(lambda db: db.execute("PRAGMA busy_timeout = 50"))
        with held(state_path):
            await put(outbox, "2")
            assert outbox.database.is_degraded
            await outbox.database.heal()
            assert outbox.database.is_degraded
            await deliver(outbox, "1")
        await outbox.database.heal()

        assert await states(outbox) == {"1": "delivered", "2": "pending"}
    assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize(
    ("change", "pending", "dead", "discarded"),
    [("retry", 1, 0, 0), ("discard", 0, 0, 1)],
)
async def test_counts_are_right_after_a_change_that_the_file_gets_when_it_is_open_again(
    state_path: Path, change: str, pending: int, dead: int, discarded: int
) -> None:
    """The file that is opened again still has the dead letter."""
    async with Door(state_path) as door:
        outbox, book = door.outbox, Book(door.outbox)
        await outbox.commit([outgoing("1", key="K")], now=NOW)
        (one,) = await outbox.deliveries.of_cloud_event(A, "1")
        await outbox.deliveries.dead_letter(
            one, now=NOW, error="", reason=Reason.REJECTED
        )
        selected = Selection(sink=A)

        door.disk.freeze()
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "retry": partial(book.retry, selected, now=NOW, force=True),
            "discard": partial(book.discard, selected, now=NOW),
        }
        with pytest.raises(OutboxUnavailableError):
            await changes[change]()
        door.disk.thaw(fails=True)
        async with asyncio.TaskGroup() as group:  # the second error closes the file
            while outbox.database.is_busy:
                await asyncio.sleep(0)
            door.disk.freeze()
            group.create_task(outbox.database.heal())
            await asyncio.to_thread(door.disk.hung.wait)
            door.disk.thaw(fails=True)
        await door.healed()

        tally = (await outbox.deliveries.tallies())[A]
        assert (tally.pending, tally.dead) == (pending, dead)
        assert tally.discarded == discarded


async def test_long_journal_is_done_on_disk_in_its_order(state_path: Path) -> None:
    """It goes in parts, and a later part builds on an earlier one."""
    count = 600
    async with opened(state_path) as outbox:
        await outbox.database.read(lambda db: db.execute("PRAGMA busy_timeout = 50"))
        with held(state_path):
            for number in range(count):
                await put(outbox, str(number), body=str(number).encode())
            await deliver(outbox, "0")
        while outbox.database.is_degraded:
            await outbox.database.heal()
    async with patient_outbox(state_path, router({A: route()})) as outbox:
        found = await Book(outbox).find(Selection())
        assert [one.cloud_event_id for one in found] == [str(n) for n in range(count)]
        assert [one.id for one in found] == list(range(1, count + 1))
        assert [one.state for one in found] == ["delivered"] + ["pending"] * (count - 1)
        assert await outbox.observations.load(CHECKPOINT) == str(count - 1).encode()


async def test_jobs_of_one_moment_go_to_memory_together(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await outbox.database.read(lambda db: db.execute("PRAGMA busy_timeout = 50"))
        with held(state_path):
            await asyncio.gather(*(put(outbox, str(n)) for n in range(20)))

        await outbox.database.heal()
        assert len(await states(outbox)) == 20


async def test_sinks_that_were_chosen_in_memory_are_those_on_the_disk(
    state_path: Path,
) -> None:
    """Although they would be others later: what is settled in memory has an id."""
    async with opened(state_path) as outbox:
        await outbox.database.read(lambda db: db.execute("PRAGMA busy_timeout = 50"))
        outbox.router = router({A: route(), "b": route()})
        with held(state_path):
            await put(outbox, "1")
            outbox.router = router({"b": route()})  # the identity is known by now
            await deliver(outbox, "1")
        await outbox.database.heal()

        found = await Book(outbox).find(Selection())
        assert [(one.sink, one.state) for one in found] == [
            (A, "delivered"),
            ("b", "pending"),
        ]


async def test_event_in_memory_is_signed_without_a_number(disk: Disk) -> None:
    """Its number would be another one after a crash; later ones leave no gap."""
    async with opened(disk.state) as outbox:
        outbox.sign = EventSigner([KEY], "run").signed
        await put(outbox, "1")
        disk.fill()
        await put(outbox, "2")
        disk.clear()
        await outbox.database.heal()
        await put(outbox, "3")

        found = await outbox.database.read(lambda db: sent_to(db, A))
    events = [SignedEvent.parse(one.body) for one in found]
    chains = [json.loads(one.data)["chain"]["n"] for one in events]
    assert chains == [1, None, 2]
    keys = {KEY.key_id: KEY.public}
    assert [judge(one, keys).verdict for one in events] == [Verdict.HOLDS] * 3
