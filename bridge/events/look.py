"""Protocols of approvals for IMDS: reading a fresh document, and the POST. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from bridge.events.document import Document, ScheduledEvent
from bridge.events.start_result import StartAnswer
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MetadataError


class Look(Struct, frozen=True, kw_only=True):
    """One reading of the document, and the watch after it.

    Attributes:
        document: as IMDS sent it; already compared and committed.
        watch: what is known after this document. An event that is in ``watch.known``
            but not in the document is held: its absence does not count yet.
        now: the Date header of the response, else the clock's time; in UTC.
        began: when the GET began, in seconds of the monotonic clock.
        read: when the response had arrived.
        is_unconditional: whether the GET was sent without an ETag.
    """

    document: Document
    watch: Watch
    now: datetime
    began: float
    read: Moment
    is_unconditional: bool = True


class Posting(Protocol):
    """What waits for a POST of one EventId."""

    @property
    def since(self) -> float:
        """Only a look that began later serves; in monotonic seconds."""
        ...

    def urgency(self) -> float:
        """Return the urgency; the lowest value goes first."""
        ...

    async def decide(self, look: Look) -> ScheduledEvent | None:
        """Decide by a look, and mark on disk that a POST begins.

        Returns:
            The event to post; None if nothing may be posted.
        """
        ...

    def settle(self, result: StartAnswer | MetadataError | None) -> None:
        """Take the answer to the POST, or why there is no document; None = no POST."""
        ...


class Watcher(Protocol):
    """Reads the document again, and posts."""

    @property
    def watch(self) -> Watch:
        """What is known from the last look, even if that is old."""
        ...

    @property
    def latest(self) -> Look | None:
        """The last look; None if the last read failed, or there was none yet."""
        ...

    @property
    def line(self) -> Mapping[str, Posting]:
        """What waits for a POST, by EventId in capitals."""
        ...

    async def fresh(self) -> Look:
        """Return a look whose GET began after this call; all callers share one GET.

        Raises:
            MetadataError: IMDS does not return the document now.
        """
        ...

    def line_up(self, key: str, posting: Posting) -> None:
        """Let a POST wait for its turn; ``settle`` of the posting gets the result."""
        ...
