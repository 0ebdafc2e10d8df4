"""What tests of the hub share: a store of either kind, and messages in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store.store import Store, open_store
from tests.support import postgres
from tests.support.postgres import Cluster

KINDS = ["sqlite", "postgresql"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if not postgres.is_there():
        pytest.skip(postgres.MISSING)
    with postgres.cluster() as found:
        yield found


@pytest.fixture(params=KINDS)
def hub_config(request: Any, tmp_path: Path) -> HubConfig:
    """Return a configuration whose store is empty."""
    if request.param == "sqlite":
        return HubConfig(store=Address(f"sqlite:{tmp_path / 'hub.db'}", {}))
    found: Cluster = request.getfixturevalue("cluster")
    found.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return HubConfig(store=Address(found.url, {}))


@pytest.fixture
async def store(hub_config: HubConfig) -> AsyncIterator[Store]:
    async with open_store(hub_config) as opened:
        yield opened
