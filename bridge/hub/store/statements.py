"""Helpers for writes: many rows at once, conflicts, locks, and versions of events."""

from collections.abc import Sequence

from sqlalchemy import Connection, Executable, Table, func, select, text, update
from sqlalchemy.dialects import postgresql

from bridge.hub.store.tables import events

_SALTS = {"events": 21, "bridges": 22}

Values = dict[str, object]


def insert(table: Table) -> postgresql.Insert:
    """Return an INSERT that allows ON CONFLICT; SQLite has the same syntax for it."""
    return postgresql.insert(table)


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


def marked(
    connection: Connection, values: Sequence[Values]
) -> tuple[Values, Sequence[Values]]:
    """Give rows of events a new version and the id of the transaction.

    Returns:
        The values that are the same for all rows, as part of the statement; and the
        rows.
    """
    if connection.dialect.name == "postgresql":
        marks: Values = {
            "version": text("nextval('event_versions')"),
            "xid": text("pg_current_xact_id()::text::bigint"),
        }
        return marks, values
    newest = connection.scalar(select(func.max(events.c.version))) or 0
    numbered = enumerate(values, newest + 1)
    return {"xid": 0}, [{**row, "version": number} for number, row in numbered]


def mark_changed(connection: Connection, key: str) -> None:
    """Give an event a new version, so clients that follow changes read it again."""
    marks, (row,) = marked(connection, [{}])
    change = update(events).where(events.c.event_key == key)
    connection.execute(change.values(**marks, **row))
