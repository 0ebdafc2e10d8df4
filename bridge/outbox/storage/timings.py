"""Time limits of the state file."""

import math

from msgspec import Struct
from msgspec.structs import replace


class Timings(Struct, frozen=True):
    """Limits of the state file's thread, in seconds.

    Attributes:
        patience: a disk that has not answered for this time counts as failed; infinite
            = wait for it without a limit.
        silence: a thread that has answered no job for this time counts as stuck.
        standstill: if the check of the thread is late by more than this, the whole
            machine was paused, and the time of the disk begins again.
        closing: how much longer than ``patience`` closing may take.
        quiet: after this time without a job, SQLite's log is written back.
    """

    patience: float = 3.0
    silence: float = 10.0
    standstill: float = 1.0
    closing: float = 2.0
    quiet: float = 0.1

    def without_patience(self) -> "Timings":
        """Return the same limits, but wait for a hanging disk without a limit."""
        return replace(self, patience=math.inf)
