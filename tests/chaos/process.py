"""The forwarder as a process that is killed, and a look at the disk it leaves."""

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.history import History, Life
from tests.chaos.imds import RecordedImds
from tests.chaos.sinks import Hook

PATIENCE = 40.0
STANDSTILL = 120.0  # without any change nothing more will come of it
LONGEST = 900.0
_STATE = "state.db"
_USUAL_START = 1.0  # seconds until the first look, on an idle machine
_MOST_SLOWNESS = 12.0


@dataclass(slots=True)
class Lives:
    """Starts the forwarder, and ends it.

    Attributes:
        folder: where its configuration, its state file and its log are.
        slowness: how many times longer a start takes than on an idle machine: else a
            busy one would see only kills of what has not begun.
    """

    folder: Path
    imds: RecordedImds
    hook: Hook
    history: History
    chance: random.Random
    slowness: float = 1.0

    async def one(self, how: str) -> None:
        """Live once, and be killed at a moment that ``how`` names."""
        number = len(self.history.lives) + 1
        async with self.imds.door(number) as url:
            began = time.time()
            process = await self._start(url)
            try:
                was_asked, code = await self._ended(process, number, how)
            finally:
                if process.returncode is None:
                    process.kill()
            life = Life(number, began, time.time(), how, code, was_asked)
            self._judge(life)
            self.history.lives.append(life)
            self._measure(life)
            await asyncio.to_thread(self._inspect, number)

    def _measure(self, life: Life) -> None:
        """Learn how long a start takes now."""
        asked = [r.at for r in self.history.requests if r.life == life.number]
        took = asked[0] - life.began if asked else 0.0
        if not asked and life.how not in {"start", "any"}:
            took = 1.5 * (life.ended - life.began)  # it was not even enough
        if took:
            self.slowness = min(max(took / _USUAL_START, 1.0), _MOST_SLOWNESS)

    async def _ended(
        self, process: asyncio.subprocess.Process, number: int, how: str
    ) -> tuple[bool, int]:
        """Kill, unless it ends before; return whether it was asked to, and its code."""
        killing = asyncio.create_task(self._kill(process, number, how))
        exited = asyncio.create_task(process.wait())
        await asyncio.wait([killing, exited], return_when=asyncio.FIRST_COMPLETED)
        return await self._stopped(killing, how), await exited

    async def last(self, left: Callable[[], Awaitable[int]]) -> None:
        """Live until nothing is ``left`` to do, then stop when asked to."""
        number = len(self.history.lives) + 1
        async with self.imds.door(number) as url:
            began = time.time()
            process = await self._start(url)
            try:
                await self._until_done(process, left)
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                code = await asyncio.wait_for(process.wait(), PATIENCE)
            life = Life(number, began, time.time(), "end", code, was_asked=True)
            self._judge(life)
            self.history.lives.append(life)
        await asyncio.to_thread(self._inspect, number)

    async def _until_done(
        self,
        process: asyncio.subprocess.Process,
        left: Callable[[], Awaitable[int]],
    ) -> None:
        last, patience_ends, end = -1, 0.0, time.monotonic() + LONGEST
        while (number := await left()) and process.returncode is None:
            if number != last:  # it goes on, however slow the machine is
                last, patience_ends = number, time.monotonic() + STANDSTILL
            if time.monotonic() > min(patience_ends, end):
                self.history.flaws.append(f"no more was done, but {number} are left")
                return
            await asyncio.sleep(0.3)

    async def _start(self, url: str) -> asyncio.subprocess.Process:
        config = self.folder / "bridge.toml"
        with (self.folder / "bridge.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bridge", "run", "-c", str(config)),
                stdout=log,
                stderr=log,
                env={**os.environ, "SEBRIDGE__IMDS__ENDPOINT": url},
            )

    async def _stopped(self, killing: "asyncio.Task[bool]", how: str) -> bool:
        if killing.done():
            return killing.result()
        killing.cancel()
        await asyncio.wait([killing])
        return how == "stopping"

    async def _kill(
        self, process: asyncio.subprocess.Process, number: int, how: str
    ) -> bool:
        """Kill at the moment meant; return whether it was asked to stop before."""
        slow = self.slowness
        if how in {"start", "any"}:
            await self._sleep(0.005, slow * (1.0 if how == "start" else 4.0))
        elif how == "published":
            self.hook.has_received.clear()
            await self._within(4 * slow, self.hook.has_received.wait)
            await self._sleep(0.0005, 0.05)
        elif how == "posted":
            await self._within(4 * slow, lambda: self._asked(number, is_post=True))
            await self._sleep(0.0005, 0.1)
        else:
            await self._within(10 * slow, lambda: self._asked(number, is_post=False))
            await self._sleep(0.001, 2.5)
        if how == "stopping" and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await self._sleep(0.001, 2.0)
        if process.returncode is None:
            process.kill()
        return how == "stopping"

    async def _sleep(self, least: float, most: float) -> None:
        """Sleep so long that each order of magnitude is as likely as another."""
        await asyncio.sleep(least * (most / least) ** self.chance.random())

    async def _within(
        self, seconds: float, met: Callable[[], Awaitable[object]]
    ) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(met(), seconds)

    async def _asked(self, life: int, *, is_post: bool) -> None:
        """Return once this life has read the document, or posted."""
        seen = 0
        while True:
            new = self.history.requests[seen:]
            seen += len(new)
            if any(r.life == life and r.is_read != is_post for r in new):
                return
            await asyncio.sleep(0.002)

    def _judge(self, life: Life) -> None:
        """Note an end that nobody has wished for."""
        asked = any(r.life == life.number for r in self.history.requests)
        allowed = {-9}
        if life.was_asked:
            allowed |= {0} if asked else {0, -15}
        if life.how == "end":
            allowed = {0}
        if life.code not in allowed:
            self.history.flaws.append(
                f"life {life.number} ({life.how}) ended with {life.code}"
            )

    def _inspect(self, life: int) -> None:
        """Check a copy of the state file, as a crash has left it."""
        with copied(self.folder) as database:
            found = database.execute("PRAGMA integrity_check").fetchall()
            if found != [("ok",)]:
                self.history.flaws.append(f"state file after life {life}: {found}")
            if not database.execute(_HAS_TABLES).fetchall():
                return
            for (key,) in database.execute(_MARKED):
                self.history.marked.add(key)
            (self.history.pending,) = database.execute(_UNDONE).fetchone()


def undone(folder: Path) -> int:
    """Return how many deliveries are not delivered, dead ones included."""
    with copied(folder) as database:
        if not database.execute(_HAS_TABLES).fetchall():
            return 1  # no life has come so far
        (count,) = database.execute(_UNDONE).fetchone()
    return int(count)


@contextmanager
def copied(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the state file: what a kill has left is not touched."""
    with tempfile.TemporaryDirectory(dir=folder) as copy:
        for name in (_STATE, f"{_STATE}-wal"):
            with suppress(FileNotFoundError):
                shutil.copy(folder / name, Path(copy) / name)
        database = sqlite3.connect(Path(copy) / _STATE)
        try:
            yield database
        finally:
            database.close()


_HAS_TABLES = "SELECT name FROM sqlite_master WHERE name = 'approvals'"
_UNDONE = "SELECT count(*) FROM deliveries WHERE state <> 'delivered'"
_MARKED = "SELECT key FROM approvals WHERE posted"
