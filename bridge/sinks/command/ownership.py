"""Who may write a command: root and the service's account, and nobody else.

What is run with the service's rights must not be written by others, nor moved away by
who may write a directory above it.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
    files = [command[0], *(a for a in command[1:] if a[:1] == "/" and _is_file(a))]
    found = (trouble for file in files if (trouble := _trouble(Path(file), account)))
    return next(found, None)


def unusable(program: str) -> str | None:
    """Return why a program that is there cannot be run by this account."""
    if program[:1] == "/" and not os.access(program, os.X_OK):
        return f"{program} cannot be run: it is not executable (chmod +x)"
    return None


def not_executable(program: str) -> str | None:
    """Return why a program that is there cannot be run by root."""
    if Path(program).stat().st_mode & 0o111:
        return None
    return f"{program} cannot be run: it is not executable (chmod +x)"


def account() -> int | None:
    """Return the account that this process runs as; None on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else None


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
        return f"{part} belongs to uid {found.st_uid}, not to root or this account"
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OTHERS:
        return None
    # In a directory like /tmp nobody can move what belongs to somebody else.
    if is_above and found.st_mode & stat.S_ISVTX:
        return None
    return f"{part} may be written by others ({stat.S_IMODE(found.st_mode):04o})"
