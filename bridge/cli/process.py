"""The forwarder as a process: exit codes, signals, and errors as lines of text.

It does not import click, which costs 1.2 MiB of memory and which a service never uses.
"""

import asyncio
import io
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from bridge.app import forwarder as app
from bridge.app.supervisor import supervisor_of
from bridge.configuration import load as configuration
from bridge.foundation.clock import Bell, SystemClock
from bridge.foundation.errors import BridgeError, ConfigError
from bridge.telemetry.metrics import configure_logging, printable

log = logging.getLogger(__name__)

FAILED = 1
WRONG = 2


def forward(path: Path, *, allow_empty: bool = False) -> None:
    """Run the forwarder until it is asked to stop.

    Args:
        path: the configuration file.
        allow_empty: whether a configuration without sinks and approvals is accepted.

    Raises:
        BridgeError: the forwarder cannot run.
    """
    config = configuration.load(path, os.environ, allow_empty=allow_empty)
    configure_logging(config.log)
    for warning in config.warnings():
        log.warning("configuration", extra={"warning": warning})
    raise_file_limit()
    supervisor = supervisor_of(os.environ)
    until_stopped(lambda stop: app.run(config, stop, SystemClock(), supervisor))


def serve(path: str) -> None:
    """Run the forwarder; if it cannot run, end the process with an exit code."""
    escape_unencodable()
    with errors_reported():
        forward(Path(path))


@contextmanager
def errors_reported() -> Iterator[None]:
    """Print a ``BridgeError`` as lines and end the process with an exit code."""
    try:
        yield
    except ConfigError as error:
        fail(*error.faults, code=WRONG)
    except BridgeError as error:
        fail(str(error))


def escape_unencodable() -> None:
    """Escape characters that the code page of standard output or error lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def fail(*lines: str, code: int = FAILED) -> NoReturn:
    """Print lines to standard error and end the process."""
    for line in lines:
        sys.stderr.write(f"sebridge: {printable(line)}\n")
    sys.exit(code)


def raise_file_limit() -> None:
    """Raise the limit of open files and sockets to the maximum that is allowed.

    The default limit is often 1024, because programs with select() need that.
    """
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        return
    import resource  # noqa: PLC0415 - does not exist on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a second, lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``work`` until it ends or a signal asks it to stop."""
    try:
        asyncio.run(_until_signal(work))
    except* BridgeError as errors:
        first = first_of(errors)
        if isinstance(first, ConfigError):
            fail(*first.faults, code=WRONG)
        fail(str(first))


def first_of(errors: BaseExceptionGroup[BridgeError]) -> BaseException:
    """Return the first error in a group that is not a group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = Bell()
    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]

    def ask() -> None:
        for number in signals:  # back to the default: a second signal ends the process
            if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
                signal.signal(number, signal.SIG_DFL)
            else:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # Python's own prints a traceback
        stop.set()

    for number in signals:
        if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))
        else:
            loop.add_signal_handler(number, ask)
    await work(stop)
