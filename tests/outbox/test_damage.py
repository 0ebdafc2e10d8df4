"""Damaged state files: news is published, no start loops, nothing altered is sent."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.outbox.records import Delivery
from tests.support.damage import NEW, Files, Lived, damaged, is_of_its_id, life, lived

MOST_STARTS = 3
SEEDS = int(os.environ.get("SEBRIDGE_DAMAGE_SEEDS", "60"))  # by hand: any number


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return asyncio.run(lived(tmp_path_factory.mktemp("lived")))


def put(path: Path, files: Files) -> None:
    for part, body in files.items():
        Path(f"{path}{part}").write_bytes(body)


async def lives(path: Path) -> tuple[list[Delivery], int]:
    """Start again and again as systemd does; return what was sent, and the starts."""
    taken = list[Delivery]()
    for count in range(1, MOST_STARTS + 1):
        with suppress(BaseExceptionGroup, Exception):
            await life(path, taken)
            return taken, count
    pytest.fail(f"{MOST_STARTS} starts in a row ended on the state file")


async def test_sound_file_is_taken_up_as_it_is(known: Lived, state_path: Path) -> None:
    put(state_path, known.files)

    taken, starts = await lives(state_path)

    assert starts == 1
    assert len(known.pending) > 60
    assert {d.cloud_event_id for d in taken} >= known.pending.keys()
    assert all(is_of_its_id(delivery, known) for delivery in taken)
    assert [d.event_id for d in taken if d.cloud_event_id not in known.bodies] == [NEW]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_a_disk_does_the_news_is_published_and_nothing_altered(
    seed: int, known: Lived, state_path: Path
) -> None:
    put(state_path, damaged(known.files, seed))

    taken, _ = await lives(state_path)

    reported = {delivery.event_id for delivery in taken}
    assert NEW in reported
    assert reported >= known.pending_in_document
    altered = [d.cloud_event_id for d in taken if not is_of_its_id(d, known)]
    assert altered == []
