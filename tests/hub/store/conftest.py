"""The store is tested with both databases, wherever the tests run."""

from typing import Any

import pytest

from bridge.hub.config import HubConfig
from tests.hub.conftest import KINDS, empty


@pytest.fixture(params=KINDS)
def hub_config(request: Any) -> HubConfig:
    """Return a configuration whose store is empty; its schema was made before."""
    return empty(request)
