"""``python -m tests.bench [--quick] [NAME ...]``: each figure against a bare loop.

Run by hand on a machine that has nothing else to do; never timed in the suite.
"""

import argparse
import asyncio
import compileall
import logging
import os
import platform
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import bridge
from tests.bench import drain, fleet, growth, idle, latency
from tests.bench.measuring import HEAD, Row

Bench = Callable[[bool], Coroutine[None, None, list[Row]]]

BENCHES: dict[str, Bench] = {
    "idle": lambda quick: idle.rows(20 if quick else 600),
    "latency": lambda quick: latency.rows(50 if quick else 200),
    "webhook": lambda quick: drain.webhook(5_000 if quick else 100_000),
    "servicebus": lambda quick: drain.service_bus(500 if quick else 5_000),
    "fan-out": lambda quick: drain.fan_out(500 if quick else 3_000),
    "outbox": lambda quick: growth.outbox_rows(50_000 if quick else 1_000_000),
    "polls": lambda quick: growth.poll_cost(20 if quick else 200),
    "fleet": lambda quick: fleet.rows(10 if quick else 120, 5 if quick else 20),
    "start": lambda _: growth.first_poll(),
}


def main() -> None:
    """Run the benchmarks that are asked for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a short run")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    # As an installation has it: else each start would compile, which costs memory too.
    compileall.compile_dir(Path(bridge.__file__).parent, quiet=1)
    say(f"Python {platform.python_version()}, {os.cpu_count()} cores")
    say(HEAD)
    for name in given.names or BENCHES:
        for row in asyncio.run(BENCHES[name](given.quick)):
            say(str(row))


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
