"""The link by which a client sends to a queue or topic."""

from bridge.simulator.servicebus.endpoints import Delivery, Link
from bridge.simulator.servicebus.errors import Condition, RefusedError, amqp_error
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.intake import MAX_MESSAGE_BYTES, check_size
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.transactions import Transactions
from bridge.simulator.servicebus.wire import BATCH_FORMAT, parse_message, split_batch
from bridge.simulator.wire.outcomes import Accepted, Rejected, State, Transactional

_CREDIT = 1000


class Producer:
    """Accepts messages from one link.

    Args:
        link: the link that the client has attached; it is not answered yet.
        target: the destination of the messages.
        faults: may refuse each message.
        transactions: those that messages may belong to.
    """

    def __init__(
        self, link: Link, target: Target, faults: Faults, transactions: Transactions
    ) -> None:
        self._transactions = transactions
        self._link = link
        self._target = target
        self._faults = faults
        self._gone: RefusedError | None = None
        link.accept(max_message_bytes=MAX_MESSAGE_BYTES)
        link.grant(_CREDIT)

    @property
    def path(self) -> str:
        """The entity's path."""
        return self._target.name

    def end(self, why: RefusedError) -> None:
        """Refuse the next message and detach the link, if its target was deleted.

        A disabled target stays attached: it refuses each message until it is enabled.
        """
        if why.condition is Condition.NOT_FOUND:
            self._gone = why

    def on_flow(self) -> None:
        """Do nothing: sending does not depend on the client's flow."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Accept or refuse a message or batch, and settle it."""
        if self._link.credit < _CREDIT // 2:
            self._link.grant(_CREDIT - self._link.credit)
        is_batch = delivery.message_format == BATCH_FORMAT
        try:
            outcome = self._take(delivery, is_batch=is_batch)
        except RefusedError as error:
            delivery.settle(Rejected(amqp_error(error)))
            if error is self._gone and self._link.is_open:
                self._link.close(amqp_error(error))
        else:
            delivery.settle(outcome)

    def on_closed(self, *, dropped: bool) -> None:
        """Do nothing: there is no state to clean up."""

    def _take(self, delivery: Delivery, *, is_batch: bool) -> State:
        encoded, state = delivery.encoded, delivery.state
        if self._gone is not None:
            raise self._gone
        self._faults.check_send(self.path)
        check_size(encoded)
        parts = split_batch(encoded) if is_batch else [encoded]
        messages = [parse_message(part) for part in parts]
        if isinstance(state, Transactional):
            self._transactions.find(state.txn_id).send(self._target, messages)
            return Transactional(state.txn_id, Accepted())
        self._target.send(messages)
        return Accepted()
