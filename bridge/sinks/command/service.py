"""Find out whether the shipped service is installed here, and its account.

Root, which may do everything, often runs ``check``. Its answer about a hook must be
true for the account that the service runs as.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

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
