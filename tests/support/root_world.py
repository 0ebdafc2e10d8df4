"""A machine whose state files belong to an account that sets traps for root.

Beside a state file the account may leave

- a journal that names a file: SQLite deletes that file, once it has rolled back;
- a symbolic link in place of a file that belongs to the state file.
"""

import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_LOCK_PAGE = 0x40000000 // 4096 + 1
ACCOUNT = "nobody"

Facts = Mapping[str, tuple[int, int, bytes]]


def why_not() -> str | None:
    """Return why these tests cannot run here; None = they can."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return "only root can lose root's rights"
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:  # noqa: S607 - from PATH
        return "no mounts of its own can be had here"
    return None


def super_journal(named: Path) -> bytes:
    """Return a journal that makes SQLite delete a file after the rollback.

    Source: https://sqlite.org/fileformat2.html#the_rollback_journal
    """
    name = os.fsencode(named)
    end = struct.pack(">II", len(name), sum(name)) + _MAGIC
    return b"\x01" * 512 + struct.pack(">I", _LOCK_PAGE) + name + end


@dataclass(slots=True)
class World:
    """Folders of root and of an account, and the traps of the account.

    Attributes:
        folder: root's; everybody may enter it.
        state: the account's.
        closed: a folder that only root may enter; its files must stay as they are.
    """

    folder: Path
    _count: int = 0
    _files: list[Path] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def closed(self) -> Path:
        return self.folder / "closed"

    def make(self) -> None:
        self.folder.chmod(0o755)
        self.closed.mkdir(0o700)
        self.state.mkdir(0o700)

    def victim(self) -> Path:
        """Make a file of root that the account would like to be gone or changed."""
        self._count += 1
        path = self.closed / f"victim-{self._count}"
        path.write_text("as it was\n")
        path.chmod(0o644)
        return path

    def trap(self, database: Path) -> None:
        """Lay all traps beside a database."""
        for suffix in ("-journal", ".lock-journal"):
            Path(f"{database}{suffix}").write_bytes(super_journal(self.victim()))
        for suffix in ("-shm", ".trouble.new"):
            Path(f"{database}{suffix}").symlink_to(self.victim())

    def give_away(self) -> None:
        """Give everything in the folder of the state to the account."""
        account = pwd.getpwnam(ACCOUNT)
        for path in (self.state, *self.state.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)

    def facts(self) -> Facts:
        """Return mode, owner and content of each file in the closed folder."""
        return {
            path.name: (path.stat().st_mode, path.stat().st_uid, path.read_bytes())
            for path in sorted(self.closed.iterdir())
        }

    def owners(self) -> set[str]:
        """Return the owners of the files beside the state file."""
        found = {path.lstat().st_uid for path in self.state.rglob("*")}
        return {pwd.getpwuid(uid).pw_name for uid in found}

    def run(
        self,
        *words: str | Path,
        environ: Mapping[str, str] | None = None,
        seconds: float = 60,
        standard_input: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program as root; SIGTERM ends it after ``seconds``."""
        return subprocess.run(  # noqa: S603 - our own words
            [*_readable(), "timeout", "-s", "TERM", str(seconds), *words],
            env={"PATH": os.environ["PATH"], **(environ or {})},
            cwd=ROOT,
            input=standard_input,
            capture_output=True,
            text=True,
            check=False,
        )

    def sebridge(
        self,
        *words: str | Path,
        environ: Mapping[str, str] | None = None,
        seconds: float = 60,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of the bridge as root."""
        command = (sys.executable, "-m", "bridge", *words)
        return self.run(*command, environ=environ, seconds=seconds)


@contextmanager
def world() -> Iterator[World]:
    """Yield a machine in a folder that other accounts can reach."""
    found = World(Path(tempfile.mkdtemp(dir="/tmp", prefix="sebridge-root-")))
    try:
        found.make()
        yield found
    finally:
        shutil.rmtree(found.folder)


def _readable() -> Sequence[str | Path]:
    """Return words before a command with which any account may read this Python.

    A Python below a home directory, such as root's, is closed to others. In mounts of
    its own the command sees the Python there, and nothing else of that directory.
    """
    python = Path(sys.executable).resolve()
    kept = Path(sys.base_prefix).resolve()
    closed = [one for one in python.parents if not one.stat().st_mode & 0o001]
    if not closed:
        return ()
    script = (
        'mount --bind "$1" /mnt && mount -t tmpfs -o mode=755 none "$2" && '
        'mkdir -p "$1" && mount --bind /mnt "$1" && shift 2 && exec "$@"'
    )
    return ("unshare", "-m", "sh", "-c", script, "sh", kept, closed[-1])
