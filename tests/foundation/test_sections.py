"""From tables to sections: all faults at once, and never a secret in one."""

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.sections import FromEnvironment, Reader, Section
from bridge.foundation.values import (
    Address,
    Duration,
    Rate,
    Secret,
    unknown_placeholders,
)
from tests.support.strategies import JSON_VALUES

SECRET = "hunter2-is-my-secret"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Section, frozen=True, kw_only=True):
    depth: int
    wait: Duration = Duration(1)


class Outer(Section, frozen=True, kw_only=True):
    name: str = ""
    count: int = 1
    ratio: float = 1.0
    is_on: bool = False
    size: Literal["small", "large"] = "small"
    colours: tuple[Colour, ...] = ()
    labels: tuple[str, ...] = ()
    wait: Duration = Duration(5)
    token: Secret | None = None
    headers: dict[str, Address] | None = None
    inner: Inner | None = None

    def faults(self) -> Iterator[tuple[str, ...]]:
        if self.count > 10:
            yield "count", "must be at most 10"
        if self.ratio < 0:
            yield "ratio", "must not be negative"
        if self.name and self.token:
            yield "name", "is given beside a token"
        if 5 < self.count <= 10 and self.size == "small":
            yield "count", "is for large ones", "size"
        for key, value in (self.headers or {}).items():
            if "!" in value.reveal():
                yield f"headers.{key}", "must not shout"
        for index, label in enumerate(self.labels):
            if len(label) > 5:
                yield f"labels[{index}]", "is too long"


def read(table: object, **environ: str) -> tuple[Outer | None, list[str]]:
    reader = Reader("b.toml", environ)
    return reader.section(Outer, table, "outer"), [*reader.faults]


# -- durations -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (7, 7),
        (1.5, 1.5),
        ("7", 7),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("24h", 86400),
        ("7d", 604800),
        ("1.5h", 5400),
        (" 5 m ", 300),
    ],
)
def test_duration_is_seconds_or_text_with_a_unit(value: object, seconds: float) -> None:
    assert Duration.parse(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(-1, True, None, [], "", "s", "-5s", "5 w", "5S", "1e3", "1,5s", "5s 5s"),
        *(float("nan"), float("inf"), 10**400, "9" * 400, "99999999d"),
    ],
)
def test_duration_of_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a number of seconds or a string with a unit"):
        Duration.parse(value)


@given(JSON_VALUES)
def test_duration_of_anything_is_finite_or_refused(value: object) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= Duration.parse(value) <= 1e9


# -- sections ------------------------------------------------------------------


def test_table_becomes_a_section() -> None:
    table = {
        "name": "n",
        "ratio": 2,
        "size": "large",
        "colours": ["red"],
        "wait": "5m",
        "inner": {"depth": 3},
    }
    found, faults = read(table)

    assert faults == []
    assert found == Outer(
        name="n",
        ratio=2.0,
        size="large",
        colours=(Colour.RED,),
        wait=Duration(300),
        inner=Inner(depth=3),
    )


def test_empty_table_means_the_defaults() -> None:
    assert read({}) == (Outer(), [])


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"name": 5}, "outer.name: must be a string, not a whole number"),
        ({"count": "5"}, "outer.count: must be a whole number, not a string"),
        ({"count": 1.5}, "outer.count: must be a whole number, not a number"),
        ({"count": True}, "outer.count: must be a whole number, not true or false"),
        ({"is_on": 1}, "outer.is_on: must be true or false, not a whole number"),
        ({"size": "big"}, 'outer.size: must be one of "small", "large"'),
        ({"size": 5}, 'outer.size: must be one of "small", "large"'),
        ({"colours": "red"}, "outer.colours: must be a list, not a string"),
        ({"colours": ["red", "x"]}, 'outer.colours[1]: must be one of "red", "blue"'),
        ({"inner": 5}, "outer.inner: must be a table, not a whole number"),
        ({"inner": {}}, "outer.inner.depth: is missing"),
        ({"inner": {"depth": "x"}}, "outer.inner.depth: must be a whole number"),
        ({"wait": "soon"}, "outer.wait: must be a number of seconds or a string"),
        ({"wait": 10**400}, "outer.wait: must be a number of seconds or a string"),
        ({"token": 5}, 'outer.token: must be a string: "env:NAME"'),
        ({"token": ""}, 'outer.token: must be a string: "env:NAME"'),
        ({"count": 11}, "outer.count: must be at most 10"),
        ([], "outer: must be a table"),
        (None, "outer: must be a table"),
    ],
)
def test_fault_names_the_file_the_place_and_what_is_allowed(
    table: object, fault: str
) -> None:
    found, (text,) = read(table)

    assert found is None
    assert text.startswith(f"b.toml: {fault}")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("nmae", "did you mean 'name'?"),
        ("Size", "did you mean 'size'?"),
        ("header", "did you mean 'headers'?"),
        ("zzzzzzzz", "allowed are colours, count, headers, inner, is_on, labels, "),
    ],
)
def test_unknown_key_is_a_fault_that_names_the_nearest(key: str, hint: str) -> None:
    found, (text,) = read({key: 1})

    assert found is None
    assert text.startswith(f"b.toml: outer.{key}: unknown key; {hint}")


def test_all_faults_are_reported_at_once() -> None:
    table = {"nmae": 1, "count": "x", "size": 5, "inner": {"deep": 1}, "wait": -1}
    found, faults = read(table)

    assert found is None
    assert [fault.split(": ")[1] for fault in faults] == [
        "outer.nmae",
        "outer.count",
        "outer.size",
        "outer.wait",
        "outer.inner.deep",
        "outer.inner.depth",
    ]


def test_faults_of_the_whole_are_reported_beside_an_unknown_key() -> None:
    found, faults = read({"nmae": 1, "count": 11, "ratio": -1})

    assert found is None
    assert [fault.split(": ")[1] for fault in faults] == [
        "outer.nmae",
        "outer.count",
        "outer.ratio",
    ]


@pytest.mark.parametrize(
    ("table", "places"),
    [
        ({"size": 5, "count": 11, "ratio": -1}, ["size", "count", "ratio"]),
        ({"inner": {"depth": "x"}, "count": 11}, ["inner.depth", "count"]),
        ({"inner": {}, "count": 11}, ["inner.depth", "count"]),
        ({"inner": 5, "wait": "soon", "count": 11}, ["wait", "inner", "count"]),
        (
            {"headers": {"a": 5, "b": "no!"}, "labels": [5, "longer"]},
            ["labels[0]", "headers.a", "headers.b", "labels[1]"],
        ),
        ({"colours": ["red", 5], "count": 11}, ["colours[1]", "count"]),
    ],
)
def test_faults_of_the_whole_are_reported_beside_those_of_its_parts(
    table: dict[str, object], places: list[str]
) -> None:
    found, faults = read(table)

    assert found is None
    assert [f.removeprefix("b.toml: outer.").split(": ")[0] for f in faults] == places


@pytest.mark.parametrize(
    "table",
    [
        {"count": 10, "size": "big"},
        {"name": "n", "token": "env:GONE"},
        {"headers": {"a!": 5}},
        {"labels": [["longer"]]},
        {"count": "11"},
    ],
)
def test_no_fault_follows_from_another(table: dict[str, object]) -> None:
    """What cannot be read counts as given, but of its value nothing is known."""
    _, faults = read(table)

    found = [f for f in faults if "is given beside" not in f]
    assert len(found) == 1


def test_two_are_distinguished_though_one_of_them_cannot_be_read() -> None:
    _, faults = read({"name": "n", "token": "env:GONE"})

    assert faults == [
        "b.toml: outer.token: the environment variable GONE is not set",
        "b.toml: outer.name: is given beside a token",
    ]


def test_fault_at_the_root_names_only_the_key() -> None:
    reader = Reader("b.toml")
    reader.section(Outer, {"nmae": 1, "count": 11, "inner": {}}, "")
    reader.fault("", "is odd")

    assert [fault.split(": ", 1)[1][:14] for fault in reader.faults] == [
        "nmae: unknown ",
        "inner.depth: i",
        "count: must be",
        "is odd",
    ]


@given(st.dictionaries(st.sampled_from(Outer.__struct_fields__), JSON_VALUES))
def test_any_table_is_read_or_has_faults(table: dict[str, object]) -> None:
    found, faults = read(table)

    assert (found is None) == bool(faults)


def test_section_that_stands_at_a_key_is_found() -> None:
    assert Reader.section_type(Outer, "inner") is Inner
    assert Reader.section_type(Outer, "name") is None
    assert Reader.section_type(Outer, "nobody") is None


# -- overrides from the environment ----------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("name", "5", "5"),
        ("name", "null", "null"),
        ("count", "5", 5),
        ("ratio", "0.5", 0.5),
        ("is_on", "true", True),
        ("is_on", "false", False),
        ("size", "large", "large"),
        ("wait", "5m", 300),
        ("wait", "7", 7),
    ],
)
def test_text_from_the_environment_becomes_what_the_key_needs(
    key: str, text: str, value: object
) -> None:
    found, faults = read({key: FromEnvironment.of("SEBRIDGE__X", text)})

    assert faults == []
    assert getattr(found, key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("count", "x"),
        ("is_on", "maybe"),
        ("size", "x"),
        ("colours", "red"),
        ("wait", "soon"),
        ("token", ""),
        ("headers", "x"),
    ],
)
def test_text_that_does_not_fit_is_a_fault_that_names_the_variable(
    key: str, text: str
) -> None:
    found, faults = read({key: FromEnvironment.of("SEBRIDGE__OUTER__KEY", text)})

    assert found is None
    assert faults[0].startswith("b.toml: SEBRIDGE__OUTER__KEY: must be ")


def test_fault_of_the_whole_names_the_variable_that_its_key_came_from() -> None:
    text = FromEnvironment.of("SEBRIDGE__OUTER__COUNT", "11")

    assert read({"count": text})[1] == [
        "b.toml: SEBRIDGE__OUTER__COUNT: must be at most 10"
    ]


# -- secrets -------------------------------------------------------------------


def test_literal_secret_is_itself() -> None:
    secret = Secret(SECRET, {})

    assert secret.reveal() == SECRET
    assert secret.is_literal


def test_secret_comes_from_the_environment() -> None:
    secret = Secret("env:TOKEN", {"TOKEN": SECRET})

    assert secret.reveal() == SECRET
    assert not secret.is_literal


def test_secret_comes_from_a_file_that_is_read_at_each_use(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    secret = Secret(f"file:{path}", {})
    assert secret.reveal() == SECRET

    path.write_text("rotated")

    assert secret.reveal() == "rotated"


def test_path_of_a_secret_may_name_a_folder_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}

    secret = Secret("file:${CREDENTIALS_DIRECTORY}/token", environ)

    assert secret.reveal() == SECRET
    with pytest.raises(ValueError, match="variable CREDENTIALS_DIRECTORY is not set"):
        Secret(secret.reference, {}).reveal()


def test_variable_of_systemd_that_is_not_set_says_how_to_set_it() -> None:
    with pytest.raises(ValueError, match="sudo env CREDENTIALS_DIRECTORY=/etc/sebrid"):
        Secret("file:${CREDENTIALS_DIRECTORY}/token", {}).reveal()


def test_dollar_without_braces_belongs_to_the_path(tmp_path: Path) -> None:
    (tmp_path / "$TOKEN").write_text(SECRET)

    assert Secret(f"file:{tmp_path}/$TOKEN", {}).reveal() == SECRET


@pytest.mark.parametrize("environ", [{}, {"TOKEN": ""}])
def test_variable_that_is_not_set_is_a_fault(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="the environment variable TOKEN is not set"):
        Secret("env:TOKEN", environ).reveal()


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), (b"\xff", "not UTF-8 text"), (b" \n", "is empty")],
)
def test_file_that_holds_no_secret_is_a_fault(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ValueError, match=why) as caught:
        Secret(f"file:{path}", {}).reveal()

    assert str(path) in str(caught.value)


def test_missing_secret_is_reported_before_the_start() -> None:
    found, (fault,) = read({"token": "env:TOKEN"})

    assert found is None
    assert fault == "b.toml: outer.token: the environment variable TOKEN is not set"


@pytest.mark.parametrize("kind", [Secret, Address])
def test_secret_never_shows_in_what_is_printed(kind: type[Secret]) -> None:
    secret = kind(SECRET, {"OTHER": SECRET})
    table = {"token": SECRET, "headers": {"authorization": SECRET}}
    section, _ = read(table, OTHER=SECRET)

    for text in (repr(secret), f"{secret}", f"{[secret]}", repr(section)):
        assert SECRET not in text
        assert "<secret>" in text


@pytest.mark.parametrize(
    "table",
    [
        {"token": [SECRET]},
        {"token": {"value": SECRET}},
        {"headers": SECRET},
        {"headers": {"x": [SECRET]}},
        {"toke": SECRET},
        {"token": SECRET, "count": "x"},
        {"token": FromEnvironment.of("V", SECRET), "count": "x"},
    ],
)
def test_secret_never_shows_in_a_fault(table: dict[str, object]) -> None:
    found, faults = read(table, OTHER=SECRET)

    assert found is None
    assert faults
    assert SECRET not in "".join(faults)


# -- placeholders --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("x-{vm_id}-{vm_name}-{group}", ()),
        ("no braces", ()),
        ("{vmid}{}{group}", ("{vmid}", "{}")),
        ("{vm_id", ("{vm_id",)),
        ("vm_id}", ("}",)),
        ("{{vm_id}}", ("{", "}")),
        ("{vm_id}}{ group}", ("}", "{ group}")),
        ("} {", ("}", "{")),
    ],
)
def test_placeholders_that_nobody_fills_in_are_found(
    text: str, unknown: tuple[str, ...]
) -> None:
    assert unknown_placeholders(text) == unknown


@pytest.mark.parametrize(
    ("written", "rate"), [(1, 1.0), (0.5, 0.5), ("2", 2.0), (" 0.25 ", 0.25)]
)
def test_rate_is_read(written: object, rate: float) -> None:
    assert Rate.parse(written) == rate


@pytest.mark.parametrize(
    "written", [0, -1, True, None, "", "1/s", "nan", float("nan"), float("inf"), []]
)
def test_what_is_no_rate_is_a_fault(written: object) -> None:
    with pytest.raises(ValueError, match="times a second"):
        Rate.parse(written)
