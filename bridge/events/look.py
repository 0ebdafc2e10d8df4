"""Protocols of approvals for IMDS: reading a fresh document, and the POST. Pure."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from bridge.events.document import Document
from bridge.events.start_result import StartAnswer
from bridge.events.watch import Moment, Watch


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


class Watcher(Protocol):
    """Reads the document again."""

    @property
    def watch(self) -> Watch:
        """What is known from the last look, even if that is old."""
        ...

    @property
    def latest(self) -> Look | None:
        """The last look; None if the last read failed, or there was none yet."""
        ...

    async def fresh(self) -> Look:
        """Return a look whose GET began after this call; all callers share one GET.

        Raises:
            MetadataError: IMDS does not return the document now.
        """
        ...


class Starter(Protocol):
    """Sends StartRequests to IMDS."""

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """POST one EventId, spelled as in the document.

        The caller must hold the turn for a POST, see ``bridge.imds.turns``.
        """
        ...
