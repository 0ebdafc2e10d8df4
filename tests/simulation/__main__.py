"""``python -m tests.simulation --seeds N [--first S] [--jobs N]`` or ``--seed S``.

Prints the first seed that fails with what went wrong, and exits 1. A seed replays
exactly: hashing of strings is fixed, since sets of them are walked through.
"""

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.runs import run
from tests.simulation.world import World

_CHUNK = 25


def main() -> int:
    """Run seeds until one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with its history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        return show(run(given.seed))
    began = time.monotonic()
    seeds = range(given.first, given.first + given.seeds)
    with multiprocessing.Pool(given.jobs, maxtasksperchild=40) as pool:
        for done, (seed, faults) in enumerate(pool.imap(judged, seeds, _CHUNK), 1):
            if faults:
                say(f"seed {seed} fails:", *faults, sep="\n  ")
                say(f"replay it: python -m tests.simulation --seed {seed}")
                return 1
            if done % 1000 == 0:
                say(f"{done} seeds passed in {time.monotonic() - began:.0f} s")
    say(f"{given.seeds} seeds passed in {time.monotonic() - began:.0f} s")
    return 0


def say(*words: object, sep: str = " ") -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(sep.join(map(str, words)) + "\n")
    sys.stdout.flush()


def judged(seed: int) -> tuple[int, list[str]]:
    """Return what is wrong with a seed."""
    return seed, run(seed).faults


def show(world: World) -> int:
    """Print the history of a run, and what is wrong with it."""
    say("trouble:", ", ".join(sorted(world.plan.troubles)) or "none")
    for began, ended in world.lives:
        say(f"life from {began:.3f} to {ended:.3f} s")
    for scene in world.plan.scenes:
        say(f"{scene.at:10.3f} IMDS: {scene.change} {scene.event_id}")
    for message in world.broker.messages:
        say(f"{message.planned.at:10.3f} approval: {message}")
    for post in world.azure.posts:
        say(f"{post.at:10.3f} {post}")
    for one in world.taken:
        say(f"{one.at:10.3f} {one.sink} took {one.delivery} of {one.key}")
    for run_of_hook in world.runs:
        say(f"{run_of_hook.began:10.3f} {run_of_hook.name}")
    say(*(world.faults or ["all is well"]), sep="\n")
    return 1 if world.faults else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606 - itself
    sys.exit(main())
