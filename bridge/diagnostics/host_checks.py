"""Checks of this machine: disk, port, secrets, proxy, versions.

``sebridge check --connect`` runs them; they change nothing.
"""

import os
import shutil
import socket
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bridge import __version__
from bridge.configuration.config import Config
from bridge.diagnostics.finding import Finding
from bridge.health.config import HttpConfig
from bridge.outbox.statefile import StateConfig

_LEAST_FREE = 16 * 10**6
_IN_MEMORY = {"tmpfs", "ramfs"}
_OF_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.blobfuse2"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_PACKAGES = ("aiohttp", "azure-servicebus", "azure-identity", "slack-sdk")
# Source: https://sqlite.org/wal.html#walresetbug
_WAL_RESET_FIXED = (3, 51, 3)
_WAL_RESET_BACKPORTS = {(3, 44): 6, (3, 50): 7}


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _may_write(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _user() -> str:
    if sys.platform == "win32":
        return os.environ.get("USERNAME", "this user")
    return f"uid {os.getuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Functions and files that describe this machine; tests replace them.

    Attributes:
        mounts: the file that lists the mounted file systems; Linux only.
        is_mount: returns whether a file system is mounted at a path.
        free: returns how many bytes are free on the disk of a folder.
        may_write: returns whether this user may read and write a path.
        user: returns how this user is called in texts.
        sqlite: the version of SQLite.
    """

    mounts: Path = Path("/proc/self/mounts")
    is_mount: Callable[[Path], bool] = os.path.ismount
    free: Callable[[Path], int] = _free
    may_write: Callable[[Path], bool] = _may_write
    user: Callable[[], str] = _user
    sqlite: tuple[int, int, int] = sqlite3.sqlite_version_info


HERE = Host()


def examine(
    config: Config,
    environ: Mapping[str, str],
    answer: Mapping[str, object] | None,
    host: Host = HERE,
) -> list[Finding]:
    """Run all checks once.

    Args:
        config: the configuration of the forwarder.
        environ: the environment.
        answer: the status of the running forwarder; None if no forwarder runs.
        host: describes this machine.
    """
    return [
        *state(config.state, host),
        port(config.http, answer),
        *secrets(config),
        *proxy(environ),
        versions(host),
    ]


def _good(text: str) -> Finding:
    return Finding(is_good=True, text=text)


def _warning(text: str, advice: str) -> Finding:
    return Finding(is_good=True, is_warning=True, text=text, advice=advice)


def _fault(text: str, advice: str) -> Finding:
    return Finding(is_good=False, text=text, advice=advice)


# -- the state directory ---------------------------------------------------------------


def state(config: StateConfig, host: Host = HERE) -> Iterator[Finding]:
    """Check the place of the state file."""
    path = Path(config.path)
    there = _existing(path.parent)
    yield _writable(path, there, host)
    yield from _disk(path, there, host)
    free = host.free(there)
    text = f"state: {free / 1e6:,.0f} MB free on the disk of {path}"
    if free < config.max_size + _LEAST_FREE:
        advice = f"state.max_size allows a file of {config.max_size / 1e6:,.0f} MB"
        yield (_fault if free < _LEAST_FREE else _warning)(text, advice)
    else:
        yield _good(text)


def _existing(folder: Path) -> Path:
    while not _is_there(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _is_there(path: Path) -> bool:
    """Whether a path exists, as far as this user may see."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _writable(path: Path, there: Path, host: Host) -> Finding:
    """Check whether this user may write the state file, without opening it."""
    own = "run this as the user of the service, or chown the directory to it"
    for part in (path, there):
        if _is_there(part) and not host.may_write(part):
            return _fault(f"state: {part} cannot be written by {host.user()}", own)
    if not there.is_dir():
        return _fault(
            f"state: {there} is not a directory", "use another one in state.path"
        )
    mode = stat.S_IMODE(path.stat().st_mode) if _is_there(path) else 0
    if os.name == "posix" and mode & 0o077:
        text = f"state: {path} can be read by other users ({mode:03o})"
        return _warning(text, f"chmod 600 {path}")
    if there != path.parent:
        return _good(f"state: {path.parent} does not exist yet; it will be created")
    return _good(f"state: {path.parent} can be written by {host.user()}")


def _disk(path: Path, there: Path, host: Host) -> Iterator[Finding]:
    """Warn of a disk that loses its content, or on which SQLite does not work."""
    mount = there.resolve()
    while not host.is_mount(mount) and mount != mount.parent:
        mount = mount.parent
    kind = _kinds(host.mounts).get(str(mount), "")
    elsewhere = "put state.path on a data disk, or pending deliveries can be lost"
    if _is_there(mount / "DATALOSS_WARNING_README.txt"):
        yield _warning(f"state: {path} is on the temporary disk {mount}", elsewhere)
    elif kind in _IN_MEMORY:
        yield _warning(f"state: {path} is in memory ({kind} on {mount})", elsewhere)
    elif kind in _OF_A_NETWORK:
        yield _fault(
            f"state: {path} is on a network file system ({kind} on {mount})",
            "SQLite's WAL does not work there: put state.path on a local disk",
        )


def _kinds(mounts: Path) -> dict[str, str]:
    """Return the type of each mounted file system, by its directory; Linux only."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    parts = [line.split(" ") for line in lines]
    return {part[1].replace("\\040", " "): part[2] for part in parts if len(part) > 2}


# -- the rest --------------------------------------------------------------------------


def port(config: HttpConfig, answer: Mapping[str, object] | None) -> Finding:
    """Check whether the health port is free, or who holds it."""
    if not config.listen:
        return _good("http: off (http.listen is empty)")
    if answer is not None:
        return _good(f"http: {config.listen} is held by the running bridge")
    if (cause := listening_fault(*config.address)) is None:
        return _good(f"http: {config.listen} is free")
    return _fault(
        f"http: {config.listen} cannot be listened on: {cause}",
        "use another one in http.listen, or stop the program that holds it (a bridge "
        "that runs with another http.token does not answer here)",
    )


def listening_fault(host: str, number: int) -> str | None:
    """Return why this process cannot listen on a port; None = the port is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.create_server((host, number), family=family)):
            return None
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or "it is not an address"


def secrets(config: Config) -> Iterator[Finding]:
    """Check who may access the files of secrets; all of them could be read before."""
    found = list(config.secrets())
    if found:
        yield _good(f"secrets: {len(found)} can be read")
    for place, secret in found:
        path = secret.file
        if path is None or os.name != "posix":
            continue
        if (mode := _mode_of(path)) & 0o007:
            text = f"secrets: {place}: every user can access {path} ({mode:03o})"
            yield _warning(text, f"chmod o= {path}")


def _mode_of(path: Path) -> int:
    """Return the mode of a file; 0: this account cannot see it."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def proxy(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report a proxy of the environment, which the bridge does not use for IMDS."""
    names = {name.lower() for name, value in environ.items() if value}
    if found := [name for name in _PROXIES if name in names]:
        yield _good(
            f"proxy: {', '.join(found)} set: IMDS and the identity endpoint are asked "
            "without it, even if no_proxy is not set"
        )


def versions(host: Host = HERE) -> Finding:
    """List the versions that a bug report needs."""
    found = [f"bridge {__version__}", f"Python {sys.version.split()[0]}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    known = "" if _is_wal_reset_fixed(host.sqlite) else _WAL_RESET
    return _good(
        f"versions: {', '.join(found)}, SQLite {sqlite3.sqlite_version}{known}"
    )


_WAL_RESET = (
    " (has the WAL-reset bug that 3.51.3 fixes: it needs two writers at the same "
    "moment, and is rarer than a broken disk; a damaged file is moved aside)"
)


def _is_wal_reset_fixed(found: tuple[int, int, int]) -> bool:
    backport = _WAL_RESET_BACKPORTS.get(found[:2])
    return found >= _WAL_RESET_FIXED or (backport is not None and found[2] >= backport)
