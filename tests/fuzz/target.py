"""What the fuzzer is given, and what all of it has to hold."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        run: what is to hold for any bytes.
        seeds: what it reads, for the fuzzer to begin with.
    """

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def brief(error: Exception) -> None:
    """Hold that a refusal is one short line."""
    assert len(str(error)) < 300
    assert str(error).isprintable()
