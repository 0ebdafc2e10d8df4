"""The fields of performatives: how each is read, checked and written."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.outcomes import (
    State,
    read_error,
    read_state,
    write_error,
    write_state,
)
from bridge.simulator.wire.values import Array, Symbol, UByte, UInt, ULong, UShort


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
