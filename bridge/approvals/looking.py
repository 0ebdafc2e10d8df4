"""What the listener needs of the poller: a fresh look at the document. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bridge.imds.document import Document
from bridge.transitions import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A document, read by a GET that began after it was asked for.

    Attributes:
        document: as it was answered; already diffed and committed.
        watch: what is known after it. An event that is in ``watch.known`` but not
            in the document is held: its absence does not count yet.
        now: the Date header of the answer, else the clock's time, in UTC.
    """

    document: Document
    watch: Watch
    now: datetime


class Watcher(Protocol):
    """Looks at the document anew."""

    @property
    def watch(self) -> Watch:
        """What is known from the last look, however old."""
        ...

    async def fresh(self) -> Look:
        """Return a look that began after this call; shared by all that wait.

        Raises:
            MetadataError: the document cannot be had now.
        """
        ...


class Starter(Protocol):
    """Relays StartRequests to IMDS."""

    async def start(self, event_id: str, *, incarnation: int | None) -> int:
        """POST one EventId, in the document's own spelling; return the status.

        Raises:
            MetadataUnavailableError: there was no answer: it may have worked; or
                IMDS asks for patience, and ``outcome`` is the status.
        """
        ...
