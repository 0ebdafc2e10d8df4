"""`sebridge demo` on the local broker's own AMQP, against the same on Qpid Proton.

Most of its time is the scenario's own, which no broker makes shorter: what a slower one
would add is the point, and the CPU of all its processes.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from bridge.simulator.servicebus.wires import VARIABLE
from tests.bench.figures import Figure, in_turns

COMMAND = (sys.executable, "-m", "bridge", "demo")
_SECONDS = 120


async def figures(turns: int) -> list[Figure]:
    """Play the demo on one wire and the other."""
    for wire in ("python", "proton"):
        await played(wire)  # what is compiled at the first start
    found = await in_turns(lambda: played("python"), lambda: played("proton"), turns)
    return [
        Figure(what=what, ours=mine, bare=theirs, unit="s", wanted=wanted)
        for (what, wanted), (mine, theirs) in zip(ROWS, found, strict=True)
    ]


ROWS = (
    ("demo: from its start to its end", "<= 1.02"),  # no slower, but for the noise
    ("demo: CPU of its processes", ""),
)


async def played(wire: str) -> Sequence[float]:
    """Return how long one demo takes, and its CPU, in seconds."""
    began, used = time.perf_counter(), _cpu()
    await asyncio.to_thread(
        subprocess.run,
        COMMAND,
        env={**os.environ, VARIABLE: wire},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=_SECONDS,
    )
    return time.perf_counter() - began, _cpu() - used


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
