"""One run: lives of the forwarder, one after the other, until all is quiet."""

import contextlib
import functools
import gc
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.approval_queue import Broker
from tests.simulation.edges import Azure
from tests.simulation.life import Life
from tests.simulation.oracle import judge
from tests.simulation.plan import Plan
from tests.simulation.telling import planned
from tests.simulation.timeline import VirtualClock
from tests.simulation.world import World


def run(seed: int) -> World:
    """Run a seed to its end; what went wrong stands in ``faults``."""
    return run_plan(planned(seed))


def run_plan(plan: Plan) -> World:
    """Run a plan to its end."""
    with quiet(), tempfile.TemporaryDirectory(dir=_fast()) as folder:
        world = World(plan, Path(folder) / "state.db", Azure(plan), Broker(plan))
        for number in range(20):
            life = Life(world, number, VirtualClock(world.wall))
            life.live()
            if life.is_done:
                break
            world.now += 30 * plan.chance("downtime", number)
            world.jump_until_now()
            for message in world.broker.messages:
                if message.locked_by == number:
                    message.again_at = min(message.again_at, world.now)
        else:
            world.blame("it never lived to the end")
        judge(world)
    return world


def _fast() -> str | None:
    """Return a folder in memory where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - names of its own are made in it


@functools.cache
def _was_frozen() -> bool:
    """Return whether a run of tests has frozen what it collected.

    Asked once in a process: to count that takes 70 ms.
    """
    return gc.get_freeze_count() > 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the log and the last words of the dead to themselves."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    was_frozen = _was_frozen()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        gc.enable()
        logging.disable(before)
        sys.unraisablehook = hook
