"""Says in one sentence what this machine lacks, before pip says it in a hundred.

Runs on a bare Python, from a checkout: ``python3 -m bridge.simulator.prerequisites``.
The simulator speaks AMQP through Qpid Proton, which comes as source only and is
compiled on installation.
"""

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
    if not _compiler():
        found.append("a C compiler")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        found.append(
            f"the headers of Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    return found


def _compiler() -> str | None:
    """Return the compiler that setuptools would take."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(shlex.split(named)[0]) or shutil.which("cc")


def main() -> int:
    """Print what is missing; returns the exit code."""
    if not (lacking := missing()):
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
