"""When root gives up its rights before it opens a file, and when it refuses."""

import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.foundation import privileges
from bridge.foundation.errors import ForeignFolderError

if sys.platform == "win32" or os.geteuid() != 0:
    pytest.skip("only root can lose root's rights", allow_module_level=True)

OTHER = 65534
ANOTHER = 65533


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder of root in a directory that everybody may write to."""
    with tempfile.TemporaryDirectory() as name:
        found = Path(name) / "state"
        found.mkdir(0o700)
        yield found


def give(*paths: Path, uid: int = OTHER) -> None:
    for path in paths:
        os.chown(path, uid, uid, follow_symlinks=False)


def refusal(path: Path) -> str:
    with pytest.raises(ForeignFolderError) as caught:
        privileges.enter(path)
    return str(caught.value)


def test_roots_own_folder_is_opened_as_root(folder: Path) -> None:
    (folder / "state.db").touch()

    assert privileges.enter(folder / "state.db") is None
    assert privileges.enter(folder / "new/state.db") is None
    assert not privileges.leaves_root(folder / "state.db")
    assert os.geteuid() == 0


@pytest.mark.parametrize("below", ["state.db", "new/folders/state.db"])
def test_folder_of_an_account_is_opened_as_that_account(
    below: str, folder: Path
) -> None:
    give(folder)

    assert privileges.leaves_root(folder / below)


def test_link_of_root_is_followed(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert privileges.enter(link / "state.db") is None

    give(folder)
    assert privileges.leaves_root(link / "state.db")


def test_link_of_an_account_leads_root_nowhere(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    give(link)

    assert f"{link} belongs to uid {OTHER}" in refusal(link / "state.db")


def test_state_file_that_is_a_link_is_judged_by_its_target(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(0o700)
    (folder / "state.db").symlink_to(target / "state.db")
    assert privileges.enter(folder / "state.db") is None

    give(target)
    assert privileges.leaves_root(folder / "state.db")


@pytest.mark.parametrize("name", ["state.db", "state.db-journal", "state.db-shm"])
def test_file_of_an_account_in_a_folder_of_root_is_refused(
    name: str, folder: Path
) -> None:
    (folder / name).touch()
    give(folder / name)

    assert f"{folder / name} belongs to uid {OTHER}" in refusal(folder / "state.db")


def test_folder_of_root_below_that_of_an_account_is_refused(folder: Path) -> None:
    below = folder / "below"
    below.mkdir(0o700)
    give(folder)

    assert f"{folder} belongs to uid {OTHER}" in refusal(below / "state.db")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_folder_that_others_may_write_to_is_refused(mode: int, folder: Path) -> None:
    folder.chmod(mode)

    assert f"may be written by others ({mode:04o})" in refusal(folder / "state.db")


def test_parent_that_others_may_write_to_is_refused(folder: Path) -> None:
    """In a directory with the sticky bit they cannot exchange what is root's."""
    below = folder / "below"
    below.mkdir(0o700)
    folder.chmod(0o777)
    assert f"{folder} may be written by others" in refusal(below / "state.db")

    folder.chmod(0o1777)
    assert privileges.enter(below / "state.db") is None
    assert privileges.enter(folder / "new/state.db") is None


def test_group_that_may_write_is_others_unless_it_is_roots(folder: Path) -> None:
    folder.chmod(0o770)
    assert privileges.enter(folder / "state.db") is None

    os.chown(folder, 0, ANOTHER)
    assert "may be written by others (0770)" in refusal(folder / "state.db")


def test_account_in_an_access_control_list_is_another(folder: Path) -> None:
    """The list of user 65534 (rwx) stands in place of the bits of the group."""
    entries = ((0x01, 7, -1), (0x02, 7, OTHER), (0x04, 0, -1), (0x10, 7, -1))
    others = ((0x20, 0, -1),)
    given = b"".join(struct.pack("<HHi", *one) for one in (*entries, *others))
    try:
        os.setxattr(folder, "system.posix_acl_access", struct.pack("<I", 2) + given)
    except OSError:  # pragma: no cover - depends on the file system
        pytest.skip("this file system has no access control lists")

    assert "may be written by others (0770)" in refusal(folder / "state.db")


def test_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")

    assert "root must not open" in refusal(folder / "a/state.db")


def test_database_is_made_private_with_what_belongs_to_it(folder: Path) -> None:
    beside = [folder / f"state.db{suffix}" for suffix in ("-journal", "-wal", "-shm")]
    for path in beside:
        path.touch(0o644)

    privileges.make_private(folder / "state.db")

    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 4
    assert modes == {0o600}


def test_mode_of_what_a_link_names_is_not_changed(folder: Path) -> None:
    """Nor is a file made where the link of a new database leads."""
    target = folder / "target"
    target.touch(0o644)
    (folder / "state.db-shm").symlink_to(target)
    (folder / "state.db").symlink_to(folder / "missing")

    privileges.make_private(folder / "state.db")

    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert not (folder / "missing").exists()
