"""The states of a delivery, and the errors that they contain.

Source: AMQP 1.0, part 3: 3.4 delivery state; part 2: 2.8.14 error; part 4: 4.5.5
        declared, 4.5.8 transactional state.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

from msgspec import Struct, field

from bridge.simulator.wire.values import (
    INVALID_FIELD,
    AmqpError,
    Described,
    Symbol,
    UInt,
    ULong,
    WireError,
)

_RECEIVED, _ACCEPTED, _REJECTED, _RELEASED, _MODIFIED = range(0x23, 0x28)
_DECLARED, _TRANSACTIONAL = 0x33, 0x34
_ERROR = 0x1D
_NAMES = {
    "amqp:received:list": _RECEIVED,
    "amqp:accepted:list": _ACCEPTED,
    "amqp:rejected:list": _REJECTED,
    "amqp:released:list": _RELEASED,
    "amqp:modified:list": _MODIFIED,
    "amqp:declared:list": _DECLARED,
    "amqp:transactional-state:list": _TRANSACTIONAL,
    "amqp:error:list": _ERROR,
}


class Accepted(Struct, frozen=True):
    """The receiver has accepted the message."""


class Rejected(Struct, frozen=True):
    """The receiver found the message invalid."""

    error: AmqpError | None = None


class Released(Struct, frozen=True):
    """The receiver returns the message unprocessed and unchanged."""


class Modified(Struct, frozen=True):
    """The receiver returns the message, changed.

    Attributes:
        failed: whether this counts as a failed delivery.
        undeliverable: whether the message must not come to this receiver again.
        annotations: added to the message annotations.
    """

    failed: bool = False
    undeliverable: bool = False
    annotations: Mapping[object, object] = field(default_factory=dict)


Outcome = Accepted | Rejected | Released | Modified


class Received(Struct, frozen=True):
    """The receiver has a part of the message. This is not an outcome yet."""


class Declared(Struct, frozen=True):
    """The answer to the declaration of a transaction."""

    txn_id: bytes


class Transactional(Struct, frozen=True):
    """A state that belongs to a transaction.

    Attributes:
        txn_id: the transaction.
        outcome: what becomes of the message if the transaction is committed; None: the
            message is sent in the transaction.
    """

    txn_id: bytes
    outcome: Outcome | None = None


class Unknown(Struct, frozen=True):
    """A state that an extension of AMQP defines, e.g. that of transactions."""

    descriptor: object


State = Outcome | Received | Declared | Transactional | Unknown


def read_state(value: object) -> State | None:
    """Return the delivery state in a decoded value; None: the value is null.

    Raises:
        WireError: the value is not a valid state.
    """
    if value is None:
        return None
    code, fields = _parts(value, "a delivery state")
    reader = _STATES.get(code)
    return Unknown(code) if reader is None else reader(fields)


def write_state(state: State) -> Described:
    """Return a delivery state as a value to encode."""
    match state:
        case Accepted():
            return Described(ULong(_ACCEPTED), [])
        case Released():
            return Described(ULong(_RELEASED), [])
        case Rejected(error):
            return Described(
                ULong(_REJECTED), [] if error is None else [write_error(error)]
            )
        case Modified(failed, undeliverable, annotations):
            fields: list[object] = [failed, undeliverable]
            return Described(
                ULong(_MODIFIED), [*fields, annotations] if annotations else fields
            )
        case Declared() | Transactional():
            return _write_transaction(state)
        case Received() | Unknown():
            return _write_other(state)


def _write_other(state: Received | Unknown) -> Described:
    if isinstance(state, Received):
        return Described(ULong(_RECEIVED), [UInt(0), ULong(0)])
    return Described(state.descriptor, [])


def _write_transaction(state: Declared | Transactional) -> Described:
    if isinstance(state, Declared):
        return Described(ULong(_DECLARED), [state.txn_id])
    inner = None if state.outcome is None else write_state(state.outcome)
    return Described(ULong(_TRANSACTIONAL), [state.txn_id, inner])


def read_error(value: object) -> AmqpError | None:
    """Return the error in a decoded value; None: the value is null.

    Raises:
        WireError: the value is not a valid error.
    """
    if value is None:
        return None
    code, fields = _parts(value, "an error")
    condition, description, info = (_at(fields, place) for place in range(3))
    if code != _ERROR or not isinstance(condition, str):
        raise WireError(INVALID_FIELD, "an error has a condition, which is a symbol")
    return AmqpError(
        str(condition),
        description if isinstance(description, str) else None,
        info if isinstance(info, dict) else {},
    )


def write_error(error: AmqpError) -> Described:
    """Return an error as a value to encode, with all of its three fields."""
    info = error.info or {Symbol("com.microsoft:tracking-id"): "local"}
    return Described(
        ULong(_ERROR), [Symbol(error.condition), error.description or "", info]
    )


def _parts(value: object, name: str) -> tuple[object, list[object]]:
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise WireError(INVALID_FIELD, f"{name} is a described list")
    code = value.descriptor
    return _NAMES.get(code, code) if isinstance(code, str) else code, value.value


def _at(fields: list[object], place: int) -> object:
    return fields[place] if place < len(fields) else None


def _read_modified(fields: list[object]) -> State:
    annotations = _at(fields, 2)
    return Modified(
        failed=_at(fields, 0) is True,
        undeliverable=_at(fields, 1) is True,
        annotations=annotations if isinstance(annotations, dict) else {},
    )


def _read_transactional(fields: list[object]) -> State:
    outcome = read_state(_at(fields, 1))
    if not isinstance(outcome, Accepted | Rejected | Released | Modified | None):
        raise WireError(INVALID_FIELD, "the outcome in a transaction is no outcome")
    return Transactional(_txn_id(fields), outcome)


def _txn_id(fields: list[object]) -> bytes:
    found = _at(fields, 0)
    if not isinstance(found, bytes):
        raise WireError(INVALID_FIELD, "a transaction has an id, which is a binary")
    return found


_STATES: Mapping[object, Callable[[list[object]], State]] = {
    _RECEIVED: lambda _: Received(),
    _ACCEPTED: lambda _: Accepted(),
    _REJECTED: lambda fields: Rejected(read_error(_at(fields, 0))),
    _RELEASED: lambda _: Released(),
    _MODIFIED: _read_modified,
    _DECLARED: lambda fields: Declared(_txn_id(fields)),
    _TRANSACTIONAL: _read_transactional,
}


# -- The delivery of one message, from the client or to the client ---------------------


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
