"""Checks of this machine: disk, port, secrets, proxy, versions.

``sebridge check --connect`` runs them. They change nothing; a lock and a WAL of SQLite
are tried in a folder of their own beside the state file, which is removed again.
"""

import os
import re
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from bridge import __version__
from bridge.configuration.config import Config
from bridge.diagnostics.finding import Finding
from bridge.foundation.errors import OutboxError
from bridge.foundation.privileges import no_file
from bridge.foundation.sqlite_files import passed_over
from bridge.health.config import HttpConfig
from bridge.net.addresses import ListenAddress
from bridge.net.listening import listening_fault
from bridge.net.local_socket import obstacle
from bridge.outbox.statefile import StateConfig, locked
from bridge.outbox.storage.file import NOT_OURS, connect
from bridge.outbox.storage.lock import StateLock, holder_of
from bridge.outbox.storage.schema import content_error
from bridge.signing.approval import Approvers

_LEAST_FREE = 16 * 10**6
_IN_MEMORY = {"tmpfs", "ramfs"}
_OF_A_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs"),
    *("lustre", "afs", "ocfs2", "gfs2", "fuse.glusterfs", "fuse.sshfs", "fuse.rclone"),
    *("fuse.blobfuse", "fuse.blobfuse2", "fuse.s3fs", "fuse.davfs", "davfs"),
}
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


class Host(Struct, frozen=True, kw_only=True):
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
_NOTHING = "a start goes on with what is left, and keeps aside what it cannot read"
_OWN = "run this as the user of the service, or chown the directory to it"


def examine(
    config: Config,
    environ: Mapping[str, str],
    host: Host = HERE,
    *,
    missing: Sequence[str] | None,
) -> list[Finding]:
    """Run all checks once.

    Args:
        config: the configuration of the forwarder.
        environ: the environment.
        host: describes this machine.
        missing: why the running forwarder is not ready; None = none answers.
    """
    holder = holder_of(Path(config.state.path)) if missing is None else None
    return [
        *(Finding("fault", f"forwarder: not ready: {one}") for one in missing or ()),
        *state(config.state, host, holder),
        *ports(config.http, missing, holder),
        *secrets(config),
        *approvers(config),
        *proxy(environ),
        versions(host),
    ]


# -- the state directory ---------------------------------------------------------------


def state(
    config: StateConfig, host: Host = HERE, holder: int | None = None
) -> Iterator[Finding]:
    """Check the place of the state file.

    Args:
        config: ``[state]``.
        host: describes this machine.
        holder: the process of a forwarder that has its lock, but does not answer.
    """
    path = Path(config.path)
    there = _existing(path.parent)
    yield _writable(path, there, host)
    if holder is not None:
        text = f"state: a forwarder uses {path} (process {holder}), but does not answer"
        yield Finding("fault", text, "it starts, is stopped, or hangs: see its log")
    yield from _disk(path, there, host)
    free = host.free(there)
    text = f"state: {free / 1e6:,.0f} MB free on the disk of {path}"
    if free < config.max_size + _LEAST_FREE:
        advice = f"state.max_size allows a file of {config.max_size / 1e6:,.0f} MB"
        yield Finding("fault" if free < _LEAST_FREE else "warning", text, advice)
    else:
        yield Finding("ok", text)


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
    """Check whether this user may write the state file, and a start would use it."""
    fault = _in_the_way(path, there, host) or _unusable(path, there) or _content(path)
    if fault is not None:
        return fault
    if (what := obstacle(path)) is not None:
        advice = "until then, commands cannot ask the forwarder"
        return Finding("warning", f"state: {what}", advice)
    mode = stat.S_IMODE(path.stat().st_mode) if _is_there(path) else 0
    if os.name == "posix" and mode & 0o077:
        text = f"state: {path} can be read by other users ({mode:03o})"
        return Finding("warning", text, f"chmod 600 {path}")
    if there != path.parent:
        return Finding(
            "ok", f"state: {path.parent} does not exist yet; it will be created"
        )
    return Finding("ok", f"state: {path.parent} can be written by {host.user()}")


def _in_the_way(path: Path, there: Path, host: Host) -> Finding | None:
    """Return what prevents the bridge from using the path, if anything does."""
    lock = StateLock(path).file
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir fails where it may not look
        text = f"state: {path} is a directory, and state.path must name a file"
        return Finding("fault", text, f'state.path = "{path / "state.db"}"')
    if (taken := no_file(path) or no_file(lock)) is not None:
        return Finding("fault", f"state: {taken} is not a file", f"remove {taken}")
    target = os.path.realpath(path)
    leads_nowhere = os.path.islink(target) or not _is_there(Path(target).parent)  # noqa: PTH114 - as isdir
    if os.path.islink(path) and leads_nowhere:  # noqa: PTH114 - as isdir
        return Finding(
            "fault", f"state: {path} is a link that leads nowhere", f"remove {path}"
        )
    for part in (path, lock, there):
        if _is_there(part) and not host.may_write(part):
            text = f"state: {part} cannot be written by {host.user()}{_owner(part)}"
            return Finding("fault", text, _OWN)
    if not there.is_dir():
        text = f"state: {there} is not a directory"
        return Finding("fault", text, "use another one in state.path")
    return None


def _unusable(path: Path, there: Path) -> Finding | None:
    """Return why nothing can be stored in the folder of the state file, if so."""
    if there != path.parent or (cause := _tried(there)) is None:
        return None
    text = f"state: nothing can be stored in {there}: {cause}"
    cure = "if the disk is full, make room; if not, put state.path on a local disk"
    return Finding("fault", text, f"the bridge runs in memory: {cure}")


def _content(path: Path) -> Finding | None:
    """Return what a start will find wrong in the state file, if it is there."""
    if not _is_there(path) or _is_of_others(path.parent):
        return None
    if (odd := passed_over(path)) is not None:
        return Finding("warning", f"state: {path}: {odd}", _NOTHING)
    if (error := content_error(path)) is None:
        return None
    text = f"state: {path}: {error}"
    if isinstance(error, NOT_OURS):
        return Finding("fault", text, "name another file in state.path")
    return Finding("warning", text, "the forwarder moves it aside when it starts")


def _is_of_others(folder: Path) -> bool:
    """Whether this is root in a folder of somebody else, who could lead it astray."""
    return sys.platform != "win32" and os.geteuid() == 0 and folder.stat().st_uid != 0


def _owner(path: Path) -> str:
    """Return whose a path is, as the end of a text."""
    if sys.platform == "win32":
        return ""
    return f": it belongs to uid {path.stat().st_uid}"


def _tried(folder: Path) -> str | None:
    """Try a lock and a log of SQLite in a folder; return why the bridge has none."""
    if _is_of_others(folder):
        return None
    try:
        with TemporaryDirectory(prefix=".sebridge-check-", dir=folder) as own:
            path = Path(own) / "state.db"
            with locked(path) as lock:
                return lock.fault() or _logged(path)
    except OSError as error:
        return error.strerror or str(error)


def _logged(path: Path) -> str | None:
    """Write and read a file of SQLite with a WAL; return why that fails."""
    try:
        with closing(connect(path)) as writer, closing(connect(path)) as reader:
            writer.execute("INSERT INTO meta (key, value) VALUES ('tried', 1)")
            found = reader.execute("SELECT value FROM meta WHERE key = 'tried'")
            mode = reader.execute("PRAGMA journal_mode").fetchone()[0]
            if found.fetchone() != (1,) or mode != "wal":
                return f"SQLite has no WAL there (journal_mode {mode})"
    except (sqlite3.Error, OutboxError) as error:
        return str(error)
    return None


def _disk(path: Path, there: Path, host: Host) -> Iterator[Finding]:
    """Warn of a disk that loses its content, or on which SQLite does not work."""
    mount, kind = _mount(there.resolve(), host)
    elsewhere = "put state.path on a data disk, or pending deliveries can be lost"
    if _is_there(mount / "DATALOSS_WARNING_README.txt"):
        yield Finding(
            "warning", f"state: {path} is on the temporary disk {mount}", elsewhere
        )
    elif kind in _IN_MEMORY:
        yield Finding(
            "warning", f"state: {path} is in memory ({kind} on {mount})", elsewhere
        )
    elif kind in _OF_A_NETWORK:
        yield Finding(
            "fault",
            f"state: {path} is on a network file system ({kind} on {mount})",
            "SQLite's WAL does not work there: put state.path on a local disk",
        )


def _mount(folder: Path, host: Host) -> tuple[Path, str]:
    """Return where the file system of a folder is mounted, and its type; "" = unknown.

    The table of Linux also has what ``is_mount`` does not see, such as a folder that is
    mounted a second time.
    """
    kinds = _kinds(host.mounts)
    for place in (folder, *folder.parents):
        if (kind := kinds.get(str(place))) is not None or host.is_mount(place):
            return place, kind or ""
    return folder, ""


def _kinds(mounts: Path) -> dict[str, str]:
    """Return the type of each mounted file system, by its directory; Linux only."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    parts = [line.split(" ") for line in lines]
    return {_plain(part[1]): part[2] for part in parts if len(part) > 2}


def _plain(escaped: str) -> str:
    r"""Return a name of the table of mounts without its escapes, such as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)


# -- the rest --------------------------------------------------------------------------


def ports(
    config: HttpConfig, missing: Sequence[str] | None, holder: int | None = None
) -> Iterator[Finding]:
    """Check whether the health port is free, or who holds it, for each address.

    Args:
        config: ``[http]``.
        missing: as of ``examine``.
        holder: as of ``state``.
    """
    if not config.listen:
        yield Finding("ok", "http: off (http.listen is empty)")
    for at in config.addresses:
        yield _port(at, missing, holder)


def _port(
    at: ListenAddress, missing: Sequence[str] | None, holder: int | None
) -> Finding:
    cause = listening_fault(at)
    if missing is not None and cause is None:
        advice = "restart it: it runs with another http.listen"
        return Finding(
            "warning", f"http: the running bridge is not at {at.text}", advice
        )
    if missing is not None and not any(at.text in one for one in missing):
        return Finding("ok", f"http: {at.text} is held by the running bridge")
    if cause is None:
        return Finding("ok", f"http: {at.text} is free")
    text = f"http: {at.text} cannot be listened on: {cause}"
    if holder is not None:
        return Finding("fault", text, f"process {holder} may hold it, see state above")
    advice = (
        "use another one in http.listen, or stop the program that holds it (it may be "
        "a bridge with another state file or another http.token)"
    )
    return Finding("fault", text, advice)


def secrets(config: Config) -> Iterator[Finding]:
    """Check who may access the files of secrets; all of them could be read before."""
    found = [one for one in config.secrets() if not one[1].is_literal]
    if found:
        yield Finding("ok", f"secrets: {len(found)} can be read")
    for place, secret in found:
        path = secret.file
        if path is None or os.name != "posix":
            continue
        if (mode := _mode_of(path)) & 0o007:
            text = f"secrets: {place}: every user can access {path} ({mode:03o})"
            yield Finding("warning", text, f"chmod o= {path}")


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
        yield Finding(
            "ok",
            f"proxy: {', '.join(found)} set: IMDS and the identity endpoint are asked "
            "without it, even if no_proxy is not set",
        )


def approvers(config: Config) -> Iterator[Finding]:
    """Check the keys of ``approvals.signed_by``."""
    if config.approvals is None or not config.approvals.signed_by:
        return
    known = Approvers(config.approvals.signed_by)
    if (fault := known.fault) is not None:
        yield Finding("fault", fault, "approvals wait until it can be read")
        return
    advice = "whoever is root on its VM could approve: give each signer its own key"
    try:
        found = [
            Finding("fault", what, advice)
            for what in known.bridges(Path(config.state.path))
        ]
    except (OSError, ValueError) as error:
        found = [Finding("warning", f"approvals.signed_by: {error}", _OWN)]
    yield from found or [
        Finding("ok", "approvals.signed_by: can be read; no key of a bridge")
    ]


def versions(host: Host = HERE) -> Finding:
    """List the versions that a bug report needs."""
    found = [f"bridge {__version__}", f"Python {sys.version.split()[0]}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    known = "" if _is_wal_reset_fixed(host.sqlite) else _WAL_RESET
    return Finding(
        "ok", f"versions: {', '.join(found)}, SQLite {sqlite3.sqlite_version}{known}"
    )


_WAL_RESET = (
    " (has the WAL-reset bug that 3.51.3 fixes: it needs two writers at the same "
    "moment, and is rarer than a broken disk; a damaged file is moved aside)"
)


def _is_wal_reset_fixed(found: tuple[int, int, int]) -> bool:
    backport = _WAL_RESET_BACKPORTS.get(found[:2])
    return found >= _WAL_RESET_FIXED or (backport is not None and found[2] >= backport)
