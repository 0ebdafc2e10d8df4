"""The house rules that no other tool checks."""

import ast
import re
import tomllib
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

    # statefile names a moved file by the time; nothing is decided by it
    assert not found or path.name in {"clock.py", "statefile.py"}


@pytest.mark.parametrize("path", HOUSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_swallows_a_cancellation(path: Path) -> None:
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


def test_unexpected_exception_is_caught_in_the_relay_and_other_threads_only() -> None:
    places = {
        path.relative_to(ROOT / "bridge").as_posix()
        for path in HOUSE
        if re.search(r"except Exception\b", path.read_text())
    }

    assert places <= {"relay.py", "outbox/database.py", "threads.py"}


def test_every_room_stands_in_the_import_contracts() -> None:
    """In the layers, and on both sides of the wall to the simulator."""
    paths = [path for path in (ROOT / "bridge").iterdir() if path.name[0] not in "_."]
    rooms = {p.stem for p in paths if p.suffix == ".py" or (p / "__init__.py").exists()}
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers, _, _, simulator, house = contracts
    named = re.findall(r"bridge\.(\w+)", " ".join(layers["layers"]))
    commands = {room for room in rooms if room.startswith("cli")} | {"demo"}

    assert rooms - set(named) == {"simulator"}
    assert set(simulator["forbidden_modules"]) == {
        f"bridge.{room}" for room in rooms - {"simulator"}
    }
    assert set(house["source_modules"]) == {
        f"bridge.{room}" for room in rooms - {"simulator"} - commands
    }
