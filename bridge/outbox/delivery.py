"""A delivery, as it is read from the state file."""

from typing import Final, Literal

import msgspec

from bridge.outbox.records import DeliveryKind, DeliveryState

UNREADABLE: Final = "unreadable"  # in place of a text that is damaged


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One item on its way to one sink.

    Attributes:
        id: the id of the row, from 1; 0 = it is not stored, see ``not_stored``.
        kind: ``event`` or ``reply``; of a damaged row ``UNREADABLE``, or any text.
        key: the EventId as it is compared; deliveries with the same key keep their
            order; None = no order.
        event_id: the EventId as received.
        body: the CloudEvent or the reply as JSON.
        attempts: how many attempts were made.
        due, created, not_before: seconds since the epoch.
        urgent_from, urgent_until: between these times it goes before all others.
        born: the running time of the sink when the delivery was inserted, in seconds.
        damage: what is wrong with the row, so that it must not be sent; None = nothing.
    """

    id: int
    sink: str
    kind: DeliveryKind | Literal["unreadable"]
    state: DeliveryState
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes
    attempts: int
    due: float
    created: float
    not_before: float | None
    urgent_from: float | None
    urgent_until: float | None
    last_error: str | None
    born: float = 0.0
    damage: str | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the state file has the delivery."""
        return self.id > 0


def not_stored(
    sink: str, cloud_event_id: str, event_type: str, body: bytes, now: float
) -> Delivery:
    """Return a delivery of an event that is sent at most once, and never stored."""
    return Delivery(
        id=0,
        sink=sink,
        kind="event",
        state="pending",
        key=None,
        event_id=None,
        cloud_event_id=cloud_event_id,
        type=event_type,
        body=body,
        attempts=0,
        due=now,
        created=now,
        not_before=None,
        urgent_from=None,
        urgent_until=None,
        last_error=None,
    )
