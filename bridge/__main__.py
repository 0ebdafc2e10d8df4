"""The entry point of the process: handles SIGTERM, and runs the forwarder or a command.

It handles SIGTERM before it imports any other module of the project.
"""

import os
import signal
import sys
from types import FrameType

_UNTIL_STOPPED = {"run", "hub", "simulate", "demo"}


def main() -> None:
    """Run the command that the arguments name.

    Commands that run until they are stopped exit with 0 at SIGTERM, also while their
    modules are being loaded. SIGTERM kills any other command, because exit code 0 would
    mean that the command has finished its work.
    """
    if _UNTIL_STOPPED.intersection(sys.argv[1:2]):
        signal.signal(signal.SIGTERM, _stop)
    from bridge.cli.main import main as command  # noqa: PLC0415 - SIGTERM is handled first

    command()


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End the process at once with exit code 0; nothing is open yet."""
    os._exit(0)


if __name__ == "__main__":
    main()
