"""How a command ends: exit codes, and errors as lines of text.

It loads neither click nor asyncio: a command that needs neither ends the same way.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.printable import printable

FAILED = 1
WRONG = 2


@contextmanager
def errors_reported() -> Iterator[None]:
    """Print a ``BridgeError`` as lines and end the process with an exit code."""
    try:
        yield
    except ConfigError as error:
        fail(*error.faults, code=WRONG)
    except BridgeError as error:
        fail(str(error))


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


def escape_unencodable() -> None:
    """Escape characters that the code page of standard output or error lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
