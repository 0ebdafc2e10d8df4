"""Updates the schema of a store to the version of this hub.

Each step only adds tables and columns, so a hub also runs on the next schema. Several
hubs on one database can be updated one after the other.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from bridge.foundation.errors import HubStoreError

_PLACE = Path(__file__).parent / "migrations"
_LOCK = 0x5EB21D9E0001  # advisory lock of PostgreSQL: one hub at a time migrates


def migrate(connection: Connection) -> None:
    """Apply the missing steps; if several hubs start, the others wait for the first.

    Raises:
        HubStoreError: the schema is two or more steps ahead of this hub.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": _LOCK})
    config = Config()
    config.set_main_option("script_location", str(_PLACE).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = ScriptDirectory.from_config(config).get_current_head() or "0"
    found = MigrationContext.configure(connection).get_current_revision() or "0"
    ahead = int(found) - int(known)
    if ahead > 1:
        raise HubStoreError(
            f"the store has schema {found}, and this hub knows {known}: update it"
        )
    if ahead < 0:
        command.upgrade(config, "head")
