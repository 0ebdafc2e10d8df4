"""The processes of integration tests end with their test, however that ends."""

import asyncio
import signal
import sys

from tests.system.processes import PATIENCE, kill_rest, started


async def test_process_that_nobody_has_ended_is_killed() -> None:
    left = await started(sys.executable, "-c", "import time; time.sleep(600)")

    kill_rest()

    code = await asyncio.wait_for(left.wait(), PATIENCE)
    assert code == -signal.SIGKILL


async def test_process_that_stands_still_is_killed_too() -> None:
    left = await started(sys.executable, "-c", "import time; time.sleep(600)")
    left.send_signal(signal.SIGSTOP)

    kill_rest()

    code = await asyncio.wait_for(left.wait(), PATIENCE)
    assert code == -signal.SIGKILL
