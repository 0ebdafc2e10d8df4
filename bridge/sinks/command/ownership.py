"""Check that only root and the service's account can change a command.

A program that runs with the service's rights must not be writable by other accounts.
The directories above it must not be either, or another file could take its place.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bridge.foundation.privileges import way_to

# -- Whether the shipped service is installed here, and its account --------------------
#
# Root, which may do everything, often runs ``check``. Its answer about a hook must be
# true for the account that the service runs as.


UNIT = "sebridge.service"
_FOLDERS = (  # systemd takes the unit from the first folder that has it
    Path("/etc/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
    Path("/lib/systemd/system"),
)
_ROOT = 0


class Account(Struct, frozen=True, kw_only=True):
    """The account for which the rights to a hook are checked.

    Attributes:
        uid: None on Windows.
        groups: the ids of its groups.
        is_own: whether this process runs as the account.
        words: describes the account. If it is not the service's, it says why.
    """

    uid: int | None
    words: str
    groups: frozenset[int] = frozenset()
    is_own: bool = True


class Service(Struct, frozen=True):
    """The shipped unit on this machine.

    Attributes:
        folders: the folders that may have the unit.
    """

    folders: tuple[Path, ...] = _FOLDERS

    @property
    def is_installed(self) -> bool:
        """Whether one of the folders has the unit."""
        return any((folder / UNIT).is_file() for folder in self.folders)

    def account(self) -> Account:
        """Return the service's account, or that of this process if it is not known."""
        if not self.is_installed:
            return _own(f"no {UNIT} is installed here, which would name its account")
        try:
            return _as(self._user())
        except OSError as error:
            return _own(f"{UNIT} cannot be read: {error.strerror}")

    def _user(self) -> str:
        """Return the last ``User=`` in the unit and its drop-in files.

        Raises:
            OSError: one of these files cannot be read.
        """
        name = ""
        for line in _lines(self._files()):
            key, is_set, value = line.partition("=")
            if is_set and key.strip() == "User":
                name = value.strip()
        return name or "root"

    def _files(self) -> Iterator[Path]:
        yield next(f / UNIT for f in self.folders if (f / UNIT).is_file())
        added = dict[str, Path]()
        for folder in reversed(self.folders):
            added |= {path.name: path for path in (folder / f"{UNIT}.d").glob("*.conf")}
        yield from (added[name] for name in sorted(added))


def _lines(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        yield from file.read_text("utf-8", "replace").splitlines()


if sys.platform == "win32":

    def _own(why: str) -> Account:
        """Return an account without a uid: files on Windows have no such owner."""
        return Account(uid=None, words=f"this account ({why})")

    def _as(name: str) -> Account:
        return _own(f"{UNIT} runs as {name}")

else:
    import pwd

    def _own(why: str) -> Account:
        """Return the account of this process, since the service's is not known."""
        uid = os.geteuid()
        return Account(uid=uid, words=f"uid {uid}, which runs this check ({why})")

    def _as(name: str) -> Account:
        """Return an account by its name or number.

        Only root, and the account itself, can check the rights of an account.
        """
        try:
            found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
        except (KeyError, OverflowError):
            return _own(f"{UNIT} runs as {name}, and there is no such account here")
        me = os.geteuid()
        if me not in {found.pw_uid, _ROOT}:
            return _own(f"{UNIT} runs as {name}; root can check for that account")
        return Account(
            uid=found.pw_uid,
            words=f"{found.pw_name}, the account of {UNIT}",
            groups=frozenset(os.getgrouplist(found.pw_name, found.pw_gid)),
            is_own=me == found.pw_uid,
        )


# -- Who can change a command ----------------------------------------------------------


_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def trouble_of(command: tuple[str, ...], account: int | None) -> str | None:
    """Return why a command must not be run; None = it may.

    Args:
        command: the program and its arguments. Arguments that are files are checked as
            well, since the program may be an interpreter.
        account: the uid of the service; None on Windows: nothing is checked.
    """
    if account is None:
        return None
    files = [command[0], *_arguments(command)]
    found = (trouble for file in files if (trouble := _trouble(Path(file), account)))
    return next(found, None)


def unusable(command: tuple[str, ...], account: Account) -> str | None:
    """Return why an account cannot run a command that exists; None = it can.

    For another account only the modes of the files are checked: not access control
    lists, and not the limits of the unit.
    """
    program = command[0]
    if account.is_own:
        if program[:1] == "/" and not os.access(program, os.X_OK):
            return f"{program} cannot be run: it is not executable (chmod +x)"
        return None
    asked = [(program, os.X_OK), *((file, os.R_OK) for file in _arguments(command))]
    found = (_closed(Path(file), right, account) for file, right in asked)
    return next((flaw for flaw in found if flaw is not None), None)


def not_executable(program: str) -> str | None:
    """Return why root cannot run a program that exists; None = root can."""
    if Path(program).stat().st_mode & 0o111:
        return None
    return f"{program} cannot be run: it is not executable (chmod +x)"


def account() -> int | None:
    """Return the account that this process runs as; None on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _arguments(command: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments that are files."""
    yield from (a for a in command[1:] if a[:1] == "/" and _is_file(a))


def _closed(path: Path, right: int, account: Account) -> str | None:
    """Return which file or directory an account has no right to use; None = none."""
    for part in way_to(path):
        found = part.lstat()
        if stat.S_ISLNK(found.st_mode):
            continue
        is_folder = stat.S_ISDIR(found.st_mode)
        if not _has(account, found, os.X_OK if is_folder else right):
            what = "entered" if is_folder else "read" if right == os.R_OK else "run"
            mode = stat.S_IMODE(found.st_mode)
            return f"{part} cannot be {what} by {account.words} ({mode:04o})"
    return None


def _has(account: Account, found: os.stat_result, right: int) -> bool:
    """Whether the mode of a file gives an account a right."""
    if found.st_uid == account.uid:
        return bool(found.st_mode & right << 6)
    if found.st_gid in account.groups:
        return bool(found.st_mode & right << 3)
    return bool(found.st_mode & right)


def _is_file(name: str) -> bool:
    try:
        return stat.S_ISREG(Path(name).stat().st_mode)
    except (OSError, ValueError):
        return False


def _trouble(path: Path, account: int) -> str | None:
    try:
        for part in way_to(path):
            if what := _flaw(part, account, is_above=part != path):
                return what
        found = path.stat()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not a valid path"
        return f"{path} cannot be run: {cause}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} cannot be run: it is not a regular file"
    return None


def _flaw(part: Path, account: int, *, is_above: bool) -> str | None:
    """Return who else could change one file or directory; None = nobody."""
    found = part.lstat()
    if found.st_uid not in {0, account}:
        owner = f"uid {found.st_uid}"
        return f"{part} belongs to {owner}, not to root or the account that runs it"
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OTHERS:
        return None
    # In a directory with the sticky bit, such as /tmp, only the owner can move a file.
    if is_above and found.st_mode & stat.S_ISVTX:
        return None
    return f"{part} may be written by others ({stat.S_IMODE(found.st_mode):04o})"
