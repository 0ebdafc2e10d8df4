"""The service as it is shipped: whether it is installed here, and as whom it runs.

``check`` is often run by root, who may do everything: what it says of a hook must hold
for the account that the service runs as.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

UNIT = "sebridge.service"
_FOLDERS = (  # the first that has the unit is the one that systemd takes
    Path("/etc/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
    Path("/lib/systemd/system"),
)
_ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """For whom the rights of a hook are judged.

    Attributes:
        uid: None where files have no such owner (Windows).
        groups: that it is a member of.
        is_own: whether this process runs as it.
        words: who it is; and why it is not the service's, where that is not known.
    """

    uid: int | None
    words: str
    groups: frozenset[int] = frozenset()
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Service:
    """The shipped unit on this machine.

    Attributes:
        folders: where units are looked for.
    """

    folders: tuple[Path, ...] = _FOLDERS

    @property
    def is_installed(self) -> bool:
        """Whether the unit is there."""
        return any((folder / UNIT).is_file() for folder in self.folders)

    def account(self) -> Account:
        """Return the account that the service runs as, as far as that is known."""
        if not self.is_installed:
            return _own(f"no {UNIT} is installed here, which would say who runs it")
        try:
            return _as(self._user())
        except OSError as error:
            return _own(f"{UNIT} cannot be read: {error.strerror}")

    def _user(self) -> str:
        """Return the last ``User=`` of the unit and what is added to it.

        Raises:
            OSError: one of its files cannot be read.
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
        """Return nobody: files have no such owner there."""
        return Account(uid=None, words=f"this account ({why})")

    def _as(name: str) -> Account:
        return _own(f"{UNIT} runs as {name}")

else:
    import pwd

    def _own(why: str) -> Account:
        """Return the account of this process, for want of a better one."""
        uid = os.geteuid()
        return Account(uid=uid, words=f"uid {uid}, who asks ({why})")

    def _as(name: str) -> Account:
        """Return an account by its name or number, if it can be judged for it."""
        try:
            found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
        except (KeyError, OverflowError):
            return _own(f"{UNIT} runs as {name}, and there is no such account here")
        me = os.geteuid()
        if me not in {found.pw_uid, _ROOT}:
            return _own(f"{UNIT} runs as {name}; root can check for that account")
        return Account(
            uid=found.pw_uid,
            words=f"{found.pw_name}, as whom {UNIT} runs",
            groups=frozenset(os.getgrouplist(found.pw_name, found.pw_gid)),
            is_own=me == found.pw_uid,
        )
