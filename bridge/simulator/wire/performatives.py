"""What frames say: the nine performatives of AMQP and the five of SASL.

``read`` makes one of the body of a frame, ``write`` a body of one. Each field is
checked against its type, so that what follows need not look again.

Source: AMQP 1.0, part 2: 2.7 performatives; part 5: 5.3.3 security frame bodies.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.errors import INVALID_FIELD, AmqpError, WireError
from bridge.simulator.wire.fields import (
    ANYTHING,
    BINARY,
    ERROR,
    FLAG,
    MAPPING,
    REQUIRED,
    STATE,
    SYMBOLS,
    TEXT,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Kind,
    of,
)
from bridge.simulator.wire.outcomes import State
from bridge.simulator.wire.values import Described, ULong

ANY_FRAME_BYTES = 2**32 - 1
ANY_CHANNEL = 2**16 - 1

SETTLED = 1
"""The settle mode of a sender that sends all messages settled."""


@dataclass(slots=True, kw_only=True)
class Open:
    """Opens a connection."""

    CODE: ClassVar[int] = 0x10
    container_id: str = of(TEXT, REQUIRED)
    hostname: str | None = of(TEXT)
    max_frame_size: int = of(UINT, ANY_FRAME_BYTES)
    channel_max: int = of(USHORT, ANY_CHANNEL)
    idle_time_out: int | None = of(UINT)
    outgoing_locales: tuple[str, ...] | None = of(SYMBOLS)
    incoming_locales: tuple[str, ...] | None = of(SYMBOLS)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    properties: Mapping[object, object] | None = of(MAPPING)


@dataclass(slots=True, kw_only=True)
class Begin:
    """Begins a session."""

    CODE: ClassVar[int] = 0x11
    remote_channel: int | None = of(USHORT)
    next_outgoing_id: int = of(UINT, REQUIRED)
    incoming_window: int = of(UINT, REQUIRED)
    outgoing_window: int = of(UINT, REQUIRED)
    handle_max: int = of(UINT, 2**32 - 1)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    properties: Mapping[object, object] | None = of(MAPPING)


@dataclass(slots=True, kw_only=True)
class Attach:
    """Attaches a link.

    Attributes:
        is_receiver: whether its sender receives on the link.
        source: as it came, a described list.
        target: likewise.
    """

    CODE: ClassVar[int] = 0x12
    name: str = of(TEXT, REQUIRED)
    handle: int = of(UINT, REQUIRED)
    is_receiver: bool = of(FLAG, REQUIRED)
    snd_settle_mode: int = of(UBYTE, 2)
    rcv_settle_mode: int = of(UBYTE, 0)
    source: object = of(ANYTHING)
    target: object = of(ANYTHING)
    unsettled: Mapping[object, object] | None = of(MAPPING)
    incomplete_unsettled: bool = of(FLAG, False)  # noqa: FBT003 - the default
    initial_delivery_count: int | None = of(UINT)
    max_message_size: int | None = of(ULONG)
    offered_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] | None = of(SYMBOLS)
    properties: Mapping[object, object] | None = of(MAPPING)


@dataclass(slots=True, kw_only=True)
class Flow:
    """Says how much may be sent, on a session or on a link of it."""

    CODE: ClassVar[int] = 0x13
    next_incoming_id: int | None = of(UINT)
    incoming_window: int = of(UINT, REQUIRED)
    next_outgoing_id: int = of(UINT, REQUIRED)
    outgoing_window: int = of(UINT, REQUIRED)
    handle: int | None = of(UINT)
    delivery_count: int | None = of(UINT)
    link_credit: int | None = of(UINT)
    available: int | None = of(UINT)
    drain: bool = of(FLAG, False)  # noqa: FBT003 - the default
    echo: bool = of(FLAG, False)  # noqa: FBT003 - likewise
    properties: Mapping[object, object] | None = of(MAPPING)


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Carries a message, or a part of it."""

    CODE: ClassVar[int] = 0x14
    handle: int = of(UINT, REQUIRED)
    delivery_id: int | None = of(UINT)
    delivery_tag: bytes | None = of(BINARY)
    message_format: int | None = of(UINT)
    settled: bool | None = of(FLAG)
    more: bool = of(FLAG, False)  # noqa: FBT003 - the default
    rcv_settle_mode: int | None = of(UBYTE)
    state: State | None = of(STATE)
    resume: bool = of(FLAG, False)  # noqa: FBT003 - likewise
    aborted: bool = of(FLAG, False)  # noqa: FBT003 - likewise
    batchable: bool = of(FLAG, False)  # noqa: FBT003 - likewise


@dataclass(slots=True, kw_only=True)
class Disposition:
    """Says what has become of deliveries.

    Attributes:
        is_receiver: whether its sender has received them.
        last: the last of them; None: there is only the first.
    """

    CODE: ClassVar[int] = 0x15
    is_receiver: bool = of(FLAG, REQUIRED)
    first: int = of(UINT, REQUIRED)
    last: int | None = of(UINT)
    settled: bool = of(FLAG, False)  # noqa: FBT003 - the default
    state: State | None = of(STATE)
    batchable: bool = of(FLAG, False)  # noqa: FBT003 - likewise


@dataclass(slots=True, kw_only=True)
class Detach:
    """Detaches a link."""

    CODE: ClassVar[int] = 0x16
    handle: int = of(UINT, REQUIRED)
    closed: bool = of(FLAG, False)  # noqa: FBT003 - the default
    error: AmqpError | None = of(ERROR)


@dataclass(slots=True, kw_only=True)
class End:
    """Ends a session."""

    CODE: ClassVar[int] = 0x17
    error: AmqpError | None = of(ERROR)


@dataclass(slots=True, kw_only=True)
class Close:
    """Closes a connection."""

    CODE: ClassVar[int] = 0x18
    error: AmqpError | None = of(ERROR)


@dataclass(slots=True, kw_only=True)
class SaslMechanisms:
    """Offers ways to sign in."""

    CODE: ClassVar[int] = 0x40
    mechanisms: tuple[str, ...] = of(SYMBOLS, REQUIRED)


@dataclass(slots=True, kw_only=True)
class SaslInit:
    """Chooses a way to sign in."""

    CODE: ClassVar[int] = 0x41
    mechanism: str = of(TEXT, REQUIRED)
    initial_response: bytes | None = of(BINARY)
    hostname: str | None = of(TEXT)


@dataclass(slots=True, kw_only=True)
class SaslChallenge:
    """Asks for more."""

    CODE: ClassVar[int] = 0x42
    challenge: bytes = of(BINARY, REQUIRED)


@dataclass(slots=True, kw_only=True)
class SaslResponse:
    """Answers a challenge."""

    CODE: ClassVar[int] = 0x43
    response: bytes = of(BINARY, REQUIRED)


@dataclass(slots=True, kw_only=True)
class SaslOutcome:
    """Ends the signing in."""

    CODE: ClassVar[int] = 0x44
    code: int = of(UBYTE, REQUIRED)


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


@dataclass(frozen=True, slots=True)
class _Form:
    """How a performative is read and written: its fields in their order."""

    make: Callable[..., Performative]
    name: str
    places: tuple[tuple[str, Kind, object], ...]
    required: tuple[str, ...]


def _form(kind: type[Performative]) -> _Form:
    found = fields(kind)
    return _Form(
        make=kind,
        name=kind.__name__,
        places=tuple((f.name, f.metadata["kind"], f.default) for f in found),
        required=tuple(f.name for f in found if f.default is MISSING),
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
        WireError: there is none, or a field of it is wrong; it names the field.
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
    """Return the body of a frame that says this."""
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
