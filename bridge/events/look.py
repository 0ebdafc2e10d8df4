"""One reading of the document, and the requests that it decides. Pure."""

import math
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
        number: how many reads had begun with this one.
        is_unconditional: whether the GET was sent without an ETag.
    """

    document: Document
    watch: Watch
    now: datetime
    began: float
    read: Moment
    number: int = 0
    is_unconditional: bool = True


class Need(Struct):
    """What the requests need now.

    Attributes:
        event: what may be posted next; None = nothing.
        look: whether a request needs a fresh look.
        at: when to ask again, in monotonic seconds, whatever happens until then.
    """

    event: ScheduledEvent | None = None
    look: bool = False
    at: float = math.inf


class Requests(Protocol):
    """What asks for POSTs; see ``bridge.approvals.requests``."""

    def turn(self, look: Look | None) -> Need:
        """Decide what can be decided; ``look`` is the last one, if it is new enough."""
        ...

    def begin(self) -> None:
        """Take note that the POST begins."""
        ...

    def answered(self, answer: StartAnswer) -> None:
        """Take the answer to the POST."""
        ...

    def failed(self, error: MetadataError, began: float) -> None:
        """Take note of a failed read that began then, in monotonic seconds."""
        ...

    def end_late(self, began: float = -math.inf) -> float:
        """Give up what is late; return the seconds until the next deadline."""
        ...

    def close(self) -> None:
        """End all but those whose POST is in flight: the process stops."""
        ...


class Withheld(Struct, frozen=True, rename="camel"):
    """An event to which an auto-approve rule applies, but which is held.

    Attributes:
        event_id: spelled as in the document.
        rule: the label of the rule.
        reason: why the event is not approved yet.
    """

    event_id: str
    rule: str
    reason: str
