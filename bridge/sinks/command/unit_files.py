"""What the forwarder and root's side of a hook leave for each other in ``/run``.

    hooks/NAME/run        ours: the run that was asked for last, and for what
    hooks/NAME/request    ours: asks for a run; taken away by who runs it
    hooks/NAME/cancel     ours: the run that is to be stopped
    …-hook/NAME/taken     root's: the run that was begun
    …-hook/NAME/result    root's: how a run ended

The other side is ``infra/systemd/hook_launcher.py``.
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

if sys.platform == "win32":  # there are no such units: nothing of it is called
    _NO_LINK = _FOLDER = _READ = 0
else:
    import fcntl

    _NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    _READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_UNIT = re.compile(r"sebridge-hook@([A-Za-z0-9][A-Za-z0-9_-]{0,63})\.service")
_LARGEST = 64 * 1024


def name_in(unit: str) -> str | None:
    """Return the hook's name in the name of a unit; None: it is no unit of a hook."""
    found = _UNIT.fullmatch(unit)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Places:
    """Where hooks and what is told of them lie.

    Attributes:
        requests: a folder for each hook, that the forwarder writes.
        results: a folder for each hook, that only root writes.
        hooks: the hooks themselves.
    """

    requests: Path = Path("/run/sebridge/hooks")
    results: Path = Path("/run/sebridge-hook")
    hooks: Path = Path("/etc/sebridge/hooks")


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that was asked for.

    Attributes:
        cause: what it is for; the same step has the same in the next life.
        event: the EventId.
        action: what is done.
    """

    run_id: str
    cause: str
    event: str
    action: str


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be seen of a run.

    Attributes:
        is_waiting: whether nobody has taken the request yet.
        is_begun: whether somebody runs it, or did.
        result: how it ended; None before that.
    """

    is_waiting: bool
    is_begun: bool
    result: Mapping[str, object] | None

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self.is_begun and self.result is None


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The files of one hook. No symbolic link is followed: root may be who asks.

    Attributes:
        folder: our own, open.
        roots: the folder that only root writes.
    """

    folder: int
    roots: Path

    def lock(self) -> bool:
        """Return whether nobody else asks for the hook, in this process or another."""
        if sys.platform != "win32":
            try:
                fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def last(self) -> Asked | None:
        """Return the run that was asked for last and whose end nobody has seen."""
        found = self._read("run")
        texts = [str(found.get(field.name, "")) for field in fields(Asked)]
        return Asked(*texts) if found else None

    def ask(
        self, asked: Asked, given: bytes, environment: Mapping[str, str], limit: float
    ) -> None:
        """Ask for a run.

        Raises:
            OSError: it cannot be asked for.
        """
        self.forget()
        self._write("run", asdict(asked))
        told = {k: v for k, v in environment.items() if k.startswith("SEBRIDGE_")}
        request = {
            "runId": asked.run_id,
            "limit": limit,
            "environment": told,
            "event": given.decode(),
        }
        self._write("request", request)

    def look(self, run_id: str) -> Look:
        """Look at how far a run is."""
        # In this order: what happens meanwhile is seen as later, and never lost.
        is_waiting = self._is_there("request")
        taken, result = _read(self.roots / "taken"), _read(self.roots / "result")
        return Look(
            is_waiting=is_waiting,
            is_begun=taken.get("runId") == run_id,
            result=result if result.get("runId") == run_id else None,
        )

    def withdraw(self) -> bool:
        """Take the request away; return whether nobody had taken it."""
        try:
            os.unlink("request", dir_fd=self.folder)
        except FileNotFoundError:
            return False
        return True

    def cancel(self, run_id: str) -> None:
        """Ask for a run to be stopped."""
        self._write("cancel", {"runId": run_id})

    def forget(self) -> None:
        """Take away what was asked before."""
        for name in ("request", "cancel", "run"):
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

    def _write(self, name: str, told: Mapping[str, object]) -> None:
        """Write a file as a whole: nobody sees half of it.

        Raises:
            OSError: it cannot be written.
        """
        part, folder = f"{name}.new", self.folder
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
        with open(os.open(part, flags, 0o644, dir_fd=folder), "w") as file:  # noqa: PTH123 - a number
            json.dump(told, file)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def mailbox(places: Places, name: str) -> Iterator[Mailbox]:
    """Yield the files of a hook; who leaves gives the lock back.

    Raises:
        OSError: there is no folder of our own, such as ``/run/sebridge``.
    """
    folder = _opened(places.requests, name)
    try:
        yield Mailbox(folder, places.results / name)
    finally:
        os.close(folder)


def _opened(requests: Path, name: str) -> int:
    """Open our folder of a hook, and make it where it is not there."""
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
        is_roots = os.fstat(number).st_uid != owner.st_uid  # made for the service
        if sys.platform != "win32" and is_roots:
            os.fchown(number, owner.st_uid, owner.st_gid)
    return number


def new_run_id() -> str:
    """Return what no other run is called."""
    return secrets.token_hex(16)


def exit_of(result: Mapping[str, object], seconds: float) -> Exit:
    """Return how a run ended: as the hook did, or as systemd says."""
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
    """Return what is known where the launcher did not live to tell of the hook."""
    what, status = result.get("result"), result.get("exitStatus")
    fault = f"its service ended before it did: {what} ({status})"
    return Exit(code=None, fault=fault, is_passing=True, seconds=seconds)


def _output_of(ended: Mapping[str, object]) -> str:
    head, tail = (base64.b64decode(str(ended[name])) for name in ("head", "tail"))
    count = ended["count"]
    kept = Kept.of(head, tail, count if isinstance(count, int) else 0)
    return kept.text()


def _read(path: Path) -> dict[str, object]:
    """Return what is written in a file; {} where it cannot be read."""
    with suppress(OSError):
        return _object_in(os.open(path, _READ))
    return {}


def _object_in(number: int) -> dict[str, object]:
    with open(number, "rb") as file, suppress(ValueError, RecursionError):
        found = json.loads(file.read(_LARGEST))
        return found if isinstance(found, dict) else {}
    return {}
