"""What the keeper of the state file has to know of its place and its disk."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from bridge.outbox.storage.connection import (
    Connection,
)
from bridge.outbox.storage.transactions import Ticket

T = TypeVar("T")


class Place(Protocol):
    """Knows where the file lies, and whether it is this process's own."""

    def opened(self) -> None:
        """Note that the file was opened."""
        ...

    def fault(self) -> str | None:
        """Return why the file is not to be used; None = it may be."""
        ...

    def regain(self, file: Connection | None) -> bool:
        """Make the file one that may be used again.

        Returns:
            Whether it has to be opened anew.

        Raises:
            OutboxError: that cannot be done now.
        """
        ...


class OnDisk(Protocol):
    """Does what may hang."""

    def __call__(self, work: Callable[[], T], group: list[Ticket], /) -> T:
        """Do it; ``group`` is what is done for whom."""
        ...
