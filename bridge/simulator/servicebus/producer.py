"""The link by which a client sends to a queue or topic."""

from proton import Delivery, Receiver

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.frames import BATCH_FORMAT
from bridge.simulator.servicebus.proton_links import (
    accept_link,
    format_of,
    settle,
)
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.wire import parse_message, split_batch

# The limit of the Standard tier: a client that respects it fits all tiers.
MAX_MESSAGE_BYTES = 256 * 1024
_CREDIT = 1000


class Producer:
    """Accepts messages from one link.

    Args:
        link: attached by the client, not answered yet.
        target: the destination of the messages.
        faults: asked before each message.
    """

    def __init__(self, link: Receiver, target: Target, faults: Faults) -> None:
        self._link = link
        self._target = target
        self._faults = faults
        link.max_message_size = MAX_MESSAGE_BYTES
        accept_link(link)
        link.flow(_CREDIT)

    @property
    def path(self) -> str:
        """The entity's path."""
        return self._target.name

    def on_flow(self) -> None:
        """Do nothing: sending does not depend on the client's flow."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Accept a whole message or batch, and settle it."""
        encoded = bytes(self._link.recv(delivery.pending) or b"")
        self._link.advance()
        if self._link.credit < _CREDIT // 2:
            self._link.flow(_CREDIT - self._link.credit)
        try:
            self._take(encoded, is_batch=format_of(delivery) == BATCH_FORMAT)
        except RefusedError as error:
            settle(delivery, Delivery.REJECTED, error)
        else:
            settle(delivery, Delivery.ACCEPTED)

    def on_closed(self, *, dropped: bool) -> None:
        """Do nothing: there is no state to clean up."""

    def _take(self, encoded: bytes, *, is_batch: bool) -> None:
        self._faults.check_send(self.path)
        if len(encoded) > MAX_MESSAGE_BYTES:
            raise RefusedError(
                Condition.MESSAGE_SIZE_EXCEEDED,
                f"{len(encoded)} bytes are above the limit of {MAX_MESSAGE_BYTES}",
            )
        parts = split_batch(encoded) if is_batch else [encoded]
        self._target.send([parse_message(part) for part in parts])
