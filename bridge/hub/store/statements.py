"""What writing has in common: rows in portions, conflicts, and locks in one order."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Table, func, select, text, update
from sqlalchemy.dialects import postgresql

from bridge.hub.store.tables import events

_AT_ONCE = 400  # rows in one statement: SQLite takes 32,766 values
_SALTS = {"events": 21, "bridges": 22}

Values = dict[str, object]


def insert(table: Table) -> postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT: SQLite has the same words for it."""
    return postgresql.insert(table)


def chunks(found: Sequence[Values]) -> Iterator[Sequence[Values]]:
    """Yield rows in portions that one statement takes."""
    for start in range(0, len(found), _AT_ONCE):
        yield found[start : start + _AT_ONCE]


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


def marks(connection: Connection, count: int) -> list[Values]:
    """Return what marks rows of events as changed last: version and transaction."""
    if connection.dialect.name == "postgresql":
        mark: Values = {
            "version": text("nextval('event_versions')"),
            "xid": text("pg_current_xact_id()::text::bigint"),
        }
        return [mark] * count
    newest = connection.scalar(select(func.max(events.c.version))) or 0
    return [{"version": newest + n, "xid": 0} for n in range(1, count + 1)]


def mark_changed(connection: Connection, key: str) -> None:
    """Let whoever follows the changes see an event again."""
    (mark,) = marks(connection, 1)
    change = update(events).where(events.c.event_key == key)
    connection.execute(change.values(**mark))
