"""Updates the schema of a store to the version of this hub.

Each step only adds tables and columns, so a hub also runs on the next schema. Several
hubs on one database can be updated one after the other.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select, table, text

from bridge.foundation.errors import HubSchemaError, HubStoreError
from bridge.hub.store.tables import metadata

_PLACE = Path(__file__).parent / "migrations"
_LOCK = 0x5EB21D9E0001  # advisory lock of PostgreSQL: one hub at a time migrates
_BEFORE_RELEASE = ("0001", "0002")
_COUNTED = ("events", "decisions", "votes")


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
    there = inspect(connection)
    names = set(there.get_table_names())
    return not all(
        one.name in names
        and {column.name for column in one.columns}
        <= {column["name"] for column in there.get_columns(one.name)}
        for one in metadata.sorted_tables
    )


def counts(connection: Connection) -> dict[str, int]:
    """Return how many events, decisions and votes a store of any schema holds."""
    there = set(inspect(connection).get_table_names())
    return {
        name: connection.scalar(select(func.count()).select_from(table(name))) or 0
        for name in _COUNTED
        if name in there
    }
