"""The delivery of one message, from the client or to the client."""

from collections.abc import Callable
from uuid import UUID

from bridge.simulator.wire.outcomes import State


class IncomingDelivery:
    """A message from the client.

    Args:
        delivery_id: the client's id, sent back with the outcome. Clients may give
            several messages the same id, so nothing is looked up by it.
        message_format: the message-format.
        is_settled: whether the client sent the message settled, and wants no outcome.
        state: the transaction that the message belongs to, if any.
        dispose: sends the outcome.

    Attributes:
        encoded: the bytes of the message, when it is complete.
        token: always None: only messages to the client have a token.
    """

    __slots__ = (
        "_dispose",
        "delivery_id",
        "encoded",
        "is_settled",
        "message_format",
        "state",
        "token",
    )

    def __init__(
        self,
        delivery_id: int,
        message_format: int,
        *,
        is_settled: bool,
        state: State | None,
        dispose: Callable[[int, State | None], None],
    ) -> None:
        self.delivery_id = delivery_id
        self.message_format = message_format
        self.is_settled = is_settled
        self.encoded = b""
        self.state = state
        self.token: UUID | None = None
        self._dispose = dispose

    def settle(self, outcome: State | None) -> None:
        """Settle the message with an outcome, or with none."""
        if not self.is_settled:
            self.is_settled = True
            self._dispose(self.delivery_id, outcome)


class OutgoingDelivery:
    """A message to the client that is not settled yet.

    Args:
        delivery_id: the number of the message in the session.
        token: identifies the message for the caller of ``Link.send``.
        dispose: sends the outcome.

    Attributes:
        state: the client's state of the delivery; None: there is none yet.
        is_settled: whether one side has settled the delivery.
        encoded: always empty: the bytes are not kept after they are sent.
        message_format: always 0.
    """

    __slots__ = (
        "_dispose",
        "delivery_id",
        "encoded",
        "is_settled",
        "message_format",
        "state",
        "token",
    )

    def __init__(
        self,
        delivery_id: int,
        token: UUID,
        dispose: Callable[["OutgoingDelivery", State | None], None],
    ) -> None:
        self.delivery_id = delivery_id
        self.token: UUID | None = token
        self.is_settled = False
        self.state: State | None = None
        self.encoded = b""
        self.message_format = 0
        self._dispose = dispose

    def settle(self, outcome: State | None) -> None:
        """Settle the message with an outcome, or with none."""
        self._dispose(self, outcome)
