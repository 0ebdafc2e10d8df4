"""What ``events.sign`` costs: memory, CPU when idle, and the time for an event of 2 KB.

The bare one is the same forwarder without it. That it loads nothing of signatures then
is in ``tests/system/test_loaded.py``.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

from bridge.signing.keys import new_key, private_keys
from bridge.signing.own_key import EventSigner
from tests.bench.figures import Figure
from tests.bench.idle import WEBHOOK_ONLY, measure
from tests.support.sink_fixtures import cloud_event
from tests.system.processes import Addresses, simulator

_SIGN = "\n[events]\nsign = true\n"
_SIZE, _TIMES = 2000, 500  # bytes of the event; how often it is signed
_AIM = 0.2  # ms for an event


async def _side_by_side(at: Addresses, seconds: float) -> list[tuple[float, float]]:
    """Run a forwarder that signs, and two that do not; see ``measure``."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.toml" for name in ("signs", "plain", "again")]
        for path in paths:
            state = path.with_suffix(".db")
            text = WEBHOOK_ONLY.format(imds=at.imds, inbox=at.inbox, state=state)
            path.write_text(text + (_SIGN if path is paths[0] else ""))
        commands = [["-m", "bridge", "run", "-c", str(path)] for path in paths]
        return await asyncio.gather(*(measure(one, seconds) for one in commands))


def time_of_signing() -> float:
    """Return how many milliseconds of CPU it takes to sign an event of 2 KB."""
    event = cloud_event()
    rest = _SIZE - len(event.to_json())
    event = cloud_event(more="x" * max(0, rest))
    signer = EventSigner(private_keys(json.dumps(new_key())), "run")
    signer.signed(event, 1)
    began = time.process_time()
    for number in range(_TIMES):
        signer.signed(event, number)
    return 1000 * (time.process_time() - began) / _TIMES


async def figures(seconds: float, turns: int) -> list[Figure]:
    """Measure both forwarders, side by side, and start them anew for each turn."""
    async with simulator() as at:
        found = [await _side_by_side(at, seconds) for _ in range(turns)]
    rows = [
        ("idle memory, events.sign", "MiB"),
        ("CPU per idle poll, events.sign", "ms"),
    ]
    times = tuple(time_of_signing() for _ in range(turns))
    return [
        *(
            Figure(
                what=what,
                ours=tuple(turn[0][index] for turn in found),
                bare=tuple(turn[1][index] for turn in found),
                again=tuple(turn[2][index] for turn in found),
                unit=unit,
            )
            for index, (what, unit) in enumerate(rows)
        ),
        Figure(
            what="signing an event of 2 KB, by its aim of 0.2 ms",
            ours=times,
            bare=(_AIM,) * turns,
            unit="ms",
            wanted="<= 1",
        ),
    ]
