"""Opens the state file, or moves it aside and starts with a fresh one.

locked by another instance    → refused
written by a newer version    → refused
written by an older version   → moved aside with an error; a fresh file
empty, or its log unreadable  → said; the log is moved aside
without a lock, or not to be  → left alone, in memory, until it has the lock and can
opened or moved now             be opened
corrupt                       → moved aside with an error; its readable rows are
                                copied into a fresh file
cause of two failed starts    → the same, even if a check finds no damage
in a row
of another VM (a cloned disk) → moved aside with an error; a fresh file
"""

import asyncio
import logging
import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from bridge.foundation.background import in_background
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import (
    ForeignFolderError,
    OlderSchemaError,
    OutboxCorruptError,
    OutboxError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter
from bridge.foundation.sections import Section
from bridge.foundation.sqlite_files import (
    EMPTY,
    as_outbox_error,
    drop,
    fresh_of,
    log_of,
    passed_over,
    set_aside,
    use_fresh,
)
from bridge.foundation.values import Duration, Size
from bridge.outbox.reads import undelivered
from bridge.outbox.records import OWNER, is_other
from bridge.outbox.recovery.soundness import check
from bridge.outbox.recovery.trouble import Trouble
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import NOT_OURS, File, connect
from bridge.outbox.storage.journal import Change, load, owner_in
from bridge.outbox.storage.lock import StateLock

log = logging.getLogger(__name__)

_ROW: Change = ("meta", (OWNER,))

_LONGEST_NAME = 80  # bytes: those beside it are longer, and a socket has 107 at most
_LEAST_SIZE = 10**6  # the records about events need some room
_WELL_AFTER = 60.0
_GLANCE_SECONDS = 1.0
_LOCK_SECONDS = 3.0
_CHECK_SECONDS = 2.0  # delays every start
_SUSPECT_SECONDS = 15.0
_LOOK_BUSY_SECONDS = 0.5  # may pass twice: at opening and at closing
_RESCUE_SECONDS = 15.0
# Errors of a failed copy: no room for two files, or a bug. Neither may stop a start.
_UNSAVED = (
    OutboxError,
    sqlite3.Error,
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


def default_path(
    platform: str = sys.platform, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the default of ``state.path``."""
    if platform == "win32":
        return (
            environ.get("PROGRAMDATA", r"C:\ProgramData") + r"\sebridge\state\state.db"
        )
    return "/var/lib/sebridge/state.db"


class StateConfig(Section, frozen=True, kw_only=True):
    """``[state]``: where and how long the bridge keeps its state.

    Attributes:
        path: the state file, which must not be lost: put it on a data disk if the OS
            disk is ephemeral. Example: ``"/var/lib/sebridge/state.db"``.
        retention: how long delivered events and decisions on approvals are kept.
        max_size: how large the file may be. In a larger file the oldest delivered
            events are deleted sooner. Undelivered events are never deleted.
    """

    path: str = default_path()
    retention: Duration = Duration(7 * 86400)
    max_size: Size = Size(256 * 10**6)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse values that cannot work, or delete decisions too early."""
        if self.retention < 3600:
            yield "retention", "must be at least 1h"
        if self.max_size < _LEAST_SIZE:
            yield "max_size", "must be at least 1MB"
        if not self.path or self.path[0] == "~":
            yield "path", "must be the path of a file; ~ is not expanded"
        if len(os.fsencode(os.path.basename(self.path))) > _LONGEST_NAME:  # noqa: PTH119 - a text
            yield "path", f"the file's name must have at most {_LONGEST_NAME} bytes"


def is_there(path: Path) -> bool:
    """Whether the state file exists.

    Raises:
        OutboxError: this user has no permission for the directory of the file.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        text = f"this user may not read the state file {path}"
        raise OutboxError(f"{text}: run this as the user of the service") from error
    except OSError:
        return False


@contextmanager
def locked(path: Path, kind: str = "forwarder") -> Iterator[StateLock]:
    """Lock the state file for this process alone, if that is possible.

    A lock that cannot be made, or is refused, is tried again later: see ``StateLock``.

    Raises:
        OutboxLockedError: another process uses it.
    """
    lock = StateLock(path, kind)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()


@asynccontextmanager
async def locking(path: Path) -> AsyncIterator[StateLock]:
    """Lock the state file as ``locked`` does, also if its disk hangs: then later.

    Raises:
        OutboxLockedError: another forwarder uses it.
    """
    lock = StateLock(path)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOCK_SECONDS):
                await asyncio.to_thread(lock.take)
        yield lock
    finally:
        lock.release()


@asynccontextmanager
async def open_database(
    path: Path,
    vm_id: str | None,
    *,
    well_after: float = _WELL_AFTER,
    clock: Clock | None = None,
    lock: StateLock | None = None,
) -> AsyncIterator[Database]:
    """Open the state file of this VM; move a corrupt or foreign one aside.

    While the file cannot be opened, or its lock is not held, the database is in memory.
    If the block ends with an error that the state file has caused, it is noted.

    Args:
        path: the file.
        vm_id: of this VM; None = not known.
        well_after: seconds after which failed starts are forgotten.
        clock: measures these seconds; None = the clock of this machine.
        lock: of the state file, which is watched, too; None = it is not locked.

    Raises:
        OutboxError: it must not be used, because a newer version or another program has
            written it.
    """
    trouble, clock = Trouble.of(path), clock or SystemClock()
    file = File(
        path,
        may_degrade=True,
        lock=lock,
        vm_id=vm_id,
        check=lambda: _examine(path, vm_id, trouble, clock),
        on_trouble=trouble.meet,
    )
    try:
        async with Database.open(file) as database:
            if vm_id:
                set_owner(database, vm_id)
            # A commit does not prove that the file is sound: a start that fails on a
            # damaged row has often committed something before.
            async with in_background(
                lambda: _forget(trouble, clock, well_after),
                name="probation",
                clock=clock,
                may_end=True,
            ):
                yield database
    except BaseException as error:
        trouble.end(error)
        raise


async def _forget(trouble: Trouble, clock: Clock, seconds: float) -> None:
    """Forget failed starts once the forwarder has run for a while."""
    await clock.wait(asyncio.Event(), seconds)
    await asyncio.to_thread(trouble.forget)


def _examine(
    path: Path, vm_id: str | None, trouble: Trouble, clock: Clock
) -> str | None:
    """Check the file, and move it aside if it cannot be used here.

    Returns:
        What was lost or moved aside; None = nothing.

    Raises:
        OutboxUnavailableError: it cannot be opened or moved now.
        OutboxError: it must not be used.
    """
    trouble.begin()
    try:
        return _check(path, vm_id, trouble, clock)
    except OSError as error:
        text = f"the state file {path} cannot be moved: {error.strerror}"
        raise OutboxUnavailableError(text) from error
    finally:
        trouble.open()


def _check(path: Path, vm_id: str | None, trouble: Trouble, clock: Clock) -> str | None:
    use_fresh(path)
    found = _leave_log(path, clock.now()) or passed_over(path)
    if trouble.is_hopeless and is_there(path):
        why = f"several starts in a row failed, the last with: {trouble.note.damage}"
        found = _renew(path, why, trouble, clock)
    try:
        owner = _check_file(path, trouble, clock)
    except OlderSchemaError:
        return _leave_older(path, clock.now())
    except OutboxCorruptError as error:
        found = _renew(path, str(error), trouble, clock)
        owner = _check_file(path, trouble, clock)
    if is_other(owner, vm_id):
        kept = set_aside(path, str(owner), clock.now())
        log.error(
            "state file is of another VM: starting afresh",
            extra={"vmId": owner, "kept": str(kept)},
        )
        return f"it was of another VM, and is kept as {kept}"
    if found == EMPTY:
        log.warning("state file is empty: starting afresh", extra={"path": str(path)})
    return found


def _leave_log(path: Path, now: datetime) -> str | None:
    """Move a log aside that SQLite would pass over and delete; return what was said."""
    fault = passed_over(path)
    if fault in {None, EMPTY}:
        return None
    kept = set_aside(log_of(path), "unread", now)
    log.error(
        "log of the state file cannot be read: starting without it",
        extra={"fault": fault, "kept": str(kept)},
    )
    return f"{fault}, which is kept as {kept}"


def _check_file(path: Path, trouble: Trouble, clock: Clock) -> str | None:
    """Check the file, thoroughly if there was trouble; return the vmId of its owner.

    Raises:
        OutboxCorruptError: it is damaged.
        OutboxUnavailableError: it cannot be opened now.
        OlderSchemaError: an older version has written it.
        OutboxError: it must not be used.
    """
    is_suspect = trouble.note.damage is not None
    seconds = _SUSPECT_SECONDS if is_suspect else _CHECK_SECONDS
    try:
        with closing(connect(path, busy=_LOOK_BUSY_SECONDS)) as db:
            is_whole = check(db, seconds=seconds, clock=clock)
            owner = owner_in(db)
    except (OutboxUnavailableError, OlderSchemaError, *NOT_OURS):
        raise
    except MemoryError as error:  # perhaps the size of a row is damaged
        raise OutboxError(f"the state file {path} needs too much memory") from error
    except (sqlite3.Error, OutboxError, ValueError, OverflowError) as error:
        fault = as_outbox_error(error)
        if isinstance(fault, OutboxUnavailableError):
            raise fault from error
        raise OutboxCorruptError(str(fault)) from error
    if is_suspect and is_whole:
        trouble.looked()
    return owner


def _leave_older(path: Path, now: datetime) -> str:
    """Move a file of an older version aside; log and return what waits in it."""
    counts = {"pending": 0, "dead": 0}
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
        counts |= undelivered(db)
    kept = set_aside(path, "older", now)
    log.error(
        "state file is of an older version: starting afresh",
        extra={"kept": str(kept), **counts},
    )
    return f"it was of an older version, and is kept as {kept}"


def _renew(path: Path, why: str, trouble: Trouble, clock: Clock) -> str:
    """Move the file aside, and copy its readable rows into a fresh file; return that.

    The fresh file is complete before the old one is moved, so that a kill at any time
    loses nothing.
    """
    from bridge.outbox.recovery.salvage import (  # noqa: PLC0415 - hardly ever needed
        Salvage,
        rescue,
    )

    fresh, found = fresh_of(path), Salvage(is_whole=False)
    if trouble.note.moved == 0:  # after a move, a copied row may be the cause
        try:
            found = rescue(path, fresh, seconds=_RESCUE_SECONDS, clock=clock)
        except _UNSAVED as error:
            why = f"{why}; nothing could be copied: {type(error).__name__}: {error}"
            drop(fresh)
    kept = set_aside(path, "corrupt", clock.now())
    use_fresh(path)
    trouble.moved()
    log.error(
        "state file is corrupt: starting afresh",
        extra={
            "fault": why,
            "kept": str(kept),
            "copied": found.copied,
            "unreadable": found.unreadable,
            "isWhole": found.is_whole,
        },
    )
    return f"it was damaged, and is kept as {kept}: {found.copied} rows were copied"


# -- the VM that it belongs to, which a cloned disk tells apart ------------------------


async def is_foreign(database: Database, vm_id: str) -> bool:
    """Whether the state file belongs to another VM: its disk was cloned."""
    return is_other(await owner_of(database), vm_id)


async def owner_of(database: Database) -> str | None:
    """Return the vmId of the VM that wrote the file; None if that is not known."""
    row = database.journal.unwritten().get(_ROW)
    if row is not None:
        return bytes(row[0]).decode()  # type: ignore[arg-type]  # of a BLOB
    found: str | None = await database.read(owner_in)
    return found


def set_owner(database: Database, vm_id: str) -> None:
    """Save the vmId of the VM that writes the file."""
    database.put({_ROW: (vm_id.encode(),)})


# -- values that are needed before it is open ------------------------------------------


async def glance(
    path: Path, names: Sequence[str], patience: float = _GLANCE_SECONDS
) -> Mapping[str, bytes]:
    """Return the values that an earlier run of the forwarder saved, if they exist.

    The file is not changed. Errors are ignored: opening the file reports them later.

    Args:
        path: the state file.
        names: the names of the values.
        patience: seconds to wait for a disk that hangs.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            return await asyncio.to_thread(_read, path, names)
    return {}


def _read(path: Path, names: Sequence[str]) -> Mapping[str, bytes]:
    found = dict[str, bytes]()
    with suppress(ForeignFolderError, OSError, sqlite3.Error):
        enter(path)
        if path.is_file():
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with closing(
                sqlite3.connect(uri, uri=True, timeout=_LOOK_BUSY_SECONDS)
            ) as db:
                for name in names:
                    if (body := load(db, name)) is not None:
                        found[name] = body
    return found
