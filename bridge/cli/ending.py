"""How a command ends: exit codes, and errors as lines of text.

It loads neither click nor asyncio: a command that needs neither ends the same way.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.printable import printable

FAILED = 1
WRONG = 2
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO}


@contextmanager
def errors_reported() -> Iterator[None]:
    """Print a ``BridgeError``, or a full disk, as lines; end with an exit code."""
    try:
        yield
    except ConfigError as error:
        fail(*error.faults, code=WRONG)
    except BridgeError as error:
        fail(str(error))
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        fail(f"{error.filename or 'the output'} cannot be written: {error.strerror}")


def fail(*lines: str, code: int = FAILED) -> NoReturn:
    """Print lines to standard error and end the process."""
    for line in lines:
        sys.stderr.write(f"sebridge: {printable(line)}\n")
    sys.exit(code)


def first_of(errors: BaseExceptionGroup[BridgeError]) -> BaseException:
    """Return the first error in a group that is not a group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def open_streams() -> None:
    """Let standard output and error take each text, also if they are closed.

    Characters that their code page lacks are escaped.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name, None) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
