"""``python -m tests.bench [--quick] [NAME ...]``: each figure against a bare loop.

Run by hand on a machine that has nothing else to do; never timed in the suite.
"""

import argparse
import asyncio
import compileall
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import bridge
from tests.bench import (
    batches,
    consumer,
    drain,
    everything,
    fleet,
    growth,
    hook,
    hub,
    hub_scale,
    hub_trust,
    idle,
    latency,
    outage,
    rest,
    signing,
    soak,
    wires,
)
from tests.bench.figures import HEAD, Figure
from tests.bench.history import History

Bench = Callable[[bool], Coroutine[None, None, list[Figure]]]

BENCHES: dict[str, Bench] = {
    "idle": lambda quick: idle.figures(15 if quick else 40, 3 if quick else 5),
    "signing": lambda quick: signing.figures(15 if quick else 40, 3 if quick else 5),
    "everything": lambda quick: everything.figures(
        15 if quick else 40, 3 if quick else 5
    ),
    "latency": lambda quick: latency.figures(50 if quick else 60, 3 if quick else 5),
    "consumer": lambda quick: consumer.figures(30 if quick else 60, 3 if quick else 5),
    "alone": lambda quick: latency.batched(20 if quick else 30, 3 if quick else 5),
    "hook": lambda quick: hook.figures(3 if quick else 10, 3 if quick else 5),
    "webhook": lambda quick: drain.webhook(5_000 if quick else 100_000, 5),
    "batches": lambda quick: batches.figures(
        5_000 if quick else 100_000, 3 if quick else 5
    ),
    "servicebus": lambda quick: drain.service_bus(500 if quick else 5_000, 5),
    "wires": lambda quick: wires.figures(300 if quick else 2_000, 3 if quick else 7),
    "fan-out": lambda quick: drain.fan_out(500 if quick else 2_000, 5),
    "outbox": lambda quick: growth.outbox_rows(50_000 if quick else 1_000_000, 5),
    "polls": lambda quick: growth.poll_cost(20 if quick else 200, 5),
    "fleet": lambda quick: fleet.figures(
        10 if quick else 30, 5 if quick else 20, 3 if quick else 5
    ),
    "hub": lambda quick: hub.figures(120 if quick else hub.MACHINES, 3 if quick else 5),
    "hub-scale": lambda quick: hub_scale.figures(
        hub_scale.QUICK if quick else hub_scale.FULL
    ),
    "hub-trust": lambda quick: hub_trust.figures(
        hub_trust.QUICK if quick else hub_trust.FULL
    ),
    # The short one has as many events in a quarter of the time.
    "soak": lambda quick: (
        soak.figures(120, 30, "250ms") if quick else soak.figures(480, 60)
    ),
    "outage": lambda quick: outage.figures(10 if quick else 60, 3),
    "slow": lambda quick: rest.slow(3),
    "cold": lambda quick: rest.cold(5 if quick else 20, 3 if quick else 5),
    "cost": lambda quick: rest.cost(30 if quick else 100, 3 if quick else 5),
    "waiting": lambda quick: rest.waiting(10_000 if quick else 100_000),
    "start": lambda quick: growth.first_poll(5 if quick else 15),
}


def main() -> int:
    """Run the benchmarks that are asked for, and print the table.

    Returns:
        1 where the machine was too noisy for a figure, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument(
        "--save", metavar="VERSION", help="keep the figures as those of"
    )
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    # As an installation has it: else each start would compile, which costs memory too.
    compileall.compile_dir(Path(bridge.__file__).parent, quiet=1)
    history = History.read()
    if not given.json:
        say(f"Python {platform.python_version()}, {os.cpu_count()} cores")
        say(HEAD)
    found: list[Figure] = []
    for name in given.names or BENCHES:
        for figure in asyncio.run(BENCHES[name](given.quick)):
            found.append(figure)
            shown = history.compared(figure)
            say(json.dumps(figure.as_json()) if given.json else shown)
    if given.save:
        history.keep(given.save, found)
    return int(any(figure.is_too_noisy for figure in found))


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
