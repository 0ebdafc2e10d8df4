"""Several events in one request: how they are joined, and what the answer means.

Pure. A service or a content mode describes both in a ``Many``.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from bridge.events.cloudevent import BATCH_TYPE, CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import Answer
from bridge.sinks.webhook.content_mode import ContentMode, Rendered

# Returns what an answer means for each event; the last argument is their number. It
# raises errors that are about all events, as ``BatchSink.deliver_many`` does.
JudgeMany = Callable[[Answer, str, int], Sequence[DeliveryError | None]]


class Many(Struct, frozen=True, kw_only=True):
    """How a service takes several events in one request.

    Attributes:
        piece: the part of the body that is about one event.
        start, between, end: the bytes around the pieces; by default the pieces are the
            items of a JSON array.
        headers: the headers of a request.
        judge: what an answer means for each event; None: it means the same for all.
        group: events whose values differ never go in one request.
        group_headers: headers for a group.
    """

    piece: Callable[[CloudEvent], bytes]
    start: bytes = b"["
    between: bytes = b","
    end: bytes = b"]"
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "application/json"}
    )
    judge: JudgeMany | None = None
    group: Callable[[CloudEvent], str] = lambda _: ""
    group_headers: Callable[[str], Mapping[str, str]] = lambda _: {}

    def render(self, event: CloudEvent) -> Rendered:
        """Return headers and body of a request with one event."""
        headers, body, _ = self.first([event], 0)
        return headers, body

    def first(
        self, events: Sequence[CloudEvent], size: int
    ) -> tuple[dict[str, str], bytes, int]:
        """Return the headers and the body of a request, and how many events it holds.

        Args:
            events: at least one; the first of them go in the request.
            size: the most bytes of a body with more than one event.
        """
        group, pieces = self.group(events[0]), list[bytes]()
        total = len(self.start) + len(self.end)
        for event in events:
            piece = self.piece(event)
            total += len(piece) + (len(self.between) if pieces else 0)
            if pieces and (total > size or self.group(event) != group):
                break
            pieces.append(piece)
        body = self.start + self.between.join(pieces) + self.end
        return {**self.headers, **self.group_headers(group)}, body, len(pieces)


MANY: Mapping[ContentMode, Many] = {
    "batch": Many(
        piece=CloudEvent.to_json,
        headers={"Content-Type": f"{BATCH_TYPE}; charset=utf-8"},
    ),
    "array": Many(piece=CloudEvent.to_json),
}
