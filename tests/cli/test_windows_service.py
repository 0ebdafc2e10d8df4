"""The Windows service on any system: its states, and its binding to a fake pywin32."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Any

import pytest

from bridge.app.supervisor import Supervisor, attended
from bridge.cli import windows_service
from bridge.cli.windows_service import EventLog, Service, State, forwarder, home
from bridge.foundation.errors import BridgeError, ConfigError, install_command
from bridge.outbox.statefile import default_path
from tests.support.configurations import NOWHERE, Table, config_text, webhook
from tests.support.fakes import FakeClock


@dataclass
class FakeManager:
    """A fake of the parts of Windows that a service uses."""

    states: list[State] = field(default_factory=list)
    log: list[tuple[int, str]] = field(default_factory=list)

    def report(self, state: State, patience: float) -> None:
        assert patience > 5
        self.states.append(state)

    def write(self, level: int, text: str) -> None:
        self.log.append((level, text))


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager()


async def until_asked(stop: asyncio.Event, supervisor: Supervisor) -> None:
    supervisor.ready()
    await stop.wait()
    supervisor.stopping()


def running(service: Service) -> threading.Thread:
    """Run a service in a thread, as Windows does; return when it is running."""
    started = threading.Event()

    async def work(stop: asyncio.Event, supervisor: Supervisor) -> None:
        supervisor.ready()
        started.set()
        await stop.wait()

    thread = threading.Thread(target=service.run, args=(work,))
    thread.start()
    assert started.wait(60)
    return thread


def test_service_starts_runs_and_stops_when_asked(manager: FakeManager) -> None:
    service = Service(manager)
    thread = running(service)

    service.ask_to_stop()
    service.ask_to_stop()  # a second request to stop changes nothing
    thread.join(60)

    assert not thread.is_alive()
    assert manager.states == [State.STARTING, State.RUNNING, State.STOPPING]
    assert manager.log == [(logging.INFO, "started"), (logging.INFO, "stopped")]


def test_stop_that_comes_before_the_loop_is_a_stop(manager: FakeManager) -> None:
    service = Service(manager)

    service.ask_to_stop()
    service.run(until_asked)

    assert State.RUNNING not in manager.states
    assert manager.log == [(logging.INFO, "stopped")]


def test_stop_that_comes_after_the_end_is_harmless(manager: FakeManager) -> None:
    async def nothing(stop: asyncio.Event, supervisor: Supervisor) -> None:
        pass

    service = Service(manager)
    service.run(nothing)

    service.ask_to_stop()

    assert manager.states[-1] is State.STOPPING


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BridgeError("another forwarder runs"), "failed: another forwarder runs"),
        (ConfigError(["a: wrong", "b: wrong"]), "failed: a: wrong; b: wrong"),
        (ExceptionGroup("", [BridgeError("deep\nforged")]), "failed: deep\\nforged"),
    ],
)
def test_failure_is_in_the_event_log_and_raised(
    manager: FakeManager, error: Exception, text: str
) -> None:
    async def fail(stop: asyncio.Event, supervisor: Supervisor) -> None:
        raise error

    with pytest.raises(BridgeError):
        Service(manager).run(fail)

    assert manager.log == [(logging.ERROR, text)]


async def test_pending_states_are_reported_again(
    manager: FakeManager, clock: FakeClock
) -> None:
    service, stop = Service(manager), asyncio.Event()

    async with attended(service, stop, clock):
        await clock.advance(11)
        assert manager.states == [State.STARTING] * 3
        service.ready()
        await clock.advance(600)
        assert manager.states[3:] == [State.RUNNING]
        stop.set()
        await clock.advance(11)

    assert manager.states[4:] == [State.STOPPING] * 3


def test_event_log_gets_each_error_as_one_line(manager: FakeManager) -> None:
    logger = logging.getLogger("sebridge.test.windows")
    handler = EventLog(manager)
    logger.addHandler(handler)

    logger.warning("sink parked")
    logger.error("state file is corrupt", extra={"fault": "malformed\nERROR forged"})

    logger.removeHandler(handler)
    ((level, text),) = manager.log
    assert level == logging.ERROR
    assert text.endswith("state file is corrupt fault=malformed\\nERROR forged")


def test_everything_of_the_service_is_below_programdata() -> None:
    assert str(home({})) == str(Path(r"C:\ProgramData") / "sebridge")
    state = PureWindowsPath(default_path("win32"))
    assert state.parent == PureWindowsPath(r"C:\ProgramData\sebridge\state")


def test_missing_configuration_is_reported(
    manager: FakeManager, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        Service(manager).run(forwarder(tmp_path, {}, manager))

    assert str(tmp_path / "bridge.toml") in caught.value.faults[0]


def test_unwritable_log_is_reported(manager: FakeManager, tmp_path: Path) -> None:
    text = config_text(SINK, state=Path("state.db"), identity=ME)
    (tmp_path / "bridge.toml").write_text(text)
    (tmp_path / "log").write_text("a file where a folder should be")

    with pytest.raises(
        BridgeError, match=r"sebridge\.log cannot be written: File exist"
    ):
        Service(manager).run(forwarder(tmp_path, {}, manager))


# -- the binding ---------------------------------------------------------------

START_PENDING, STOP_PENDING, RUNNING = 2, 3, 4
CONTROL_STOP, CONTROL_INTERROGATE, CONTROL_SHUTDOWN = 1, 4, 5


@dataclass
class FalseWindows:
    """A fake of the service control manager and of pywin32.

    Attributes:
        script: the controls that Windows sends to the running service.
        code: what pywin32's command line returns.
    """

    script: Callable[["Any"], None] = lambda _: None
    states: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    hosted: type | None = None
    commands: list[list[str]] = field(default_factory=list)
    code: int = 0
    sources: list[str] = field(default_factory=list)
    running: threading.Event = field(default_factory=threading.Event)

    def report(self, state: int) -> None:
        self.states.append(state)
        if state == RUNNING:
            self.running.set()

    def dispatch(self) -> None:
        """Start the hosted service in a thread, and send it the script's controls."""
        assert self.hosted is not None
        service = self.hosted(["sebridge"])
        thread = threading.Thread(target=service.SvcRun)
        thread.start()
        assert self.running.wait(30)
        self.script(service)
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> FalseWindows:
    made = FalseWindows()

    class ServiceFramework:
        def __init__(self, args: list[str]) -> None:
            assert args == ["sebridge"]

        def ReportServiceStatus(self, state: int, waitHint: int = 0) -> None:  # noqa: N802, N803
            assert waitHint > 5000
            made.report(state)

    def set_source(name: str, now: bool) -> None:  # noqa: FBT001 - as theirs
        assert now
        made.sources.append(name)

    def handle(kind: type, argv: list[str]) -> int:
        made.commands.append(argv)
        return made.code

    def prepare(kind: type) -> None:
        made.hosted = kind

    modules: dict[str, dict[str, object]] = {
        "servicemanager": {
            "Initialize": made.sources.append,
            "PrepareToHostSingle": prepare,
            "StartServiceCtrlDispatcher": made.dispatch,
            "SetEventSourceName": set_source,
            "LogInfoMsg": lambda text: made.events.append(f"info {text}"),
            "LogWarningMsg": lambda text: made.events.append(f"warning {text}"),
            "LogErrorMsg": lambda text: made.events.append(f"error {text}"),
        },
        "win32service": {
            "SERVICE_START_PENDING": START_PENDING,
            "SERVICE_STOP_PENDING": STOP_PENDING,
            "SERVICE_RUNNING": RUNNING,
        },
        "win32serviceutil": {
            "ServiceFramework": ServiceFramework,
            "HandleCommandLine": handle,
        },
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return made


SINK: Table = webhook(NOWHERE, headers={"authorization": "hunter2"})
ME = {
    "vm_id": "vm-1",
    "vm_name": "web-0",
    "resource_id": "/subscriptions/s/resourceGroups/rg/providers/x",
    "location": "westeurope",
}


def test_real_forwarder_is_hosted_and_stopped_by_windows(
    windows: FalseWindows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    monkeypatch.setenv("PROGRAMDATA", str(tmp_path))
    folder = home({"PROGRAMDATA": str(tmp_path)})
    folder.mkdir()
    text = config_text(SINK, state=folder / "state.db", identity=ME)
    (folder / "bridge.toml").write_text(text)

    def control(service: Any) -> None:
        service.SvcInterrogate()
        service.write(logging.WARNING, "sink parked")
        service.SvcShutdown()

    windows.script = control
    try:
        windows_service.main(["service", "host"])
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = kept
        root.setLevel(level)

    assert windows.states[0] == START_PENDING
    first = windows.states.index(RUNNING)
    assert windows.states[first : first + 3] == [RUNNING, RUNNING, STOP_PENDING]
    assert set(windows.states[first + 2 :]) == {STOP_PENDING}
    said = [text for text in windows.events if not text.startswith("error")]
    assert said == ["info started", "warning sink parked", "info stopped"]
    log = (folder / "log" / "sebridge.log").read_text()
    assert '"forwarder started"' in log
    assert '"forwarder stopped"' in log
    assert "sinks.siem.headers.authorization: a literal secret" in log
    assert (folder / "state.db").exists()


def test_service_is_started_by_the_python_it_was_installed_with(
    windows: FalseWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)

    windows_service.main(["service", "--startup", "auto", "install"])

    assert windows.commands == [["service", "--startup", "auto", "install"]]
    assert windows.sources == ["sebridge"]
    framework: Any = windows_service._framework()
    assert framework._exe_name_ == sys.executable
    assert framework._exe_args_ == "-I -m bridge.cli.windows_service host"


def test_installation_that_windows_refuses_fails(
    windows: FalseWindows,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as for want of rights: pywin32 prints why, and returns the code."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    windows.code = 1057

    with pytest.raises(SystemExit) as caught:
        windows_service.main(["service", "install"])

    assert caught.value.code == 1
    assert "Windows has refused it with code 1057" in capsys.readouterr().err


def test_other_commands_are_left_to_pywin32(windows: FalseWindows) -> None:
    windows_service.main(["service", "start"])

    assert windows.commands == [["service", "start"]]
    assert windows.sources == []


def test_virtual_environment_is_refused(
    windows: FalseWindows,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "prefix", f"{sys.base_prefix}-venv")

    with pytest.raises(SystemExit) as caught:
        windows_service.main(["service", "install"])

    assert caught.value.code == 2
    assert (
        "install: needs a Python without a virtual environment"
        in capsys.readouterr().err
    )
    assert windows.commands == []


def test_without_pywin32_the_error_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "servicemanager", None)

    with pytest.raises(SystemExit) as caught:
        windows_service.main(["service", "start"])

    assert caught.value.code == 1
    assert install_command("windows") in capsys.readouterr().err


# Modules that exist only on POSIX; asyncio and the libraries may import them.
BLOCKED = """
import asyncio, logging.handlers, subprocess, sys, tempfile  # as they are here
import aiohttp, click, msgspec, orjson, prometheus_client, pythonjsonlogger.orjson
import azure.identity.aio, azure.servicebus.aio, slack_sdk

POSIX = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "posix"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ImportError(f"{name} is of POSIX alone")

for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocker())
sys.platform = "win32"
sys.modules["msvcrt"] = type(sys)("msvcrt")  # of Windows alone

import bridge.app.forwarder, bridge.cli.main, bridge.cli.windows_service
import bridge.cli.approve, bridge.cli.check_connect, bridge.cli.common
import bridge.cli.outbox, bridge.cli.status
import bridge.diagnostics.doctor, bridge.diagnostics.status_query
import bridge.configuration.json_schema
import bridge.sinks.servicebus.sink, bridge.sinks.slack.sink, bridge.sinks.webhook.sink

assert bridge.outbox.statefile.default_path() == r"D:\\Data\\sebridge\\state\\state.db"
settings = bridge.configuration.load.Settings()
assert settings.state.path == r"D:\\Data\\sebridge\\state\\state.db"
print("reached")
"""


@pytest.mark.integration
def test_no_module_of_the_forwarder_needs_posix() -> None:
    found = subprocess.run(  # noqa: S603 - our own text
        [sys.executable, "-c", BLOCKED],
        env={"PROGRAMDATA": r"D:\Data", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.stdout == "reached\n", found.stderr
