"""The content of frames: the nine performatives of AMQP and the five of SASL.

``read`` decodes the body of a frame, and ``write`` encodes one. ``read`` checks the
type of each field, so that later code need not check it again.

Source: AMQP 1.0, part 2: 2.7 performatives; part 5: 5.3.3 security frame bodies.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Struct
from msgspec.structs import fields

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.outcomes import (
    State,
    read_error,
    read_state,
    write_error,
    write_state,
)
from bridge.simulator.wire.values import (
    INVALID_FIELD,
    AmqpError,
    Array,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    WireError,
)

# -- The fields of performatives: how each is read, checked and written ----------------


class Kind(Struct, frozen=True):
    """The type of a field.

    Attributes:
        name: the type in words, for errors.
        read: converts a decoded value to the field; raises ValueError if it is invalid.
        write: converts the field to the value that is encoded.
    """

    name: str
    read: Callable[[object], Any]
    write: Callable[[Any], object]


def _number(bits: int, kind: Callable[[Any], object], name: str) -> Kind:
    most = 2**bits

    def read(value: object) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not 0 <= value < most:  # type: ignore[operator]  # a number
            raise ValueError
        return int(value)  # type: ignore[call-overload, no-any-return]  # a number

    return Kind(name, read, kind)


def _instance(
    kind: type, name: str, write: Callable[[Any], object] = lambda v: v
) -> Kind:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError  # noqa: TRY004 - the same error as for the wrong range
        return value

    return Kind(name, read, write)


def _symbols(value: object) -> tuple[Symbol, ...]:
    """Return symbols; AMQP sends a single one without an array."""
    found = value.items if isinstance(value, Array) else (value,)
    if not all(isinstance(one, str) for one in found):
        raise ValueError
    return tuple(Symbol(one) for one in found)


def _written(symbols: tuple[str, ...]) -> object:
    return Array(0xB3, tuple(map(Symbol, symbols)))


def _read_state(value: object) -> State | None:
    return read_state(value)


def _read_error(value: object) -> AmqpError | None:
    return read_error(value)


UBYTE = _number(8, UByte, "a number of 8 bits")
USHORT = _number(16, UShort, "a number of 16 bits")
UINT = _number(32, UInt, "a number of 32 bits")
ULONG = _number(64, ULong, "a number of 64 bits")
FLAG = _instance(bool, "a boolean")
TEXT = _instance(str, "a string", str)
BINARY = _instance(bytes, "a binary")
MAPPING = _instance(dict, "a map")
ANYTHING = _instance(object, "a value")
SYMBOLS = Kind("symbols", _symbols, _written)
STATE = Kind("a delivery state", _read_state, write_state)
ERROR = Kind("an error", _read_error, write_error)


# -- The content of frames: the nine performatives of AMQP and the five of SASL --------


ANY_FRAME_BYTES = 2**32 - 1
ANY_CHANNEL = 2**16 - 1

SETTLED = 1
"""The settle mode of senders that send each message settled."""


class Open(Struct, kw_only=True):
    """Opens a connection."""

    CODE: ClassVar[int] = 0x10
    container_id: Annotated[str, TEXT]
    hostname: Annotated[str | None, TEXT] = None
    max_frame_size: Annotated[int, UINT] = ANY_FRAME_BYTES
    channel_max: Annotated[int, USHORT] = ANY_CHANNEL
    idle_time_out: Annotated[int | None, UINT] = None
    outgoing_locales: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    incoming_locales: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Mapping[object, object] | None, MAPPING] = None


class Begin(Struct, kw_only=True):
    """Begins a session."""

    CODE: ClassVar[int] = 0x11
    remote_channel: Annotated[int | None, USHORT] = None
    next_outgoing_id: Annotated[int, UINT]
    incoming_window: Annotated[int, UINT]
    outgoing_window: Annotated[int, UINT]
    handle_max: Annotated[int, UINT] = 2**32 - 1
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Mapping[object, object] | None, MAPPING] = None


class Attach(Struct, kw_only=True):
    """Attaches a link.

    Attributes:
        is_receiver: whether the side that sends this Attach receives on the link.
        source: the described list, as it was received.
        target: the described list, as it was received.
    """

    CODE: ClassVar[int] = 0x12
    name: Annotated[str, TEXT]
    handle: Annotated[int, UINT]
    is_receiver: Annotated[bool, FLAG]
    snd_settle_mode: Annotated[int, UBYTE] = 2
    rcv_settle_mode: Annotated[int, UBYTE] = 0
    source: Annotated[object, ANYTHING] = None
    target: Annotated[object, ANYTHING] = None
    unsettled: Annotated[Mapping[object, object] | None, MAPPING] = None
    incomplete_unsettled: Annotated[bool, FLAG] = False
    initial_delivery_count: Annotated[int | None, UINT] = None
    max_message_size: Annotated[int | None, ULONG] = None
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Mapping[object, object] | None, MAPPING] = None


class Flow(Struct, kw_only=True):
    """Announces the window of a session, and the credit of a link if it names one."""

    CODE: ClassVar[int] = 0x13
    next_incoming_id: Annotated[int | None, UINT] = None
    incoming_window: Annotated[int, UINT]
    next_outgoing_id: Annotated[int, UINT]
    outgoing_window: Annotated[int, UINT]
    handle: Annotated[int | None, UINT] = None
    delivery_count: Annotated[int | None, UINT] = None
    link_credit: Annotated[int | None, UINT] = None
    available: Annotated[int | None, UINT] = None
    drain: Annotated[bool, FLAG] = False
    echo: Annotated[bool, FLAG] = False
    properties: Annotated[Mapping[object, object] | None, MAPPING] = None


class Transfer(Struct, kw_only=True):
    """Carries a message, or a part of it."""

    CODE: ClassVar[int] = 0x14
    handle: Annotated[int, UINT]
    delivery_id: Annotated[int | None, UINT] = None
    delivery_tag: Annotated[bytes | None, BINARY] = None
    message_format: Annotated[int | None, UINT] = None
    settled: Annotated[bool | None, FLAG] = None
    more: Annotated[bool, FLAG] = False
    rcv_settle_mode: Annotated[int | None, UBYTE] = None
    state: Annotated[State | None, STATE] = None
    resume: Annotated[bool, FLAG] = False
    aborted: Annotated[bool, FLAG] = False
    batchable: Annotated[bool, FLAG] = False


class Disposition(Struct, kw_only=True):
    """Announces the state of deliveries.

    Attributes:
        is_receiver: whether the side that sends this is the receiver of the deliveries.
        last: the id of the last delivery; None: there is only the first.
    """

    CODE: ClassVar[int] = 0x15
    is_receiver: Annotated[bool, FLAG]
    first: Annotated[int, UINT]
    last: Annotated[int | None, UINT] = None
    settled: Annotated[bool, FLAG] = False
    state: Annotated[State | None, STATE] = None
    batchable: Annotated[bool, FLAG] = False


class Detach(Struct, kw_only=True):
    """Detaches a link."""

    CODE: ClassVar[int] = 0x16
    handle: Annotated[int, UINT]
    closed: Annotated[bool, FLAG] = False
    error: Annotated[AmqpError | None, ERROR] = None


class End(Struct, kw_only=True):
    """Ends a session."""

    CODE: ClassVar[int] = 0x17
    error: Annotated[AmqpError | None, ERROR] = None


class Close(Struct, kw_only=True):
    """Closes a connection."""

    CODE: ClassVar[int] = 0x18
    error: Annotated[AmqpError | None, ERROR] = None


class SaslMechanisms(Struct, kw_only=True):
    """Offers mechanisms for the sign-in."""

    CODE: ClassVar[int] = 0x40
    mechanisms: Annotated[tuple[str, ...], SYMBOLS]


class SaslInit(Struct, kw_only=True):
    """Chooses a mechanism for the sign-in."""

    CODE: ClassVar[int] = 0x41
    mechanism: Annotated[str, TEXT]
    initial_response: Annotated[bytes | None, BINARY] = None
    hostname: Annotated[str | None, TEXT] = None


class SaslChallenge(Struct, kw_only=True):
    """Requests more data from the client."""

    CODE: ClassVar[int] = 0x42
    challenge: Annotated[bytes, BINARY]


class SaslResponse(Struct, kw_only=True):
    """Answers a challenge."""

    CODE: ClassVar[int] = 0x43
    response: Annotated[bytes, BINARY]


class SaslOutcome(Struct, kw_only=True):
    """Ends the sign-in."""

    CODE: ClassVar[int] = 0x44
    code: Annotated[int, UBYTE]


AmqpPerformative = (
    Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
)
Performative = (
    AmqpPerformative
    | SaslMechanisms
    | SaslInit
    | SaslChallenge
    | SaslResponse
    | SaslOutcome
)


class _Form(Struct, frozen=True):
    """How a performative is decoded and encoded: its fields in their order."""

    make: Callable[..., Performative]
    name: str
    places: tuple[tuple[str, Kind, object], ...]
    required: tuple[str, ...]


def _form(kind: type[Performative]) -> _Form:
    found = fields(kind)
    return _Form(
        make=kind,
        name=kind.__name__,
        places=tuple((f.name, f.type.__metadata__[0], f.default) for f in found),
        required=tuple(f.name for f in found if f.required),
    )


_FORMS: Mapping[int, _Form] = {
    kind.CODE: _form(kind)
    for kind in (
        *(Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close),
        *(SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome),
    )
}
_NAMES = {
    f"amqp:{form.name.lower().replace('sasl', 'sasl-')}:list": code
    for code, form in _FORMS.items()
}


def read(body: bytes) -> tuple[Performative, int]:
    """Return the performative in a frame's body, and the offset of its payload.

    Raises:
        WireError: there is no performative, or a field of it is invalid. The error
            names the field.
    """
    value, end = decode_value(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise WireError(INVALID_FIELD, "a frame begins with a described list")
    code = value.descriptor
    form = _FORMS.get(_NAMES.get(code, -1) if isinstance(code, str) else _code(code))
    if form is None:
        raise WireError(INVALID_FIELD, f"there is no performative {code!r}")
    return _filled(form, value.value), end


def write(performative: Performative) -> bytes:
    """Return a performative as the body of a frame."""
    found: list[object] = []
    for name, kind, default in _FORMS[performative.CODE].places:
        value: Any = getattr(performative, name)
        found.append(None if value is None or value == default else kind.write(value))
    while found and found[-1] is None:
        found.pop()
    return encode_value(Described(ULong(performative.CODE), found))


def _code(descriptor: object) -> int:
    return descriptor if isinstance(descriptor, ULong) else -1


def _filled(form: _Form, values: list[object]) -> Performative:
    if len(values) > len(form.places):
        raise WireError(
            INVALID_FIELD,
            f"{form.name} has {len(form.places)} fields, and not {len(values)}",
        )
    found: dict[str, Any] = {}
    for (name, kind, _), value in zip(form.places, values, strict=False):
        if value is not None:
            try:
                found[name] = kind.read(value)
            except ValueError:
                raise WireError(
                    INVALID_FIELD, f"{name} of {form.name} has to be {kind.name}"
                ) from None
    for name in form.required:
        if name not in found:
            raise WireError(INVALID_FIELD, f"{name} of {form.name} is missing")
    return form.make(**found)
