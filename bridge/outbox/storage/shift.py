"""The time in which one thread works on the state file: until the disk hangs."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct, field

from bridge.outbox.storage.transactions import Ticket

T = TypeVar("T")


class RelievedError(Exception):
    """Another thread has taken over while this one waited for the disk.

    Attributes:
        error: the error that the disk has reported in the end; None = no error.
    """

    def __init__(self, error: Exception | None) -> None:
        super().__init__("another thread has taken over")
        self.error = error


class Shift(Struct):
    """The turn of one thread.

    Attributes:
        group: the jobs that this thread is doing, or did last, on the disk.
    """

    group: list[Ticket] = field(default_factory=list)
    _since: float | None = None  # when the present work on the disk began; monotonic
    _is_relieved: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_disk(self, work: Callable[[], T], group: list[Ticket], /) -> T:
        """Do work that may hang.

        Raises:
            RelievedError: the work took too long, and another thread has taken over.
        """
        with self._lock:
            self.group, self._since = group, time.monotonic()
        try:
            result = work()
        except Exception as error:
            if self._is_over():
                raise RelievedError(error) from error
            raise
        if self._is_over():
            raise RelievedError(None)
        return result

    def waits_for(self) -> float | None:
        """Return for how many seconds the disk has not answered; None = it is idle."""
        since = self._since
        return None if since is None else time.monotonic() - since

    def relieve(self, patience: float) -> bool:
        """End the turn if the disk is silent for ``patience``; return if it ended."""
        with self._lock:
            waits = self.waits_for()
            self._is_relieved = waits is not None and waits >= patience
            return self._is_relieved

    def _is_over(self) -> bool:
        with self._lock:
            self._since = None
            return self._is_relieved
