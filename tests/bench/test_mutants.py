"""Each change of a module's functions is behind a switch of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.bench.mutants import Module, Mutant, Tried, page, sampled, switched

TEXT = """
@dataclass(slots=True)
class A(B, frozen=True):
    x: int = 1
    def f(self, a, b=2):
        if a < 1 and b:
            g(a)
        match a:
            case 5: a: Literal[1] = 4
        return a + 2
"""


def test_each_change_is_in_a_function_and_none_in_a_default_or_pattern() -> None:
    _, found = switched(TEXT)

    assert {one.function for one in found} == {"A.f"}
    assert sorted((one.line, one.before, one.after) for one in found) == [
        (6, "1", "2"),
        (6, "a < 1", "a <= 1"),
        (6, "a < 1 and b", "a < 1 or b"),
        (6, "a < 1 and b", "not (a < 1 and b)"),
        (7, "g(a)", "None"),
        (9, "4", "5"),
        (10, "2", "3"),
        (10, "a + 2", "None"),
        (10, "a + 2", "a - 2"),
    ]


def made(source: str, function: str) -> tuple[Callable[..., Any], list[str], list[int]]:
    """Return a function with its switches, its changes, and the number turned on."""
    tree, found = switched(source)
    on = [-1]
    names: dict[str, Any] = {"is_changed_here": lambda number: number == on[0]}
    exec(compile(tree, "made", "exec"), names)  # noqa: S102 - the text above
    return names[function], [f"{one.before} -> {one.after}" for one in found], on


TOTAL = """
def f(numbers, seen):
    total = 0
    for n in numbers:
        if n > 0:
            total = total + n
            seen.append(n)
    return total
"""


@pytest.mark.parametrize(
    ("change", "total", "count"),
    [
        ("", 3, 2),
        ("n > 0 -> n >= 0", 3, 3),
        ("n > 0 -> not n > 0", 0, 1),
        ("total + n -> total - n", -3, 2),
        ("seen.append(n) -> None", 3, 0),
        ("total -> None", None, 2),
    ],
)
def test_a_switch_changes_its_own_place_only(
    change: str, total: int | None, count: int
) -> None:
    function, changes, on = made(TOTAL, "f")
    on[0] = changes.index(change) if change else -1
    seen: list[int] = []

    assert function([1, 2, 0], seen) == total
    assert len(seen) == count


def test_sample_is_the_same_each_time_and_in_order() -> None:
    numbers = list(range(40, 90))
    some = sampled(numbers, 3)

    assert some == sampled(numbers, 3) == sorted(some)
    assert set(some) < set(numbers)
    assert sampled(numbers, 50) == sampled(numbers, 99) == numbers


@pytest.mark.integration
def test_mutants_are_tried_with_the_tests_that_reach_them(tmp_path: Path) -> None:
    module, tests = (
        "bridge/approvals/policy.py",
        "tests/approvals/test_policy.py",
    )
    subprocess.run(  # noqa: S603 - our own module
        [
            *(sys.executable, "-m", "tests.bench.mutants", tmp_path, module),
            *("--sample", "2", "--", tests),
        ],
        check=True,
        capture_output=True,
    )
    (path,) = tmp_path.iterdir()
    found = msgspec.json.decode(path.read_bytes(), type=Module)

    assert found.name == "bridge.approvals.policy"
    assert found.mutants >= found.reached > len(found.tried) == 2
    for one in found.tried:
        assert (one.fate == "killed") == one.test.startswith(tests)


def test_page_says_which_tests_kill() -> None:
    one = Mutant("f", 1, "a", "b")
    tried = [
        Tried(one, 3, "killed", "tests/imds/test_poller.py::test_a[x]"),
        Tried(one, 2, "killed", "tests/imds/test_poller.py::test_b"),
        Tried(one, 1, "survives"),
        Tried(one, 1, "hangs"),
    ]

    *_, row, _, survivor = page([Module("bridge.imds.poller", 9, 7, tried)])

    assert row.startswith("| `bridge.imds.poller` | 9 | 7 | 4 | 3 |")
    assert row.endswith("| `imds/test_poller` 2, `limit of time` 1 |")
    assert survivor == "- `bridge.imds.poller:1`: `a` -> `b`"
