"""Propose commands to run after a demo, with the paths of this machine."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_LOG_LINES = 5


def program(argv: Sequence[str] = sys.argv) -> str:
    """Return the command that starts this program, as the user has called it.

    Args:
        argv: the arguments of this process; for ``python -m bridge``, the first is the
            path of ``__main__.py``.
    """
    called = Path(argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m bridge"
    found = shutil.which("sebridge")
    is_on_path = found is not None and Path(found).resolve() == called.resolve()
    return "sebridge" if is_on_path else shlex.quote(argv[0])


def after(folder: Path, *, is_kept: bool, scenario: str) -> list[tuple[str, str]]:
    """Return three commands, each with its purpose.

    Args:
        folder: the folder of the demo.
        is_kept: whether the folder stays; then the commands use the files in it.
        scenario: the scenario that was played; the commands propose another one.
    """
    call = program()
    if is_kept:
        config = shlex.quote(str(folder / "bridge.toml"))
        return [
            (f"{call} check -c {config}", "a whole configuration"),
            (f"{call} events -c {config}", "the events, from the state file"),
            (f"{call} outbox list -c {config}", "their deliveries"),
        ]
    other = "live-migration" if scenario == "spot-eviction" else "spot-eviction"
    return [
        (f"{call} demo --scenario {other}", "another event"),
        (f"{call} demo --keep", "keep configuration, state file and log"),
        (f"{call} init", "a first configuration for a VM"),
    ]


def log_end(folder: Path) -> list[str]:
    """Return the last lines of the forwarder's log, to show after a failure."""
    path = folder / "forwarder.log"
    if not path.exists():
        return []
    return path.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
