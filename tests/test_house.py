"""The house rules that no other tool checks."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = [
    path
    for path in (ROOT / "bridge").rglob("*.py")
    if "simulator" not in path.parts and "demo" not in path.parts
]


@pytest.mark.parametrize("path", HOUSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_clock_reads_a_clock(path: Path) -> None:
    text = path.read_text()

    found = re.findall(r"datetime\.now|time\.time\(|time\.monotonic\(|utcnow", text)

    # statefile names a moved file by the time; nothing is decided by it. And how long a
    # disk hangs is measured in threads, which no test's clock reaches.
    is_storage = path.parent.name == "storage"
    assert not found or is_storage or path.name in {"clock.py", "statefile.py"}


@pytest.mark.parametrize("path", HOUSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_swallows_a_cancellation(path: Path) -> None:
    if path.name == "front.py":
        return  # the end of a thread, where none is cancelled: the loop is told of it
    tree = ast.parse(path.read_text())

    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler):
            caught = ast.unparse(handler.type) if handler.type else "BaseException"
            is_broad = "BaseException" in caught or "CancelledError" in caught
            is_raised = isinstance(handler.body[-1], ast.Raise)
            assert is_raised or not is_broad or "BaseExceptionGroup" in caught


def test_every_package_init_is_a_docstring_alone() -> None:
    for path in (ROOT / "bridge").rglob("__init__.py"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert not any(line.startswith(("import", "from")) for line in lines), path


def test_heavy_sdks_are_imported_in_functions_only() -> None:
    heavy = re.compile(r"(from|import) (azure|slack_sdk|jinja2|rich|proton)\b")
    for path in HOUSE:
        for line in path.read_text().splitlines():
            assert not heavy.match(line), f"{path}: {line}"


def test_unexpected_exception_is_caught_at_attempts_and_in_other_threads_only() -> None:
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in HOUSE
        if re.search(r"except Exception\b", path.read_text())
    }

    assert places <= {
        "pipeline/attempt.py",
        "outbox/storage/database.py",
        "outbox/storage/shift.py",
        "outbox/storage/transactions.py",
        "foundation/daemon_threads.py",
    }


# Who makes a task by hand has to see to its end: these wait for it in one function,
# or are what the others use.
MAKE_TASKS = {
    "foundation/background.py",
    "foundation/workers.py",
    "cli/progress.py",
    "servicebus/receiver.py",
    "servicebus/sender.py",
    "sinks/command/process.py",
    "sinks/file/sink.py",
    "traffic/app_check.py",
}


def test_no_task_ends_unseen() -> None:
    """A task of a TaskGroup is seen by its group; all others by ``in_background``."""
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in HOUSE
        if re.search(
            r"\b(asyncio|loop)\.(create_task|ensure_future)\(", path.read_text()
        )
    }

    assert places == MAKE_TASKS


def test_nobody_sleeps_without_the_clock() -> None:
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in HOUSE
        if re.search(r"\basyncio\.sleep\(", path.read_text())
    }

    # Beside the SDK, a socket, a process: their time is not the clock's to move.
    assert places == {
        "servicebus/sender.py",
        "sinks/command/process.py",
        "sinks/syslog/acks.py",
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


def test_map_names_every_module() -> None:
    """And nothing that is not there."""
    text = (ROOT / "bridge" / "README.md").read_text()
    table = text[text.index("| package |") : text.index("## The packages")]
    cells = [row.split("|")[3] for row in table.splitlines()[2:] if row.count("|") > 3]
    named = {name for cell in cells for name in re.findall(r"\w+", cell)}

    def modules(folder: Path) -> set[str]:
        return {path.stem for path in folder.glob("*.py")} - {"__init__"}

    packages = [path.parent for path in (ROOT / "bridge").glob("*/__init__.py")]
    simulator = ROOT / "bridge" / "simulator"
    there = set[str]().union(*(modules(p) for p in packages if p != simulator))
    inner = [path.parent for path in (ROOT / "bridge").glob("*/*/__init__.py")]
    there |= {path.name for path in inner}
    deeper = set[str]().union(*map(modules, inner))
    assert there <= named <= there | deeper | modules(simulator)
