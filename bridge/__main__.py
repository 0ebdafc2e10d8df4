"""The entry point of the process: handles SIGTERM, and runs the forwarder or a command.

It imports no other module of the project until it knows which one is needed.
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
    match sys.argv[1:]:
        case ["run", "-c" | "--config", path] if not path.startswith("-"):
            _run(path)
        case _:
            _command()


def _run(path: str) -> None:
    """Run the forwarder without loading click, which these arguments do not need."""
    from bridge.cli.process import serve  # noqa: PLC0415 - takes half a second to load

    serve(path)


def _command() -> None:
    from bridge.cli.main import main as command  # noqa: PLC0415 - not needed for run

    command()


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End the process at once with exit code 0; nothing is open yet."""
    os._exit(0)


if __name__ == "__main__":
    main()
