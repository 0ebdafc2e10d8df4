"""The tables of the state file: one list, which all that reads or writes rows uses.

The journal writes rows in the order of these columns, the check compares each value
with its column, and a salvage copies table by table. A file of an older schema is not
migrated: none was ever released, so it is moved aside.
"""

import math
import sqlite3
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
    OutboxCorruptError,
    OutboxError,
)

SCHEMA = 10
_PLAUSIBLE = 1000  # a higher schema number means damage

SEVERAL = 16  # rows that one statement writes

Kind = Literal["TEXT", "INTEGER", "REAL", "BLOB"]


class Column(Struct, frozen=True):
    """A column.

    Attributes:
        name: the name of the column.
        kind: the type. A BLOB of ``meta`` may hold a number.
        is_required: whether NULL is forbidden.
    """

    name: str
    kind: Kind
    is_required: bool

    @property
    def condition(self) -> str:
        """``is_sound`` as an SQL condition; it cannot check the encoding of texts."""
        kind = f"typeof({self.name})"
        finite = f"({kind} = 'real' AND abs({self.name}) < 9e999)"
        known = {
            "TEXT": f"{kind} = 'text'",
            "INTEGER": f"{kind} = 'integer'",
            "REAL": finite,
        }
        is_right = known.get(self.kind, f"({kind} IN ('blob', 'integer') OR {finite})")
        return is_right if self.is_required else f"({kind} = 'null' OR {is_right})"

    def is_sound(self, value: object) -> bool:
        """Whether the bridge could have written the value here."""
        if value is None:
            return not self.is_required
        if self.kind == "TEXT":
            return type(value) is str
        if self.kind == "INTEGER":
            return isinstance(value, int)
        if self.kind == "REAL":
            return _is_finite(value)
        return isinstance(value, bytes | int) or _is_finite(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


class Table(Struct, frozen=True):
    """A table.

    Attributes:
        name: the name of the table.
        key: the names of the columns of the primary key.
        columns: the names of the others but ``checksum``, in the order in which a row
            is handed over.
        has_checksum: whether there is a last column ``checksum``.
        typed: all columns, in the order of the file.
        sql: the statements that make the table and its indexes.
        put: writes a row, in place of an earlier one with its key.
        put_several: the same for so many rows at once.
        drop: deletes the row with a key.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    has_checksum: bool
    typed: tuple[Column, ...]
    sql: tuple[str, ...]
    put: str
    put_several: str
    drop: str

    def is_sound(self, row: tuple[object, ...]) -> bool:
        """Whether the bridge could have written the row."""
        return all(c.is_sound(v) for c, v in zip(self.typed, row, strict=True))


def _table(name: str, key: str, columns: str, /, **indexes: str) -> Table:
    """Return a table.

    Args:
        name: its name.
        key: the columns of the primary key, as ``name TYPE``.
        columns: the others; ``?`` after the type = may be NULL.
        indexes: by their names, what they are on.
    """
    keys, others = _typed(key), _typed(columns)
    typed = (*keys, *others)
    return Table(
        name=name,
        key=tuple(column.name for column in keys),
        columns=tuple(c.name for c in others if c.name != "checksum"),
        has_checksum=others[-1].name == "checksum",
        typed=typed,
        sql=(
            _made(name, typed, len(keys)),
            *(f"CREATE INDEX {name}_{i} ON {name} {on}" for i, on in indexes.items()),
        ),
        put=_put(name, [c.name for c in typed], len(keys)),
        put_several=_put(name, [c.name for c in typed], len(keys), SEVERAL),
        drop=f"DELETE FROM {name} WHERE "  # noqa: S608 - our own names  # nosec B608
        + " AND ".join(f"{column.name} = ?" for column in keys),
    )


def _typed(columns: str) -> tuple[Column, ...]:
    kinds: dict[str, Kind] = {
        "TEXT": "TEXT",
        "INTEGER": "INTEGER",
        "REAL": "REAL",
        "BLOB": "BLOB",
    }
    return tuple(
        Column(name, kinds[kind.removesuffix("?")], not kind.endswith("?"))
        for name, kind in (one.split() for one in columns.split(","))
    )


def _made(name: str, typed: tuple[Column, ...], keys: int) -> str:
    """Return the SQL that makes a table; the id of a deleted row is not used again."""
    columns = [f"{c.name} {c.kind}{' NOT NULL' * c.is_required}" for c in typed]
    if typed[0].name == "id":
        columns[0] = "id INTEGER PRIMARY KEY AUTOINCREMENT"
        return f"CREATE TABLE {name} ({', '.join(columns)})"
    key = ", ".join(column.name for column in typed[:keys])
    columns.append(f"PRIMARY KEY ({key})")
    return f"CREATE TABLE {name} ({', '.join(columns)}) WITHOUT ROWID"


def _put(name: str, names: list[str], keys: int, rows: int = 1) -> str:
    """Return the SQL that writes rows, which may be done twice."""
    others = ", ".join(
        # Counted from 0 if the file could not be read at the start.
        f"{n} = max({name}.{n}, excluded.{n})"
        if n == "times"
        else f"{n} = excluded.{n}"
        for n in names[keys:]
    )
    row = f"({', '.join('?' * len(names))})"
    return (
        f"INSERT INTO {name} ({', '.join(names)}) "  # noqa: S608 - our own names  # nosec B608
        f"VALUES {', '.join([row] * rows)} "
        f"ON CONFLICT ({', '.join(names[:keys])}) DO UPDATE SET {others}"
    )


# In the order in which a damaged file is copied: what must not be lost comes first.
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        # Named values; a number has no checksum.
        _table("meta", "key TEXT", "value BLOB,checksum INTEGER?"),
        # What is delivered; kind is 'event' or 'reply', key is the EventId as it is
        # compared, event_id the EventId as received.
        _table(
            "items",
            "id INTEGER",
            "kind TEXT,key TEXT?,event_id TEXT?,cloud_event_id TEXT?,type TEXT,"
            "body BLOB,created REAL,not_before REAL?,checksum INTEGER",
            created="(created)",
        ),
        # state is pending, dead, delivered, discarded or skipped; born is the running
        # time of the sink (meta 'running:') when the row was inserted.
        _table(
            "deliveries",
            "id INTEGER",
            "item INTEGER,sink TEXT,key TEXT?,state TEXT,attempts INTEGER,due REAL,"
            "urgent_from REAL?,urgent_until REAL?,last_error TEXT?,reason TEXT?,"
            "settled REAL?,born REAL,waits_for_sink INTEGER",
            pending="(id) WHERE state = 'pending'",
            state="(sink, state, id)",
            key="(sink, key, id) WHERE key IS NOT NULL",
            item="(item)",
        ),
        # What was decided on each EventId of each message, which is a hash of entity,
        # MessageId and body, or of the event if a rule asked.
        _table(
            "approvals",
            "message TEXT,key TEXT",
            "event_id TEXT,sequence INTEGER?,state TEXT,posted INTEGER,data BLOB?,"
            "rule TEXT?,at REAL,checksum INTEGER",
            at="(at)",
            key="(key)",
        ),
        # How often an event of this cause was published: a repetition gets another id.
        _table(
            "told",
            "cause TEXT",
            "times INTEGER,at REAL,key TEXT?",
            at="(at)",
            key="(key) WHERE key IS NOT NULL",
        ),
        # Sinks that got an event of an EventId: they get all later ones, too.
        _table("followers", "key TEXT,sink TEXT", "at REAL", at="(at)"),
        # EventIds that were in a document, also after they are gone.
        _table("sightings", "key TEXT", "at REAL", at="(at)"),
        # What a sink must know of an EventId, for example which message to update.
        _table(
            "sink_memory",
            "sink TEXT,key TEXT",
            "value BLOB,at REAL",
            at="(at)",
            key="(key)",
        ),
        # How often an EventId has gone: one that comes back is another event.
        _table("appearances", "key TEXT", "n INTEGER,at REAL", at="(at)"),
        # The last success of each command for each EventId, until it is undone;
        # content is the CloudEvent for which it was run, succeeded when it was.
        _table(
            "command_successes",
            "sink TEXT,key TEXT",
            "appearance INTEGER,content BLOB,at REAL,succeeded REAL",
            at="(at)",
            key="(key)",
        ),
    )
}


def create(db: sqlite3.Connection) -> None:
    """Make the tables in a new file; do nothing in a file that has them.

    Raises:
        NewerSchemaError: a newer version has written it.
        OlderSchemaError: an older version has written it.
        ForeignDatabaseError: another program has written it.
        OutboxCorruptError: its schema number is damaged.
    """
    if version(db) == SCHEMA:
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        if version(db) == SCHEMA:
            return  # another process has made them meanwhile
        for table in TABLES.values():
            for statement in table.sql:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def version(db: sqlite3.Connection) -> int:
    """Return the schema of a file; 0 = it has no tables.

    Raises:
        NewerSchemaError, OlderSchemaError, ForeignDatabaseError, OutboxCorruptError: as
            ``create``.
    """
    number: int = db.execute("PRAGMA user_version").fetchone()[0]
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {name for (name,) in db.execute(query)}
    if number == 0 and tables and not tables & {"told", "deliveries"}:
        raise ForeignDatabaseError("it is a database of another program")
    if not 0 <= number <= _PLAUSIBLE or bool(number) != ("meta" in tables):
        raise OutboxCorruptError(f"the state file is damaged: schema {number!r}")
    if number > SCHEMA:
        raise NewerSchemaError(
            f"the state file has schema version {number}, but this version of the "
            f"bridge knows {SCHEMA} at most; install a newer one"
        )
    if 0 < number < SCHEMA:
        raise OlderSchemaError(
            f"the state file is of an older version of the bridge (schema {number}): "
            "the forwarder moves it aside when it starts, and says what waits in it"
        )
    return number


# One damaged text must not prevent all other rows from being read.
readable = partial(str, encoding="utf-8", errors="replace")


def opened(uri: str) -> sqlite3.Connection | None:
    """Open a file that has the tables of this version; None = it is empty."""
    db = sqlite3.connect(
        uri, timeout=0.1, uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        db.text_factory = readable
        if version(db) == SCHEMA:
            return db
    except BaseException:
        db.close()
        raise
    db.close()
    return None


def content_error(path: Path) -> sqlite3.Error | OutboxError | None:
    """Return why a start would not use a file; it is read without its lock and log."""
    try:
        db = opened(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
    except (sqlite3.Error, OutboxError) as error:
        return error
    if db is not None:
        db.close()
    return None


def empty() -> sqlite3.Connection:
    """Return an empty state file in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create(db)
    return db
