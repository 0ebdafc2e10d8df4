"""Memory is given back to the system: measured in a process of its own."""

import platform
import subprocess
import sys

import pytest

# 60 MiB are freed, but for the last block: so glibc by itself gives none of it back.
SCRIPT = """
import os, sys
from pathlib import Path

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

{before}
from bridge.outbox.storage.file import give_back

blocks = [bytes(10_000) + bytes([n % 256]) for n in range(6_000)]
del blocks[:-1]
before = resident()
give_back()
print(before - resident())
"""


def given_back(before: str = "") -> int:
    """Return how many bytes a process has given back."""
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    return int(subprocess.check_output(command))  # noqa: S603 - our own script


@pytest.mark.integration
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_what_was_freed_is_given_back() -> None:
    assert given_back() > 40_000_000


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_as_it_is_without_ctypes() -> None:
    assert given_back("sys.modules['ctypes'] = None") < 40_000_000
