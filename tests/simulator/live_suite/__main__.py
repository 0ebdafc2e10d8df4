"""Run the suite: see ``plugin``. Its conftest.py is left out: it starts a proxy."""

import sys
from pathlib import Path

import pytest


def main(arguments: list[str]) -> int:
    """Run the live tests in the folder of the unpacked sdist; return the exit code."""
    tests = Path(arguments[0]) / "tests"
    sys.path[:0] = [str(tests), str(tests / "async_tests")]
    given = [
        "-p",
        "tests.simulator.live_suite.plugin",
        "--noconftest",
        "-m",
        "liveTest",
    ]
    given += ["--rootdir", str(tests), "-c", "/dev/null", "-o", "asyncio_mode=auto"]
    for left_out in ("mgmt_tests", "test_tracing.py"):  # no AMQP; needs OpenTelemetry
        given += ["--ignore", str(tests / left_out)]
    given += ["-p", "no:cacheprovider"]
    return pytest.main([*given, "-p", "no:randomly", *(arguments[1:] or [str(tests)])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
