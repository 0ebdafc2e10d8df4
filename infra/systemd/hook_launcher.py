"""Root's side of a hook: takes a request of the forwarder, and runs the hook for it.

Called by sebridge-hook@.service: ``run NAME`` starts the hook, ``finish NAME`` writes
how the service ended, whatever ended it. The forwarder is not trusted here: what it
wrote is data, and the hook is root's own file. It is one file, because root starts it
with ``python -I``, which imports nothing that lies beside it.

    /run/sebridge/hooks/NAME/request   the forwarder's: what is to be run, and for what
    /run/sebridge/hooks/NAME/cancel    the forwarder's: the run that is to be stopped
    /run/sebridge-hook/NAME/taken      root's: the run that was begun
    /run/sebridge-hook/NAME/ended      root's: how the hook ended
    /run/sebridge-hook/NAME/result     root's: both, and what systemd says of it
"""

import base64
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

REQUESTS = "run/sebridge/hooks"
RESULTS = "run/sebridge-hook"
HOOKS = "etc/sebridge/hooks"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RUN_ID = re.compile(r"[0-9a-f]{32}")
# What a hook may be told: the list of bridge/sinks/command/environment.py.
KEYS = frozenset(
    "SEBRIDGE_" + key
    for key in (
        *("ACTION", "TRANSITION", "ATTEMPT", "SINK", "TEST", "TYPE", "ID", "VM_NAME"),
        *("EVENT_ID", "EVENT_TYPE", "EVENT_STATUS", "EVENT_SOURCE", "NOT_BEFORE"),
        *("NOTICE_SECONDS", "DURATION_SECONDS", "RESOURCES", "OTHER_EVENTS"),
    )
)
OWN = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
LARGEST = 4 * 1024 * 1024
LONGEST_VALUE = 32 * 1024
LONGEST_RUN = 86400.0
HEAD, TAIL, CHUNK = 2 * 1024, 6 * 1024, 64 * 1024
TICK, LINGER, PATIENCE = 0.2, 1.0, 10.0
UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
OTHERS = stat.S_IWGRP | stat.S_IWOTH
CANNOT_RUN = 126


class RefusedError(Exception):
    """A request, or a hook, that nothing is run for."""


@dataclass(frozen=True)
class Request:
    """What the forwarder asks for; checked."""

    run_id: str
    limit: float
    environment: dict[str, str]
    event: bytes


@dataclass
class Output:
    """The first and the last of what a hook writes, which goes to the journal too."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    count: int = 0

    def feed(self, chunk: bytes) -> None:
        """Take what was written next."""
        with suppress(OSError):
            os.write(1, chunk)
        self.count += len(chunk)
        room = HEAD - len(self.head)
        self.head += chunk[:room]
        self.tail = (self.tail + chunk[room:])[-TAIL:]


def folder_at(root: str, path: str) -> int:
    """Open a folder below the root, following no symbolic link."""
    number = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.split("/"):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(part, flags, dir_fd=number)
        finally:
            os.close(number)
        number = below
    return number


def read_at(folder: int, name: str) -> bytes:
    """Read a plain file of a folder.

    Raises:
        OSError: it is not there, or a symbolic link.
        RefusedError: it is no plain file, or too long.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # Path.open knows no folder that is open already, and follows symbolic links.
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:  # noqa: PTH123 - see above
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedError(f"{name} is no plain file")
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise RefusedError(f"{name} is longer than {LARGEST} bytes")
    return found


def taken_request(folder: int) -> Request:
    """Read the request, as ``read_at``, and take it away: it starts nothing again."""
    try:
        text = read_at(folder, "request")
    finally:
        os.unlink("request", dir_fd=folder)
    return parsed(text)


def parsed(text: bytes) -> Request:
    """Return what a request asks for."""
    try:
        found = json.loads(text)
        run_id, limit = found["runId"], float(found["limit"])
        told, event = dict(found["environment"]), found["event"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedError("the request is no request") from error
    if not (isinstance(run_id, str) and RUN_ID.fullmatch(run_id)):
        raise RefusedError("the request has no runId")
    if not 0 < limit <= LONGEST_RUN:
        raise RefusedError(f"limit must be more than 0 and at most {LONGEST_RUN:g} s")
    known = {k: v for k, v in told.items() if k in KEYS and isinstance(v, str)}
    environment = {k: UNFIT.sub("?", v)[:LONGEST_VALUE] for k, v in known.items()}
    return Request(run_id, limit, environment, event)


def check_hook(root: str, path: Path) -> None:
    """See to it that nobody but root can have written the hook."""
    for part in (path, *path.parents):
        found = part.lstat()
        right = stat.S_ISREG if part == path else stat.S_ISDIR
        if not right(found.st_mode):
            raise RefusedError(f"{part} is no plain file, or not in a plain folder")
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
            raise RefusedError(f"{part} must be root's, and nobody else may write it")
        if part == Path(root):
            return


@dataclass
class Run:
    """One hook that runs.

    Attributes:
        cancelled: says whether the forwarder wants it stopped.
        why: why it was told to end: "timedOut", "stopped"; "" by itself.
    """

    process: "subprocess.Popen[bytes]"
    limit: float
    cancelled: Callable[[], bool]
    output: Output = field(default_factory=Output)
    why: str = ""
    is_told_to_end: bool = False

    def to_its_end(self) -> None:
        """Read what it writes until it ends, and end it where it must."""
        end = time.monotonic() + self.limit
        while self.process.poll() is None:
            self.read(TICK)
            if self.is_told_to_end or self.cancelled():
                self.why = "stopped"
            elif time.monotonic() >= end:
                self.why = "timedOut"
            if self.why:
                self.terminate()
        end = time.monotonic() + LINGER
        while time.monotonic() < end and self.read(TICK):
            pass

    def read(self, seconds: float) -> bool:
        """Read what is there; False where nobody can write any more."""
        pipe = self.process.stdout
        if pipe is None or pipe.closed:
            time.sleep(seconds)
            return False
        if not select.select([pipe], [], [], seconds)[0]:
            return True
        chunk = os.read(pipe.fileno(), CHUNK)
        if chunk:
            self.output.feed(chunk)
        else:
            pipe.close()
        return bool(chunk)

    def terminate(self) -> None:
        """Ask all of it to end; after a while it is not asked any more."""
        self.signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while self.is_there() and time.monotonic() < end:
            self.read(TICK)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def is_there(self) -> bool:
        """Whether the hook, or anything that it has started, is left."""
        self.process.poll()  # one that has ended is there until somebody asks
        return self.signal(0)

    def signal(self, number: int) -> bool:
        """Send a signal to the hook and what it has started; False: nobody is left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def started(hook: Path, request: Request) -> "subprocess.Popen[bytes]":
    """Start the hook; the event is its standard input."""
    with tempfile.TemporaryFile() as event:
        event.write(request.event)
        event.seek(0)
        return subprocess.Popen(  # noqa: S603 - root's own file
            [hook],
            stdin=event,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=OWN | request.environment,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )


def run(root: str, name: str) -> int:
    """Take the request, run the hook, and note how it ended; return an exit code."""
    results = Path(root, RESULTS, name)
    for old in ("taken", "ended"):
        (results / old).unlink(missing_ok=True)
    folder = folder_at(root, f"{REQUESTS}/{name}")
    request = taken_request(folder)
    group = group_of(root)
    write(results / "taken", {"runId": request.run_id}, group)
    began = time.monotonic()
    try:
        hook = Path(root, HOOKS, name)
        check_hook(root, hook)
        process = started(hook, request)
    except (OSError, ValueError, RefusedError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        write(results / "ended", {"runId": request.run_id, "fault": cause}, group)
        print(f"{name}: {cause}", file=sys.stderr)
        return CANNOT_RUN
    one = Run(process, request.limit, lambda: is_cancelled(folder, request.run_id))

    def end(_number: int, _frame: object) -> None:
        one.is_told_to_end = True

    signal.signal(signal.SIGTERM, end)
    one.to_its_end()
    code = process.returncode
    told = {
        "runId": request.run_id,
        "code": code,
        "timedOut": one.why == "timedOut",
        "stopped": one.why == "stopped",
        "seconds": round(time.monotonic() - began, 3),
        "head": base64.b64encode(one.output.head).decode(),
        "tail": base64.b64encode(one.output.tail).decode(),
        "count": one.output.count,
    }
    write(results / "ended", told, group)
    return int(code) if code >= 0 else 128 - code


def is_cancelled(folder: int, run_id: str) -> bool:
    """Whether the forwarder wants this run stopped."""
    try:
        found = json.loads(read_at(folder, "cancel"))
    except (OSError, ValueError, RecursionError, RefusedError):
        return False
    return isinstance(found, dict) and found.get("runId") == run_id


def group_of(root: str) -> int:
    """Return the forwarder's group: that of the directory systemd made for it."""
    return Path(root, REQUESTS).parent.lstat().st_gid


def write(path: Path, told: dict[str, object], group: int) -> None:
    """Write a file as a whole, for root and the forwarder's group to read."""
    part = path.with_name(f"{path.name}.new")
    part.unlink(missing_ok=True)
    # Nobody else may read it before it belongs to that group, whatever the umask is.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(part, flags, 0o600), "w") as file:  # noqa: PTH123 - a number
        file.write(json.dumps(told))
        with suppress(PermissionError):  # only root gives files away
            os.fchown(file.fileno(), -1, group)
        os.fchmod(file.fileno(), 0o640)
    part.replace(path)


def finish(root: str, name: str) -> int:
    """Write the result: what systemd says of the service, and how the hook ended."""
    results = Path(root, RESULTS, name)
    try:
        run_id = json.loads((results / "taken").read_text())["runId"]
    except FileNotFoundError:
        return 0  # no request was taken
    ended = None
    with suppress(FileNotFoundError):
        ended = json.loads((results / "ended").read_text())
    told = {
        "runId": run_id,
        "result": os.environ.get("SERVICE_RESULT", ""),
        "exitCode": os.environ.get("EXIT_CODE", ""),
        "exitStatus": os.environ.get("EXIT_STATUS", ""),
        "ended": ended,
    }
    write(results / "result", told, group_of(root))
    return 0


def main(arguments: list[str]) -> int:
    """Do what the unit asks for; below another root in tests."""
    if len(arguments) not in {2, 3} or not NAME.fullmatch(arguments[1]):
        print("usage: hook_launcher.py run|finish NAME [ROOT]", file=sys.stderr)
        return 64
    action = {"run": run, "finish": finish}.get(arguments[0])
    root = arguments[2] if len(arguments) == 3 else "/"
    try:
        return 64 if action is None else action(root, arguments[1])
    except (OSError, RefusedError) as error:
        print(f"{arguments[1]}: {error}", file=sys.stderr)
        return 65


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
