"""The import contracts of pyproject.toml refuse what they are there to refuse.

Each test plants one violation in a copy of the package and runs the linter on it. The
copy is one for all, and what the linter has read in it need not be read again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bridge"
LINTER = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the linter on the package in ``folder``, by the contracts of this project."""
    command = [sys.executable, "-c", LINTER, "--cache-dir", str(folder / "cache")]
    environ = {**os.environ, "PYTHONPATH": str(folder), "COVERAGE_PROCESS_START": ""}
    return subprocess.run(  # noqa: S603 - our own arguments
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    # What is compiled meanwhile comes and goes under a name of its own.
    source = shutil.ignore_patterns("__pycache__", "*.json")
    shutil.copytree(PACKAGE, folder / "bridge", ignore=source)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def planted(folder: Path, name: str, line: str) -> Iterator[None]:
    """Add ``line`` to a module of the copy; make the module where there is none."""
    path = folder / "bridge" / name
    is_new = not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    before = path.read_text() if path.exists() else None
    path.write_text("\n".join([before or '"""Planted."""', line, ""]))
    try:
        yield
    finally:
        if before is not None:
            path.write_text(before)
        elif is_new:
            shutil.rmtree(path.parent)
        else:
            path.unlink()


PLANTED = {
    "a package imports one above it": (
        [("events/document.py", "import bridge.pipeline.relay")],
        "Packages import only downwards",
    ),
    "a package has no place": (
        [("cellar/__init__.py", "")],
        "Packages import only downwards",
    ),
    "a module lies beside the packages": (
        [("loose.py", "")],
        "Packages import only downwards",
    ),
    "two modules of a package import each other": (
        [
            ("foundation/pace.py", "import bridge.foundation.printable"),
            ("foundation/printable.py", "import bridge.foundation.pace"),
        ],
        "No two siblings import each other",
    ),
    "a sink imports another": (
        [("sinks/file/sink.py", "import bridge.sinks.webhook.body")],
        "A sink knows its contract and no other sink",
    ),
    "a new sink imports another": (
        [
            ("sinks/sqs/__init__.py", ""),
            ("sinks/sqs/sink.py", "import bridge.sinks.webhook.body"),
        ],
        "A sink knows its contract and no other sink",
    ),
    "the forwarder imports the simulator": (
        [("app/forwarder.py", "import bridge.simulator.serve")],
        "Only the demo and its command know the simulator",
    ),
    "the simulator imports the forwarder": (
        [("simulator/serve.py", "import bridge.events.document")],
        "Packages import only downwards",
    ),
    "a pure module reads the clock": (
        [("events/transitions.py", "import time")],
        "What is pure does no I/O",
    ),
    "the AMQP library opens a socket": (
        [("simulator/wire/framing.py", "import socket")],
        "What is pure does no I/O",
    ),
    "the AMQP library knows the broker": (
        [("simulator/wire/message.py", "import bridge.simulator.servicebus.hub")],
        "No two siblings import each other",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PLANTED)
def test_planted_violation_is_refused(case: str, copy: Path) -> None:
    violations, contract = PLANTED[case]
    with ExitStack() as stack:
        for name, line in violations:
            stack.enter_context(planted(copy, name, line))
        result = lint(copy)

    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(line.startswith(contract) for line in broken), result.stdout


@pytest.mark.integration
def test_contracts_are_kept_as_they_are(copy: Path) -> None:
    result = lint(copy)

    assert result.returncode == 0, result.stdout + result.stderr


def test_contracts_fit_on_a_page() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    contracts = text[text.index("[tool.importlinter]") :]

    assert len(contracts.splitlines()) <= 70
