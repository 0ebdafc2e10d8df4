"""Brings the schema of a store up to what this version of the hub knows.

Each step only adds, so a hub runs on its own schema and on the next one: several hubs
on one database are updated one after the other.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from bridge.foundation.errors import HubStoreError

_PLACE = Path(__file__).parent / "migrations"
_LOCK = 0x5EB21D9E0001  # of PostgreSQL: one hub at a time takes the steps


def migrate(connection: Connection) -> None:
    """Take the steps that are missing; of several hubs one does, and others wait.

    Raises:
        HubStoreError: the store was written by a hub that is two steps ahead.
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
