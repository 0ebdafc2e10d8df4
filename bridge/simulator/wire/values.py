"""The types of AMQP values that Python lacks, and the errors of AMQP.

A value that was decoded is encoded with the same AMQP type. Therefore each number type
of AMQP is a class here; its values compare and hash like plain numbers.

    AMQP                      Python
    null, boolean             None, bool
    long, double              int, float
    ubyte … uint, byte … int  UByte, UShort, UInt, ULong, Byte, Short, Int32
    float, decimals           Float32, Decimal32, Decimal64, Decimal128
    char, timestamp, uuid     Char, Timestamp (milliseconds since the epoch), UUID
    string, symbol, binary    str, Symbol, bytes
    list, map, array          list, dict, Array
    a described value         Described

Source: AMQP 1.0, part 1: types.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field


class UByte(int):
    """An unsigned integer of 8 bits."""

    __slots__ = ()


class UShort(int):
    """An unsigned integer of 16 bits."""

    __slots__ = ()


class UInt(int):
    """An unsigned integer of 32 bits."""

    __slots__ = ()


class ULong(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class Byte(int):
    """A signed integer of 8 bits."""

    __slots__ = ()


class Short(int):
    """A signed integer of 16 bits."""

    __slots__ = ()


class Int32(int):
    """A signed integer of 32 bits; a plain int has 64."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the epoch."""

    __slots__ = ()


class Float32(float):
    """A number of 32 bits; a plain float has 64."""

    __slots__ = ()


class Decimal32(bytes):
    """A decimal number of 32 bits, as its 4 bytes."""

    __slots__ = ()


class Decimal64(bytes):
    """A decimal number of 64 bits, as its 8 bytes."""

    __slots__ = ()


class Decimal128(bytes):
    """A decimal number of 128 bits, as its 16 bytes."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class Symbol(str):
    """A name from a defined set, in ASCII."""

    __slots__ = ()


class Described(Struct, frozen=True):
    """A value with a descriptor that says what it means."""

    descriptor: object
    value: object


class Array(Struct, frozen=True):
    """Values of one type.

    Attributes:
        code: the format code of each element, e.g. 0x81 for longs. Texts, binaries,
            lists and maps have two codes; this is the code of the long form.
        items: the elements.
        descriptors: the descriptors of every element, the outermost first.
    """

    code: int
    items: tuple[object, ...]
    descriptors: tuple[object, ...] = ()

    def __iter__(self) -> Iterator[object]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


WIDE = {0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0}
"""Format codes of short forms, with the code of the long form of the same type."""


# -- errors: conditions, and the exceptions for invalid bytes and values ---------------

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
ILLEGAL_STATE = "amqp:illegal-state"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"


class AmqpError(Struct, frozen=True):
    """An error as AMQP sends it.

    Attributes:
        condition: the error condition.
        description: a sentence for people.
        info: more facts. Encoders always send at least one entry, because some clients
            read the third field of an error without checking that it is there.
    """

    condition: str
    description: str | None = None
    info: Mapping[object, object] = field(default_factory=dict)


class WireError(Exception):
    """Bytes that break the protocol: the connection has to be closed.

    Attributes:
        condition: the AMQP error condition.
        description: what is wrong, and what is allowed.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(WireError):
    """Bytes that are not an AMQP value."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)


class EncodeError(ValueError):
    """A value that AMQP cannot represent."""
