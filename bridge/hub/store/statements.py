"""What writing has in common: many rows at once, conflicts, and locks in one order."""

from collections.abc import Sequence

from sqlalchemy import Connection, Executable, Table, func, select, text, update
from sqlalchemy.dialects import postgresql

from bridge.hub.store.tables import events

_SALTS = {"events": 21, "bridges": 22}

Values = dict[str, object]


def insert(table: Table) -> postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT: SQLite has the same words for it."""
    return postgresql.insert(table)


def put(
    connection: Connection, statement: Executable, values: Sequence[Values]
) -> None:
    """Run a statement for each of some rows, maybe none: it is prepared once.

    The values are no part of the statement, which would be made anew for each number
    of rows: that costs more than the rows.
    """
    if values:
        connection.execute(statement, list(values))


def lock(connection: Connection, names: Sequence[str], kind: str) -> None:
    """Hold names until the end of the transaction, also those that have no row yet.

    All hubs lock in the same order, so that no two wait for one another. SQLite has one
    writer, who needs none of it.
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
    """Mark rows of events as changed last: by their version and their transaction.

    Returns:
        What is the same for all rows, as part of the statement; and the rows.
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
    """Let whoever follows the changes see an event again."""
    marks, (row,) = marked(connection, [{}])
    change = update(events).where(events.c.event_key == key)
    connection.execute(change.values(**marks, **row))
