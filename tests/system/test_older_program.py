"""The way back: the program before the last change of the tables, on the newest file.

It is the one of the commit before, out of the history of git, and runs as its users
had it: a process with a configuration. SEBRIDGE_HISTORY names the repository where the
tests run in a copy without one, as in CI.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from io import BytesIO
from pathlib import Path

import pytest

from bridge.outbox.records import Decision
from bridge.outbox.statefile import open_database
from bridge.outbox.storage.schema import MIGRATIONS, READABLE_SINCE, versions
from bridge.outbox.store import Outbox
from tests.support.builders import router
from tests.support.configurations import config_text, webhook
from tests.support.ports import free_port
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HISTORY = Path(os.environ.get("SEBRIDGE_HISTORY", ROOT))
TABLES = "bridge/outbox/storage/schema.py"
CHANGE = "(ALTER|CREATE) (TABLE|INDEX|TRIGGER)"  # other changes of the file are words
INTENT = Decision(
    message="asked", key="K-1", event_id="k-1", sequence=7, state="intent"
)


def git(*arguments: str) -> bytes:
    return subprocess.run(  # noqa: S603 - fixed words
        ["git", "-C", HISTORY, *arguments],  # noqa: S607 - from the PATH
        capture_output=True,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the older program."""
    try:
        changed = (
            git("log", "-1", "--format=%H", f"-G{CHANGE}", "--", TABLES)
            .decode()
            .strip()
        )
        archive = git("archive", f"{changed}^", "bridge")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no history of git here: set SEBRIDGE_HISTORY")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def waiting(path: Path) -> set[object]:
    query = (
        "SELECT cloud_event_id FROM items JOIN deliveries ON item = items.id "
        "WHERE state = 'pending'"
    )
    return {event_id for (event_id,) in rows(path, query)}


def intents(path: Path) -> list[tuple[object, ...]]:
    return rows(path, "SELECT message, key, sequence, state, posted FROM approvals")


def environ_of(program: Path) -> dict[str, str]:
    """Return what has Python take the program of a folder, and not the present one."""
    return {"PYTHONPATH": str(program), "PYTHONSAFEPATH": "1"}


@asynccontextmanager
async def running(config: Path, program: Path | None) -> AsyncIterator[None]:
    """Run a forwarder: the present one, or that of a folder."""
    log = config.with_suffix(".log")
    since = log.stat().st_size if log.exists() else 0
    process = await forwarder(config, environ_of(program) if program else {})
    try:
        await settled(config, since)
        yield
    finally:
        assert await ended(process) == 0, log.read_text()[since:]


async def until(at: Addresses, ids: set[object]) -> None:
    """Wait until all of these events have been received."""
    async with asyncio.timeout(PATIENCE):
        while True:
            bodies = [message["body"] for message in await at.messages()]
            if ids <= {body["id"] for body in bodies if isinstance(body, dict)}:
                return
            await asyncio.sleep(0.1)


async def asked(path: Path) -> None:
    """Leave an approval of which only the intent is on the disk."""
    async with open_database(path, None) as database:
        await Outbox(database, router()).commit([], now=1.8e9, decisions=[INTENT])


def test_older_program_is_another_one(older: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import bridge; print(bridge.__file__)"],
        env={**os.environ, **environ_of(older)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert Path(said.strip()).is_relative_to(older)
    assert (older / TABLES).read_bytes() != (ROOT / TABLES).read_bytes()


async def test_older_program_goes_on_with_the_newest_file_and_the_newest_with_its(
    older: Path, tmp_path: Path
) -> None:
    state, port = tmp_path / "state.db", free_port()
    config = tmp_path / "bridge.toml"
    async with simulator_here() as imds:
        url = f"http://127.0.0.1:{port}/siem"
        siem = webhook(url, retry={"max_backoff": "1s"})
        config.write_text(config_text(siem, imds=imds.imds, state=state))
        async with running(config, None):
            pass  # it tells of its start and its stop, and nobody listens
        await asked(state)
        first, intent = waiting(state), intents(state)
        assert first
        assert intent == [("asked", "K-1", 7, "intent", 0)]

        async with running(config, older):
            pass
        second = waiting(state)
        assert second > first  # nothing is lost, and its own comes after it
        assert intents(state) == intent

        async with (
            simulator_here(inbox_port=port) as inbox,
            running(config, older),
        ):
            await until(inbox, second)  # it delivers what the newer one left

        async with running(config, None):
            pass
        third = waiting(state)
        assert third
        assert not third & first
        assert intents(state) == intent
        async with (
            simulator_here(inbox_port=port) as inbox,
            running(config, None),
        ):
            await until(inbox, third)

    with closing(sqlite3.connect(state)) as db:
        assert versions(db) == (READABLE_SINCE, len(MIGRATIONS))
    assert list(tmp_path.glob("*.corrupt-*")) == []
