"""Opens SQLite or PostgreSQL; hides how their errors, their SQL, their locks differ.

refused   the values may be the reason: too long, or against a constraint
slow      the statement took too long
away      anything else: no connection, no rights, no table, damaged, full, read-only

A refusal alone does not show that the values are the reason: ``Store.keep`` finds out
whether other values are accepted.
Source: https://www.postgresql.org/docs/current/errcodes-appendix.html,
https://sqlite.org/rescode.html
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from bridge.foundation.errors import (
    ForeignFolderError,
    HubSchemaError,
    HubStoreAwayError,
    HubStoreDamagedError,
    HubStoreError,
    HubStoreSlowError,
)
from bridge.foundation.privileges import enter, make_private
from bridge.hub.config import HubConfig
from bridge.hub.store.tables import meta, metadata
from bridge.net.entra import blocking_credential

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

Values = dict[str, object]  # of a row, by its columns
_CONNECT_SECONDS = 5
_STATEMENT_MS = 15_000
_SILENT_MS = 10_000  # after that long without an answer, the connection is broken
_BUSY_SECONDS = 5.0
_READERS = 4
# Classes of SQLSTATE that values can cause: cardinality, data exception, integrity,
# WITH CHECK OPTION, program limit exceeded (a text too long for an index), RAISE.
_OF_VALUES = ("21", "22", "23", "44", "54", "P0")
_SQLITE_OF_VALUES = ("SQLITE_TOOBIG", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")
# A hub that is frozen within a transaction must not hold its locks for ever.
_IDLE_MS = 20_000
_LIMIT = (
    f"SELECT set_config('statement_timeout', '{_STATEMENT_MS}', true), "
    f"set_config('idle_in_transaction_session_timeout', '{_IDLE_MS}', true)"
)
# How long a silent server is waited for; and no prepared statements.
_POSTGRES: dict[str, object] = {
    "connect_timeout": _CONNECT_SECONDS,
    "tcp_user_timeout": _SILENT_MS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "sebridge hub",
    "prepare_threshold": None,
}
_OF_DRIVER = (DataError, InterfaceError, NotSupportedError, ProgrammingError)
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_SLOW = ("57014", "SQLITE_INTERRUPT")  # statement timeout
_NO_TOKEN = "no token for the database"  # noqa: S105 - words of an error  # nosec B105
_CAUSES = (
    _NO_TOKEN,
    "password authentication failed",
    "no pg_hba.conf entry",
    "connection refused",
    "timeout expired",
    "failed to resolve host",
    "Name or service not known",
    "does not exist",
    "support SSL",
    "SSL error",
    "certificate verify failed",
    "remaining connection slots are reserved",
    "too many clients",
    "starting up",
    "shutting down",
    "read-only transaction",
    "permission denied",
    "statement timeout",
    "no space left on device",
    "database or disk is full",
    "database is locked",
    "attempt to write a readonly database",
    "unable to open database file",
    "file is not a database",
    "disk image is malformed",
    "no such table",
    "no such column",
    "prepared statement",
    "disk I/O error",
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


def open_sqlite(path: Path, *, writes: bool) -> Engine:
    """Return an engine for a file; an engine that writes has one connection only.

    The file must exist when the engine connects: it may be empty.

    Raises:
        HubStoreError: the folder of the file does not exist, or is not for root.
    """
    reach(path)
    engine = create_engine(
        f"sqlite:///file:{quote(str(path.absolute()))}?mode=rw&uri=true",
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
        pool_size=1 if writes else _READERS,
        max_overflow=0,
    )
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "do_connect")
    def close_to_others(*_: object) -> None:
        if path.exists():  # a file that was removed is not made here: see ``Place``
            make_private(path)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        _prepare_sqlite(connection)

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _prepare_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # no implicit BEGIN: ``start`` begins them
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def open_postgres(url: str, token: Callable[[], str] | None = None) -> Engine:
    """Return an engine for a database; PgBouncer may stand before it.

    In its transaction mode another connection of the server may take each transaction:
    nothing may be left in a session, such as a prepared statement or a setting.
    Source: https://www.pgbouncer.org/features.html

    Args:
        url: the address of the database.
        token: returns the password of the next connection, a token of Entra ID, which
            is valid for an hour: the server asks at the beginning only. None = the
            password is in the address. Source:
            https://learn.microsoft.com/azure/postgresql/security/security-entra-configure
    """
    rest = url.partition("://")[2]
    engine = create_engine(
        f"postgresql+psycopg://{rest}",
        pool_size=_READERS * 2,
        max_overflow=0,
        pool_timeout=_CONNECT_SECONDS,
        pool_pre_ping=True,
        pool_recycle=1800,
        hide_parameters=True,
        connect_args=_POSTGRES,
    )
    if token is not None:

        @event.listens_for(engine, "do_connect")
        def sign_in(*given: Any) -> None:
            given[-1]["password"] = token()

    if "options=" not in urlsplit(url).query:  # PgBouncer refuses it at the start

        @event.listens_for(engine, "begin")
        def limit(connection: Connection) -> None:
            connection.exec_driver_sql(_LIMIT)

    return engine


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
        raise OperationalError(f"{_NO_TOKEN}: {type(error).__name__}") from error


@contextmanager
def store_errors() -> Iterator[None]:
    """Convert errors of the database; the new texts contain no secret.

    Raises:
        HubStoreAwayError: the same statement may succeed later.
        HubStoreSlowError: it took too long.
        HubStoreError: the database does not accept these values.
    """
    try:
        yield
    except (SQLAlchemyError, ValueError, OverflowError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> HubStoreError:
    named, code = _named(error), _code(error)
    if code in _SLOW:
        return HubStoreSlowError(f"the store is slow ({named})")
    if code.startswith(_DAMAGED):
        advice = "restore it, or start the hub again, which saves what can be read"
        return HubStoreDamagedError(f"the store is away ({named}: {advice})")
    if isinstance(error, PoolTimeoutError) or not _is_refusal(error, code):
        return HubStoreAwayError(f"the store is away ({named})")
    return HubStoreError(f"the store refuses it ({named})")


def _is_refusal(error: Exception, code: str) -> bool:
    """Whether the values may be the reason of an error."""
    if not isinstance(error, DBAPIError):
        return True  # they could not even be sent
    if error.connection_invalidated:
        return False
    if not code:  # an error of the driver about the type or the size of a value
        return isinstance(error, _OF_DRIVER)
    return code.startswith((*_OF_VALUES, *_SQLITE_OF_VALUES))


def _code(error: Exception) -> str:
    """Return the SQLSTATE, or the name of SQLite's code; "" = it has none."""
    inner = getattr(error, "orig", None)
    code = getattr(inner, "sqlstate", None) or getattr(inner, "sqlite_errorname", None)
    return str(code or "")


def _named(error: Exception) -> str:
    """Return the class of an error, and its cause if it is one of ``_CAUSES``.

    The rest of its text is left out: it may contain a secret.
    """
    inner = getattr(error, "orig", None) or error
    words, kind = str(inner).lower(), type(inner).__name__
    cause = next((known for known in _CAUSES if known.lower() in words), None)
    return f"{kind}: {cause}" if cause else kind


# -- Statements for both, and where they differ ----------------------------------------

_SALTS = {"events": 21, "bridges": 22, "pins": 23}


def insert(table: Table) -> postgresql.Insert:
    """Return an INSERT that allows ON CONFLICT; SQLite has the same syntax for it."""
    return postgresql.insert(table)


def upsert(table: Table, *names: str) -> postgresql.Insert:
    """Return an INSERT that replaces these columns of a row that is there already."""
    made = postgresql.insert(table)
    keys = [column.name for column in table.primary_key]
    fresh = {name: made.excluded[name] for name in names}
    return made.on_conflict_do_update(index_elements=keys, set_=fresh)


def note(connection: Connection, name: str, value: str) -> None:
    """Store a value under a name."""
    connection.execute(upsert(meta, "value"), {"name": name, "value": value})


def noted(connection: Connection, name: str) -> str | None:
    """Return the value that is stored under a name; None = there is none."""
    return connection.scalar(select(meta.c.value).where(meta.c.name == name))


def put(
    connection: Connection, statement: Executable, values: Sequence[Values]
) -> None:
    """Run one statement for each row of values, if there are any.

    Values within the statement would be slower: SQLAlchemy would compile it again for
    each number of rows.
    """
    if values:
        connection.execute(statement, list(values))


def lock(connection: Connection, names: Sequence[str], kind: str) -> None:
    """Lock names until the end of the transaction, even if they have no row yet.

    All hubs lock in the same order, which prevents deadlocks. SQLite has only one
    writer, so it needs no locks.
    """
    if connection.dialect.name != "postgresql":
        return
    ordered = (
        "SELECT hashtextextended(name, :salt) AS place "
        "FROM unnest(CAST(:names AS text[])) AS name ORDER BY place"
    )
    connection.execute(
        text(f"SELECT pg_advisory_xact_lock(place) FROM ({ordered}) AS o"),  # noqa: S608 - our own words  # nosec B608
        {"names": list(names), "salt": _SALTS[kind]},
    ).all()


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
        name: connection.scalar(select(func.count()).select_from(table(name))) or 0
        for name in _COUNTED
        if name in there
    }
