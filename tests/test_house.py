"""The rules for the code that no other tool checks."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = [
    path
    for path in (ROOT / "bridge").rglob("*.py")
    if "simulator" not in path.parts and "demo" not in path.parts
]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file says; several rules read the same ones."""
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements and handlers below one, at any depth, without what they say.

    They are a tenth of what ``ast.walk`` finds.
    """
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for part in getattr(node, name, ()):
            yield part
            yield from statements(part)


def reads_a_clock(path: Path) -> bool:
    clocks = r"datetime\.now|time\.time\(|time\.monotonic\(|utcnow"
    return bool(re.search(clocks, path.read_text()))


def test_only_the_clock_reads_a_clock() -> None:
    """How long a disk hangs is measured in threads: no clock of a test reaches them."""
    places = {path for path in SOURCES if reads_a_clock(path)}

    others = [path for path in places if path.name != "clock.py"]
    assert [path for path in others if path.parent.name != "storage"] == []


# The entrances give the clock, the environment and chance to all other modules.
ENTRANCES = {"__main__.py", "app", "cli"}
# What else may take them by itself, each for a reason that stands there.
TAKES_BY_ITSELF = {
    "SystemClock()": {"outbox/statefile.py"},  # where the caller gives no clock
    "os.environ": {
        "diagnostics/host_checks.py",  # in Host, which a test replaces
        "net/entra.py",
        "outbox/statefile.py",  # a default of a parameter
    },
    "random.random": {"hub/alarm_sinks.py"},  # it composes the relays of a hub
}


def test_clock_environment_and_chance_are_passed_in() -> None:
    texts = {
        name: path.read_text()
        for path in SOURCES
        if (name := path.relative_to(ROOT / "bridge").as_posix()).split("/")[0]
        not in ENTRANCES
    }
    taken = {
        source: {name for name, text in texts.items() if source in text}
        for source in TAKES_BY_ITSELF
    }
    chances = re.compile(r"\b(?:random\.(?!random\b)\w+|Random)\(|\bos\.getenv\b")

    assert taken == TAKES_BY_ITSELF
    assert [name for name, text in texts.items() if chances.search(text)] == []


def swallows(path: Path) -> list[str]:
    """Return the handlers of a file that take a cancellation and raise nothing."""
    found = []
    for handler in statements(tree_of(path)):
        if isinstance(handler, ast.ExceptHandler):
            caught = ast.unparse(handler.type) if handler.type else "BaseException"
            is_broad = "BaseException" in caught or "CancelledError" in caught
            is_raised = isinstance(handler.body[-1], ast.Raise)
            if is_broad and not is_raised and "BaseExceptionGroup" not in caught:
                found.append(f"{path}:{handler.lineno}")
    return found


def test_nothing_swallows_a_cancellation() -> None:
    """But the end of a thread, where none is cancelled: the loop is told of it."""
    paths = [path for path in SOURCES if path.name != "journal.py"]

    assert [place for path in paths for place in swallows(path)] == []


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12.0 to 3.12.3 takes ``?1`` for a name, and warns of each statement."""
    for path in (ROOT / "bridge").rglob("*.py"):
        assert not re.search(r"\?[0-9]", path.read_text()), path


def has_sql(path: Path) -> bool:
    """Whether a file has a text that begins as a statement on rows or tables."""
    begins = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER) ")
    texts = (n for n in ast.walk(tree_of(path)) if is_text(n))
    return any(begins.match(str(text.value)) for text in texts)


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_queries_on_the_state_file_are_in_few_files() -> None:
    """And in what opens the file (storage), or reads a damaged one (recovery)."""
    outbox = ROOT / "bridge" / "outbox"
    found = [path for path in outbox.rglob("*.py") if has_sql(path)]

    assert {path.parent.name for path in found} == {"outbox", "storage", "recovery"}
    own = {path.name for path in found if path.parent == outbox}
    assert own == {"reads.py", "questions.py", "pruning.py"}


def test_every_package_init_is_a_docstring_alone() -> None:
    for path in (ROOT / "bridge").rglob("__init__.py"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert not any(line.startswith(("import", "from")) for line in lines), path


def test_heavy_sdks_are_imported_in_functions_only() -> None:
    heavy = re.compile(r"(from|import) (azure|slack_sdk|jinja2|rich|proton)\b")
    for path in SOURCES:
        for line in path.read_text().splitlines():
            assert not heavy.match(line), f"{path}: {line}"


def test_unexpected_exception_is_caught_at_attempts_and_in_other_threads_only() -> None:
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in SOURCES
        if re.search(r"except Exception\b", path.read_text())
    }

    assert places <= {
        "pipeline/relay.py",
        "pipeline/batches.py",  # which raises it in the attempt at the guilty event
        "outbox/storage/database.py",
        "outbox/storage/file.py",
        "foundation/daemon_threads.py",
        "hub/store/store.py",
    }


# Who makes a task by hand has to see to its end: these wait for it in one function,
# or are what the others use.
MAKE_TASKS = {
    "foundation/background.py",
    "foundation/workers.py",
    "outbox/state.py",
    "cli/long_running.py",
    "servicebus/sender.py",
    "servicebus/receiver.py",
    "sinks/command/process.py",
    "sinks/file/sink.py",
    "traffic/probe.py",
}


def test_no_task_ends_unseen() -> None:
    """A task of a TaskGroup is seen by its group; all others by ``in_background``."""
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in SOURCES
        if re.search(
            r"\b(asyncio|loop)\.(create_task|ensure_future)\(", path.read_text()
        )
    }

    assert places == MAKE_TASKS


def test_nobody_sleeps_without_the_clock() -> None:
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in SOURCES
        if re.search(r"\basyncio\.sleep\((?!0\))", path.read_text())  # 0: others' turn
    }

    # Beside the SDK, a socket, a process: their time is not the clock's to move.
    assert places == {
        "servicebus/sender.py",
        "sinks/command/process.py",
        "sinks/syslog/wire.py",
    }


def test_package_holds_the_process_the_map_and_packages() -> None:
    """What else there is belongs into a package; the layers name each (exhaustive)."""
    found = [path for path in (ROOT / "bridge").iterdir() if path.name != "__pycache__"]
    files = {path.name for path in found if path.is_file()}
    folders = [path for path in found if path.is_dir() and any(path.rglob("*.py"))]

    assert files == {"__init__.py", "__main__.py", "README.md", "py.typed"}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_map_has_a_paragraph_for_each_package() -> None:
    text = (ROOT / "bridge" / "README.md").read_text()
    described = re.findall(r"^\*\*`(\w+)`\*\*", text, flags=re.MULTILINE)

    packages = {path.parent.name for path in (ROOT / "bridge").glob("*/__init__.py")}
    assert sorted(described) == sorted(packages)
    assert text.count("*Why here:*") == len(packages) - 1  # the simulator is nowhere


def test_map_has_the_levels_of_the_contract() -> None:
    text = " ".join((ROOT / "bridge" / "README.md").read_text().split())
    found = text.split("from the top: ", 1)[1].split(".", 1)[0].split("; ")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    _, *layers = tools["importlinter"]["contracts"][0]["layers"]  # the process first

    assert [re.findall(r"\w+", level) for level in found] == [
        re.findall(r"\w+", layer) for layer in layers
    ]


# -- figures -----------------------------------------------------------------------

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_LINES = 600  # of a file
LONG_LINES = 450  # of which only a few files have more
MOST_LONG = 8


def test_files_are_not_long() -> None:
    counts = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("bridge", "infra")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in {".py", ".sh", ".bicep"}
    }

    assert {path for path, count in counts.items() if count > MOST_LINES} == set()
    long = {path for path, count in counts.items() if count > LONG_LINES}
    assert len(long) <= MOST_LONG, long


def test_functions_are_short() -> None:
    """Half of them have 8 lines at most, and nine of ten have 20 at most."""
    lines = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in (ROOT / "bridge").rglob("*.py")
        for node in statements(tree_of(path))
        if isinstance(node, FUNCTIONS)
    )

    assert lines[len(lines) // 2] <= 8
    assert lines[len(lines) * 9 // 10] <= 20


# -- no test patches our own code --------------------------------------------------

# These plant bugs into the forwarder, to see whether the simulation finds them.
PLANTERS = (
    "tests/simulation/bugs_of_",
    "tests/simulation/test_mutations.py",
    "tests/hub/simulation/test_mutations.py",
)
# Nobody but aiohttp and asyncio themselves can set these.
NOT_OURS = {"connector._resolver", "connector._use_dns_cache"}
NOT_OURS |= {"task._log_destroy_pending"}
# What is ours by the first part of its name; the last two are infra/functions.
OURS = ("bridge", "approver", "function_app")


def ours(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names under which a test has imported something of our own."""
    found = set[str]()
    for node in nodes:
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in OURS
        ):
            found |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Import):
            names = (name.asname or name.name.split(".")[0] for name in node.names)
            found |= {name for name in names if name in OURS}
    return found


def root_of(node: ast.expr) -> str:
    """Return the name that an expression begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.value if not isinstance(node, ast.Call) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def patches(tree: ast.AST) -> list[str]:
    """Return what a test patches of our own, as it stands there."""
    nodes, found = list(ast.walk(tree)), list[str]()
    known = ours(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in {"setattr", "delattr", "patch", "object"}:
                continue
            target = node.args[0]
            text = target.value if isinstance(target, ast.Constant) else ""
            is_class = isinstance(target, ast.Call) and root_of(target) == "type"
            is_named = str(text).split(".")[0] in OURS
            if is_named or root_of(target) in known or is_class:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner, place = root_of(node.value), ast.unparse(node)
            own = 2 if owner in {"self", "cls"} else 1  # its own may be private
            parts = place.split(".")[own:]
            is_private = any(part[:1] == "_" != part[-1:] for part in parts)
            is_imported = isinstance(node.value, ast.Name) and owner in known
            if (is_imported or is_private) and place not in NOT_OURS:
                found.append(place)
    return found


def test_tests_are_no_packages() -> None:
    """Two packages of one name would be one module: the tests of one never run."""
    assert [path for path in TESTS if path.name == "__init__.py"] == []


def test_each_package_has_its_folder_of_tests() -> None:
    """Who changes a package finds its tests in the folder of the same name."""
    packages = {path.parent.name for path in (ROOT / "bridge").glob("*/__init__.py")}
    tests = [path for path in TESTS if path.name.startswith("test_")]
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in tests}
    beside = {path.name for path in (ROOT / "tests").glob("*.py")}

    assert packages - folders == set()
    assert beside == {"conftest.py", "coverage_gate.py", "test_house.py"}


def test_support_imports_no_tests() -> None:
    """All tests stand on it: what two folders of them need belongs there."""
    imports = re.compile(r"^\s*(?:from|import) (tests(?!\.support\b)\S*)", re.MULTILINE)
    support = [path for path in TESTS if path.parent.name == "support"]

    assert {m for path in support for m in imports.findall(path.read_text())} == set()


def test_no_test_patches_our_own_code() -> None:
    """What a test has to choose is passed in: time, chance, environment, others."""
    paths = {str(path.relative_to(ROOT)): path for path in TESTS}
    texts = {
        name: path.read_text()
        for name, path in paths.items()
        if not name.startswith(PLANTERS)
    }
    mock = re.compile(r"^(from|import) (unittest\.)?mock\b", re.MULTILINE)

    assert {n: p for n, text in texts.items() if (p := patches(ast.parse(text)))} == {}
    assert [name for name, text in texts.items() if mock.search(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "from bridge.cli import doctor\npatch.setattr(doctor, '_PATIENCE', 0.1)",
        "from bridge.cli import doctor\ndoctor._PATIENCE = 0.1",
        "from bridge.outbox.store import Outbox\nOutbox.commit = None",
        "from bridge.outbox.store import Outbox as O\npatch.setattr(O.commit, 'x', 1)",
        "patch.setattr('bridge.cli.doctor._PATIENCE', 0.1)",
        "patch.setattr(type(outbox), 'commit', None)",
        "patch.setattr('approver.teams.bot._COUNT_SECONDS', 0.0)",
        "import function_app\npatch.setattr(function_app, 'handlers', None)",
        "from approver.box import sent\npatch.setattr(sent, 'x', 1)",
        "import bridge.cli.doctor\nsetattr(bridge.cli.doctor, '_PATIENCE', 1)",
        "rig.relay._state = 'ok'",
        "self.relay._state = 'ok'",
        "rig.relay._trying.circuit.last_error = 'x'",
    ],
)
def test_patch_of_our_own_code_is_found(text: str) -> None:
    assert patches(ast.parse(text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "import os\npatch.setattr(os, 'fsync', None)",
        "patch.setattr('azure.identity.aio.DefaultAzureCredential', None)",
        "self._state = 'ok'\nerror.__cause__ = None\nrelay.state = 'ok'",
    ],
)
def test_what_is_no_patch_of_our_own_code_is_let_pass(text: str) -> None:
    assert patches(ast.parse(text)) == []
