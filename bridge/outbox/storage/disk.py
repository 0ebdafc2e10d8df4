"""Protocols of the keeper: the place of the file, and work on its disk."""

import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.transactions import Ticket

T = TypeVar("T")


class Place(Protocol):
    """Checks that the file is still there, and belongs to this process alone."""

    @property
    def is_examined(self) -> bool:
        """Whether the file was checked; until then it must not be written."""
        ...

    def accepts(self, db: sqlite3.Connection) -> bool:
        """Whether what a file holds may be used, if it was not checked yet."""
        ...

    def opened(self) -> None:
        """Remember the file that was opened."""
        ...

    def fault(self) -> str | None:
        """Return why the file must not be used; None = it may be used."""
        ...

    def regain(self, file: Connection | None) -> bool:
        """Make the file usable again.

        Args:
            file: the connection to the file; None = it is not open.

        Returns:
            Whether the file must be opened again.

        Raises:
            OutboxError: it cannot be made usable now.
        """
        ...


class OnDisk(Protocol):
    """Does work on the disk, which may hang."""

    def __call__(self, work: Callable[[], T], group: list[Ticket], /) -> T:
        """Do the work; ``group`` holds the jobs that need it."""
        ...
