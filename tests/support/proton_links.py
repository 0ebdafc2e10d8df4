"""Adapt Proton's links and deliveries to the protocols of ``endpoints``.

It respects these rules; breaking any of them breaks a real client:
* An error needs all of its three fields: clients read the third, and Proton drops
  trailing nulls. So the info map is never empty.
* A client recognises its reply by the source address of its own attach, byte for byte.
* A refused link is attached first, without source and target, and then closed.
"""

from collections.abc import Hashable, Mapping
from typing import Any, cast
from uuid import UUID

import proton
from proton import Endpoint, Terminus, symbol

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.outcomes import (
    Accepted,
    Modified,
    Received,
    Rejected,
    Released,
    State,
)
from bridge.simulator.wire.values import AmqpError


class ProtonLink:
    """A link that a client attached; see ``endpoints.Link``."""

    can_transact = False

    def __init__(self, link: proton.Link) -> None:
        self._link = link
        self.is_sender = isinstance(link, proton.Sender)
        self.is_presettled = link.remote_snd_settle_mode == proton.Link.SND_SETTLED
        own = link.remote_source if self.is_sender else link.remote_target
        self.is_coordinator = bool(own.type == Terminus.COORDINATOR)
        self.is_dynamic = bool(own.dynamic)
        copy = Terminus.DIST_MODE_COPY
        self.is_browser = link.remote_source.distribution_mode == copy
        self.name = str(link.name)
        self.source = link.remote_source.address or ""
        self.target = link.remote_target.address or ""
        self.filters = _mapping(_from_data(link.remote_source.filter))
        self.properties = _mapping(from_proton(link.remote_properties))

    @property
    def session(self) -> Hashable:
        """Proton's session."""
        return cast("Hashable", self._link.session)

    @property
    def is_open(self) -> bool:
        """Whether both sides have the link open."""
        return bool(self._link.state == Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)

    @property
    def credit(self) -> int:
        """How many messages may still be sent on the link."""
        return int(self._link.credit)

    def accept(
        self,
        *,
        filters: Mapping[object, object] | None = None,
        properties: Mapping[object, object] | None = None,
        max_message_bytes: int | None = None,
    ) -> None:
        """Accept the attach with the client's settle modes, source and target."""
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        data = link.source.filter
        data.clear()
        if filters:
            data.decode(encode_value(filters))
        if properties is not None:
            link.properties = to_proton(properties)
        if max_message_bytes is not None:
            link.max_message_size = max_message_bytes
        link.open()

    def refuse(self, error: AmqpError) -> None:
        """Refuse the attach."""
        self._link.source.type = self._link.target.type = Terminus.UNSPECIFIED
        self._link.open()
        self.close(error)

    def close(self, error: AmqpError | None = None) -> None:
        """Close the link, with a reason if one is given."""
        if error is not None:
            self._link.condition = to_condition(error)
        self._link.close()

    def grant(self, credit: int) -> None:
        """Let the client send this number of further messages."""
        self._link.flow(credit)

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message."""
        # Proton's type hints require text for a tag, which is bytes in AMQP.
        delivery = self._link.delivery(cast("Any", tag))
        # Proton cannot return a binary tag, so the token is kept separately.
        delivery.lock_token = token
        self._link.stream(encoded)
        self._link.advance()
        if token is None:
            delivery.settle()

    def drained(self) -> None:
        """Give unused credit back, if the client has requested it (drain)."""
        self._link.drained()


class _Delivery:
    encoded = b""
    message_format = 0
    token: UUID | None = None

    def __init__(self, delivery: proton.Delivery) -> None:
        self._delivery = delivery
        self.is_settled = bool(delivery.settled)

    @property
    def state(self) -> State | None:
        """The client's state of the delivery; None: there is none."""
        remote = self._delivery.remote
        match self._delivery.remote_state:
            case proton.Delivery.ACCEPTED:
                return Accepted()
            case proton.Delivery.RELEASED:
                return Released()
            case proton.Delivery.REJECTED:
                return Rejected(_from_condition(remote.condition))
            case proton.Delivery.MODIFIED:
                return Modified(
                    bool(remote.failed),
                    bool(remote.undeliverable),
                    _mapping(from_proton(remote.annotations)),
                )
            case proton.Delivery.RECEIVED:
                return Received()
            case _:
                return None

    def settle(self, outcome: State | None) -> None:
        """Settle the delivery with an outcome, or with none."""
        match outcome:
            case Accepted():
                self._delivery.update(proton.Delivery.ACCEPTED)
            case Released():
                self._delivery.update(proton.Delivery.RELEASED)
            case Rejected(error):
                if error is not None:
                    self._delivery.local.condition = to_condition(error)
                self._delivery.update(proton.Delivery.REJECTED)
            case Modified(failed, undeliverable):
                self._delivery.local.failed = failed
                self._delivery.local.undeliverable = undeliverable
                self._delivery.update(proton.Delivery.MODIFIED)
        self._delivery.settle()


class IncomingDelivery(_Delivery):
    """A complete message from a client; see ``endpoints.Delivery``."""

    def __init__(self, delivery: proton.Delivery) -> None:
        super().__init__(delivery)
        noted = getattr(delivery, "message_format", 0)
        self.message_format = noted if isinstance(noted, int) else 0
        self.encoded = bytes(delivery.link.recv(delivery.pending) or b"")
        delivery.link.advance()


class OutgoingDelivery(_Delivery):
    """The client's outcome for a message; see ``endpoints.Delivery``."""

    def __init__(self, delivery: proton.Delivery) -> None:
        super().__init__(delivery)
        self.token = getattr(delivery, "lock_token", None)


def note_format(delivery: proton.Delivery, message_format: int) -> None:
    """Store the message-format of a delivery that has begun to arrive."""
    delivery.message_format = message_format


def to_condition(error: AmqpError) -> proton.Condition:
    """Return an error in Proton's form, with all three fields."""
    info = to_proton(error.info) or {symbol("com.microsoft:tracking-id"): "local"}
    return proton.Condition(error.condition, error.description, info)


def to_proton(value: object) -> Any:
    """Return a value with Proton's types."""
    data = proton.Data()
    data.decode(encode_value(value))
    data.rewind()
    data.next()
    return data.get_object()


def from_proton(value: object) -> object:
    """Return a Proton value with the types of ``wire.values``."""
    data = proton.Data()
    data.put_object(value)
    return _from_data(data)


def _from_data(data: proton.Data) -> object:
    encoded = bytes(data.encode())
    return decode_value(encoded)[0] if encoded else None


def _from_condition(condition: proton.Condition | None) -> AmqpError | None:
    if condition is None:
        return None
    info = _mapping(from_proton(condition.info))
    return AmqpError(str(condition.name), condition.description, info)


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, dict) else {}
