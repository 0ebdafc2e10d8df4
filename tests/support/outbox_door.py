"""The outbox as tests of its promises use it: only this file knows how it is built.

The disk is a real file. It can be late, refuse, hang and die, and be opened again.
"""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import OutboxError, Reason
from bridge.outbox.image import Limits
from bridge.outbox.questions import Selection
from bridge.outbox.records import CHECKPOINT, Checkpoint, Decision, Delivery, Tally
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.storage.journal import Timings
from bridge.outbox.store import Outbox
from tests.support.book import Book
from tests.support.builders import route, router
from tests.support.fakes import FakeClock
from tests.support.hanging import Hanging

SINKS = ("a", "b")
WITHIN = 60.0  # no busy machine reaches it
_PATIENCE = 0.05  # with a disk that hangs


class Disk(Hanging):
    """A disk that also refuses what it is to commit, as if it were full."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    @contextmanager
    def waiting(self, sql: str) -> Iterator[None]:
        """Refuse while it is full, wait while it is frozen."""
        if self.is_full and sql.startswith("COMMIT"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        with super().waiting(sql):
            yield


class Door:
    """An outbox with two sinks, each of which gets every event.

    Attributes:
        path: the state file.
        room: how many events it may keep in memory only.
        clock: the time, moved by the test.
        disk: where the file lies.
        outbox: the open outbox.
    """

    def __init__(
        self, path: Path, *, room: int = 10_000, clock: FakeClock | None = None
    ) -> None:
        self.path, self.room = path, room
        self.clock = clock or FakeClock()
        self.disk = Disk()
        self.router = router(dict.fromkeys(SINKS, route()))
        self.outbox: Outbox
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the file."""
        self.disk = disk = Disk()
        serving = Database.open(
            File(self.path, may_degrade=True, connect=disk.open),
            timings=Timings(patience=WITHIN, closing=1.0),
        )
        database = await self._stack.enter_async_context(serving)

        disk.follow(database, _PATIENCE, WITHIN)
        self.outbox = await Outbox.of(database, self.router)
        self.outbox.image.limits = Limits(events=self.room)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the disk answer, and close the file."""
        self.disk.is_full = False
        self.disk.thaw()
        await self._stack.aclose()

    async def reopen(self) -> None:
        """Stop and start."""
        await self.__aexit__()
        await self.__aenter__()

    async def kill(self, folder: Path) -> None:
        """Start with a copy of what is on the disk now, as after a power cut."""
        folder.mkdir(parents=True)
        for suffix in ("", "-wal"):
            if (found := Path(f"{self.path}{suffix}")).exists():
                shutil.copy(found, folder / f"{self.path.name}{suffix}")
        await self.__aexit__()
        self.path = folder / self.path.name
        await self.__aenter__()

    # -- the disk --------------------------------------------------------------

    @property
    def is_degraded(self) -> bool:
        """Whether it goes on in memory."""
        return self.outbox.database.is_degraded

    async def written(self) -> None:
        """Wait until all commits are on the disk, or in memory for good."""
        with suppress(OutboxError):
            await self.outbox.state.write({})

    async def healed(self) -> None:
        """Wait until all is on a disk that answers again."""
        async with asyncio.timeout(WITHIN):
            while self.is_degraded:
                await self.outbox.database.heal()
                await asyncio.sleep(0)

    # -- commits ---------------------------------------------------------------

    @property
    def now(self) -> float:
        """The wall clock in seconds since the epoch."""
        return self.clock.now().timestamp()

    async def commit(
        self,
        *events: OutgoingEvent,
        checkpoint: bytes | None = None,
        decisions: Sequence[Decision] = (),
    ) -> None:
        """Publish events."""
        await self.outbox.commit(
            events,
            now=self.now,
            checkpoint=None if checkpoint is None else Checkpoint(body=checkpoint),
            decisions=decisions,
        )

    async def checkpoint(self) -> bytes | None:
        """Return the checkpoint; None = there is none."""
        return await self.outbox.observations.load(CHECKPOINT)

    async def decisions(self, message: str) -> dict[str, Decision]:
        """Return the decisions on a message by key."""
        return await self.outbox.approvals.of_message(message)

    async def times(self, cause: str) -> int:
        """Return how often an event of a cause was published."""
        return (await self.outbox.observations.counts([cause])).get(cause, 0)

    async def with_old_facts(self) -> None:
        """Let the file know of more EventIds and causes than memory holds."""

        def fill(db: sqlite3.Connection) -> None:
            rows = [(f"F{n}", self.now + 1) for n in range(6000)]
            causes = "INSERT INTO told (cause, times, at) VALUES (?, 1, ?)"
            db.executemany(causes, rows)
            followers = "INSERT INTO followers (key, sink, at) VALUES (?, 's', ?)"
            db.executemany(followers, rows)

        await self.outbox.database.run(fill)
        await self.reopen()

    # -- deliveries ------------------------------------------------------------

    async def due(
        self, sink: str = "a", *, limit: int = 1000, but: Sequence[int] = ()
    ) -> list[Delivery]:
        """Return what is due, the most urgent first."""
        found, _ = await self.outbox.deliveries.due(
            sink, now=self.now, limit=limit, but=but
        )
        return found

    async def names(self, sink: str = "a") -> list[str]:
        """Return the CloudEvents' ids of what is due."""
        return [str(one.cloud_event_id) for one in await self.due(sink)]

    async def settle(self, delivery: Delivery, state: str = "delivered") -> None:
        """End a delivery: ``delivered`` or ``dead``."""
        if state == "delivered":
            await self.outbox.deliveries.delivered(delivery, now=self.now)
            return
        await self.outbox.deliveries.dead_letter(
            delivery, now=self.now, error="no", reason=Reason.REJECTED
        )

    async def postpone(
        self, delivery: Delivery, seconds: float, *, waits_for_sink: bool = False
    ) -> None:
        """Plan another attempt."""
        await self.outbox.deliveries.postpone(
            delivery,
            due=self.now + seconds,
            error="no",
            reason=Reason.SERVER,
            waits_for_sink=waits_for_sink,
        )

    async def release(self, sink: str = "a", limit: int = 1000) -> int:
        """Make due what waits for the sink; return how many."""
        return await self.outbox.deliveries.release(sink, now=self.now, limit=limit)

    async def tallies(self) -> dict[str, Tally]:
        """Return the tally of each sink."""
        return await self.outbox.deliveries.tallies()

    # -- the clock -------------------------------------------------------------

    async def set_clock(self, seconds: float) -> None:
        """Put the wall clock right; negative = back."""
        self.clock.jump(seconds)
        if seconds < 0:
            for sink in SINKS:
                await self.outbox.deliveries.make_earlier(sink, -seconds)
        await self.outbox.pruning.follow_clock(by=seconds, now=self.now)

    async def follow_restart(self, max_backoff: float) -> None:
        """Correct due times after a start, as each relay does."""
        for sink in SINKS:
            await self.outbox.deliveries.make_due(
                sink, beyond=self.now + max_backoff, now=self.now
            )

    # -- commands --------------------------------------------------------------

    async def retry(
        self, sink: str | None = "a", event_id: str | None = None, *, steps: int = 0
    ) -> tuple[list[str], list[str]]:
        """Run ``sebridge outbox retry``; return what is sent, and what is too old.

        Args:
            sink: only deliveries to this sink.
            event_id: only deliveries of this EventId.
            steps: the most thousands of SQLite's steps that it may take; 0 = any.
        """
        if steps:
            await self.outbox.database.read(lambda db: _limited(db, steps))
        selection = Selection(sink=sink, states=("dead",), event_id=event_id)
        sent, late, _ = await Book(self.outbox).retry(
            selection, now=self.now, force=False
        )
        return names_of(sent), names_of(late)

    async def discard(
        self, sink: str | None = "a", event_id: str | None = None
    ) -> list[str]:
        """Run ``sebridge outbox discard``; return what was discarded."""
        selection = Selection(sink=sink, event_id=event_id)
        gone = await Book(self.outbox).discard(selection, now=self.now)
        return names_of(gone)

    async def states(self) -> dict[tuple[str, str], str]:
        """Return the state of each delivery in the file, by sink and name."""
        found = await Book(self.outbox).find(Selection())
        return {(one.sink, str(one.cloud_event_id)): one.state for one in found}


def _limited(db: sqlite3.Connection, thousands: int) -> None:
    """Interrupt SQLite after so many thousands of its steps."""
    left = iter(range(thousands))
    db.set_progress_handler(lambda: next(left, None) is None, 1000)


def names_of(deliveries: Sequence[Delivery]) -> list[str]:
    """Return the ids of the CloudEvents."""
    return [str(one.cloud_event_id) for one in deliveries]


def is_durable(delivery: Delivery) -> bool:
    """Whether the body says nothing else."""
    data: dict[str, object] = json.loads(delivery.body)["data"]
    return data.get("durable", True) is True
