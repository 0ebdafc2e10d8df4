"""The forwarder as a process: exit codes, signals, and errors as lines of text.

It does without click, which is 1.2 MiB: a service has no use for it.
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
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError, ConfigError
from bridge.telemetry.metrics import configure_logging, printable

log = logging.getLogger(__name__)

FAILED = 1
WRONG = 2


def forward(path: Path, *, allow_empty: bool = False) -> None:
    """Run the forwarder until it is asked to stop.

    Args:
        path: of the configuration.
        allow_empty: whether it may have neither sinks nor approvals.

    Raises:
        BridgeError: it cannot be run.
    """
    config = configuration.load(path, os.environ, allow_empty=allow_empty)
    configure_logging(config.log)
    for warning in config.warnings():
        log.warning("configuration", extra={"warning": warning})
    raise_file_limit()
    supervisor = supervisor_of(os.environ)
    until_stopped(lambda stop: app.run(config, stop, SystemClock(), supervisor))


def serve(path: str) -> None:
    """Run the forwarder, and end the process with an exit code if it cannot be run."""
    spell_everything()
    with errors_told():
        forward(Path(path))


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn the bridge's own errors into lines and an exit code."""
    try:
        yield
    except ConfigError as error:
        fail(*error.faults, code=WRONG)
    except BridgeError as error:
        fail(str(error))


def spell_everything() -> None:
    """Let standard output and error take every character: a code page has few."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def fail(*lines: str, code: int = FAILED) -> NoReturn:
    """End the process with lines on standard error."""
    for line in lines:
        sys.stderr.write(f"sebridge: {printable(line)}\n")
    sys.exit(code)


def raise_file_limit() -> None:
    """Let this process open as many files and sockets as the system lets it.

    The soft limit is often 1024 for the sake of programs that use select().
    """
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has another limit behind this one
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
    """Return the first error that is no group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]

    def ask() -> None:
        for number in signals:  # so that a second signal kills
            if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
                signal.signal(number, signal.SIG_DFL)
            else:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # SIGINT would be a traceback
        stop.set()

    for number in signals:
        if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))
        else:
            loop.add_signal_handler(number, ask)
    await work(stop)
