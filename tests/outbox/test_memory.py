"""What waits keeps a small record in memory: measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

# Prints by how many bytes the process has grown with 40 MB that wait on the disk.
SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from bridge.outbox.store import Outbox
from tests.support.builders import route, router, outgoing

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

async def main():
    async with Outbox.open(Path(sys.argv[1]), router({"a": route()})) as outbox:
        before = 0
        for number in range(40):
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
    command = [sys.executable, "-c", SCRIPT, str(state_path)]

    assert int(subprocess.check_output(command)) < 20_000_000  # noqa: S603 - our own
