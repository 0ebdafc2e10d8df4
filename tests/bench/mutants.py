"""``python -m tests.bench.mutants MODULE TEST ...``: which tests kill which mutants.

A mutant is the module with one change (``<`` for ``<=``, ``and`` for ``or``, another
constant, a condition turned round, a call left out). Each one is imported in a process
of its own in place of the module, and the tests run there. A change that no test
notices survives: either the tests have a gap, or the change makes no difference.
With ``--sample N`` only N of them are tried, the same ones each time; with
``--first`` the tests stop at the first that fails.

What tests start as another process has the module unchanged.
"""

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

_HEAVY = ("aiohttp", "sqlalchemy", "azure.servicebus.aio")
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}


class Mutant(NamedTuple):
    """A change of a module: its line, the text there before and now, the whole."""

    line: int
    before: str
    after: str
    source: str


class Fate(NamedTuple):
    """What the tests said: those that failed, and the seconds that it took.

    No test failed and ``is_ended``: the mutant survives.
    """

    failed: Sequence[str]
    seconds: float
    is_ended: bool


def changed(node: ast.AST) -> ast.AST | None:
    """Return one change of a node; None = there is none."""
    made = copy.deepcopy(node)
    match made:
        case ast.Compare(ops=[op, *_]) if type(op) in _OTHER:
            made.ops[0] = _OTHER[type(op)]()  # type: ignore[call-overload]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in _OTHER:
            made.op = _OTHER[type(op)]()  # type: ignore[assignment]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            made.test = ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            made.value = not value
        case ast.Constant(value=int(number) | float(number)):
            made.value = number + 1
        case ast.Return(value=ast.expr() as value) if not isinstance(
            value, ast.Constant
        ):
            made.value = ast.Constant(None)
        case ast.Expr(value=ast.Call() | ast.Await()):
            return ast.Pass()
        case _:
            return None
    return made


def mutants(source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    options = {one for node in classes for one in _options(node)}  # frozen=True
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if parent in options:
                continue
            places = value if isinstance(value, list) else [value]
            for number, node in enumerate(places):
                if not isinstance(node, ast.AST) or (made := changed(node)) is None:
                    continue
                ast.copy_location(made, node)
                now = [*places[:number], made, *places[number + 1 :]]
                setattr(parent, name, now if isinstance(value, list) else made)
                text = ast.unparse(ast.fix_missing_locations(tree))
                setattr(parent, name, value)
                before, after = (_first_line(one) for one in (node, made))
                yield Mutant(getattr(node, "lineno", 0), before, after, text)


def _options(node: ast.ClassDef) -> list[ast.keyword]:
    """Return what a class and its decorators are given by name."""
    made = (one for one in node.decorator_list if isinstance(one, ast.Call))
    return [*node.keywords, *(word for one in made for word in one.keywords)]


def sampled(found: Sequence[Mutant], number: int | None) -> Sequence[Mutant]:
    """Return ``number`` of the mutants, in the order of their lines; None = all."""
    if number is None or number >= len(found):
        return found
    chosen = random.Random(len(found)).sample(range(len(found)), number)  # noqa: S311 - to draw, not to hide
    return [found[place] for place in sorted(chosen)]


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0]


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module from a text."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(
        self, fullname: str, *_: object
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self.path)
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.path, "exec"), module.__dict__)  # noqa: S102 - our own module


class _Failures:
    """Puts a module in the place of another, and collects the tests that fail."""

    def __init__(self, finder: _Changed) -> None:
        self.finder = finder
        self.names: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Come before the finder of pytest, which was not there earlier."""
        sys.meta_path.insert(0, self.finder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def fate(
    name: str, path: Path, source: str, tests: Sequence[str], limit: float
) -> Fate:
    """Run the tests with a module in another form, for ``limit`` seconds at most."""
    began, (ours, theirs) = time.monotonic(), os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        _run(theirs, _Changed(name, str(path), source), tests)
    os.close(theirs)
    is_ended = False
    while not is_ended and time.monotonic() - began < limit:
        is_ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        time.sleep(0.05)
    if not is_ended:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with open(ours) as pipe:  # noqa: PTH123 - a number
        failed = pipe.read().splitlines()
    return Fate(failed, time.monotonic() - began, is_ended)


def _run(failures: int, finder: _Changed, tests: Sequence[str]) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    found, code = _Failures(finder), 1
    try:
        more = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]
        code = pytest.main([*more, *tests], plugins=[found])
        if code and not found.names:
            found.names.append(f"pytest ended with {code}")
    except BaseException as error:  # noqa: BLE001 - it says why, and ends
        found.names.append(repr(error))
    os.write(failures, "\n".join(found.names)[:60_000].encode())
    os._exit(0)


def main() -> None:
    """Print each mutant with the tests that kill it, and those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", help="such as bridge.net.http_client")
    parser.add_argument("tests", nargs="+", help="as pytest takes them")
    parser.add_argument("--json", type=Path, help="where to write line, change, tests")
    parser.add_argument("--sample", type=int, help="how many to try, by a fixed seed")
    parser.add_argument("--first", action="store_true", help="stop at a failure")
    given = parser.parse_args()
    tests = ["-x", *given.tests] if given.first else given.tests
    for heavy in _HEAVY:
        importlib.import_module(heavy)
    path = Path(*given.module.split(".")).with_suffix(".py")
    source = path.read_text()
    whole = fate(given.module, path, source, tests, limit=3600)
    if whole.failed:
        sys.exit(f"these fail without a change: {', '.join(whole.failed)}")
    rows = []
    for one in sampled([*mutants(source)], given.sample):
        seen = fate(given.module, path, one.source, tests, 10 + 3 * whole.seconds)
        word = "killed" if seen.failed else "survives" if seen.is_ended else "hangs"
        change = f"{one.line}: {one.before} -> {one.after}"
        sys.stdout.write(f"{word:9}{len(seen.failed):4}  {change}\n")
        sys.stdout.flush()
        rows.append({"change": change, "fate": word, "tests": list(seen.failed)})
    lived = [row for row in rows if row["fate"] == "survives"]
    sys.stdout.write(f"{len(rows)} mutants, {len(lived)} survive\n")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
