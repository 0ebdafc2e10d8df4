"""One event enters no more files and functions than the golden list names.

The list may shrink with any change. It grows only by a line in ``trips.json``, with a
reason in the commit: ``python -m tests.system.trips`` prints it.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.disks import Frozen
from tests.system.processes import kill_rest
from tests.system.trips import GOLDEN, Trip, hanging, trips

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ALLOWED = json.loads(GOLDEN.read_text())
_TRIES = 3  # what depends on the moment is not entered each time


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    kill_rest()


async def beyond(
    folder: Path, walk: Callable[[Path], Awaitable[dict[str, Trip]]]
) -> dict[str, set[str]]:
    """Return what each walk enters, every time, and the golden list lacks."""
    found: dict[str, set[str]] = {}
    for number in range(_TRIES):
        place = folder / str(number)
        place.mkdir()
        for name, trip in (await walk(place)).items():
            more = set(trip.functions) - {*ALLOWED[name]["functions"]}
            found[name] = more & found.get(name, more)
        if not any(found.values()):
            break
    return {name: more for name, more in found.items() if more}


async def test_ways_enter_only_what_the_golden_list_names(tmp_path: Path) -> None:
    assert await beyond(tmp_path, trips) == {}


async def test_way_on_a_disk_that_hangs_enters_only_what_the_golden_list_names(
    tmp_path: Path, frozen: Frozen
) -> None:
    assert await beyond(tmp_path, partial(hanging, disk=frozen)) == {}


def test_golden_list_is_of_files_that_are_there() -> None:
    root = Path(__file__).parent.parent.parent / "bridge"
    named = {file for walk in ALLOWED.values() for file in walk["files"]}

    assert [file for file in sorted(named) if not (root / file).exists()] == []
