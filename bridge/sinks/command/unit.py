"""Request one run of a hook from a systemd unit, and wait for its result.

    request ──taken──▶ running ──result──▶ ended
     │ └──not taken in time──▶ cannot be run
     └─ stop: the request is withdrawn, or the run cancelled

Root runs the hook (``sebridge-hook@NAME.service``), with other rights than the
forwarder's. The two exchange files: see ``unit_files``. A run goes on when the
forwarder ends; after its restart the forwarder waits for the same run, by its runId.
"""

import asyncio
import base64
import json
import logging
import os
import re
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import asdict, fields, replace

from bridge.foundation.clock import Clock
from bridge.sinks.acting import Action
from bridge.sinks.command.output import Kept
from bridge.sinks.command.process import Exit

# -- The files in ``/run`` by which the forwarder and the launcher of a hook
#    communicate
#
#     hooks/NAME/run        the forwarder's: its last request, and for which step
#     hooks/NAME/request    the forwarder's: requests a run; the launcher deletes it
#     hooks/NAME/cancel     the forwarder's: the run to stop
#     …-hook/NAME/taken     root's: the run that the launcher has begun
#     …-hook/NAME/result    root's: how a run ended
#
# The launcher is ``infra/systemd/hook_launcher.py``; it runs as root.


if sys.platform == "win32":  # there are no units: these values are not used
    _NO_LINK = _FOLDER = _READ = 0
else:
    import fcntl

    _NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    _READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_UNIT = re.compile(r"sebridge-hook@([A-Za-z0-9][A-Za-z0-9_-]{0,63})\.service")
_LARGEST = 64 * 1024


def hook_name(unit: str) -> str | None:
    """Return the name of the hook that a unit runs; None: it is no unit of a hook."""
    found = _UNIT.fullmatch(unit)
    return None if found is None else found[1]


class Places(Struct, frozen=True):
    """The folders of hooks, requests and results.

    Attributes:
        requests: has a folder for each hook, which the forwarder writes.
        results: has a folder for each hook, which only root writes.
        hooks: has the hooks themselves.
    """

    requests: Path = Path("/run/sebridge/hooks")
    results: Path = Path("/run/sebridge-hook")
    hooks: Path = Path("/etc/sebridge/hooks")


class RequestedRun(Struct, frozen=True):
    """A run that was requested.

    Attributes:
        run_id: an id that no other run has.
        cause: identifies the sink, the step and the action; a restart of the
            forwarder does not change it.
        event: the EventId.
        action: ``prepare`` or ``restore``.
    """

    run_id: str
    cause: str
    event: str
    action: str


class RunState(Struct, frozen=True):
    """The state of a run.

    Attributes:
        is_waiting: whether the launcher has not taken the request yet.
        is_begun: whether the launcher has begun the run.
        result: how the run ended; None before its end.
    """

    is_waiting: bool
    is_begun: bool
    result: Mapping[str, object] | None

    @property
    def is_under_way(self) -> bool:
        """Whether the run has begun and not ended."""
        return self.is_begun and self.result is None


class Mailbox(Struct, frozen=True):
    """The files of one hook.

    No symbolic link is followed: this process may be root, in a folder of the service.

    Attributes:
        folder: descriptor of the folder that the forwarder writes.
        roots: the folder that only root writes.
    """

    folder: int
    roots: Path

    def lock(self) -> bool:
        """Lock the hook; return False if this or another process holds the lock."""
        if sys.platform != "win32":
            try:
                fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def last(self) -> RequestedRun | None:
        """Return the last run that was requested, unless its end was seen."""
        found = self._read("run")
        texts = [str(found.get(field.name, "")) for field in fields(RequestedRun)]
        return RequestedRun(*texts) if found else None

    def ask(
        self,
        asked: RequestedRun,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
    ) -> None:
        """Request a run.

        Raises:
            OSError: the request cannot be written.
        """
        self.withdraw()
        self._write("run", asdict(asked))
        own = {k: v for k, v in environment.items() if k.startswith("SEBRIDGE_")}
        request = {
            "runId": asked.run_id,
            "limit": limit,
            "environment": own,
            "event": given.decode(),
        }
        self._write("request", request)

    def look(self, run_id: str) -> RunState:
        """Read the state of a run."""
        # In this order, a change meanwhile shows as the later state; none is missed.
        is_waiting = self._is_there("request")
        taken, result = _read(self.roots / "taken"), _read(self.roots / "result")
        return RunState(
            is_waiting=is_waiting,
            is_begun=taken.get("runId") == run_id,
            result=result if result.get("runId") == run_id else None,
        )

    def withdraw(self) -> bool:
        """Delete the request; return False if the launcher has taken it."""
        try:
            os.unlink("request", dir_fd=self.folder)
        except FileNotFoundError:
            return False
        return True

    def cancel(self, run_id: str) -> None:
        """Request that a run is stopped."""
        self._write("cancel", {"runId": run_id})

    def forget(self, run_id: str) -> None:
        """Delete what was requested for a run.

        ``cancel`` stays until there is a result: the launcher may not have read it yet.
        """
        is_over = self.look(run_id).result is not None
        for name in ("request", "run", *(("cancel",) if is_over else ())):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.folder)

    def _is_there(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _read(self, name: str) -> dict[str, object]:
        with suppress(OSError):
            return _object_in(os.open(name, _READ | _NO_LINK, dir_fd=self.folder))
        return {}

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        """Write a file atomically: no reader sees a part of it.

        Raises:
            OSError: the file cannot be written.
        """
        part, folder = f"{name}.new", self.folder
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
        with open(os.open(part, flags, 0o644, dir_fd=folder), "w") as file:  # noqa: PTH123 - a number
            json.dump(content, file)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def mailbox(places: Places, name: str) -> Iterator[Mailbox]:
    """Yield the files of a hook; release its lock at the end.

    Raises:
        OSError: the forwarder's folder, such as ``/run/sebridge``, does not exist.
    """
    folder = _opened(places.requests, name)
    try:
        yield Mailbox(folder, places.results / name)
    finally:
        os.close(folder)


def _opened(requests: Path, name: str) -> int:
    """Open the forwarder's folder of a hook; create the folder if it is missing."""
    number = os.open(requests.parent, _FOLDER)
    owner = os.fstat(number)
    for part in (requests.name, name):
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=number)
            below = os.open(part, _FOLDER | _NO_LINK, dir_fd=number)
        finally:
            os.close(number)
        number = below
        is_others = os.fstat(number).st_uid != owner.st_uid  # root has created it
        if sys.platform != "win32" and is_others:
            os.fchown(number, owner.st_uid, owner.st_gid)
    return number


def new_run_id() -> str:
    """Return an id that no other run has."""
    return secrets.token_hex(16)


def exit_of(result: Mapping[str, object], seconds: float) -> Exit:
    """Convert a result to how the run ended: as the hook did, or as systemd says."""
    ended = result.get("ended")
    if not isinstance(ended, dict):
        return _exit_of_service(result, seconds)
    if fault := ended.get("fault"):
        return Exit(code=None, fault=str(fault), seconds=seconds)
    return Exit(
        code=int(ended["code"]),
        timed_out=ended["timedOut"] is True,
        was_stopped=ended["stopped"] is True,
        output=_output_of(ended),
        seconds=float(ended["seconds"]),
    )


def _exit_of_service(result: Mapping[str, object], seconds: float) -> Exit:
    """Return the end of a service whose launcher ended before the hook did."""
    what, status = result.get("result"), result.get("exitStatus")
    fault = f"its service ended before the hook did: {what} ({status})"
    return Exit(code=None, fault=fault, is_transient=True, seconds=seconds)


def _output_of(ended: Mapping[str, object]) -> str:
    head, tail = (base64.b64decode(str(ended[name])) for name in ("head", "tail"))
    count = ended["count"]
    kept = Kept.of(head, tail, count if isinstance(count, int) else 0)
    return kept.text()


def _read(path: Path) -> dict[str, object]:
    """Read the JSON object in a file; return {} if it cannot be read."""
    with suppress(OSError):
        return _object_in(os.open(path, _READ))
    return {}


def _object_in(number: int) -> dict[str, object]:
    with open(number, "rb") as file, suppress(ValueError, RecursionError):
        found = json.loads(file.read(_LARGEST))
        return found if isinstance(found, dict) else {}
    return {}


# -- Request one run of a hook from a systemd unit, and wait for its result ------------


log = logging.getLogger(__name__)

_LOOK_EVERY = 0.2
_SIGTERM = -15
_INACTIVE = {"inactive", "failed", "unknown"}


class UnitRunner(Struct, frozen=True):
    """Has root run a hook; see ``bridge.sinks.command.process.Runner``.

    Attributes:
        unit: ``sebridge-hook@NAME.service``.
        patience: seconds within which the unit must take a request.
        ending: seconds within which a run must end after it was cancelled.
    """

    unit: str
    clock: Clock
    places: Places = field(default_factory=Places)
    patience: float = 30.0
    ending: float = 15.0

    async def run(
        self,
        command: tuple[str, ...],  # noqa: ARG002 - the unit knows its hook
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run the hook to its end.

        When this call is cancelled, the run goes on: the next call for the same step
        waits for it.
        """
        began = self.clock.monotonic()
        try:
            with mailbox(self.places, hook_name(self.unit) or "") as box:
                if not await self._is_our_turn(box, stop):
                    return Exit(code=_SIGTERM, was_stopped=True)
                asked, is_new = await self._begun(box, environment, stop)
                if is_new and stop.is_set():
                    # An earlier run may be under way. Its files stay: the launcher has
                    # perhaps not read "cancel" yet, and the next call waits for it.
                    return Exit(code=_SIGTERM, was_stopped=True)
                if is_new:
                    left = max(limit - (self.clock.monotonic() - began), 1.0)
                    ask = partial(box.ask, asked, given, environment, left)
                    await asyncio.to_thread(ask)
                found = await self._awaited(box, asked, stop)
                await asyncio.to_thread(box.forget, asked.run_id)
        except OSError as error:
            fault = f"{self.places.requests}: {error.strerror} (RuntimeDirectory=)"
            return Exit(code=None, fault=fault, is_transient=True)
        return replace(found, seconds=found.seconds or self.clock.monotonic() - began)

    async def _is_our_turn(self, box: Mailbox, stop: asyncio.Event) -> bool:
        """Wait until no other call uses the hook; False: ``stop`` was set before."""
        while not stop.is_set():
            if box.lock():
                return True
            await self.clock.wait(stop, _LOOK_EVERY)
        return False

    async def _begun(
        self, box: Mailbox, environment: Mapping[str, str], stop: asyncio.Event
    ) -> tuple[RequestedRun, bool]:
        """Return the run to wait for, and whether it is new.

        It is not new if the forwarder requested it before a restart, for the same
        step. A run for another step must end before a new run begins.
        """
        asked = _requested_by(environment)
        last = await asyncio.to_thread(box.last)
        if last is None:
            return asked, True
        look = await asyncio.to_thread(box.look, last.run_id)
        if not (look.is_waiting or look.is_begun):
            return asked, True
        if last.cause == asked.cause:
            log.info("run of a hook taken up", extra=_fields_of(self.unit, last))
            return last, False
        log.info(
            "another run of the hook is awaited", extra=_fields_of(self.unit, last)
        )
        if last.event == asked.event and asked.action == Action.RESTORE.value:
            await asyncio.to_thread(box.cancel, last.run_id)  # its event is over
        if not await asyncio.to_thread(box.withdraw):
            await self._until_it_ended(box, last, stop)
        return asked, True

    async def _until_it_ended(
        self, box: Mailbox, asked: RequestedRun, stop: asyncio.Event
    ) -> None:
        """Wait for an earlier run; ``stop`` or the caller's limit ends the wait."""
        look = await asyncio.to_thread(box.look, asked.run_id)
        while look.is_under_way and not stop.is_set():
            await self.clock.wait(stop, _LOOK_EVERY)
            look = await asyncio.to_thread(box.look, asked.run_id)

    async def _awaited(
        self, box: Mailbox, asked: RequestedRun, stop: asyncio.Event
    ) -> Exit:
        """Wait for the result of a run, also after ``stop`` has cancelled it."""
        never, since, is_cancelled = asyncio.Event(), self.clock.monotonic(), False
        while True:
            look = await asyncio.to_thread(box.look, asked.run_id)
            if look.result is not None:
                return exit_of(look.result, 0.0)
            if stop.is_set() and not is_cancelled:
                is_cancelled, since = True, self.clock.monotonic()
                if await self._stopped(box, asked):
                    return Exit(code=_SIGTERM, was_stopped=True)
            late = self._late(
                look, self.clock.monotonic() - since, is_stopped=is_cancelled
            )
            if late is not None and not await asyncio.to_thread(box.withdraw):
                look = await asyncio.to_thread(box.look, asked.run_id)
                late = None if look.is_begun and not is_cancelled else late
            if late is not None:
                return late
            await self.clock.wait(never if is_cancelled else stop, _LOOK_EVERY)

    async def _stopped(self, box: Mailbox, asked: RequestedRun) -> bool:
        """Withdraw the request or cancel the run; return True if it had not begun."""
        if await asyncio.to_thread(box.withdraw):
            return True
        await asyncio.to_thread(box.cancel, asked.run_id)
        return False

    def _late(self, look: RunState, seconds: float, *, is_stopped: bool) -> Exit | None:
        """Return the end of a run that did not begin or end in time; None: wait on."""
        if is_stopped and seconds > self.ending:
            fault = f"it was stopped, and {self.unit} did not say that it ended"
            return Exit(code=None, fault=fault, was_stopped=True)
        if not look.is_begun and not is_stopped and seconds > self.patience:
            path = self.unit.replace(".service", ".path")
            fault = (
                f"{self.unit} did not take the request within {self.patience:g} s "
                f"(systemctl status {path} {self.unit})"
            )
            return Exit(code=None, fault=fault, is_transient=True)
        return None


def _fields_of(unit: str, asked: RequestedRun) -> dict[str, object]:
    """Return the fields that identify a run in the log."""
    return {"unit": unit, "runId": asked.run_id, "eventId": asked.event}


def _requested_by(environment: Mapping[str, str]) -> RequestedRun:
    """Return a new run for the step that the environment describes."""
    action = environment["SEBRIDGE_ACTION"]
    cause = f"{environment['SEBRIDGE_SINK']} {environment['SEBRIDGE_ID']} {action}"
    return RequestedRun(new_run_id(), cause, environment["SEBRIDGE_EVENT_ID"], action)


async def path_unit_fault(unit: str) -> str | None:
    """Return why no request of a hook is taken: its path unit is not active.

    None: the path unit is active, or there is no systemd.
    """
    path = unit.replace(".service", ".path")
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "is-active", path, stdout=PIPE, stderr=DEVNULL, stdin=DEVNULL
        )
    except OSError:
        return None  # no systemd here, such as in a container
    state = (await process.communicate())[0].decode(errors="replace").strip()
    if state in _INACTIVE:
        return f"{path} is {state}: systemctl enable --now {path}"
    return None
