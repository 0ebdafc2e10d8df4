"""The socket on which a process answers the commands of this machine.

It lies beside a file, and only the owner of the file (and root) may connect: its mode
is 0600. Windows has a named pipe in its place, to which by default only the account
that made it, administrators and the system may write.
"""

import asyncio
import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")
_LONGEST = 100  # bytes of a path that every system takes
_OWNER_ONLY = 0o600
_BACKLOG = 128
_HEAD = re.compile(rb"(?is)HTTP/1\.1 (\d{3}) .*\r\nContent-Length: (\d+)\b")
_PATIENCE = 2.0  # seconds


def address_of(path: Path) -> str:
    """Return the path of the socket beside a file, or the name of the pipe."""
    if sys.platform == "win32":
        return rf"\\.\pipe\sebridge-{sha256(str(path).encode()).hexdigest()[:32]}"
    return f"{path}.socket"


def obstacle(path: Path) -> str | None:
    """Return what is in the place of the socket beside a file; None = nothing."""
    address = address_of(path)
    try:
        mode = os.lstat(address).st_mode if sys.platform != "win32" else stat.S_IFSOCK
    except OSError:
        return None
    return None if stat.S_ISSOCK(mode) else f"{address} is not a socket: move it away"


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield an address of the socket that is short enough for the system.

    Raises:
        OSError: the folder cannot be opened, or the name itself is too long.
    """
    address = address_of(path)
    if sys.platform != "linux" or len(os.fsencode(address)) <= _LONGEST:
        yield address
        return
    folder = os.open(Path(address).parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{Path(address).name}"
    finally:
        os.close(folder)


async def serve(
    path: Path, make: Callable[[], asyncio.Protocol], identify: Callable[[str], T]
) -> tuple[Callable[[], object], T]:
    """Answer connections to the socket beside a file; return its end and its id.

    A socket that another process has left there is replaced. The id is known before
    anybody can connect: whoever does may remove it.

    Args:
        path: the file.
        make: makes the protocol of a connection.
        identify: returns the id of the socket, from its address.

    Raises:
        OSError: it cannot be made.
    """
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 - for mypy  # nosec B101
        make_one = cast("Callable[[], asyncio.StreamReaderProtocol]", make)
        (pipe,) = await loop.start_serving_pipe(make_one, address_of(path))
        return pipe.close, identify(address_of(path))
    else:  # noqa: RET505 - mypy leaves out a branch for another system only
        listener = await asyncio.to_thread(_bound, path)  # a disk may hang
        made = identify(address_of(path))
        server = await loop.create_unix_server(make, sock=listener, backlog=_BACKLOG)
        return server.close, made


def remove(path: Path) -> None:
    """Remove the socket beside a file, if it is there."""
    if sys.platform != "win32":
        with suppress(OSError):
            Path(address_of(path)).unlink()


def is_answered(path: Path) -> bool:
    """Whether a process listens on the socket beside a file.

    Raises:
        PermissionError: this user may not connect to it.
    """
    if sys.platform == "win32":
        try:
            os.stat(address_of(path))  # noqa: PTH116 - a Path raises some of the errors
        except PermissionError:
            raise
        except OSError as error:  # it is busy with others, if it is there
            return not isinstance(error, FileNotFoundError)
        return True
    else:  # noqa: RET505 - mypy leaves out a branch for another system only
        with socket.socket(socket.AF_UNIX) as found:
            found.settimeout(_PATIENCE)
            try:
                with reachable(path) as address:
                    found.connect(address)
            except PermissionError:
                raise
            except (TimeoutError, BlockingIOError):
                return True  # so many wait that no other fits
            except OSError:
                return False
        return True


async def ask(
    path: Path, verb: str, target: str, body: bytes, patience: float
) -> tuple[int, bytes]:
    """Send an HTTP request to the socket beside a file; return status and content.

    By hand, because a library for it takes longer to load than a command runs.

    Args:
        path: the file.
        verb: the method of the request.
        target: its path.
        body: its content.
        patience: seconds for all of it.

    Raises:
        TimeoutError: there is no answer.
        OSError: nobody listens, or the connection has ended.
        ValueError: the answer is not HTTP.
    """
    head = (
        f"{verb} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(patience):
        reader, writer = await _connection(path)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    head_of_answer, _, content = answer.partition(b"\r\n\r\n")
    found = _HEAD.match(head_of_answer)
    if found is None:
        if not answer:
            raise ConnectionResetError("it has not answered")
        raise ValueError("the answer is not HTTP")
    if len(content) != int(found[2]):
        raise ConnectionResetError("it has not answered to the end")
    return int(found[1]), content


async def _connection(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if sys.platform == "win32":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 - for mypy  # nosec B101
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.create_pipe_connection(
            lambda: protocol, address_of(path)
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    else:  # noqa: RET505 - mypy leaves out a branch for another system only
        with reachable(path) as address:
            return await asyncio.open_unix_connection(address)


if sys.platform != "win32":

    def _bound(path: Path) -> socket.socket:
        """Return a socket beside a file; nobody can connect before it has its mode."""
        if (what := obstacle(path)) is not None:
            raise FileExistsError(errno.EEXIST, what)
        found = socket.socket(socket.AF_UNIX)
        try:
            with reachable(path) as address:
                with suppress(FileNotFoundError):
                    os.unlink(address)  # noqa: PTH108 - a path as text
                found.bind(address)
                os.chmod(address, _OWNER_ONLY)  # noqa: PTH101 - a path as text
        except BaseException:
            found.close()
            raise
        return found
