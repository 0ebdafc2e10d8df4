"""``python -m tests.bench.mutants FOLDER PACKAGE ... -- TEST ...``: what tests kill.

A mutant is the program with one change within a function: ``<`` for ``<=``, ``and`` for
``or``, another constant, a condition turned round, a call left out. Each module of the
packages (``bridge/outbox``, or a file) is imported with all of its changes, each behind
a switch. The tests (any arguments of pytest) are collected once and run once, which
tells which of them reach which switch. Then, for ``--sample`` mutants of each module,
the same ones each time, a copy of this process turns one switch on and runs the tests
that reach it, those of the module's own folder first, until one fails. A change that no
test notices survives: either the tests have a gap, or the change makes no difference.

``FOLDER/MODULE.json`` keeps what was found; a module that is there is not tried again.
``--page`` prints all of a folder as a table. What tests start as another process has
the modules unchanged.
"""

import argparse
import ast
import builtins
import copy
import importlib.abc
import importlib.machinery
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, cast

import msgspec
import pytest

_SWITCH = "is_changed_here"  # a name that all modules see
_LIMIT = 30.0  # seconds of one test, and of the first before a mutant hangs
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
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_Change = tuple[str, ast.expr]  # the field that changes ("" = the whole), what is there


class Mutant(msgspec.Struct, frozen=True):
    """A change of a module: its function, its line, the text there before and now."""

    function: str
    line: int
    before: str
    after: str


class Tried(msgspec.Struct, frozen=True):
    """A mutant; how many tests reach it; the one that failed, or what happened.

    ``fate`` is ``killed``, ``survives`` or ``hangs``.
    """

    mutant: Mutant
    reached_by: int
    fate: str
    test: str = ""


class Module(msgspec.Struct, frozen=True):
    """What is known of a module: its mutants, how many a test reaches, those tried."""

    name: str
    mutants: int
    reached: int
    tried: Sequence[Tried]


class _Seen(NamedTuple):
    """What one test did: whether it passed, its seconds, the switches it reached."""

    has_passed: bool
    seconds: float
    switches: bytes  # one bit each


def change(node: ast.AST) -> _Change | None:
    """Return the change of a node; None = there is none."""
    made: ast.expr
    field = ""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _OTHER:
            made = copy.deepcopy(node)
            made.ops[0] = _OTHER[type(op)]()  # type: ignore[call-overload]  # an operator of the same kind
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in _OTHER:
            made = copy.deepcopy(node)
            made.op = _OTHER[type(op)]()  # type: ignore[assignment]  # an operator of the same kind
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            field, made = "test", ast.UnaryOp(ast.Not(), copy.deepcopy(test))
        case ast.Constant(value=bool(value)):
            made = ast.Constant(not value)
        case ast.Constant(value=int(number) | float(number)):
            made = ast.Constant(number + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(
            value, ast.Constant
        ):
            field, made = "value", ast.Constant(None)
        case ast.Expr(value=ast.Call() | ast.Await()):
            field, made = "value", ast.Constant(None)
        case _:
            return None
    return field, made


class Switches(ast.NodeTransformer):
    """Puts each change of a module's functions beside what is there, behind a switch.

    Numbers begin with ``first``. Decorators, annotations, defaults and patterns stay.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.found: list[Mutant] = []
        self._names: list[str] = []
        self._depth = 0

    def visit(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self._visit_body(node)
                return node
            case ast.match_case():
                node.guard = node.guard and cast("ast.expr", self.visit(node.guard))
                node.body = [cast("ast.stmt", self.visit(one)) for one in node.body]
                return node
            case ast.AnnAssign(value=value):
                node.value = value and cast("ast.expr", self.visit(value))
                return node
            case ast.arguments():
                return node
        return self._visit_code(node)

    def _visit_body(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        is_function = isinstance(node, _FUNCTION)
        self._names.append(node.name)
        self._depth += is_function
        node.body = [cast("ast.stmt", self.visit(one)) for one in node.body]
        self._depth -= is_function
        self._names.pop()

    def _visit_code(self, node: ast.AST) -> ast.AST:
        found = change(node) if self._depth else None
        if found is None:
            return self.generic_visit(node)
        field, made = found
        place: ast.expr = cast("ast.expr", getattr(node, field, node))
        before, after = _first_line(place), _first_line(made)
        number = self.first + len(self.found)
        line, name = getattr(node, "lineno", 0), ".".join(self._names)
        self.found.append(Mutant(name, line, before, after))
        self.generic_visit(node)
        place = cast("ast.expr", getattr(node, field, node))
        switch = ast.Call(ast.Name(_SWITCH, ast.Load()), [ast.Constant(number)], [])
        either = ast.copy_location(ast.IfExp(switch, made, place), place)
        if not field:
            return either
        setattr(node, field, either)
        return node


def switched(source: str, first: int = 0) -> tuple[ast.Module, Sequence[Mutant]]:
    """Return a module with all its changes behind switches, and the changes."""
    switches = Switches(first)
    tree = cast("ast.Module", switches.visit(ast.parse(source)))
    return ast.fix_missing_locations(tree), switches.found


def sampled(numbers: Sequence[int], most: int) -> Sequence[int]:
    """Return ``most`` of the numbers, in their order."""
    if most >= len(numbers):
        return numbers
    return sorted(random.Random(len(numbers)).sample(numbers, most))  # noqa: S311 - to draw, not to hide


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0]


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules with their switches."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = paths
        self.mutants: list[Mutant] = []
        self.numbers: dict[str, range] = {}
        self._trees: dict[str, ast.Module] = {}
        for name, path in paths.items():
            first = len(self.mutants)
            self._trees[name], found = switched(path.read_text(), first)
            self.mutants += found
            self.numbers[name] = range(first, len(self.mutants))

    def find_spec(
        self, fullname: str, *_: object
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.paths:
            return None
        path = str(self.paths[fullname])
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=path)
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        path = str(self.paths[module.__name__])
        exec(compile(self._trees[module.__name__], path, "exec"), module.__dict__)  # noqa: S102 - our own module


class _Trial:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, importer: _Importer, folder: Path, most: int) -> None:
        self.importer, self.folder, self.most = importer, folder, most
        self._failed: list[str] = []
        _turn(lambda _: False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Come before the finder of pytest, which was not there earlier."""
        sys.meta_path.insert(0, self.importer)
        from hypothesis import HealthCheck, Phase, settings  # noqa: PLC0415 - pytest comes before it

        settings.register_profile(
            "mutants",
            max_examples=30,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],  # no smaller example is wanted
            suppress_health_check=list(HealthCheck),
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors")
        session.config.pluginmanager.unregister(name="terminalreporter")
        items = session.items
        written = _apart(lambda: self._look(items), 3600 * 4)
        if written is None:
            raise session.Interrupted("the tests without a change hang")
        seen = msgspec.msgpack.decode(written, type=list[_Seen])
        unable = [
            one.nodeid for one, at in zip(items, seen, strict=True) if not at.has_passed
        ]
        for one in unable:
            _say(f"fails without a change, and is left out: {one}")
        for name, numbers in self.importer.numbers.items():
            done = self._try_module(name, numbers, items, seen)
            (self.folder / f"{name}.json").write_bytes(msgspec.json.encode(done))
        return True

    def _look(self, items: Sequence[pytest.Item]) -> bytes:
        """Run all tests once, and return what each of them reaches."""
        found: list[_Seen] = []
        for item, following in itertools.zip_longest(items, items[1:]):
            reached: set[int] = set()
            _turn(reached.add)  # it returns None: not changed
            began, before = time.monotonic(), len(self._failed)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            taken, bits = time.monotonic() - began, 0
            for number in reached:
                bits |= 1 << number
            size = len(self.importer.mutants) // 8 + 1
            has_passed = len(self._failed) == before
            found.append(_Seen(has_passed, taken, bits.to_bytes(size, "little")))
        return msgspec.msgpack.encode(found)

    def _try_module(
        self,
        name: str,
        numbers: range,
        items: Sequence[pytest.Item],
        seen: Sequence[_Seen],
    ) -> Module:
        own = f"tests/{name.split('.')[1]}/"
        places = range(len(items))
        order = sorted(
            places, key=lambda at: (own not in items[at].nodeid, seen[at].seconds)
        )
        reaching = {
            number: [at for at in order if _has(seen[at], number)] for number in numbers
        }
        reached = [number for number in numbers if reaching[number]]
        tried = []
        for number in sampled(reached, self.most):
            chosen = [items[at] for at in reaching[number]]
            limit = 4 * _LIMIT + 10 * sum(seen[at].seconds for at in reaching[number])
            ended = _apart(lambda n=number, c=chosen: self._test(n, c), limit)  # type: ignore[misc]  # an operator of the same kind
            fate = "hangs" if ended is None else "killed" if ended else "survives"
            mutant = self.importer.mutants[number]
            tried.append(Tried(mutant, len(chosen), fate, (ended or b"").decode()))
            _say(f"{fate:9}{name}:{mutant.line}: {mutant.before} -> {mutant.after}")
        return Module(name, len(numbers), len(reached), tried)

    def _test(self, number: int, items: Sequence[pytest.Item]) -> bytes:
        """Run tests with a mutant until one fails, and return its name."""
        _turn(number.__eq__)
        for item, following in itertools.zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return self._failed[0].encode()
        return b""


def _has(seen: _Seen, number: int) -> bool:
    return seen.has_passed and bool(seen.switches[number // 8] >> number % 8 & 1)


def _turn(switch: Callable[[int], object]) -> None:
    setattr(builtins, _SWITCH, switch)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _apart(run: Callable[[], bytes], limit: float) -> bytes | None:
    """Return what ``run`` returns in a copy of this process; None = it hangs."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as result:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            _end_with(run, result.fileno())
        while os.waitpid(pid, os.WNOHANG)[0] != pid:
            if time.monotonic() - began > limit:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(0.02)
        result.seek(0)
        return result.read()


def _end_with(run: Callable[[], bytes], result: int) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    try:
        written = run()
    except BaseException as error:  # noqa: BLE001 - a mutant may raise anything
        written = repr(error).encode()
    with os.fdopen(result, "wb", closefd=False) as file:
        file.write(written)
    os._exit(0)


def _modules(places: Sequence[str], known: Collection[str]) -> Mapping[str, Path]:
    """Return the modules of packages that are not known, by name."""
    paths = (
        path
        for place in map(Path, places)
        for path in ([place] if place.suffix else sorted(place.rglob("*.py")))
        if path.name != "__init__.py"
    )
    named = {".".join(path.with_suffix("").parts): path for path in paths}
    return {name: path for name, path in named.items() if name not in known}


def page(modules: Sequence[Module]) -> Iterator[str]:
    """Yield each module with what kills its mutants, then those that survive."""
    yield "| module | mutants | reached | tried | killed | by |"
    yield "|---|---|---|---|---|---|"
    for one in modules:
        killed = [each for each in one.tried if each.fate != "survives"]
        files = Counter(
            each.test.partition("::")[0].removeprefix("tests/").removesuffix(".py")
            if each.test
            else "limit of time"
            for each in killed
        )
        by = ", ".join(f"`{name}` {count}" for name, count in files.most_common())
        row = (one.mutants, one.reached, len(one.tried), len(killed), by)
        yield f"| `{one.name}` | {' | '.join(map(str, row))} |"
    yield ""
    for one in modules:
        for each in one.tried:
            if each.fate == "survives":
                where = f"{one.name}:{each.mutant.line}"
                yield f"- `{where}`: `{each.mutant.before}` -> `{each.mutant.after}`"


def main() -> None:
    """Try mutants, or print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the results are")
    parser.add_argument("packages", nargs="*", help="such as bridge/outbox")
    parser.add_argument("--sample", type=int, default=3, help="mutants of a module")
    parser.add_argument("--page", action="store_true", help="print the results")
    mine, tests = sys.argv[1:], []
    if "--" in mine:
        at = mine.index("--")
        mine, tests = mine[:at], mine[at + 1 :]
    given = parser.parse_args(mine)
    given.folder.mkdir(parents=True, exist_ok=True)
    known = {path.stem: path for path in sorted(given.folder.glob("*.json"))}
    if given.page:
        found = (path.read_bytes() for path in known.values())
        rows = page([msgspec.json.decode(one, type=Module) for one in found])
        sys.stdout.writelines(f"{row}\n" for row in rows)
        return
    trial = _Trial(
        _Importer(_modules(given.packages, known)), given.folder, given.sample
    )
    more = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]
    more += [f"--timeout={_LIMIT}", "--hypothesis-profile=mutants"]
    memory = "/dev/shm"  # noqa: S108 - a folder of its own is made in it
    with tempfile.TemporaryDirectory(
        dir=memory if Path(memory).is_dir() else None
    ) as place:
        more.append(f"--basetemp={place}/tests")
        sys.exit(pytest.main([*more, *tests], plugins=[trial]))


if __name__ == "__main__":
    main()
