"""Values that are nested very deep, as text of JSON.

orjson reads 1024 levels and writes 254; json, and each function that calls itself for
each level, fail below 1000 in all.
"""

import json
from collections.abc import Callable

import pytest

HERE = "@"  # stands for the nested value


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"type":' * depth + "1" + "}" * depth


def holding(value: object, nested: str) -> bytes:
    """Return a value as JSON, with ``nested`` in each place of ``HERE``."""
    return json.dumps(value).replace(f'"{HERE}"', nested).encode()


Nest = Callable[[int], str]
each_depth = pytest.mark.parametrize(
    ("depth", "nest"),
    [
        (90, lists),
        (130, objects),
        (500, lists),
        (995, objects),
        (1010, lists),
        (100_000, lists),
    ],
)
