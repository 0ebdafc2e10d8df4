"""The line numbers of the keys of a TOML file."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.configuration.toml_file import Keys, TomlFile, key_lines

EXAMPLE = Path(__file__).parents[2] / "config" / "bridge.example.toml"


def lines(text: str) -> dict[Keys, int]:
    """Return the first line of each key."""
    return dict(reversed([*key_lines(text)]))


@pytest.mark.parametrize(
    ("text", "keys", "line"),
    [
        ("a = 1", ("a",), 1),
        ("# a = 1\r\n\r\na = 1\r\nb = 2", ("b",), 4),
        ('"a b" . c = 1', ("a b", "c"), 1),
        ("'' = 1", ("",), 1),
        (r'"\u00e4" = 1', ("ä",), 1),
        ("[a.b]\nc = 1", ("a", "b", "c"), 2),
        ("[[a]]\n[[a]]\n[a.b]\nc = 1", ("a", 1, "b", "c"), 4),
        ("[[a]]\n[[a.b]]\n[[a.b]]\nc = 1", ("a", 0, "b", 1, "c"), 4),
        ("[[ a ]] # [b]\nc = 1", ("a", 0, "c"), 2),
        ('a = """\n[x]\n\\"""\nb = 1"""\nb = 1', ("b",), 5),
        ('a = """"b"""""\nb = 1', ("b",), 2),
        ('a = """"""\nb = ""\nc = 1', ("c",), 3),
        ("a = '''\nb = 1'''''\nb = 1", ("b",), 3),
        ('a = "\\"#" # "\nb = 1', ("b",), 2),
        ("a = [\n  1, # ]\n  [2,\n 3],\n]\nb = 1", ("a", 1, 1), 4),
        ("a = [\n  1, # ]\n  [2,\n 3],\n]\nb = 1", ("b",), 6),
        ("a = [{b = 1}, {b = [{\nc = 2}]}]", ("a", 1, "b", 0, "c"), 2),
        ("a = {}\nb = []\nc = 1", ("c",), 3),
        ("a = 1979-05-27 07:32:00Z\nb = 1", ("b",), 2),
    ],
)
def test_key_stands_on_its_line(text: str, keys: Keys, line: int) -> None:
    assert lines(text)[keys] == line


def test_scan_of_invalid_toml_ends() -> None:
    for text in ("a", "a =", "a = [", "a = [1", "a = {", "[", "a = }", "a = [}"):
        with pytest.raises(ValueError, match="no "):
            lines(text)


KEYS = st.text(max_size=4)
VALUES = st.recursive(
    st.booleans() | st.integers(0, 99) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def written(value: object, join: str) -> str:
    """Write a value; lists with ``join`` between their items."""
    if isinstance(value, dict):
        pairs = (f"{quoted(k)} = {written(v, ' ')}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{join}" + "".join(f"{written(v, join)},{join}" for v in value) + "]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True).replace("\\/", "/")


def places(value: object, at: Keys) -> set[Keys]:
    """Return the places of all keys and items in parsed TOML."""
    found = set[Keys]()
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in pairs:
        found |= {(*at, key)} | places(item, (*at, key))
    return found


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.dictionaries(KEYS, st.lists(st.dictionaries(KEYS, VALUES), min_size=1)),
    st.sampled_from([" ", "\n", " # ] }\n\t", "\r\n"]),
)
def test_every_key_that_tomllib_reads_has_a_line(
    pairs: dict[str, object],
    tables: dict[str, list[dict[str, object]]],
    join: str,
) -> None:
    where = dict[Keys, int]()
    out = ["# a comment"]

    def add(table: dict[str, object], at: Keys) -> None:
        for key, value in table.items():
            where[*at, key] = "\n".join(out).count("\n") + 2
            out.append(f"{quoted(key)} = {written(value, join)}")

    add({key: value for key, value in pairs.items() if key not in tables}, ())
    for name, items in tables.items():
        for number, table in enumerate(items):
            where[name, number] = "\n".join(out).count("\n") + 2
            out.append(f"[[{quoted(name)}]]")
            add(table, (name, number))
    text = "\n".join(out)
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # a lone surrogate
        return

    found = lines(text)

    assert {keys: found[keys] for keys in where} == where
    missing = places(read, ()) - found.keys()
    assert {keys for keys in missing if len(keys) > 1} == set()


def test_every_key_of_the_example_has_a_line() -> None:
    file = TomlFile.read(EXAMPLE)
    texts = ["", *EXAMPLE.read_text(encoding="utf-8").splitlines()]

    for keys in places(file.tables, ()):
        if isinstance(keys[-1], str) and len(keys) > 1:
            line = lines(file.text)[keys]
            assert keys[-1] in texts[line], keys


def test_missing_place_has_the_line_of_its_table() -> None:
    text = "[imds]\n[[sinks]]\nname = 'a'\n[sinks.when]\n"
    file = TomlFile(tomllib.loads(text), text)

    assert file.line_of("imds.endpoint") == 1
    assert file.line_of("sinks.a.url") == 2
    assert file.line_of("sinks[0].url") == 2
    assert file.line_of("sinks.a.when.resources[3]") == 4
    assert file.line_of("log.level") is None
    assert file.line_of("") is None
