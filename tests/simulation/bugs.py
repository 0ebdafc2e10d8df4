"""``python -m tests.simulation.bugs [NAME …] [--seeds N] [--first S]``.

Plants bugs over the whole way of an event and of an approval, one after the other, and
prints which seed finds each: the table of what the judge sees.
"""

import argparse
import os
import sys
import time

from tests.simulation import (
    bugs_of_after,
    bugs_of_approvals,
    bugs_of_commands,
    bugs_of_events,
)
from tests.simulation.planting import BUGS, found_after, planted

__all__ = [
    "BUGS",
    "bugs_of_after",
    "bugs_of_approvals",
    "bugs_of_commands",
    "bugs_of_events",
]


def main() -> None:
    """Print after how many seeds each bug is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.bugs")
    parser.add_argument("names", nargs="*", default=[*BUGS])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    for name in given.names:
        began = time.monotonic()
        with planted(name):
            found = found_after(given.seeds, given.first)
        took = time.monotonic() - began
        place = "never" if found is None else f"{found[0]}"
        words = "" if found is None else found[1][:110]
        print(f"{place:>6} {took:6.1f} s  {name}: {words}", flush=True)  # noqa: T201 - a table


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed replays exactly
        os.environ["PYTHONHASHSEED"] = "0"
        again = [sys.executable, "-m", "tests.simulation.bugs", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606 - itself
    main()
