"""Memory of what waits, and of what has waited: measured in a process of its own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

# Prints by how many bytes the process has grown with 80 MB that wait on the disk.
WAITING = """
import asyncio, os, sys
from pathlib import Path
from tests.support.builders import outgoing, patient_outbox, route, router

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

async def main():
    async with patient_outbox(Path(sys.argv[1]), router({"a": route()})) as outbox:
        before = 0
        for number in range(80):
            events = [
                outgoing(f"{number}-{n}", data={"x": "y" * 100_000}) for n in range(10)
            ]
            await outbox.commit(events, now=1_800_000_000.0)
            before = before or resident()
        print(resident() - before)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_contents_that_wait_on_the_disk_are_not_kept_in_memory(
    state_path: Path,
) -> None:
    command = [sys.executable, "-c", WAITING, str(state_path)]

    assert int(subprocess.check_output(command)) < 40_000_000  # noqa: S603 - our own


# 10 MB of events wait in memory while the disk hangs, and are written then.
# Prints how much was given back, as soon as that is much, or after 30 s.
WRITTEN = """
import asyncio, os, sys
from pathlib import Path
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.storage.journal import Timings
from bridge.outbox.store import Outbox
from tests.support.builders import route, router, outgoing
from tests.support.hanging import Hanging

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

async def main():
    disk, path = Hanging(), Path(sys.argv[1])
    timings = Timings(patience=0.5)
    file = File(path, may_degrade=True, connect=disk.open)
    async with Database.open(file, timings=timings) as database:
        outbox = await Outbox.of(database, router({"a": route()}))
        disk.freeze()
        for start in range(0, 9_800, 200):
            events = [
                outgoing(str(n), data={"x": "y" * 1_000})
                for n in range(start, start + 200)
            ]
            await outbox.commit(events, now=1_800_000_000.0)
        most = resident()
        del events
        disk.thaw()
        while database.is_degraded:
            await database.heal()
            await asyncio.sleep(0.01)
        for _ in range(600):
            most = max(most, resident())
            if most - resident() > 8_000_000:
                break
            await asyncio.sleep(0.05)
        print(most - resident())

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_memory_of_what_waited_for_the_disk_is_given_back(state_path: Path) -> None:
    command = [sys.executable, "-c", WRITTEN, str(state_path)]

    assert int(subprocess.check_output(command)) > 8_000_000  # noqa: S603 - our own
