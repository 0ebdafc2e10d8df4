"""What infra/security.md says of dependencies is so: which, why, how large."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NAME = "scheduled-events-bridge"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: found
    for name, found in PROJECT["optional-dependencies"].items()
    if name != "dev"
}
ROW = re.compile(
    r"\| `([^`]+)`(?: \(`(\w+)`\))? \| (.+) \| ([\d.]+) \| (.*) \| (.+) \|"
)
# On Windows; and compiled, where somebody wants it. What they bring, others bring, too.
ELSEWHERE = {"pywin32", "python-qpid-proton"}
WIDE = 1.6  # a size is rough: it is another one with each release and platform


def rows() -> dict[str, re.Match[str]]:
    page = (ROOT / "infra" / "security.md").read_text()
    text = page.split("## What it depends on")[1]
    found = (ROW.fullmatch(line) for line in text.split("\n## ")[0].split("\n"))
    return {match[1]: match for match in found if match}


def named(requirements: Iterable[str]) -> Iterator[str]:
    """Return the names of requirements, our own extras left out."""
    names = (Requirement(one).name for one in requirements)
    return (name for name in names if name != NAME)


def brought(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return all that a package brings along here, itself left out."""
    found: set[str] = set()
    for text in distribution(name).requires or ():
        one = Requirement(text)
        wanted = [{"extra": extra} for extra in ("", *extras)]
        if one.marker is None or any(map(one.marker.evaluate, wanted)):
            key = canonicalize_name(one.name)
            found |= {key} | brought(key, frozenset(one.extras))
    return found


def test_every_dependency_has_a_version_in_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(re.split("==|;", line)[0]) for line in lines}
    wanted = [*PROJECT["dependencies"], *(one for e in EXTRAS.values() for one in e)]

    missing = {canonicalize_name(name) for name in named(wanted)} - pinned - ELSEWHERE
    assert missing == set(), "add the version that it was tried with"


def test_table_has_every_dependency_and_no_other() -> None:
    base = {(name, None) for name in named(PROJECT["dependencies"])}
    extra = {(name, key) for key, found in EXTRAS.items() for name in named(found)}

    assert {(match[1], match[2]) for match in rows().values()} == base | extra


@pytest.mark.parametrize("name", rows())
def test_size_and_licence_are_those_of_the_package(name: str) -> None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed on this system")
    shown = float(rows()[name][4])
    files = [one for one in found.files or () if one.suffix != ".pyc"]
    size = sum(one.size or 0 for one in files) / 1e6
    key = "License-Expression"
    licence = found.metadata[key] if key in found.metadata else rows()[name][6]

    assert size / WIDE - 0.1 <= shown <= size * WIDE + 0.1
    assert rows()[name][6] == licence


def test_what_comes_along_is_reported() -> None:
    """Once each, at the first that brings it."""
    shown = {word for row in rows().values() for word in re.findall(r"[\w-]+", row[5])}
    direct = {canonicalize_name(name) for name in rows()}
    wanted = [
        *PROJECT["dependencies"],
        *(one for found in EXTRAS.values() for one in found),
    ]
    extras = {one.name: frozenset(one.extras) for one in map(Requirement, wanted)}
    installed = [name for name in rows() if name not in ELSEWHERE]
    along = (brought(name, extras[name]) for name in installed)

    assert shown == set().union(*along) - direct
