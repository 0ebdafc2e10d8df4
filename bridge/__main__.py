"""The process: what happens before anything else is loaded."""

import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command; a stop that comes while it is being loaded is a stop, too."""
    signal.signal(signal.SIGTERM, _stop)
    from bridge.cli import main as command  # noqa: PLC0415 - half a second of loading

    command()


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
