"""Print in one sentence what is missing for the installation of the simulator.

If nothing is missing, print what the installation does and how long it takes.

Runs on a bare Python, from a checkout: ``python3 -m bridge.simulator.prerequisites``.
Nothing of the simulator is compiled. Python 3.7 and later must be able to run this
file, to report that they are too old.
"""

from __future__ import annotations

import importlib.util
import sys

DEBIAN = "apt-get install -y python3-venv"


def missing() -> list[str]:
    """Return what has to be installed first; empty = nothing."""
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before pip checks it
        found.append(f"Python 3.11 or newer (this is {sys.version.split()[0]})")
    if not importlib.util.find_spec("venv") or not importlib.util.find_spec(
        "ensurepip"
    ):
        found.append("Python's venv module")
    return found


def main() -> int:
    """Print what is missing, or what comes next; return the exit code."""
    lacking = missing()
    if not lacking:
        sys.stdout.write(
            "Nothing is missing. The installation now downloads the packages: half a "
            "minute to two, silently.\n"
        )
        sys.stdout.flush()
        return 0
    sys.stderr.write(
        f"The simulator cannot be installed yet; missing: {', '.join(lacking)}.\n"
        f"On Debian and Ubuntu:  {DEBIAN}\n"
        "Elsewhere it is part of Python: https://www.python.org/downloads\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
