"""Check that only root and the service's account can change a command.

A program that runs with the service's rights must not be writable by other accounts.
The directories above it must not be either, or another file could take its place.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bridge.foundation.privileges import way_to
from bridge.sinks.command.service import Account

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
