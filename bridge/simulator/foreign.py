"""Parse JSON from outside into typed values; an error is one sentence."""

from typing import Final, TypeVar

import msgspec
import orjson

from bridge.simulator.errors import BadInputError

DEEPEST: Final = 100
"""How many levels JSON from outside may have.

orjson reads 1024 levels, but writes only 254, and a function that calls itself for each
level fails before 1000. No message, card or document of the real services is deeper.
"""

T = TypeVar("T")


class Input(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
):
    """A JSON object from outside; unknown members are refused."""


def parse(body: bytes, shape: type[T]) -> T:
    """Return ``body`` as a value of type ``shape``.

    A shape with values of any type needs ``load_object``, which limits their depth.

    Raises:
        BadInputError: it is not of this type; the text names the place.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(str(error)) from error


def load(body: bytes | str) -> object:
    """Return the value of ``body``, which may be walked and written again.

    Raises:
        BadInputError: it is not JSON, or has more than ``DEEPEST`` levels.
    """
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInputError(f"this is no JSON: {error}") from error
    check_depth(value)
    return value


def load_object(body: bytes) -> dict[str, object]:
    """Return the JSON object in ``body``.

    Raises:
        BadInputError: it is not a JSON object, or has more than ``DEEPEST`` levels.
    """
    value = parse(body, dict[str, object])
    check_depth(value)
    return value


def load_or_text(body: bytes) -> object:
    """Return the value of ``body``, or its text if ``load`` refuses it."""
    try:
        return load(body)
    except BadInputError:
        return body.decode(errors="replace")


def check_depth(value: object) -> None:
    """Check the depth of a JSON value.

    Raises:
        BadInputError: it has more than ``DEEPEST`` levels.
    """
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    if any(isinstance(each, (dict, list)) for each in level):
        raise BadInputError(f"this is nested more than {DEEPEST} levels deep")
