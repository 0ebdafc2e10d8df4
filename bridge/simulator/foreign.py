"""Parse JSON from outside into typed values; an error is one sentence."""

from typing import TypeVar

import msgspec

from bridge.simulator.errors import BadInputError

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

    Raises:
        BadInputError: it is not of this type; the text names the place.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(str(error)) from error
