"""Keeps root out of files that an account without root's rights may have left.

Such an account can leave files beside a state file with which SQLite deletes or changes
any file that its user may write. So root gives up its rights before it opens a file:

the folder belongs to an account     → this process becomes that account, for good
only root can put files there        → nothing changes
anybody else can put files there     → refused

Windows has no such accounts: there the access control list of the folder decides.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from bridge.foundation.errors import ForeignFolderError

_ROOT = 0
_PROGRAM = (__file__, os.__file__)  # a file of the program, and one of its Python
_MOST_LINKS = 40
_ACCESS_LIST = "system.posix_acl_access"
_OWNER_ONLY = 0o600
# Where it exists, O_PATH opens a file without the right to read it. Closing such a
# number does not release the POSIX locks that SQLite holds on the file.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
PARTS = ("", "-journal", "-wal", "-shm")


def way_to(path: Path) -> Iterator[Path]:
    """Yield a path and its parents; the same for the target of each symbolic link.

    Raises:
        OSError: the links form a loop.
    """
    to_do, seen = [path], set[Path]()
    while to_do:
        found = to_do.pop()
        for part in (found, *found.parents):
            if part in seen:
                continue
            seen.add(part)
            yield part
            if part.is_symlink():
                to_do.append(part.parent / part.readlink())
        if len(seen) > _MOST_LINKS * len(path.parts):
            raise OSError(errno.ELOOP, "too many symbolic links")


def make_private(path: Path) -> None:
    """Let only the owner read a database of SQLite, whatever the umask is.

    A new file is created; no symbolic link is followed. SQLite gives the files beside
    it the same mode. Errors are ignored: they are reported when the file is opened.
    """
    with suppress(OSError):
        # Only a new file: closing an existing one would drop SQLite's POSIX locks.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_LINK
        os.close(os.open(path, flags, _OWNER_ONLY))
    if sys.platform == "win32":
        return
    for suffix in PARTS:
        with suppress(OSError):
            _close_to_others(f"{path}{suffix}")


def no_file(path: Path) -> str | None:
    """Return a directory, FIFO or socket in place of a database or a file of it.

    SQLite would wait in a FIFO for ever. None = there is nothing of that kind.
    """
    for suffix in PARTS:
        part = f"{path}{suffix}"
        with suppress(OSError, ValueError):
            if not stat.S_ISREG(os.stat(part).st_mode):  # noqa: PTH116 - a path as text
                return part
    return None


if sys.platform == "win32":

    def enter(_path: Path) -> int | None:
        """Do nothing: Windows has no root."""
        return None

    def leaves_root(_path: Path) -> bool:
        """Return False: Windows has no root."""
        return False

else:
    import pwd

    def enter(path: Path) -> int | None:
        """Make it safe for this process to open a file and those beside it.

        Args:
            path: the file, which need not exist.

        Returns:
            The uid of the account that this process has become for good; None: root's
            rights were not given up, or there were none.

        Raises:
            ForeignFolderError: root must not open the file, or cannot give up its
                rights.
        """
        owner = _foreign_owner(path)
        if owner is None:
            return None
        uid, gid = owner
        text = f"{path.parent} belongs to uid {uid}, which"
        try:
            if (closed := _closed_program(uid, gid)) is not None:
                raise ForeignFolderError(f"{text} may not read the program: {closed}")
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        except OSError as error:
            what = f"{text} this process cannot be: {error.strerror}"
            raise ForeignFolderError(what) from error
        return uid

    @cache
    def _closed_program(uid: int, gid: int) -> str | None:
        """Return a file of the program that an account may not read; None = it may.

        Without root's rights this process could not load the rest of its modules.
        """
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(gid)
        os.seteuid(uid)
        try:
            return next((one for one in _PROGRAM if not _may_read(one)), None)
        finally:
            os.seteuid(_ROOT)
            os.setegid(os.getgid())
            os.setgroups(groups)

    def _may_read(path: str) -> bool:
        is_possible = os.access in os.supports_effective_ids
        return not is_possible or os.access(path, os.R_OK, effective_ids=True)

    def leaves_root(path: Path) -> bool:
        """Whether ``enter`` would give up root's rights, or refuse."""
        try:
            return _foreign_owner(path) is not None
        except ForeignFolderError:
            return True

    def _foreign_owner(path: Path) -> tuple[int, int] | None:
        """Return the account that root must become; None = it may stay root.

        Raises:
            ForeignFolderError: there is no account that could open the file safely.
        """
        if os.geteuid() != _ROOT:
            return None
        try:
            parent = Path(os.path.realpath(path)).parent
            folder = _existing(parent)
            found = folder.stat()
            if found.st_uid != _ROOT:
                return _account(found)
            for part in way_to(path.absolute()):
                with suppress(FileNotFoundError, NotADirectoryError):
                    _check(part, part.lstat(), found if folder == parent else None)
            _check_files(folder, path.name)
        except PermissionError:  # what root may not see, it cannot open either
            return None
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            text = f"root must not open {path} before it knows whose it is: {cause}"
            raise ForeignFolderError(text) from error
        return None

    def _account(folder: os.stat_result) -> tuple[int, int]:
        """Return uid and gid of the owner of a folder; the gid is never root's."""
        try:
            return folder.st_uid, pwd.getpwuid(folder.st_uid).pw_gid
        except KeyError:  # an account of another machine or container
            return folder.st_uid, folder.st_gid or folder.st_uid

    def _check(
        part: Path, found: os.stat_result, folder: os.stat_result | None
    ) -> None:
        """Refuse a part of the way that anybody but root could exchange.

        Args:
            part: a directory or link of the way, or the file itself.
            found: its attributes.
            folder: the attributes of the folder of the file; None = it is not there.
        """
        if found.st_uid != _ROOT:
            raise _refusal(part, f"belongs to uid {found.st_uid}")
        if not stat.S_ISDIR(found.st_mode) or not _is_open(part, found):
            return
        # In a directory with the sticky bit, others cannot move what is root's; but in
        # the folder itself they could create the files beside the state file.
        is_folder = folder is not None and os.path.samestat(found, folder)
        if found.st_mode & stat.S_ISVTX and not is_folder:
            return
        mode = stat.S_IMODE(found.st_mode)
        raise _refusal(part, f"may be written by others ({mode:04o})")

    def _is_open(part: Path, found: os.stat_result) -> bool:
        """Whether an account that is not root may write.

        With an access control list, the bits of the group are the most that the list
        gives to anybody.
        """
        if found.st_mode & stat.S_IWOTH:
            return True
        is_of_others = found.st_gid != _ROOT or _has_list(part)
        return bool(found.st_mode & stat.S_IWGRP) and is_of_others

    def _has_list(part: Path) -> bool:
        if sys.platform != "linux":  # pragma: no cover - tests run on Linux
            return False
        try:
            return bool(os.getxattr(part, _ACCESS_LIST))
        except OSError:  # it has none, or none are known here
            return False

    def _check_files(folder: Path, name: str) -> None:
        """Refuse files of somebody else in a folder of root."""
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(name):
                    uid = entry.stat(follow_symlinks=False).st_uid
                    if uid != _ROOT:
                        raise _refusal(Path(entry.path), f"belongs to uid {uid}")

    def _refusal(part: Path, what: str) -> ForeignFolderError:
        return ForeignFolderError(
            f"root must not open files there: {part} {what}; give the folder to the "
            "account of the service (chown), or let only root write to it"
        )

    def _existing(folder: Path) -> Path:
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        return folder


def _close_to_others(path: str) -> None:
    """Take the rights of others to a plain file of this account; follow no link."""
    if not _is_plain(os.lstat(path)):
        return
    number = os.open(path, _LOOK | _NO_LINK | getattr(os, "O_CLOEXEC", 0))
    try:
        if _is_plain(os.fstat(number)):
            _set_mode(number)
    finally:
        os.close(number)


def _is_plain(found: os.stat_result) -> bool:
    """Whether it is a plain file of this account to which others have a right."""
    is_file = stat.S_ISREG(found.st_mode)
    is_own = sys.platform == "win32" or found.st_uid == os.geteuid()
    return is_file and is_own and bool(found.st_mode & 0o077)


def _set_mode(number: int) -> None:
    if hasattr(os, "O_PATH"):  # fchmod refuses it; Linux has another name for it
        Path(f"/proc/self/fd/{number}").chmod(_OWNER_ONLY)
    elif sys.platform != "win32":
        os.fchmod(number, _OWNER_ONLY)
