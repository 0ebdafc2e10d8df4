"""Show given documents one after another, each for the same time."""

from collections.abc import Sequence

import orjson
from msgspec import Struct

from bridge.simulator.imds.document import Status
from bridge.simulator.imds.source import Approval, View, event_statuses, view_of


class DocumentReel(Struct):
    """Documents of a real VM, played in order; the last one stays.

    Attributes:
        documents: shown verbatim in every API version.
        hold_seconds: how long each is shown.
    """

    documents: Sequence[object]
    hold_seconds: float
    _position: int = 0
    _shown_at: float | None = None

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts the reel."""
        if self._shown_at is None:
            self._shown_at = now
        return self.peek(now, version)

    def peek(self, now: float, version: str) -> View:  # noqa: ARG002 - shown verbatim in each version
        """Return the document; this does not count as a client's read."""
        return view_of(orjson.dumps(self._current(now)))

    def approve(self, approval: Approval) -> bool:
        """Accept an approval: skip the documents where the event is still Scheduled."""
        known = event_statuses(self._current(approval.at))
        wanted = [event_id.lower() for event_id in approval.event_ids]
        if not all(event_id in known for event_id in wanted):
            return False
        for event_id in wanted:
            self._jump(event_id, approval.at)
        return True

    def is_over(self, now: float) -> bool:
        """Return whether the last document is shown."""
        self._current(now)
        return self._position == self._last

    def _current(self, now: float) -> object:
        while self._shown_at is not None and self._position < self._last:
            next_at = self._shown_at + self.hold_seconds
            if now < next_at:
                break
            self._position += 1
            self._shown_at = next_at
        return self.documents[self._position]

    def _jump(self, event_id: str, now: float) -> None:
        if not self._is_scheduled(event_id, self._position):
            return
        for position in range(self._position + 1, len(self.documents)):
            if not self._is_scheduled(event_id, position):
                self._position, self._shown_at = position, now
                return

    def _is_scheduled(self, event_id: str, position: int) -> bool:
        statuses = event_statuses(self.documents[position])
        return statuses.get(event_id) == Status.SCHEDULED

    @property
    def _last(self) -> int:
        return len(self.documents) - 1
