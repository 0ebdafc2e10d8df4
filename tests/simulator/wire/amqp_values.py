"""Values of all AMQP types, for property tests, and what Proton calls them."""

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from bridge.simulator.wire.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int32,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=300)
NAME = st.text(st.characters(max_codepoint=127), max_size=300)

SIMPLE: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    LONG,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=300),
    st.uuids(),
    st.integers(0, 2**8 - 1).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**7), 2**7 - 1).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(allow_nan=False, width=32).map(Float32),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.characters(exclude_categories=["Cs"]).map(Char),
    NAME.map(Symbol),
)


def _arrays(code: int, element: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    found = st.lists(element, max_size=4)
    return found.map(lambda items: Array(code, tuple(items)))


ARRAYS: st.SearchStrategy[object] = st.one_of(
    _arrays(0x70, st.integers(0, 2**32 - 1).map(UInt)),
    _arrays(0x81, LONG),
    _arrays(0x83, LONG.map(Timestamp)),
    _arrays(0x98, st.uuids()),
    _arrays(0xB0, st.binary(max_size=300)),
    _arrays(0xB1, TEXT),
    _arrays(0xB3, NAME.map(Symbol)),
)


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return lists and maps of values."""
    lists = st.lists(inner, max_size=4)
    return lists | st.dictionaries(TEXT, inner, max_size=4)


PLAIN = st.recursive(SIMPLE | ARRAYS, nested, max_leaves=8)
"""What Proton decodes, too."""

ALL = st.recursive(
    SIMPLE | ARRAYS,
    lambda inner: (
        nested(inner)
        | st.builds(Described, NAME.map(Symbol) | st.just(ULong(7)), inner)
        | st.lists(st.lists(SIMPLE, max_size=3), min_size=1, max_size=3).map(
            lambda items: Array(0xD0, tuple(items))
        )
        | st.lists(ARRAYS, min_size=1, max_size=3).map(
            lambda items: Array(0xF0, tuple(items), (Symbol("a:list"),))
        )
    ),
    max_leaves=8,
)
"""All that AMQP has: described values in described ones, arrays of arrays ..."""


def typed(value: object) -> object:
    """Return a value with the type of each part: 1, True and UInt(1) are equal."""
    match value:
        case list():
            return list, [typed(one) for one in value]
        case dict():
            return dict, [(typed(key), typed(one)) for key, one in value.items()]
        case Described(descriptor, inner):
            return Described, typed(descriptor), typed(inner)
        case Array(code, items, descriptors):
            return code, [typed(one) for one in items], [typed(d) for d in descriptors]
        case float():
            return type(value), struct.pack(">d", value)  # -0.0 is not 0.0
        case _:
            return type(value), value


def from_proton(value: Any) -> object:
    """Return what Proton decoded, with our types."""
    convert = _CONVERT.get(type(value).__name__)
    return value if convert is None else convert(value)


def _array(value: Any) -> Array:
    return Array(_CODES[value.type], tuple(map(from_proton, value.elements)))


def _map(value: Any) -> dict[object, object]:
    return {from_proton(key): from_proton(one) for key, one in value.items()}


# By the numbers of Proton's types.
_CODES = {7: 0x70, 11: 0x81, 12: 0x83, 18: 0x98, 19: 0xB0, 20: 0xB1, 21: 0xB3}
_CONVERT: dict[str, Callable[[Any], object]] = {
    "memoryview": bytes,
    "list": lambda value: [from_proton(one) for one in value],
    "dict": _map,
    "Array": _array,
    "Described": lambda value: Described(
        from_proton(value.descriptor), from_proton(value.value)
    ),
    "decimal32": lambda value: Decimal32(int(value).to_bytes(4)),
    "decimal64": lambda value: Decimal64(int(value).to_bytes(8)),
    "decimal128": lambda value: Decimal128(bytes(value)),
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "byte": Byte,
    "short": Short,
    "int32": Int32,
    "timestamp": Timestamp,
    "float32": Float32,
    "char": Char,
    "symbol": Symbol,
}
