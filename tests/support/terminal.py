"""A command of ``sebridge`` on a pseudo-terminal, whose question is answered."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence


def on_terminal(arguments: Sequence[str], answer: str) -> tuple[int, str]:
    """Run a command and answer its question; return its exit code and its screen."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", "bridge", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        with contextlib.suppress(OSError):  # Linux: the other side has closed
            while part := terminal.read(65536):
                shown += part
                if b"[y/N]" in part:
                    terminal.write(f"{answer}\n".encode())
        return process.wait(30), shown.decode()
