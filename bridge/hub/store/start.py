"""What is done at the start: the SQLite file is examined, the schema updated.

of a version before the first release → moved aside; a fresh file
damaged, or only its log is there     → moved aside; its readable rows are copied into
                                        a fresh file
its log is none                       → the log is moved aside, with an error
empty                                 → said
a directory, of another program, not  → HubStoreError, which says what to do
to be read or written

While the hub runs, ``engine.Place`` watches the file.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy import table as table_of

from bridge.foundation.errors import (
    ForeignFolderError,
    HubSchemaError,
    HubStoreError,
)
from bridge.foundation.privileges import PARTS, enter, make_private, no_file
from bridge.foundation.sqlite_files import (
    BAD_LOG,
    EMPTY,
    LOG_ALONE,
    drop,
    fresh_of,
    has_log,
    log_of,
    passed_over,
    set_aside,
    text_of,
    use_fresh,
)
from bridge.hub.config import HubConfig
from bridge.hub.store import engine, salvage
from bridge.hub.store.engine import NO_TOKEN, file_errors
from bridge.hub.store.tables import metadata
from bridge.net.entra import blocking_credential

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

log = logging.getLogger(__name__)

_BUSY_SECONDS = 5.0
_CHECK_SECONDS = 15.0  # delays every start; a larger file is checked in part
_OURS = {"alembic_version", "events"}


# -- the SQLite file -------------------------------------------------------------------


def examine(path: Path) -> None:
    """Make sure that a file can be used: move a damaged one aside, with a word.

    Raises:
        HubStoreError: it cannot be used, and not be moved aside either.
    """
    reach(path)
    _refuse(path)
    with file_errors(path):
        use_fresh(path)
    odd = passed_over(path)
    if odd == BAD_LOG:
        _leave_log(path)
    if (fault := _fault(path)) is not None:
        _renew(path, fault)
    elif odd == EMPTY:
        log.warning("store is empty: starting afresh", extra={"path": str(path)})
    make_private(path)


def _leave_log(path: Path) -> None:
    """Move a log aside that SQLite would pass over and delete."""
    kept = _set_aside(log_of(path), "unread")
    log.error(
        "log of the store cannot be read: starting without it",
        extra={"kept": str(kept)},
    )


def reach(path: Path) -> None:
    """Make sure that a file may be opened here.

    Raises:
        HubStoreError: the folder of the file does not exist, or is not for root.
    """
    if not path.parent.is_dir():
        raise HubStoreError(
            f"hub.store: there is no folder {path.parent}: sebridge-hub.service makes "
            "/var/lib/sebridge-hub at its start; without the service, make the folder "
            "for the account that runs the hub, or name another file"
        )
    try:
        enter(path)
    except ForeignFolderError as error:
        raise HubStoreError(f"hub.store: {error}") from error


def _refuse(path: Path) -> None:
    """Refuse what a person has to change.

    Raises:
        HubStoreError: it says what to change.
    """
    if os.path.isdir(path):  # noqa: PTH112 - a Path asks a link, too, and may raise
        raise HubStoreError(f"hub.store: {path} is a directory: name a file in it")
    if (other := no_file(path)) is not None:
        raise HubStoreError(f"hub.store: {other} is not a file: move it away")
    for part in (path.parent, *(Path(f"{path}{suffix}") for suffix in PARTS)):
        if os.path.lexists(part) and not os.access(part, os.R_OK | os.W_OK):
            raise HubStoreError(
                f"hub.store: this user may not read and write {part}: give it to the "
                "account of the hub (chown)"
            )


def _fault(path: Path) -> str | None:
    """Return why a file is damaged; None = it is not, or it is new.

    Raises:
        HubStoreError: it is a database of another program.
    """
    if not path.exists() or path.stat().st_size == 0:
        return LOG_ALONE if has_log(path) else None
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as db:
            db.text_factory = text_of
            return _fault_of(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_FULL")):
            return None  # said when it is opened
        return str(error)
    except sqlite3.Error as error:
        return str(error)


def _fault_of(db: sqlite3.Connection) -> str | None:
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if names and not _OURS & names:
        (_, _, path) = db.execute("PRAGMA database_list").fetchone()
        raise HubStoreError(
            f"hub.store: {path} is a database of another program: name another file"
        )
    if not names:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        return "it has no tables" if pages > 1 else None
    try:
        with _limited(db):
            return _damage(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        return None


@contextmanager
def _limited(db: sqlite3.Connection) -> Iterator[None]:
    """Interrupt SQLite after a while."""
    timer = threading.Timer(_CHECK_SECONDS, db.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _damage(db: sqlite3.Connection) -> str | None:
    """Check every page and index, and every row as the hub reads it."""
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        return str(found)
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for table in salvage.tables():
        known = {row[1] for row in db.execute(f'PRAGMA table_info("{table.name}")')}
        if table.name not in there or not {c.name for c in table.columns} <= known:
            continue  # of another version: ``migrate`` decides
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        query = f'SELECT {names} FROM "{table.name}" NOT INDEXED'  # noqa: S608 - our own names  # nosec B608
        if not all(salvage.is_sound(table, row) for row in db.execute(query)):
            return f"a row of {table.name} cannot be read"
    return None


def _renew(path: Path, why: str) -> None:
    """Move a file aside, and copy its readable rows into a fresh file.

    The fresh file is complete before the old one is moved, so that a kill at any time
    loses nothing.

    Raises:
        HubStoreError: it cannot be done.
    """
    new, fresh = Path(f"{path}.restored"), fresh_of(path)
    drop(new)
    found = _rescued(path, new)
    with file_errors(path):
        new.rename(fresh)
        kept = _set_aside(path, "damaged")
        use_fresh(path)
    more = {"fault": why, "kept": str(kept), "unreadable": found.unreadable}
    log.error(
        "store is damaged: what can be read of it is kept",
        extra={**more, **_counts_for_log(found.copied)},
    )


def _rescued(path: Path, new: Path) -> salvage.Salvage:
    make_private(new)
    database = engine.open_sqlite(new, writes=True)
    try:
        with file_errors(path), engine.store_errors():
            with database.begin() as connection:
                migrate(connection)
            with closing(database.raw_connection()) as connection_:  # empties its log
                connection_.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            found = salvage.rescue(path, new)
            salvage.keep_again(database, found)
    finally:
        database.dispose()
    return found


def begin_anew(path: Path, held: Mapping[str, int]) -> None:
    """Move a file with a schema of before the first release aside; its name is logged.

    Args:
        path: the file; no connection to it is open.
        held: how many events, decisions and votes it has.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    kept = _set_aside(path, "before-0-1-0")
    make_private(path)
    log.error(
        "store of a version before 0.1.0 is moved aside",
        extra={"kept": str(kept), **_counts_for_log(held)},
    )


def _counts_for_log(found: Mapping[str, int]) -> dict[str, int]:
    return {
        "events": found.get("events", 0),
        "decisions": found.get("decisions", 0),
        "votes": found.get("votes", 0),
    }


def _set_aside(path: Path, why: str) -> Path:
    """Rename a file and its log; the new name ends with the time of its last change.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    there = path if path.exists() else log_of(path)
    try:
        changed = datetime.fromtimestamp(there.stat().st_mtime, UTC)
        return set_aside(path, why, changed)
    except OSError as error:
        text = f"hub.store: {path} cannot be moved aside: {error}"
        raise HubStoreError(text) from error


# -- Updates the schema of a store to the version of this hub --------------------------
#
# Each step only adds tables and columns, so a hub also runs on the next schema. Several
# hubs on one database can be updated one after the other.


_PLACE = Path(__file__).parent / "migrations"
_LOCK = 0x5EB21D9E0001  # advisory lock of PostgreSQL: one hub at a time migrates
_BEFORE_RELEASE = ("0001", "0002")
_COUNTED = ("events", "decisions", "votes")


# Of all tables at once: SQLAlchemy asks for each of them, at every start of a hub.
_COLUMNS = {
    "postgresql": "SELECT c.relname, a.attname FROM pg_attribute AS a "
    "JOIN pg_class AS c ON c.oid = a.attrelid WHERE a.attnum > 0 "
    "AND NOT a.attisdropped AND c.relnamespace = current_schema()::regnamespace",
    "sqlite": "SELECT t.name, c.name FROM sqlite_master AS t, "
    "pragma_table_info(t.name) AS c WHERE t.type = 'table'",
}


def migrate(connection: Connection) -> None:
    """Apply the missing steps; if several hubs start, the others wait for the first.

    Raises:
        HubSchemaError: the schema is of a version before the first release.
        HubStoreError: the schema is two or more steps ahead of this hub.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": _LOCK})
    config = Config()
    config.set_main_option("script_location", str(_PLACE).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = ScriptDirectory.from_config(config).get_current_head() or "0"
    found = MigrationContext.configure(connection).get_current_revision() or "0"
    if _is_before_release(connection, found, known):
        raise HubSchemaError(counts(connection))
    ahead = int(found) - int(known)
    if ahead > 1:
        raise HubStoreError(
            f"the store has schema {found}, and this hub knows {known}: update it"
        )
    if ahead < 0:
        command.upgrade(config, "head")


def _is_before_release(connection: Connection, found: str, known: str) -> bool:
    """Whether a schema has an old number, or lacks a column that its number has."""
    if found in _BEFORE_RELEASE:
        return True
    if found != known:
        return False
    query = text(_COLUMNS[connection.dialect.name])
    there = {(row[0], row[1]) for row in connection.execute(query)}
    return not all(
        (one.name, column.name) in there
        for one in metadata.sorted_tables
        for column in one.columns
    )


def counts(connection: Connection) -> dict[str, int]:
    """Return how many events, decisions and votes a store of any schema holds."""
    there = set(inspect(connection).get_table_names())
    return {
        name: connection.scalar(select(func.count()).select_from(table_of(name))) or 0
        for name in _COUNTED
        if name in there
    }


# -- the password of PostgreSQL --------------------------------------------------------


def tokens_of(config: HubConfig) -> Callable[[], str] | None:
    """Return what gets a token for the database; None = the address has a password.

    Raises:
        HubStoreError: the credential cannot be used on this machine.
    """
    if config.store_credential == "none":
        return None
    try:
        credential = blocking_credential(
            config.store_credential, client_id=config.store_client_id
        )
    except ValueError as error:
        raise HubStoreError(f"hub.store_credential: {error}") from error
    return partial(_token, credential, config.store_scope)


def _token(credential: "TokenCredential", scope: str) -> str:
    from azure.core.exceptions import AzureError  # noqa: PLC0415  costs memory
    from psycopg import OperationalError  # noqa: PLC0415  only for PostgreSQL

    try:
        return credential.get_token(scope).token
    except AzureError as error:
        raise OperationalError(f"{NO_TOKEN}: {type(error).__name__}") from error
