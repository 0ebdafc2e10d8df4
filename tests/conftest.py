"""What tests share: a clock that is moved by hand, a real outbox, Hypothesis profiles.

`dev` tries 30 examples and `ci` 100, the same at each run: a run that fails where the
last one passed has a change behind it, not luck. None has a deadline: a busy machine is
no bug. `--hypothesis-profile deep` looks for new examples, 1,000 at each run.
"""

import gc
import itertools
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType

import certifi
import pytest
from hypothesis import HealthCheck, settings

from bridge.events.build import EventContext
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.support.browser import browser
from tests.support.builders import (
    SINK,
    event_context_of,
    patient_outbox,
    router,
)
from tests.support.disks import disk, frozen
from tests.support.fakes import FakeClock, FakeMetadata
from tests.support.ports import free_port
from tests.support.servers import brisk_sdk, broker, inbox, namespace, resources

__all__ = [  # fixtures from elsewhere
    "brisk_sdk",
    "broker",
    "browser",
    "disk",
    "frozen",
    "inbox",
    "namespace",
    "resources",
]

# Tests start hundreds of processes. Where nothing is kept, each compiles all anew; and
# this one rewrites the assertions of 200 files, which takes ten seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


_TESTS = Path(__file__).parent
_LONG = (
    "system",
    "demo",
    "infra",
    "docs",
    "simulation",
    "hub/simulation",
    "hub/test_process",
)


def _memory() -> str | None:
    """Return a folder in memory where there is room: SQLite waits for disks there not.

    None where it is small (in a container, 64 MB), or where no program may be run.
    """
    place = Path("/dev/shm")  # noqa: S108 - folders of its own are made in it
    if not place.is_dir():
        return None
    found = os.statvfs(place)
    is_large = found.f_bavail * found.f_frsize > _ROOM
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    is_free = available is not None and int(available[1]) << 10 > _ROOM
    may_run = not found.f_flag & os.ST_NOEXEC
    return str(place) if is_large and is_free and may_run else None


_ROOM = 4 << 30  # bytes
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and (found := _memory()):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = found  # where tmp_path is

# To read the certificates of all authorities takes 40 ms: each process does that which
# loads aiohttp (tests start 500), and each connection of the Service Bus SDK, encrypted
# or not. No test calls a server that one of them vouches for; only what is installed
# with the mark `deploy` may come from one. So there is one, which signs nothing.
_AUTHORITY = str(_TESTS / "data" / "authority.pem")

gc.disable()  # until all tests are found: what is made until then, stays

_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "dev",
    deadline=None,
    suppress_health_check=_QUIET,
    max_examples=30,
    derandomize=True,
)
settings.register_profile(
    "ci", deadline=None, suppress_health_check=_QUIET, derandomize=True
)
settings.register_profile(
    "deep", deadline=None, suppress_health_check=_QUIET, max_examples=1000
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _let_python_handle_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_named_files_whole(config: pytest.Config) -> None:
    """Leave no slow test out where only files are named, and no folder."""
    if all(one.partition("::")[0].endswith(".py") for one in config.args):
        marks = str(config.option.markexpr)
        config.option.markexpr = marks.replace(" and not slow", "")


def pytest_configure(config: pytest.Config) -> None:
    """Trust one authority only, where nothing is installed.

    And let Ctrl-C end the tests by a function of our own: in place of Python's, asyncio
    puts one at each test and fixture, and up to Python 3.11 ``signal`` then describes
    the task with all that it returns. That takes milliseconds, twenty thousand times.
    """
    usual = signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is usual:
        signal.signal(signal.SIGINT, _interrupt)
        config.add_cleanup(_let_python_handle_interrupts)
    _run_named_files_whole(config)
    if "not deploy" in config.getoption("markexpr"):
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        patch.setenv("SSL_CERT_FILE", _AUTHORITY)
        patch.setenv("SSL_CERT_DIR", os.devnull)
        patch.setattr(certifi, "where", lambda: _AUTHORITY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process begin with its share of the long tests.

    Each gets one part of the list, all parts of one length; one that has nothing left
    takes from the end of another's. A module stays whole: its fixtures are costly.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules = [list(one) for _, one in itertools.groupby(items, lambda one: one.path)]
    modules.sort(key=lambda module: not _is_long(module[0].path))  # else as they came
    parts: list[list[pytest.Item]] = [[] for _ in range(count)]
    for number, module in enumerate(modules):
        is_long = _is_long(module[0].path)
        part = parts[number % count] if is_long else min(parts, key=len)
        part.extend(module)
    items[:] = itertools.chain.from_iterable(parts)


def _is_long(path: Path) -> bool:
    return Path(os.path.relpath(path, _TESTS)).as_posix().startswith(_LONG)


def pytest_collection_finish() -> None:
    """Keep 12,000 tests and their modules out of every collection from now on.

    Each process holds them to its end, and looking through them costs half a second.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Leave the log of this process as it was: commands that run in it set it up."""
    loggers = [logging.getLogger(name) for name in (None, "azure", "asyncio")]
    handlers = loggers[0].handlers[:]
    levels = [one.level for one in loggers]
    yield
    root = loggers[0]
    root.handlers[:] = [one for one in root.handlers if one in handlers] or handlers
    for one, level in zip(loggers, levels, strict=True):
        if one.level != level:  # to set it empties the caches of all loggers
            one.setLevel(level)


@pytest.fixture
def unused_tcp_port() -> int:
    """Return a port that nobody else is given; pytest-asyncio's may be taken."""
    return free_port()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics([SINK], "1.2.3")


@pytest.fixture
def event_context() -> EventContext:
    return event_context_of()


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def outbox(state_path: Path) -> AsyncIterator[Outbox]:
    async with patient_outbox(state_path, router()) as opened:
        yield opened


@pytest.fixture
def metadata() -> FakeMetadata:
    return FakeMetadata()
