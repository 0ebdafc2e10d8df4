"""The sends and settlements of one connection, also in transactions: all or none.

States of a transaction:
    declared → discharged: committed or rolled back
             → rolled back, after two minutes, with its coordinator link or connection
A part that is refused, such as the 101st message, makes the commit a rollback. Until
the commit, sent messages are in no entity, and settled messages stay locked: after a
rollback, their receiver may settle them again.

Source: AMQP 1.0, part 4: transactions. Azure Service Bus, overview of transaction
        processing, and its quotas.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

from msgspec import Struct

from bridge.simulator.servicebus.backlog import Deadline
from bridge.simulator.servicebus.endpoints import Delivery, Link
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.values import Condition, RefusedError, amqp_error
from bridge.simulator.wire.message import Message as Request
from bridge.simulator.wire.outcomes import (
    Accepted,
    Declared,
    Modified,
    Outcome,
    Rejected,
    Released,
    State,
    Transactional,
)
from bridge.simulator.wire.values import AmqpError, DecodeError, Described

SECONDS = 120.0
"""How long a transaction may last."""

MOST_MESSAGES = 100
"""How many messages may be sent or settled in a transaction."""

_DECLARE, _DISCHARGE = 0x31, 0x32
_NAMES = {"amqp:declare:list": _DECLARE, "amqp:discharge:list": _DISCHARGE}
_CREDIT = 100


class Transaction:
    """What becomes of messages if a transaction is committed.

    Args:
        namespace: the entities.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._sends: dict[Target, list[Message]] = {}
        self._settlements: dict[UUID, tuple[Queue, Outcome]] = {}
        self._failure: RefusedError | None = None

    def send(self, target: Target, messages: Sequence[Message]) -> None:
        """Send messages if the transaction is committed.

        Raises:
            RefusedError: the target would refuse them, or they are too many.
        """
        together = [*self._sends.get(target, ()), *messages]
        try:
            self._check_number(len(messages))
            target.check(together)
        except RefusedError as error:
            self.fail(error)
            raise
        self._sends[target] = together

    def settle(self, queue: Queue, token: UUID, outcome: Outcome) -> None:
        """Settle a message if the transaction is committed.

        Raises:
            RefusedError: the lock is lost, or there are too many messages.
        """
        try:
            self._check_number(0 if token in self._settlements else 1)
            queue.check_lock(token)
        except RefusedError as error:
            self.fail(error)
            raise
        self._settlements[token] = queue, outcome

    def fail(self, why: RefusedError) -> None:
        """Make a later commit fail, with the first reason."""
        self._failure = self._failure or why

    def commit(self) -> None:
        """Send and settle everything.

        Raises:
            RefusedError: a part is not possible any more; then nothing has happened.
        """
        try:
            self._check()
        except RefusedError as error:
            raise RefusedError(
                Condition.ROLLED_BACK,
                f"the transaction was rolled back: {error.description}",
            ) from error
        for target, messages in self._sends.items():
            target.send(messages)
        for token, (queue, outcome) in self._settlements.items():
            apply_outcome(queue, token, outcome)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        for target, messages in self._sends.items():
            if self._namespace.find_target(target.name) is not target:
                raise RefusedError(Condition.NOT_FOUND, f"{target.name!r} was deleted")
            target.check(messages)
        for token, (queue, outcome) in self._settlements.items():
            queue.check_lock(token)
            if isinstance(outcome, Rejected) and queue.dead_letters is None:
                raise RefusedError(
                    Condition.NOT_ALLOWED, "a dead letter cannot be dead-lettered again"
                )

    def _check_number(self, more: int) -> None:
        sent = sum(map(len, self._sends.values()))
        if sent + len(self._settlements) + more > MOST_MESSAGES:
            raise RefusedError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"a transaction has {MOST_MESSAGES} messages at most",
            )


class _Open(Struct, frozen=True):
    transaction: Transaction
    deadline: Deadline


class Transactions:
    """The transactions of one connection by their ids.

    Args:
        namespace: the entities.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._open: dict[bytes, _Open] = {}

    def declare(self) -> bytes:
        """Begin a transaction; return its id."""
        txn_id = uuid4().bytes
        deadline = self._namespace.plan(SECONDS, lambda: self.forget(txn_id))
        self._open[txn_id] = _Open(Transaction(self._namespace), deadline)
        return txn_id

    def find(self, txn_id: bytes) -> Transaction:
        """Return a transaction.

        Raises:
            RefusedError: there is none with this id, or it is over.
        """
        found = self._open.get(txn_id)
        if found is None:
            raise RefusedError(
                Condition.UNKNOWN_TRANSACTION,
                f"there is no transaction {txn_id.hex()}: it was never declared, is "
                f"discharged, or has lasted more than {SECONDS:g} seconds",
            )
        return found.transaction

    def discharge(self, txn_id: bytes, *, is_rollback: bool) -> None:
        """End a transaction.

        Raises:
            RefusedError: there is none with this id, or it cannot be committed.
        """
        found = self.find(txn_id)
        self.forget(txn_id)
        if not is_rollback:
            found.commit()

    def forget(self, txn_id: bytes) -> None:
        """Roll a transaction back, if it is open."""
        found = self._open.pop(txn_id, None)
        if found is not None:
            found.deadline.cancel()


class Coordinator:
    """Declares and discharges the transactions of one link.

    Args:
        link: the link that the client has attached; it is not answered yet.
        transactions: those of the connection.
    """

    def __init__(self, link: Link, transactions: Transactions) -> None:
        self._link = link
        self._transactions = transactions
        self._declared: set[bytes] = set()
        link.accept()
        link.grant(_CREDIT)

    @property
    def path(self) -> str:
        """Always empty: this link has no entity, and faults concern entities."""
        return ""

    def on_flow(self) -> None:
        """Do nothing: requests do not depend on the client's flow."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Declare or discharge a transaction."""
        self._link.grant(1)
        try:
            delivery.settle(self._answer(delivery.encoded))
        except RefusedError as error:
            delivery.settle(Rejected(amqp_error(error)))

    def on_closed(self, *, dropped: bool) -> None:  # noqa: ARG002 - either way
        """Roll back what is still open."""
        for txn_id in self._declared:
            self._transactions.forget(txn_id)

    def _answer(self, encoded: bytes) -> State:
        code, fields = _request(encoded)
        if code == _DECLARE:
            txn_id = self._transactions.declare()
            self._declared.add(txn_id)
            return Declared(txn_id)
        txn_id, is_rollback = _discharge(fields)
        self._declared.discard(txn_id)
        self._transactions.discharge(txn_id, is_rollback=is_rollback)
        return Accepted()


def _request(encoded: bytes) -> tuple[object, list[object]]:
    try:
        body = Request.decode(encoded).body
    except DecodeError as error:
        raise RefusedError(Condition.DECODE_ERROR, error.description) from error
    if isinstance(body, Described) and isinstance(body.value, list):
        code = body.descriptor
        code = _NAMES.get(code, code) if isinstance(code, str) else code
        if code in {_DECLARE, _DISCHARGE}:
            return code, body.value
    raise RefusedError(
        Condition.NOT_IMPLEMENTED, "a coordinator takes a declare or a discharge"
    )


def _discharge(fields: list[object]) -> tuple[bytes, bool]:
    txn_id = fields[0] if fields else None
    if not isinstance(txn_id, bytes):
        raise RefusedError(
            Condition.DECODE_ERROR, "a discharge has the id of its transaction"
        )
    return txn_id, fields[1:2] == [True]


# -- The outcomes of AMQP and their meaning in Service Bus -----------------------------
#
#     accepted                  complete
#     released                  return the message, without a failed delivery
#     rejected                  dead-letter
#     modified                  abandon
#     modified, undeliverable   defer
#
# The annotations in modified become application properties. So do the entries in the
# info of rejected, except for the dead-letter reason and description.


def apply_outcome(queue: Queue, lock_token: UUID, state: State | None) -> None:
    """Settle a message with its receiver's disposition.

    Raises:
        RefusedError: the lock on the message is lost.
    """
    match state:
        case Accepted():
            queue.complete(lock_token)
        case Released():
            queue.release(lock_token)
        case Modified(undeliverable=True, annotations=annotations):
            queue.defer(lock_token, _changes(annotations))
        case Modified(annotations=annotations):
            queue.abandon(lock_token, _changes(annotations))
        case Rejected(error):
            queue.dead_letter(lock_token, *_reason(error))
        case _:
            # Settled without an outcome: the lock will expire.
            return


def echo(state: State | None) -> State | None:
    """Return the state that confirms the client's; an error would mean a failure."""
    match state:
        case Transactional(txn_id, outcome):
            return Transactional(txn_id, _echo(outcome))
        case _:
            return _echo(state)


def _echo(state: State | None) -> Outcome | None:
    match state:
        case Rejected():
            return Rejected()
        case Modified(failed, undeliverable):
            return Modified(failed, undeliverable)
        case Accepted() | Released():
            return state
        case _:
            return None


def _reason(
    error: AmqpError | None,
) -> tuple[str | None, str | None, Mapping[str, object]]:
    if error is None:
        return None, None, {}
    changes = _changes(error.info)
    reason = _text(changes.pop("DeadLetterReason", None))
    description = _text(changes.pop("DeadLetterErrorDescription", None))
    return reason, description or error.description, changes


def _changes(annotations: Mapping[object, object]) -> dict[str, object]:
    return {str(name): value for name, value in annotations.items()}


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
