"""Says in one sentence what this machine lacks, before pip says it in a hundred.

Runs on a bare Python, from a checkout: ``python3 -m bridge.simulator.prerequisites``.
The simulator speaks AMQP through Qpid Proton, which comes as source only and is
compiled on installation. Pythons from 3.7 on must understand this file, or they could
not be told that they are too old.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

DEBIAN = "apt-get install -y gcc python3-dev python3-venv"


def missing() -> list[str]:
    """Return what has to be installed first; empty = nothing."""
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before pip could say so
        found.append(f"Python 3.11 or newer (this is {sys.version.split()[0]})")
    if not importlib.util.find_spec("venv") or not importlib.util.find_spec(
        "ensurepip"
    ):
        found.append("Python's venv module")
    named = _named_compiler()
    if not shutil.which(named):
        is_chosen = bool(os.environ.get("CC"))
        found.append(f"the C compiler {named!r} of CC" if is_chosen else "a C compiler")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        found.append(
            f"the headers of Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    return found


def _named_compiler() -> str:
    """Return the program that setuptools would start: it looks for no other."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    try:
        return next(iter(shlex.split(named)), named)
    except ValueError:  # a quotation that is not closed
        return named


def main() -> int:
    """Print what is missing; returns the exit code."""
    lacking = missing()
    if not lacking:
        return 0
    sys.stderr.write(
        f"The simulator cannot be installed yet; missing: {', '.join(lacking)}.\n"
        f"On Debian and Ubuntu:  {DEBIAN}\n"
        "On Fedora:             dnf install gcc python3-devel\n"
        "On macOS:              xcode-select --install\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
