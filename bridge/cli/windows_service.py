"""Runs the forwarder as a Windows service, and writes its errors to the Event Log.

    python -m bridge.cli.windows_service install | remove | start | stop | …
    python -m bridge.cli.windows_service host        started by Windows itself

``Service`` is independent of Windows: it reports its state to a ``Manager``, and
another thread asks it to stop. ``_framework`` binds it to pywin32, the Windows API.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from bridge.app import forwarder as app
from bridge.app.supervisor import Supervisor
from bridge.cli.ending import errors_reported, first_of
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError, ConfigError, MissingExtraError
from bridge.foundation.printable import printable
from bridge.telemetry.metrics import TextFormatter, configure_logging

if TYPE_CHECKING:
    from win32serviceutil import ServiceFramework

NAME = "sebridge"
TITLE = "Scheduled Events bridge"
ABOUT = "Forwards Azure Scheduled Events to where they are needed, and approvals back."

log = logging.getLogger(__name__)

_LOG_SIZE = 10 * 2**20
_LOGS_KEPT = 5
_PATIENCE = 20.0  # seconds; Windows gives up if a pending service is silent longer


class State(Enum):
    """The states that this module reports; pywin32 reports "stopped" itself."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Manager(Protocol):
    """The Windows service manager. Its methods may be called from any thread."""

    def report(self, state: State, patience: float) -> None:
        """Report the state. A state that is pending must be reported again in time.

        Args:
            state: the current state.
            patience: seconds until the next report at the latest.
        """
        ...

    def write(self, level: int, text: str) -> None:
        """Write to the Event Log, at a level of ``logging``."""
        ...


Work = Callable[[asyncio.Event, Supervisor], Awaitable[None]]


class Service(Struct):
    """The life of one service: starting, running, stopping.

    Attributes:
        interval: seconds between two reports while the service starts or stops.
    """

    manager: Manager
    interval: float = 5.0
    _state: State = State.STARTING
    _is_asked: bool = False
    _wake: Callable[[], object] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, work: Work) -> None:
        """Run ``work`` until it ends or Windows asks it to stop.

        Raises:
            BridgeError: the work failed; the error is in the Event Log already.
        """
        self.report_state()
        try:
            asyncio.run(self._run(work))
        except* BridgeError as errors:
            error = first_of(errors)
            self.manager.write(logging.ERROR, f"failed: {printable(_text_of(error))}")
            raise error from None
        self.manager.write(logging.INFO, "stopped")

    def ask_to_stop(self) -> None:
        """Ask the work to end; may be called from any thread, at any time."""
        with self._lock:
            self._is_asked = True
            if self._wake is not None:
                self._wake()
        self.stopping()

    def report_state(self) -> None:
        """Report the current state."""
        with self._lock:
            self.manager.report(self._state, _PATIENCE)

    def ready(self) -> None:
        """Report that everything is open and the workers run."""
        if self._change_to(State.RUNNING, State.STARTING):
            self.manager.write(logging.INFO, "started")

    def alive(self) -> None:
        """Report a pending state again, so that Windows keeps waiting."""
        if self._state is not State.RUNNING:
            self.report_state()

    def stopping(self) -> None:
        """Report that a stop was requested and that work in flight is ending."""
        self._change_to(State.STOPPING, State.STARTING, State.RUNNING)

    def _change_to(self, state: State, *before: State) -> bool:
        """Change the state and report it; return False if the change is not allowed.

        Args:
            state: the new state.
            before: the states that may precede the new state.
        """
        with self._lock:
            if self._state not in before:
                return False
            self._state = state
            self.manager.report(state, _PATIENCE)
            return True

    async def _run(self, work: Work) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._lock:
            self._wake = lambda: loop.call_soon_threadsafe(stop.set)
            if self._is_asked:
                stop.set()
        try:
            await work(stop, self)
        finally:
            with self._lock:
                self._wake = None


def _text_of(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(error.faults)
    return str(error)


class EventLog(logging.Handler):
    """Copies errors of the forwarder's log to the Event Log."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(TextFormatter())
        self.manager = manager

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self.manager.write(record.levelno, self.format(record))


def home(environ: Mapping[str, str]) -> Path:
    r"""Return the directory of all files: ``%ProgramData%\sebridge``."""
    return Path(environ.get("PROGRAMDATA", r"C:\ProgramData")) / NAME


def forwarder(folder: Path, environ: Mapping[str, str], manager: Manager) -> Work:
    """Return the forwarder of the configuration ``folder/bridge.toml``.

    Its log is ``folder/log/sebridge.log``; errors go to the Event Log as well.
    """

    async def work(stop: asyncio.Event, supervisor: Supervisor) -> None:
        config = configuration.load(folder / "bridge.toml", environ)
        path = folder / "log" / "sebridge.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(
                path, maxBytes=_LOG_SIZE, backupCount=_LOGS_KEPT, encoding="utf-8"
            )
        except OSError as error:
            raise BridgeError(
                f"the log {path} cannot be written: {error.strerror}"
            ) from error
        configure_logging(config.log, handler=handler)
        logging.getLogger().addHandler(EventLog(manager))
        for warning in config.warnings():
            log.warning("configuration", extra={"warning": warning})
        await app.run(config, stop, SystemClock(), supervisor)

    return work


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, remove, start or stop the service, or run it (``host``)."""
    given = list(sys.argv if arguments is None else arguments)
    with errors_reported():
        if given[1:] == ["host"]:
            host()
        else:
            manage(given)


def host() -> None:
    """Run the service that Windows has started; return when it has stopped.

    Raises:
        MissingExtraError: pywin32 is not installed.
    """
    framework = _framework()
    import servicemanager  # noqa: PLC0415 - an extra

    servicemanager.Initialize(NAME)
    servicemanager.PrepareToHostSingle(framework)
    servicemanager.StartServiceCtrlDispatcher()  # type: ignore[no-untyped-call]  # pywin32


def manage(arguments: Sequence[str]) -> None:
    """Run pywin32's own commands: install, remove, start, stop, update.

    Raises:
        ConfigError: Python runs in a virtual environment: no service can use that.
        BridgeError: Windows has refused it; pywin32 has printed why.
        MissingExtraError: pywin32 is not installed.
    """
    framework = _framework()
    import servicemanager  # noqa: PLC0415 - an extra
    from win32serviceutil import HandleCommandLine  # noqa: PLC0415 - an extra

    if "install" in arguments:
        if sys.prefix != sys.base_prefix:
            why = "its python.exe only starts another process"
            what = f"install: needs a Python without a virtual environment: {why}"
            raise ConfigError([what])
        servicemanager.SetEventSourceName(NAME, True)  # noqa: FBT003 - positional only
    if code := HandleCommandLine(framework, argv=arguments):
        raise BridgeError(f"Windows has refused it with code {code}, as said above")


def _framework() -> "type[ServiceFramework]":
    """Return the class from which pywin32 makes the service.

    Raises:
        MissingExtraError: pywin32 is not installed.
    """
    try:
        import servicemanager  # noqa: PLC0415 - an extra
        import win32service  # noqa: PLC0415 - an extra
        from win32serviceutil import ServiceFramework  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("the Windows service", "windows") from error

    states = {
        State.STARTING: win32service.SERVICE_START_PENDING,
        State.RUNNING: win32service.SERVICE_RUNNING,
        State.STOPPING: win32service.SERVICE_STOP_PENDING,
    }

    class Framework(ServiceFramework):
        """The methods that Windows calls, in threads of its own."""

        _svc_name_ = NAME
        _svc_display_name_ = TITLE
        _svc_description_ = ABOUT
        _exe_name_ = sys.executable  # pythonservice.exe does not find the packages
        _exe_args_ = f"-I -m {__spec__.name} host"

        def __init__(self, args: Sequence[str]) -> None:
            super().__init__(args)
            self.service = Service(self)

        def report(self, state: State, patience: float) -> None:
            self.ReportServiceStatus(states[state], waitHint=int(patience * 1000))

        def write(self, level: int, text: str) -> None:
            if level >= logging.ERROR:
                servicemanager.LogErrorMsg(text)
            elif level >= logging.WARNING:
                servicemanager.LogWarningMsg(text)
            else:
                servicemanager.LogInfoMsg(text)

        def SvcRun(self) -> None:  # noqa: N802 - pywin32's name
            self.service.run(forwarder(home(os.environ), os.environ, self))

        def SvcStop(self) -> None:  # noqa: N802 - pywin32's name
            self.service.ask_to_stop()

        SvcShutdown = SvcStop

        def SvcInterrogate(self) -> None:  # noqa: N802 - pywin32's name
            self.service.report_state()

    return Framework


if __name__ == "__main__":
    main()
