"""What integration tests share: no process outlives its test."""

from collections.abc import Iterator

import pytest

from tests.system.processes import kill_rest


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    kill_rest()
