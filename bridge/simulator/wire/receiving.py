"""A link on which the client sends: takes its messages, and counts its credit.

Source: AMQP 1.0, part 2: 2.6.7 flow control, 2.6.14 large messages.
"""

from bridge.simulator.wire.deliveries import IncomingDelivery
from bridge.simulator.wire.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    TRANSFER_LIMIT_EXCEEDED,
    AmqpError,
    WireError,
)
from bridge.simulator.wire.links import SERIAL, Channel, Link
from bridge.simulator.wire.performatives import Attach, Flow, Transfer

MOST_BYTES = 16 * 1024 * 1024
"""The limit of one message: a longer one closes its link, to protect the memory."""


class ReceivingLink(Link):
    """A link on which the client sends."""

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self.delivery_count = attach.initial_delivery_count or 0
        self._partial: IncomingDelivery | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def grant(self, credit: int) -> None:
        """Let the client send this number of further messages."""
        if self.is_open:
            self.credit += credit
            self._send_flow()

    def on_flow(self, flow: Flow) -> None:
        """Take back the credit that the client returns, and answer if it asks."""
        if flow.delivery_count is not None:
            skipped = (flow.delivery_count - self.delivery_count) % SERIAL
            if skipped <= self.credit:
                self.credit -= skipped
                self.delivery_count = flow.delivery_count
        if flow.echo and self._is_accepted:
            self._send_flow()

    def on_transfer(
        self, transfer: Transfer, payload: bytes
    ) -> IncomingDelivery | None:
        """Take a part of a message; return the message when it is complete.

        Raises:
            WireError: the part belongs to no message, or to another one.
        """
        if self._partial is None and not self._begin(transfer):
            return None
        delivery = self._partial
        if delivery is None or transfer.aborted:
            self._forget()
            return None
        if transfer.delivery_id not in {None, delivery.delivery_id}:
            raise WireError(
                INVALID_FIELD,
                f"delivery {transfer.delivery_id} came on link {self.name} before "
                f"{delivery.delivery_id} was whole",
            )
        self._pieces.append(payload)
        self._size += len(payload)
        if self._size > MOST_BYTES:
            self._forget()
            self._fail(MESSAGE_SIZE_EXCEEDED, f"a message above {MOST_BYTES} bytes")
            return None
        delivery.is_settled = delivery.is_settled or transfer.settled is True
        return None if transfer.more else self._complete(delivery)

    def _begin(self, transfer: Transfer) -> bool:
        """Begin a message; return False if the client has no credit for it."""
        if self.credit <= 0:
            self._fail(TRANSFER_LIMIT_EXCEEDED, "a message came without credit")
            return False
        if transfer.delivery_id is None:
            raise WireError(
                INVALID_FIELD, f"a message on link {self.name} has no delivery-id"
            )
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) % SERIAL
        self._partial = IncomingDelivery(
            transfer.delivery_id,
            transfer.message_format or 0,
            is_settled=transfer.settled is True,
            state=transfer.state,
            dispose=self._channel.dispose,
        )
        return True

    def _complete(self, delivery: IncomingDelivery) -> IncomingDelivery:
        pieces = self._pieces
        delivery.encoded = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._forget()
        return delivery

    def _forget(self) -> None:
        self._partial, self._pieces, self._size = None, [], 0

    def _fail(self, condition: str, description: str) -> None:
        self.close(AmqpError(condition, f"{description}, on link {self.name}"))

    def _send_flow(self) -> None:
        self._channel.send_flow(
            self.handle, self.delivery_count, self.credit, drain=False
        )
