"""Convert AMQP values to SQL values, and back.

Source: AMQP 1.0, part 1: 1.6 type definitions. The .NET client sends three of its types
        as described types: com.microsoft:timespan, datetime-offset, uri.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bridge.simulator.sql.errors import EvaluationError
from bridge.simulator.sql.operators import LEAST_INT, MOST_INT, Value
from bridge.simulator.wire.values import (
    Byte,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Int32,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TIMESPAN = "com.microsoft:timespan"
_URI = "com.microsoft:uri"
_UNSIGNED: Mapping[type, int] = {UByte: 8, UShort: 16, UInt: 32, ULong: 64}
_BITS: Mapping[type, int] = {**_UNSIGNED, Byte: 8, Short: 16, Int32: 32}
_DECIMALS = (Decimal32, Decimal64, Decimal128)


def to_value(sent: object) -> Value:
    """Return an AMQP value as a SQL value.

    A value that SQL cannot represent, e.g. a decimal, becomes bytes. So it exists, but
    equals no SQL literal.
    """
    if isinstance(sent, Timestamp):
        return _moment(timedelta(milliseconds=int(sent)))
    if isinstance(sent, _DECIMALS):
        return repr(sent).encode()
    if isinstance(sent, Described):
        return _described(str(sent.descriptor), sent.value)
    for kind in (bool, int, float, str):
        if isinstance(sent, kind):
            found: Value = kind(sent)
            return found
    if isinstance(sent, UUID | datetime | timedelta | bytes | None):
        return sent
    return repr(sent).encode()


def from_value(value: Value, before: object) -> object:
    """Return a SQL value as an AMQP value.

    Args:
        value: the SQL value.
        before: the AMQP value that it replaces. The result has the same type if the new
            value fits into it.

    Raises:
        EvaluationError: AMQP cannot represent the value.
    """
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        ticks = value // timedelta(microseconds=1) * 10
        if not LEAST_INT <= ticks <= MOST_INT:
            raise EvaluationError("a duration beyond 64 bits")
        return Described(Symbol(_TIMESPAN), ticks)
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int) and isinstance(before, int | float):
        return _as_before(value, before)
    return value


def _as_before(value: int, before: float) -> object:
    if isinstance(before, float):
        return type(before)(value)
    bits = _BITS.get(type(before), 0)
    least = 0 if type(before) in _UNSIGNED else -(2 ** (bits - 1))
    most = 2**bits - 1 if type(before) in _UNSIGNED else 2 ** (bits - 1) - 1
    return type(before)(value) if bits and least <= value <= most else value


def _moment(since: timedelta) -> Value:
    try:
        return _EPOCH + since
    except OverflowError as error:
        raise EvaluationError("a time beyond the year 9999") from error


def _described(name: str, value: object) -> Value:
    if isinstance(value, str) and name == _URI:
        return str(value)
    if isinstance(value, int) and name in _OF_TICKS:
        return _OF_TICKS[name](value)
    return repr(value).encode()


def _timespan(ticks: int) -> Value:
    return timedelta(microseconds=ticks // 10)


def _offset_time(ticks: int) -> Value:
    return _moment(timedelta(microseconds=(ticks - _TICKS_AT_EPOCH) // 10))


_OF_TICKS: Mapping[str, Callable[[int], Value]] = {
    _TIMESPAN: _timespan,
    "com.microsoft:datetime-offset": _offset_time,
}
