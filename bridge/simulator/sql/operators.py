"""The operators of SQL expressions, applied to values of messages.

Values:  None is both NULL and unknown. The other types are bool, int (64 bits), float,
         str, UUID, bytes, datetime (UTC) and timedelta.
Rules:   as in C#, the quotient of two whole numbers is whole, rounded towards zero.
         Texts are compared by code points, with regard to case.
         Values of different types are not equal, and have no order.
Source:  Azure Service Bus, subscription rule SQL filter syntax: operator binding
         semantics, property evaluation semantics.
"""

import math
import operator
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

Value = None | bool | int | float | str | bytes | UUID | datetime | timedelta
Truth = bool | None

MOST_INT = 2**63 - 1
LEAST_INT = -(2**63)

_EQUALITY: Mapping[str, bool] = {"=": True, "<>": False, "!=": False}
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a text"),
    (datetime, "a time"),
    (timedelta, "a duration"),
    (UUID, "a UUID"),
    (bytes, "bytes"),
)
_ORDERED = {"a number", "a text", "a time", "a duration"}


def kind_of(value: Value) -> str:
    """Return the type of a value in words."""
    return next((kind for types, kind in _KINDS if isinstance(value, types)), "null")


def compare(sign: str, left: Value, right: Value) -> Truth:
    """Compare two values; None: one of them is unknown.

    Raises:
        EvaluationError: the values have no order.
    """
    if left is None or right is None:
        return None
    kinds = kind_of(left), kind_of(right)
    if (wanted := _EQUALITY.get(sign)) is not None:
        return (kinds[0] == kinds[1] and left == right) is wanted
    if kinds[0] != kinds[1] or kinds[0] not in _ORDERED:
        raise EvaluationError(f"{kinds[0]} {sign} {kinds[1]} has no answer")
    return _ORDER[sign](left, right)


def calculate(sign: str, left: Value, right: Value) -> Value:
    """Apply an arithmetic operator; None: an operand is unknown.

    Raises:
        EvaluationError: the operator does not allow these types, or the result is
            undefined or too large.
    """
    if left is None or right is None:
        return None
    try:
        if _is_number(left) and _is_number(right):
            return _of_numbers(sign, left, right)
        if sign in _OTHERS and (type(left), type(right)) in _OTHERS[sign]:
            return _SIGNS[sign](left, right)
    except ZeroDivisionError as error:
        text = f"{left!r} {sign} {right!r}: division by zero"
        raise EvaluationError(text) from error
    except ArithmeticError as error:
        raise EvaluationError(f"{left!r} {sign} {right!r}: {error}") from error
    raise EvaluationError(f"{kind_of(left)} {sign} {kind_of(right)} has no value")


def negate(value: Value) -> Value:
    """Return the value with the opposite sign; None: the value is unknown.

    Raises:
        EvaluationError: the value is not a number or duration.
    """
    if isinstance(value, timedelta):
        return -value
    return calculate("-", 0, value)


def is_like(text: Value, pattern: Value, escape: Value) -> Truth:
    """Return whether a text matches a LIKE pattern; None: an argument is unknown.

    Args:
        text: the text.
        pattern: % stands for any characters, _ for one.
        escape: the character after it stands for itself; "": there is no escape.

    Raises:
        EvaluationError: an argument is not a text, or the escape has several
            characters.
    """
    if text is None or pattern is None or escape is None:
        return None
    if not (
        isinstance(text, str) and isinstance(pattern, str) and isinstance(escape, str)
    ):
        kinds = " and ".join(kind_of(each) for each in (text, pattern))
        raise EvaluationError(f"LIKE compares texts, not {kinds}")
    if len(escape) > 1:
        raise EvaluationError(f"ESCAPE takes one character, not {escape!r}")
    parts = _parts(pattern, escape)
    return parts is not None and _fits(text, parts)


_ANY_TEXT = "any text"
_ANY_CHARACTER = "any character"


def _parts(pattern: str, escape: str) -> list[tuple[str, str]] | None:
    """Return the pattern as (meaning, character); None: it ends with an escape."""
    found = list[tuple[str, str]]()
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                return None
            found.append(("itself", following))
        else:
            meaning = {"%": _ANY_TEXT, "_": _ANY_CHARACTER}.get(character, "itself")
            found.append((meaning, character))
    return found


def _fits(text: str, parts: list[tuple[str, str]]) -> bool:
    # Backtracks only to the last %. The time grows with the product of both lengths at
    # most; a regular expression can need exponential time.
    place = part = 0
    retry_part, retry_place = -1, 0
    while place < len(text):
        meaning, character = parts[part] if part < len(parts) else ("", "")
        if meaning == _ANY_TEXT:
            retry_part, retry_place = part, place
            part += 1
        elif meaning == _ANY_CHARACTER or (meaning and character == text[place]):
            part, place = part + 1, place + 1
        elif retry_part >= 0:
            retry_place += 1
            part, place = retry_part + 1, retry_place
        else:
            return False
    return all(meaning == _ANY_TEXT for meaning, _ in parts[part:])


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_numbers(sign: str, left: Any, right: Any) -> Value:
    if isinstance(left, float) or isinstance(right, float):
        return _FLOATING[sign](float(left), float(right))
    found = _WHOLE[sign](left, right)
    if not LEAST_INT <= found <= MOST_INT:
        raise EvaluationError(f"{left} {sign} {right} does not fit into 64 bits")
    return found


def _whole_quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _whole_rest(left: int, right: int) -> int:
    return left - right * _whole_quotient(left, right)


def _quotient(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _rest(left: float, right: float) -> float:
    is_number = right != 0 and not math.isinf(left)
    return math.fmod(left, right) if is_number else math.nan


_SIGNS: Mapping[str, Callable[..., Value]] = {"+": operator.add, "-": operator.sub}
_WHOLE: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _whole_quotient,
    "%": _whole_rest,
}
_FLOATING: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _rest,
}
_OTHERS: Mapping[str, set[tuple[type, type]]] = {
    "+": {
        (str, str),
        (datetime, timedelta),
        (timedelta, datetime),
        (timedelta, timedelta),
    },
    "-": {(datetime, datetime), (datetime, timedelta), (timedelta, timedelta)},
}


# -- The errors of SQL filters and actions ---------------------------------------------


class SqlSyntaxError(ValueError):
    """The text of a filter or action is invalid.

    Attributes:
        what: the error, without its position.
        position: the number of the character, from 1.
    """

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at character {position}")
        self.what = what
        self.position = position


class EvaluationError(Exception):
    """A filter or action cannot be applied to a message, because of its values."""
