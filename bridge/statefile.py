"""The state file as a file: its place, its lock, and when it is moved aside.

locked by another instance      → refused
written by a newer version      → refused
corrupt                         → moved aside with an error, a fresh start
of another VM (a cloned disk)   → moved aside with an error, a fresh start
"""

import logging
import os
import re
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bridge.errors import OutboxCorruptError, OutboxError, OutboxLockedError
from bridge.options import Section
from bridge.outbox.connection import make_private
from bridge.outbox.database import Database
from bridge.values import Duration, Size

log = logging.getLogger(__name__)

_LONGEST_WHY = 64
_LEAST_SIZE = 10**6  # the memory of what was told needs some room


def default_path(platform: str = sys.platform) -> str:
    """Return where state is kept unless configured otherwise."""
    if platform == "win32":
        return os.environ.get("PROGRAMDATA", r"C:\ProgramData") + r"\sebridge\state.db"
    return "/var/lib/sebridge/state.db"


class StateConfig(Section, frozen=True, kw_only=True):
    """``[state]``: where and how long things are remembered."""

    path: str = default_path()
    retention: Duration = Duration(7 * 86400)
    max_size: Size = Size(256 * 10**6)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse what would forget approvals while their events live."""
        if self.retention < 3600:
            yield "retention", "must be at least 1h"
        if self.max_size < _LEAST_SIZE:
            yield "max_size", "must be at least 1MB"
        if not self.path:
            yield "path", "must not be empty"


def is_there(path: Path) -> bool:
    """Whether there is a state file.

    Raises:
        OutboxError: this user may not look into its directory.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        text = f"the state file {path} may not be looked at by this user"
        raise OutboxError(f"{text}: run this as the user of the service") from error
    except OSError:
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the state file for this process alone, through a file beside it.

    SQLite's lock is the same on every system and ends with the process; the state file
    itself must stay open to those who only look.

    Raises:
        OutboxLockedError: another forwarder runs on it.
        OutboxError: its directory cannot be made or written.
    """
    unusable = f"the state file {path} cannot be used"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(Path(f"{path}.lock"))
        lock = sqlite3.connect(f"{path}.lock", timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise OutboxError(
            f"{unusable}: {getattr(error, 'strerror', None) or error}"
        ) from error
    with closing(lock):
        try:
            lock.execute("PRAGMA journal_mode = MEMORY")
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorname.startswith("SQLITE_BUSY"):
                text = f"another forwarder runs on the state file {path}"
                raise OutboxLockedError(text) from error
            raise OutboxError(f"{unusable}: {path}.lock: {error}") from error
        yield


@asynccontextmanager
async def open_database(path: Path, vm_id: str | None) -> AsyncIterator[Database]:
    """Open the state file of this VM; a corrupt or foreign one is moved aside.

    Raises:
        OutboxError: it cannot be used, or was written by a newer version.
    """
    await _examine(path, vm_id)
    async with Database.open(path, may_degrade=True) as database:
        if vm_id:
            await database.own(vm_id)
        yield database


async def _examine(path: Path, vm_id: str | None) -> None:
    """Move the file aside if it is of no use here; it is closed by then."""
    try:
        async with Database.open(path, may_degrade=True) as database:
            await database.read(_check)
            owner = await database.owner()
    except OutboxCorruptError as error:
        log.error(  # noqa: TRY400 - the text says it all
            "state file is corrupt: starting afresh",
            extra={"fault": str(error), "kept": str(set_aside(path, "corrupt"))},
        )
        return
    if vm_id and owner and owner.casefold() != vm_id.casefold():
        log.error(
            "state file is of another VM: starting afresh",
            extra={"vmId": owner, "kept": str(set_aside(path, owner))},
        )


def _check(db: sqlite3.Connection) -> None:
    """Look at every page: damage met later would end the forwarder again and again.

    Costs 20 ms for 10,000 deliveries.

    Raises:
        OutboxCorruptError: there is damage.
    """
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise OutboxCorruptError(f"the state file is damaged: {found}")


def set_aside(path: Path, why: str) -> Path:
    """Rename the state file and what belongs to it; returns its new name.

    Raises:
        OutboxError: it cannot be renamed.
    """
    plain = re.sub(r"[^A-Za-z0-9-]", "_", why)[:_LONGEST_WHY]
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    try:
        kept = _free(path.with_name(f"{path.name}.{plain}-{at}"))
        for suffix in ("", "-wal", "-shm"):
            part = Path(f"{path}{suffix}")
            if part.exists():
                part.rename(f"{kept}{suffix}")
    except OSError as error:
        text = f"the state file {path} cannot be moved aside: {error.strerror}"
        raise OutboxError(text) from error
    return kept


def _free(path: Path) -> Path:
    """Return the path, or one like it that nothing stands at."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
