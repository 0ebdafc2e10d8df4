"""The files in ``/run`` by which the forwarder and the launcher of a hook communicate.

    hooks/NAME/run        the forwarder's: its last request, and for which step
    hooks/NAME/request    the forwarder's: requests a run; the launcher deletes it
    hooks/NAME/cancel     the forwarder's: the run to stop
    …-hook/NAME/taken     root's: the run that the launcher has begun
    …-hook/NAME/result    root's: how a run ended

The launcher is ``infra/systemd/hook_launcher.py``; it runs as root.
"""

import base64
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bridge.sinks.command.output import Kept
from bridge.sinks.command.process import Exit

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


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of hooks, requests and results.

    Attributes:
        requests: has a folder for each hook, which the forwarder writes.
        results: has a folder for each hook, which only root writes.
        hooks: has the hooks themselves.
    """

    requests: Path = Path("/run/sebridge/hooks")
    results: Path = Path("/run/sebridge-hook")
    hooks: Path = Path("/etc/sebridge/hooks")


@dataclass(frozen=True, slots=True)
class RequestedRun:
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


@dataclass(frozen=True, slots=True)
class RunState:
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


@dataclass(frozen=True, slots=True)
class Mailbox:
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
