"""Where the document comes from: living events, or documents that are given.

``DocumentSource`` has three forms: LiveEvents (lifecycle.py), FixedDocument (here) and
DocumentReel (reel.py).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The document as it is sent.

    Attributes:
        etag: the incarnation where there is one.
    """

    body: bytes
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """StartRequests as they came.

    Attributes:
        event_ids: as the approver spelled them.
        by: the name of the VM that approves.
        at: when, in seconds since the epoch.
        version: the API version it speaks.
    """

    event_ids: tuple[str, ...]
    by: str
    at: float
    version: str


class DocumentSource(Protocol):
    """What IMDS shows, and what becomes of an approval."""

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts a scenario."""
        ...

    def peek(self, now: float, version: str) -> View:
        """Return the document without any client having asked."""
        ...

    def approve(self, approval: Approval) -> bool:
        """Take an approval; False: an EventId is not in the document."""
        ...

    def is_over(self, now: float) -> bool:
        """Return whether the document stays as it is unless someone acts."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDocument:
    """A document that was put in, whatever it is; nothing moves it."""

    body: bytes

    def read(self, now: float, version: str) -> View:
        """Return it as it is."""
        return self.peek(now, version)

    def peek(self, now: float, version: str) -> View:  # noqa: ARG002 - neither time nor version changes it
        """Return it as it is."""
        return view_of(self.body)

    def approve(self, approval: Approval) -> bool:
        """Say whether each EventId is in it."""
        known = event_statuses(_loaded(self.body))
        return all(event_id.lower() in known for event_id in approval.event_ids)

    def is_over(self, now: float) -> bool:  # noqa: ARG002 - it is so at all times
        """Return True: nothing will change it."""
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
    """Return EventId in lower case → EventStatus, of whatever can be understood."""
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
