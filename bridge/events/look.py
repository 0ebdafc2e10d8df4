"""One reading of the document, by which approvals are decided. Pure."""

from datetime import datetime

from msgspec import Struct

from bridge.events.document import Document
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
