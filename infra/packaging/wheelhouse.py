"""Fetches the wheels that the packages hold, for each Python and one kind of machine.

    python wheelhouse.py FOLDER x86_64|aarch64|win_amd64 LOCK

LOCK is the lock file beside this script. Only wheels are taken, and only those whose
hash stands in the lock file or in pip.txt. pip cannot look at the markers of another
Python, so that is done here.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# glibc 2.28 and older: RHEL 8 and later, Debian 10 and later, all that Azure endorses.
GLIBC = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "_2_12", "_2_5")


WINDOWS = {
    "platform_machine": "AMD64",
    "sys_platform": "win32",
    "platform_system": "Windows",
    "os_name": "nt",
}


def locked(lock: str) -> list[str]:
    """Return the entries of a lock file and of pip.txt, each with its hashes."""
    text = (HERE / lock).read_text() + (HERE / "pip.txt").read_text()
    return text.replace("\\\n", " ").splitlines()


def is_windows(machine: str) -> bool:
    """Whether a kind of machine is Windows, and not Linux on that processor."""
    return machine.startswith("win_")


def wanted(python: str, machine: str, lock: str) -> list[str]:
    """Return the entries that this Python needs, without their markers."""
    linux = {
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        **(WINDOWS if is_windows(machine) else linux),
    }
    found = []
    for line in locked(lock):
        text, *hashes = line.split(" --hash=")
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate(environment):
            hashed = "".join(f" --hash={value.strip()}" for value in hashes)
            found.append(f"{one.name}{one.specifier}{hashed}")
    return found


def download(folder: Path, python: str, machine: str, lock: str) -> None:
    """Fetch the wheels for one Python."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(wanted(python, machine, lock)))
        file.flush()
        platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in GLIBC]
        if is_windows(machine):
            platforms = [f"--platform={machine}"]
        subprocess.run(  # noqa: S603 - our own words
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--disable-pip-version-check", "--no-deps", "--require-hashes"),
                *("--only-binary=:all:", f"--python-version={python}"),
                *("--implementation=cp", *platforms),
                *("--dest", str(folder), "--requirement", file.name),
            ],
            check=True,
        )


if __name__ == "__main__":
    for version in PYTHONS:
        download(Path(sys.argv[1]), version, sys.argv[2], sys.argv[3])
