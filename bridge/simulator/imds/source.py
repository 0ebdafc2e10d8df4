"""Sources of the document: live events, or given documents.

A ``DocumentSource`` is one of LiveEvents (lifecycle.py), FixedDocument (here) and
DocumentReel (reel.py).
"""

import hashlib
from collections.abc import Mapping
from typing import Protocol

import orjson
from msgspec import Struct


class View(Struct, frozen=True, kw_only=True):
    """The document as it is sent.

    Attributes:
        etag: the incarnation; if the document has none, a hash of the body.
    """

    body: bytes
    etag: str


class Approval(Struct, frozen=True, kw_only=True):
    """StartRequests as received.

    Attributes:
        event_ids: as the approver spelled them.
        by: the name of the VM that approves.
        at: seconds since the epoch.
        version: the API version of the request.
    """

    event_ids: tuple[str, ...]
    by: str
    at: float
    version: str


class DocumentSource(Protocol):
    """Decides what IMDS shows, and the effect of an approval."""

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts a scenario."""
        ...

    def peek(self, now: float, version: str) -> View:
        """Return the document; this does not count as a client's read."""
        ...

    def approve(self, approval: Approval) -> bool:
        """Accept an approval; False: an EventId is not in the document."""
        ...

    def is_over(self, now: float) -> bool:
        """Return whether the document will not change by itself any more."""
        ...


class FixedDocument(Struct, frozen=True):
    """A given document, valid or not; it never changes."""

    body: bytes

    def read(self, now: float, version: str) -> View:
        """Return the document unchanged."""
        return self.peek(now, version)

    def peek(self, now: float, version: str) -> View:  # noqa: ARG002 - neither time nor version changes it
        """Return the document unchanged."""
        return view_of(self.body)

    def approve(self, approval: Approval) -> bool:
        """Return whether each EventId is in the document."""
        known = event_statuses(_loaded(self.body))
        return all(event_id.lower() in known for event_id in approval.event_ids)

    def is_over(self, now: float) -> bool:  # noqa: ARG002 - the same at all times
        """Return True: the document never changes."""
        return True


def view_of(body: bytes) -> View:
    """Return a given document with the ETag that the service would send."""
    document = _loaded(body)
    number = (
        document.get("DocumentIncarnation") if isinstance(document, Mapping) else None
    )
    if isinstance(number, int | str) and str(number).isdecimal():
        return View(body=body, etag=str(number))
    return View(body=body, etag=hashlib.sha256(body).hexdigest()[:16])


def event_statuses(document: object) -> dict[str, object]:
    """Return EventStatus by EventId in lower case, for the events that can be read."""
    return {
        event_id.lower(): event.get("EventStatus")
        for event in event_objects(document)
        if isinstance(event_id := event.get("EventId"), str)
    }


def event_objects(document: object) -> list[Mapping[str, object]]:
    """Return the events of a given document that are objects."""
    events = document.get("Events") if isinstance(document, Mapping) else None
    if not isinstance(events, list):
        return []
    return [event for event in events if isinstance(event, Mapping)]


def _loaded(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
