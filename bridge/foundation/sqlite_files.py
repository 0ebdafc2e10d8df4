"""A file of SQLite and those beside it: moved aside, written anew, read if damaged.

a damaged file ──its rows──▶ FILE.fresh ──the old one is moved aside──▶ FILE
a removed file ──what is open of it──▶ FILE.restored ──▶ FILE
"""

import os
import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    OutboxCorruptError,
    OutboxError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import PARTS, make_private

# Errors that may occur when a damaged file is read.
READING = (sqlite3.Error, UnicodeDecodeError, MemoryError, OverflowError)
_LONGEST_WHY = 64
_STEPS = 5000  # of SQLite's virtual machine between two reads of the clock


def sync_folder(folder: Path) -> None:
    """Write the file names of a folder to the disk; Windows does it by itself."""
    if os.name != "posix":  # pragma: no cover - tests run on POSIX
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- moved aside, and written anew -----------------------------------------------------


def set_aside(path: Path, why: str, at: datetime) -> Path:
    """Rename a file and those beside it; return its new path.

    Args:
        path: the file.
        why: the reason; a part of the new name.
        at: the time; the end of the new name.

    Raises:
        OSError: it cannot be renamed.
    """
    plain = re.sub(r"[^A-Za-z0-9-]", "_", why)[:_LONGEST_WHY]
    kept = first = path.with_name(f"{path.name}.{plain}-{at:%Y%m%dT%H%M%S}")
    number = 1
    while kept.exists():
        number += 1
        kept = first.with_name(f"{first.name}-{number}")
    for part in PARTS:
        if Path(f"{path}{part}").exists():
            Path(f"{path}{part}").rename(f"{kept}{part}")
    return kept


def fresh_of(path: Path) -> Path:
    """Return the path of the file that takes the place of a damaged one."""
    return Path(f"{path}.fresh")


def use_fresh(path: Path) -> None:
    """Move a complete fresh file into place; delete it if the old one is still there.

    Raises:
        OSError: it cannot be moved.
    """
    fresh = fresh_of(path)
    if not fresh.is_file():
        return
    if path.exists():
        drop(fresh)
        return
    for part in PARTS[1:]:  # of the file that was there, else SQLite would read them
        Path(f"{path}{part}").unlink(missing_ok=True)
    fresh.rename(path)
    sync_folder(path.parent)


def drop(path: Path) -> None:
    """Delete a file and those beside it, as far as that is possible."""
    for part in PARTS:
        with suppress(OSError):
            Path(f"{path}{part}").unlink(missing_ok=True)


def copy_to(path: Path, source: sqlite3.Connection) -> None:
    """Write all that a connection reads to a file, in place of what is there.

    Raises:
        OSError, sqlite3.Error: it cannot be written.
    """
    new = Path(f"{path}.restored")
    drop(new)
    make_private(new)
    try:
        with closing(sqlite3.connect(new)) as target:
            source.backup(target)
        new.replace(path)
        sync_folder(path.parent)
    except BaseException:
        drop(new)
        raise


# -- what SQLite passes over without a word --------------------------------------------

_MAGIC, _FORMAT = 0x377F0682, 3007000  # the last bit of the first is the byte order
_HEAD, _SUMMED = 32, 24
EMPTY = "it is empty"
BAD_LOG = "its log cannot be read"
LOG_ALONE = "it is gone, but its log is not"
_FIRST_PAGE = 4096  # what SQLite writes before the first table


def log_of(path: Path) -> Path:
    """Return the path of SQLite's log, which has what is not in the file yet."""
    return Path(f"{path}-wal")


def has_log(path: Path) -> bool:
    """Whether something is in SQLite's log."""
    return bool(_size(log_of(path)))


def passed_over(path: Path) -> str | None:
    """Return what SQLite would take for an empty file, or an empty log; None = nothing.

    It would delete a log that it cannot read, and one without its file.
    """
    size, log_size = _size(path), _size(log_of(path))
    if log_size:
        is_sound = size and _is_log(log_of(path))
        return None if is_sound else BAD_LOG if size else LOG_ALONE
    if size == 0 or (size and size <= _FIRST_PAGE and _has_no_table(path)):
        return EMPTY
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _has_no_table(path: Path) -> bool:
    """Whether SQLite reads a file without its log, and finds no table in it."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            found = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False  # damaged, or not to be opened: whoever opens it says so
    return bool(found == (0,))


def _is_log(path: Path) -> bool:
    """Whether the head of a log is sound; see https://sqlite.org/walformat.html."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return True  # whoever opens it says so
    if len(head) < _HEAD:
        return False
    magic, version = struct.unpack(">II", head[:8])
    if magic & ~1 != _MAGIC or version != _FORMAT:
        return False
    first = second = 0
    for one, other in struct.iter_unpack("<>"[magic & 1] + "II", head[:_SUMMED]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return (first, second) == struct.unpack(">II", head[_SUMMED:])


# -- reading what may be damaged -------------------------------------------------------


class UnreadableText(str):
    """Marks a text that is not UTF-8."""

    __slots__ = ()


def text_of(raw: bytes) -> str:
    """Return a text of a file; UnreadableText if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return UnreadableText(raw.decode(errors="replace"))


@contextmanager
def limited(db: sqlite3.Connection, seconds: float, clock: Clock) -> Iterator[None]:
    """Interrupt SQLite after ``seconds``."""
    end = clock.monotonic() + seconds
    db.set_progress_handler(lambda: clock.monotonic() >= end, _STEPS)
    try:
        yield
    finally:
        db.set_progress_handler(None, 0)


# -- What the errors of a state file mean ----------------------------------------------

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")


def is_unwritable(error: BaseException) -> bool:
    """Whether the disk or another process caused the error, so that it may end."""
    if isinstance(error, OutboxError):
        return isinstance(error, OutboxUnavailableError)
    return _is_one_of(error, _UNWRITABLE)


def translated(error: Exception, text: str) -> OutboxError:
    """Convert an error to an OutboxError, with ``text`` before its own text."""
    kind = OutboxError
    if isinstance(error, sqlite3.Error) and is_unwritable(error):
        kind = OutboxUnavailableError
    elif _is_one_of(error, _DAMAGED):
        kind = OutboxCorruptError
    fault = kind(f"{text}: {error}")
    fault.__cause__ = error
    return fault


def _is_one_of(error: BaseException, kinds: tuple[str, ...]) -> bool:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    return name.startswith(kinds)


def is_damage(error: BaseException) -> bool:
    """Whether the content of the file caused the error."""
    return isinstance(error, OutboxCorruptError | MemoryError) or (
        isinstance(error, sqlite3.Error) and _is_one_of(error, _DAMAGED)
    )


def as_outbox_error(error: BaseException | None) -> BaseException | None:
    """Return an error of SQLite as an OutboxError, any other unchanged."""
    text = "the state file cannot be read or written"
    return translated(error, text) if isinstance(error, sqlite3.Error) else error
