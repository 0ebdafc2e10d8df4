"""One message on its way: sent by the client, or to it."""

from collections.abc import Callable
from uuid import UUID

from bridge.simulator.wire.outcomes import Outcome, State


class IncomingDelivery:
    """A message of the client.

    Args:
        delivery_id: as the client gave it. Clients give one id to several messages;
            nothing here is found by it, and an outcome goes out with it.
        message_format: of the message.
        is_settled: whether the client wants no outcome.
        dispose: sends the outcome.

    Attributes:
        encoded: the bytes of the message, once it is whole.
        state: None: the client says nothing of its own message.
        token: None: only sent messages have one.
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
        dispose: Callable[[int, Outcome | None], None],
    ) -> None:
        self.delivery_id = delivery_id
        self.message_format = message_format
        self.is_settled = is_settled
        self.encoded = b""
        self.state: State | None = None
        self.token: UUID | None = None
        self._dispose = dispose

    def settle(self, outcome: Outcome | None) -> None:
        """Settle the message with an outcome, or with none."""
        if not self.is_settled:
            self.is_settled = True
            self._dispose(self.delivery_id, outcome)


class OutgoingDelivery:
    """A message to the client that is not settled yet.

    Args:
        delivery_id: its number in the session.
        token: says to the sender which message it is.
        dispose: sends the outcome.

    Attributes:
        state: what the client did with it; None: nothing yet.
        is_settled: whether the client has forgotten it.
        encoded: empty: the sender knows what it sent.
        message_format: likewise.
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
        dispose: Callable[["OutgoingDelivery", Outcome | None], None],
    ) -> None:
        self.delivery_id = delivery_id
        self.token: UUID | None = token
        self.is_settled = False
        self.state: State | None = None
        self.encoded = b""
        self.message_format = 0
        self._dispose = dispose

    def settle(self, outcome: Outcome | None) -> None:
        """Settle the message with an outcome, or with none."""
        self._dispose(self, outcome)
