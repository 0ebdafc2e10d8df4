"""The hash of ids: canonical JSON, so that anybody can compute it."""

import hashlib

import pytest
from hypothesis import given

from bridge.events.cloudevent import hash32
from tests.support.strategies import JSON_VALUES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["a", None, 1], '["a",null,1]'),
        ({"b": 1, "a": {"d": 1, "c": []}}, '{"a":{"c":[],"d":1},"b":1}'),
        ("Wärtung \N{GRINNING FACE}", '"Wärtung \N{GRINNING FACE}"'),
        ('a\nb"\\/\x00', r'"a\nb\"\\/' + r'\u0000"'),
        ([1.0, 1, True, 1e22], "[1.0,1,true,1e+22]"),
    ],
)
def test_hash_is_of_sorted_json_without_spaces_in_utf_8(
    value: object, text: str
) -> None:
    assert hash32(value) == hashlib.sha256(text.encode()).hexdigest()[:32]


@given(JSON_VALUES)
def test_hash_of_anything_is_32_hex_digits(value: object) -> None:
    found = hash32(value)

    assert len(found) == 32
    assert int(found, 16) >= 0
    assert hash32(value) == found
