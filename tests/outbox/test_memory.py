"""What a backlog has taken is given back: measured in a process of its own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# The mirror grows to 10 MiB, and is then loaded again with a part of it.
# Prints how much was given back, as soon as that is much, or after 30 s.
SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.mirror import Extent
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.front import Timings
from bridge.outbox.store import Outbox
from tests.support.builders import route, router, outgoing

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

async def main():
    extent = Extent(bytes=10 * 1024 * 1024)
    keeper = Keeper(Path(sys.argv[1]), may_degrade=True, extent=extent)
    async with Database.serving(keeper, timings=Timings(patience=60)) as database:
        outbox, most = Outbox(database, router({"a": route()})), 0
        while keeper.mirror.is_whole:
            events = [outgoing(str(n), data={"x": "y" * 1_000}) for n in range(200)]
            await outbox.commit(events, now=1_800_000_000.0)
            most = max(most, resident())
        for _ in range(600):
            most = max(most, resident())
            if most - resident() > 8_000_000:
                break
            await asyncio.sleep(0.05)
        print(most - resident())

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_memory_of_a_mirror_that_was_replaced_is_given_back(state_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(state_path)]

    assert int(subprocess.check_output(command)) > 8_000_000  # noqa: S603 - our own
