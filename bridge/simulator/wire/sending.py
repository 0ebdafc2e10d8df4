"""A link on which the server sends, within the credit that the client gives.

Credit is the number of messages that the receiver of a link still accepts. The sender
counts the messages that it has sent: the delivery count. A flow names this count, so
that credit is right even if a message and a flow pass each other on the way.

Source: AMQP 1.0, part 2: 2.6.7 flow control.
"""

from uuid import UUID

from bridge.simulator.wire.links import SERIAL, Channel, Link, ahead
from bridge.simulator.wire.performatives import Attach, Flow


class SendingLink(Link):
    """A link on which the server sends."""

    is_sender = True

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self._drains = False

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message."""
        if not self.is_open:
            return
        delivery = None if token is None else self._channel.new_delivery(self, token)
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) % SERIAL
        self._channel.send_message(self.handle, tag, encoded, delivery)

    def drained(self) -> None:
        """Give unused credit back, if the client has requested it (drain)."""
        if not self._drains or not self.is_open:
            return
        self._drains = False
        self.delivery_count = (self.delivery_count + self.credit) % SERIAL
        self.credit = 0
        self._channel.send_flow(self.handle, self.delivery_count, 0, drain=True)

    def on_flow(self, flow: Flow) -> None:
        """Take the credit that the client gives."""
        if flow.link_credit is not None:
            in_flight = ahead(self.delivery_count, flow.delivery_count or 0)
            # The server may have sent more meanwhile than the client now allows.
            self.credit = max(0, flow.link_credit - in_flight)
        self._drains = flow.drain
        if flow.echo and not flow.drain and self._is_accepted:
            self._channel.send_flow(
                self.handle, self.delivery_count, self.credit, drain=False
            )
