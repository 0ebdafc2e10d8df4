"""Measures how long something takes on a machine that has time for it.

Where all processors are busy with something else, everything takes longer, which says
nothing about the forwarder. Linux counts for how long somebody had to wait for a
processor, or for a disk; that time is taken off, and so is the time in which the host
of a virtual machine ran something else. On an idle machine both are next to nothing,
and a bound holds to the second.

Sources: https://docs.kernel.org/accounting/psi.html and proc_stat(5) on ``steal``
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_PRESSURE = Path("/proc/pressure")


def pressure() -> float:
    """Return the seconds so far in which somebody waited for a processor or a disk."""
    found = (_waited(name) for name in ("cpu", "io"))
    return max(found) + _stolen()


def _waited(name: str) -> float:
    try:
        line = (_PRESSURE / name).read_text().splitlines()[0]
    except OSError:
        return 0.0  # no Linux, or it does not count
    return int(line.rpartition("total=")[2]) / 1e6


def _stolen() -> float:
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(line.split()[8]) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Stopwatch:
    """Runs from the moment it is made.

    Attributes:
        clock: seconds since some fixed moment.
        waited: seconds in which the machine had no time for somebody.
    """

    clock: Callable[[], float] = time.monotonic
    waited: Callable[[], float] = pressure
    _began: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock(), self.waited()

    @property
    def wall(self) -> float:
        """The seconds that have passed."""
        return self.clock() - self._began[0]

    @property
    def seconds(self) -> float:
        """The seconds that it would have taken on an idle machine, at most."""
        return max(0.0, self.wall - (self.waited() - self._began[1]))
