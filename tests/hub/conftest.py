"""What tests of the hub share: a store of either kind, and messages in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Compiled, Connection, Engine, event

from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store import start as migrate_module
from bridge.hub.store.engine import open_sqlite
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import metadata
from tests.support import postgres
from tests.support.postgres import Cluster

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)]
# What is above the store is the same with either: CI alone runs it with both.
ABOVE = pytest.param("postgresql", marks=[pytest.mark.integration, pytest.mark.slow])
STEPS = Path(migrate_module.__file__).parent / "migrations" / "versions"
HEAD = max(path.stem.removeprefix("step_") for path in STEPS.glob("step_*.py"))


class Statements(dict[tuple[Any, ...], Compiled]):
    """The statements of all stores of one kind of database, compiled once.

    SQLAlchemy compiles them for each engine anew, and each test opens two: that was a
    third of what tests of the hub took. An engine is the first part of a key.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Compiled) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


_STATEMENTS = Statements()


@event.listens_for(Engine, "engine_connect")
def share_statements(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_STATEMENTS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if not postgres.is_there():
        pytest.skip(postgres.MISSING)
    with postgres.cluster() as found:
        yield found


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a file whose schema is made, and which holds nothing."""
    path = tmp_path_factory.mktemp("hub") / "hub.db"
    path.touch()
    opened = open_sqlite(path, writes=True)
    with opened.begin() as connection:
        migrate_module.migrate(connection)
    opened.dispose()
    return path.read_bytes()


@pytest.fixture(params=KINDS)
def bare_config(request: Any, tmp_path: Path) -> HubConfig:
    """Return a configuration whose store is not even made."""
    if request.param == "sqlite":
        return HubConfig(store=Address(f"sqlite:{tmp_path / 'hub.db'}", {}))
    found: Cluster = request.getfixturevalue("cluster")
    found.forget()
    return HubConfig(store=Address(found.url, {}))


@pytest.fixture
def sqlite_config(tmp_path: Path, migrated: bytes) -> HubConfig:
    """Return a configuration whose file is empty; its schema was made before."""
    path = tmp_path / "hub.db"
    path.write_bytes(migrated)
    return HubConfig(store=Address(f"sqlite:{path}", {}))


@pytest.fixture(params=["sqlite", ABOVE])
def hub_config(request: Any) -> HubConfig:
    """Return a configuration whose store is empty; its schema was made before."""
    return empty(request)


def empty(request: Any) -> HubConfig:
    if request.param == "sqlite":
        given: HubConfig = request.getfixturevalue("sqlite_config")
        return given
    found: Cluster = request.getfixturevalue("cluster")
    found.empty(HEAD, [table.name for table in metadata.sorted_tables])
    return HubConfig(store=Address(found.url, {}))


@pytest.fixture
async def store(hub_config: HubConfig) -> AsyncIterator[Store]:
    async with open_store(hub_config) as opened:
        yield opened
