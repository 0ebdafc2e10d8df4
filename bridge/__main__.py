"""The process: what happens before anything else is loaded."""

import os
import signal
import sys
from types import FrameType

_UNTIL_STOPPED = {"run", "hub", "simulate", "demo"}


def main() -> None:
    """Run the command; a stop while one that runs on is being loaded is a stop, too.

    Any other command is killed by the signal: 0 would say that it has done its work.
    """
    if _UNTIL_STOPPED.intersection(sys.argv[1:2]):
        signal.signal(signal.SIGTERM, _stop)
    match sys.argv[1:]:
        case ["run", "-c" | "--config", path] if not path.startswith("-"):
            _run(path)
        case _:
            _command()


def _run(path: str) -> None:
    """Run the forwarder as its service does: there is nothing for click to do."""
    from bridge.cli.process import serve  # noqa: PLC0415 - half a second of loading

    serve(path)


def _command() -> None:
    from bridge.cli.main import main as command  # noqa: PLC0415 - likewise

    command()


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End at once: nothing is open yet, and a second signal finds nobody here."""
    os._exit(0)


if __name__ == "__main__":
    main()
