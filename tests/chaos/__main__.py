"""``python -m tests.chaos [--kills N] [--seed S] [--jobs N] [--keep FOLDER]``.

Kills a real forwarder at random moments, round by round, and prints what its sinks
were published and what was wrong with it. Run by hand; exits 1 if anything was. A seed
repeats the plan of a round, not its timing: the files of a round that fails are kept.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.oracle import Verdict
from tests.chaos.rounds import played

_ROUND = 40


def main() -> int:
    """Play rounds until so many kills are done."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at the same time")
    parser.add_argument("--keep", type=Path, help="where rounds that fail are kept")
    given = parser.parse_args()
    keep = given.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    rounds = [
        (keep, given.seed + index, kills)
        for index, kills in enumerate(_portions(given.kills))
    ]
    began, total = time.monotonic(), Verdict(0)
    with multiprocessing.get_context("spawn").Pool(given.jobs, None, (), 1) as pool:
        for seed, verdict in pool.imap_unordered(played, rounds):
            total += verdict
            say(f"seed {seed}: {verdict.kills} kills, {len(verdict.faults)} faults")
            for fault in verdict.faults:
                say(f"  {fault[:500]}")
    say(f"in {time.monotonic() - began:.0f} s, rounds that failed are in {keep}")
    say(summary(total))
    return 1 if total.faults else 0


def _portions(kills: int) -> Iterator[int]:
    while kills > 0:
        yield min(kills, _ROUND)
        kills -= _ROUND


def summary(total: Verdict) -> str:
    """Return the figures, one a line."""
    return "\n".join(
        f"{name:22}{value}"
        for name, value in (
            ("kills", total.kills),
            ("steps", dict(total.steps)),
            ("published, by sink", dict(total.published)),
            ("published again", dict(total.repeated)),
            ("approvals sent", dict(total.sent)),
            ("outcomes", dict(total.outcomes)),
            ("replies", total.replies),
            ("POSTs", total.posts),
            ("writes to memory", total.degraded),
            ("faults", len(total.faults)),
        )
    )


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
