"""The state file as a file: its place, its lock, and when it is moved aside.

locked by another instance      → refused
written by a newer version      → refused
corrupt                         → moved aside with an error, a fresh start
of another VM (a cloned disk)   → moved aside with an error, a fresh start
"""

import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import filelock

from bridge.errors import OutboxCorruptError, OutboxError, OutboxLockedError
from bridge.options import Duration, Section
from bridge.outbox.database import Database

log = logging.getLogger(__name__)


def default_path(platform: str = sys.platform) -> str:
    """Return where state is kept unless configured otherwise."""
    if platform == "win32":
        return os.environ.get("PROGRAMDATA", r"C:\ProgramData") + r"\sebridge\state.db"
    return "/var/lib/sebridge/state.db"


class StateConfig(Section, frozen=True, kw_only=True):
    """``[state]``: where and how long things are remembered."""

    path: str = default_path()
    retention: Duration = Duration(7 * 86400)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse what would forget approvals while their events live."""
        if self.retention < 3600:
            yield "retention", "must be at least 1h"
        if not self.path:
            yield "path", "must not be empty"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the state file for this process alone.

    Raises:
        OutboxLockedError: another forwarder runs on it.
        OutboxError: its directory cannot be made or written.
    """
    lock = filelock.FileLock(f"{path}.lock", timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.acquire()
    except filelock.Timeout as error:
        raise OutboxLockedError(
            f"another forwarder runs on the state file {path}"
        ) from error
    except OSError as error:
        raise OutboxError(
            f"the state file {path} cannot be used: {error.strerror or error}"
        ) from error
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def open_database(path: Path, vm_id: str | None) -> AsyncIterator[Database]:
    """Open the state file of this VM; a corrupt or foreign one is moved aside.

    Raises:
        OutboxError: it cannot be used, or was written by a newer version.
    """
    async with AsyncExitStack() as stack:
        try:
            database = await stack.enter_async_context(Database.open(path))
            owner = await database.owner()
        except OutboxCorruptError as error:
            log.error(  # noqa: TRY400 - the text says it all
                "state file is corrupt: starting afresh",
                extra={"fault": str(error), "kept": str(set_aside(path, "corrupt"))},
            )
            database = await stack.enter_async_context(Database.open(path))
            owner = None
        if vm_id and owner and owner.casefold() != vm_id.casefold():
            await stack.aclose()
            log.error(
                "state file is of another VM: starting afresh",
                extra={"vmId": owner, "kept": str(set_aside(path, owner))},
            )
            database = await stack.enter_async_context(Database.open(path))
        if vm_id:
            await database.own(vm_id)
        yield database


def set_aside(path: Path, why: str) -> Path:
    """Rename the state file and what belongs to it; returns its new name."""
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    kept = path.with_name(f"{path.name}.{why}-{at}")
    for suffix in ("", "-wal", "-shm"):
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(f"{kept}{suffix}")
    return kept
