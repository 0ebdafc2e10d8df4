"""Say in one sentence what this machine lacks for the installation of the simulator.

If nothing is missing, it says what the installation does, and how long that takes.

Runs on a bare Python, from a checkout: ``python3 -m bridge.simulator.prerequisites``.
The simulator uses AMQP through Qpid Proton, which is published as source only and is
compiled on installation. Python 3.7 and later must be able to run this file, to report
that they are too old.
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
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before pip checks it
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
    """Return the compiler that setuptools would start: it tries no other."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    try:
        return next(iter(shlex.split(named)), named)
    except ValueError:  # an unclosed quotation
        return named


def main() -> int:
    """Print what is missing, or what comes next; return the exit code."""
    lacking = missing()
    if not lacking:
        sys.stdout.write(
            "Nothing is missing. The installation now compiles the AMQP library of the "
            "local broker: half a minute to two minutes, silently.\n"
        )
        sys.stdout.flush()
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
