"""promises.md: each promise has tests, and each named test exists."""

import re
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT

PAGE = Path(__file__).with_name("promises.md")
UNPROVED = "Without a test"
ROW = re.compile(r"(?m)^\| (?!promise \||---)(.+?) \| (.+) \|$")
TEST = re.compile(r"`(tests/[\w/]+/test_\w+\.py)::(test_\w+)`")

Row = tuple[str, str]


@cache
def rows() -> dict[str, list[Row]]:
    """Return the rows of each section, as promise and second cell."""
    _, *parts = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
    found = {part.partition("\n")[0]: ROW.findall(part) for part in parts}
    assert list(found)[-1] == UNPROVED
    return found


def proved() -> list[Row]:
    """Return the rows of all sections but the last."""
    return [row for name, part in rows().items() if name != UNPROVED for row in part]


def functions(path: Path) -> set[str]:
    """Return the names of the functions of a file, which is not imported."""
    text = path.read_text(encoding="utf-8")
    return set(re.findall(r"(?m)^(?:async )?def (\w+)\(", text))


def test_every_named_test_exists() -> None:
    named: dict[str, set[str]] = {}
    for _, cell in proved():
        for file, name in TEST.findall(cell):
            named.setdefault(file, set()).add(name)

    assert [file for file in named if not (ROOT / file).is_file()] == []
    assert {
        file: lost
        for file, names in named.items()
        if (lost := names - functions(ROOT / file))
    } == {}


def test_every_promise_has_one_to_three_tests() -> None:
    assert len(proved()) > 200, "the rows are not found"
    for promise, cell in proved():
        assert 1 <= len(TEST.findall(cell)) <= 3, promise
        assert TEST.sub("", cell).replace("<br>", "") == "", promise


def test_no_promise_names_a_test_twice() -> None:
    for promise, cell in proved():
        named = TEST.findall(cell)
        assert len(set(named)) == len(named), promise


def test_every_promise_stands_once() -> None:
    promises = [promise for part in rows().values() for promise, _ in part]

    assert [one for one in promises if promises.count(one) > 1] == []


def test_every_line_of_a_table_is_a_row() -> None:
    """A row that is not read would not be checked."""
    lines = re.findall(r"(?m)^ *\|.*$", PAGE.read_text(encoding="utf-8"))

    assert len(lines) == sum(len(part) + 2 for part in rows().values())


def test_promise_without_a_test_says_why() -> None:
    for promise, why in rows()[UNPROVED]:
        assert re.match(r"\w", why), promise
        assert not TEST.search(why), f"{promise} has a test now: move it up"
