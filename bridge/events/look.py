"""What the listener needs of the poller: a fresh look at the document. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bridge.events.document import Document
from bridge.events.start_result import StartAnswer
from bridge.events.watch import Moment, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A document, read by a GET that began after it was asked for.

    Attributes:
        document: as it was answered; already diffed and committed.
        watch: what is known after it. An event that is in ``watch.known`` but not
            in the document is held: its absence does not count yet.
        now: the Date header of the answer, else the clock's time, in UTC.
        began: when the GET began, of monotonic time.
        read: when its answer had come.
        is_unconditional: whether the GET named no ETag.
    """

    document: Document
    watch: Watch
    now: datetime
    began: float
    read: Moment
    is_unconditional: bool = True


class Watcher(Protocol):
    """Looks at the document anew."""

    @property
    def watch(self) -> Watch:
        """What is known from the last look, however old."""
        ...

    @property
    def latest(self) -> Look | None:
        """The last look; None where the last read failed, or there was none."""
        ...

    async def fresh(self) -> Look:
        """Return a look that began after this call; shared by all that wait.

        Raises:
            MetadataError: the document cannot be had now.
        """
        ...


class Starter(Protocol):
    """Relays StartRequests to IMDS."""

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """POST one EventId, in the document's own spelling.

        Whoever calls has the turn of a POST, see ``bridge.imds.turns``.
        """
        ...
