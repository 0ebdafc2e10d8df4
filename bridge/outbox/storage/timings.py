"""How long the state file may take."""

import math

from msgspec import Struct
from msgspec.structs import replace


class Timings(Struct, frozen=True):
    """Limits of the state file's thread, in seconds.

    Attributes:
        patience: a disk that has not answered for so long counts as failed; infinite =
            it is waited for.
        silence: a thread that has answered nothing for so long counts as stuck.
        standstill: if the look at the thread is late by more than this, the whole
            machine stood still, and the disk is given its time again.
        closing: how much longer than ``patience`` closing may take.
        quiet: SQLite's log is written back after so long without a job.
    """

    patience: float = 3.0
    silence: float = 10.0
    standstill: float = 1.0
    closing: float = 2.0
    quiet: float = 0.1

    def without_patience(self) -> "Timings":
        """Return the same limits for a disk that is waited for."""
        return replace(self, patience=math.inf)
