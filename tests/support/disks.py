"""A real disk that is small enough to be filled."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Disk:
    """A small disk that can be filled."""

    path: Path

    @property
    def state(self) -> Path:
        return self.path / "state.db"

    def fill(self) -> None:
        with suppress(OSError):
            (self.path / "ballast").write_bytes(bytes(2 * 1024 * 1024))

    def remount(self, how: str) -> None:
        """Make it ``ro`` or ``rw``."""
        command = ["mount", "-o", f"remount,{how}", str(self.path)]
        subprocess.run(command, check=True)  # noqa: S603 - ours

    def clear(self) -> None:
        (self.path / "ballast").unlink()


def hide(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file one that only another user sees.

    The system is patched, since tests may run as root, from whom nothing is hidden.
    """
    known = os.stat

    def stat(path: int | str | Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if not isinstance(path, int) and Path(path) == hidden:
            raise PermissionError(errno.EACCES, "Permission denied")
        return known(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", stat)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a disk of a megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    how = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(path)]
    try:
        subprocess.run(how, check=True, capture_output=True)  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S603, S607 - ours


@dataclass
class Frozen:
    """A disk that can be made to hang: whoever writes waits until it thaws."""

    path: Path
    is_frozen: bool = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "-f", str(self.path)], check=True)  # noqa: S603, S607 - ours
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            subprocess.run(["fsfreeze", "-u", str(self.path)], check=True)  # noqa: S603, S607 - ours
        self.is_frozen = False


@contextmanager
def freezable(folder: Path) -> Iterator[Frozen]:
    """Mount a file system that can be frozen, in a folder.

    Raises:
        OSError, subprocess.CalledProcessError: that cannot be done here.
    """
    path, image = folder / "frozen", folder / "image"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(32 * 1024 * 1024)
    commands = (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(path)],
        ["fsfreeze", "-f", str(path)],
        ["fsfreeze", "-u", str(path)],
    )
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - ours
        found = Frozen(path)
        try:
            yield found
        finally:
            found.thaw()
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)  # noqa: S603, S607 - ours


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Frozen]:
    """Mount a file system that can be frozen."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(freezable(tmp_path))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted and frozen here: {error}")
        yield found
