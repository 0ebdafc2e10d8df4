"""Who may write a command: root and the service's account, and nobody else.

What is run with the service's rights must not be written by others, nor moved away by
who may write a directory above it.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bridge.sinks.command.service import Account

_MOST_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def trouble_of(command: tuple[str, ...], account: int | None) -> str | None:
    """Return why a command must not be run; None = it may.

    Args:
        command: the program, and its arguments: those that are files count too, since
            a program may be an interpreter.
        account: the service's; None where files have no such owner.
    """
    if account is None:
        return None
    files = [command[0], *_arguments(command)]
    found = (trouble for file in files if (trouble := _trouble(Path(file), account)))
    return next(found, None)


def unusable(command: tuple[str, ...], account: Account) -> str | None:
    """Return why an account cannot run a command that is there; None = it can.

    Another account's rights are told by the modes of the files alone: what lists of
    access or the unit's own limits say beside them is not looked at.
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
    """Return why a program that is there cannot be run by root."""
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
    """Return what keeps an account from a file that it needs; None = nothing."""
    for part in _way(path):
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
        for part in _way(path):
            if what := _flaw(part, account, is_above=part != path):
                return what
        found = path.stat()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is no path"
        return f"{path} cannot be run: {cause}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} cannot be run: it is no file"
    return None


def _way(path: Path) -> Iterator[Path]:
    """Yield the path, all above it, and the same of each link on the way.

    Raises:
        OSError: something on the way is missing, or the links lead in a circle.
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
            raise OSError(0, "too many symbolic links")


def _flaw(part: Path, account: int, *, is_above: bool) -> str | None:
    """Return what is wrong with one file or directory; None = nothing."""
    found = part.lstat()
    if found.st_uid not in {0, account}:
        return f"{part} belongs to uid {found.st_uid}, not to root or who runs it"
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OTHERS:
        return None
    # In a directory like /tmp nobody can move what belongs to somebody else.
    if is_above and found.st_mode & stat.S_ISVTX:
        return None
    return f"{part} may be written by others ({stat.S_IMODE(found.st_mode):04o})"
