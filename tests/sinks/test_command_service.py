"""For whom ``check`` looks at a hook: the account of the service as it is shipped."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.foundation.errors import RefusedDeliveryError
from bridge.sinks.base import Resources
from bridge.sinks.command import ownership
from bridge.sinks.command.ownership import UNIT, Account, Service
from bridge.sinks.command.sink import CommandSinkConfig

NOWHERE: Resources = None  # type: ignore[assignment]  # it is not looked at
NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root judges for others")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that everybody may enter, unlike pytest's own."""
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.geteuid():
            part.chmod(part.stat().st_mode | 0o011)
    return tmp_path


def service(folder: Path, text: str = "[Service]\nUser=nobody\n") -> Service:
    units = folder / "units"
    units.mkdir(exist_ok=True)
    (units / UNIT).write_text(text)
    return Service((folder / "none", units))


def hook(folder: Path, mode: int = 0o755) -> Path:
    path = folder / "drain"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


async def checked(path: Path, found: Service, *arguments: Path) -> str:
    class Here(CommandSinkConfig, frozen=True, kw_only=True):
        service = found

    command = tuple(map(str, (path, *arguments)))
    return await Here(name="drain", type="command", command=command).reach(NOWHERE)


# -- whose rights ------------------------------------------------------------------


@as_root
async def test_root_checks_for_the_account_of_the_service(folder: Path) -> None:
    path = hook(folder)

    said = await checked(path, service(folder))

    assert said == (
        f"{path} can be run, and only root or that account writes it: checked for "
        "nobody, the account of sebridge.service"
    )


@as_root
@pytest.mark.parametrize(
    ("mode", "owner", "what"),
    [
        (0o700, 0, "cannot be run by nobody"),
        (0o754, 0, "cannot be run by nobody"),
        (0o600, NOBODY.pw_uid, "cannot be run by nobody"),
        (0o744, 4321, "belongs to uid 4321"),
    ],
)
async def test_what_root_may_run_and_the_service_may_not_is_reported(
    folder: Path, mode: int, owner: int, what: str
) -> None:
    path = hook(folder, mode)
    os.chown(path, owner, -1)

    with pytest.raises(RefusedDeliveryError, match=what):
        await checked(path, service(folder))


@as_root
@pytest.mark.parametrize(
    ("mode", "owner", "group"),
    [(0o700, NOBODY.pw_uid, 0), (0o750, 0, NOBODY.pw_gid), (0o701, 0, 0)],
)
async def test_one_right_is_enough(
    folder: Path, mode: int, owner: int, group: int
) -> None:
    path = hook(folder, mode)
    os.chown(path, owner, group)

    assert "can be run" in await checked(path, service(folder))


@as_root
async def test_folder_that_the_service_may_not_enter_is_reported(folder: Path) -> None:
    """As the home of whoever wrote the hook."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    path = hook(home)
    link = folder / "link"
    link.symlink_to(path)

    for one in (path, link):
        with pytest.raises(RefusedDeliveryError, match=f"{home} cannot be entered by"):
            await checked(one, service(folder))


@as_root
async def test_script_that_the_service_may_not_read_is_reported(folder: Path) -> None:
    script = hook(folder, 0o711)

    with pytest.raises(RefusedDeliveryError, match="drain cannot be read by nobody"):
        await checked(Path("/bin/sh"), service(folder), script)
    script.chmod(0o644)
    assert "can be run" in await checked(Path("/bin/sh"), service(folder), script)


# -- who that is -------------------------------------------------------------------


@as_root
@pytest.mark.parametrize(
    ("text", "added", "name"),
    [
        ("User=nobody\n", {}, "nobody"),
        ("User = nobody \n", {}, "nobody"),
        (f"User={NOBODY.pw_uid}\n", {}, "nobody"),
        ("User=sebridge\n", {"own.conf": "User=nobody\n"}, "nobody"),
        ("User=x\n", {"b.conf": "User=nobody\n", "a.conf": "User=daemon\n"}, "nobody"),
        ("User=nobody\n", {"root.conf": "User=\n"}, "root"),
        ("#User=nobody\nGroup=nobody\n", {}, "root"),
    ],
)
def test_account_is_what_the_unit_says_with_all_that_is_added(
    folder: Path, text: str, added: dict[str, str], name: str
) -> None:
    found = service(folder, text)
    more = folder / "units" / f"{UNIT}.d"
    more.mkdir()
    for file, line in added.items():
        (more / file).write_text(f"[Service]\n{line}")

    account = found.account()

    assert account.uid == pwd.getpwnam(name).pw_uid
    assert account.words == f"{name}, the account of sebridge.service"
    assert account.is_own is (name == "root")


def unknown(folder: Path) -> Service:
    return service(folder, "User=no-such-account\n")


def unreadable(folder: Path) -> Service:
    found = service(folder)
    (folder / "units" / f"{UNIT}.d").mkdir()
    (folder / "units" / f"{UNIT}.d" / "odd.conf").mkdir()
    return found


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: Service((folder,)), "no sebridge.service is installed here"),
        (unknown, "runs as no-such-account, and there is no such account here"),
        (unreadable, "sebridge.service cannot be read: Is a directory"),
    ],
)
async def test_check_says_that_the_account_is_not_known(
    folder: Path, make: Callable[[Path], Service], why: str
) -> None:
    path, found = hook(folder, 0o700), make(folder)
    me = os.geteuid()

    said = await checked(path, found)

    assert f"checked for uid {me}, which runs this check (" in said
    assert why in said
    assert found.account() == Account(uid=me, words=found.account().words)


def test_nobody_else_is_judged_for_by_who_is_not_root(folder: Path) -> None:
    found, me = service(folder, "User=daemon\n"), os.geteuid()
    if me == 0:
        os.seteuid(NOBODY.pw_uid)
    try:
        said = found.account().words
    finally:
        os.seteuid(me)

    assert said.endswith(
        "which runs this check "
        "(sebridge.service runs as daemon; root can check for that account)"
    )


def test_command_is_doubted_wherever_the_unit_lies(folder: Path) -> None:
    class Here(CommandSinkConfig, frozen=True, kw_only=True):
        service = Service((folder / "a", folder / "b"))

    config = Here(name="drain", type="command", command=("/a",))
    assert list(config.doubts()) == []
    (folder / "b").mkdir()
    (folder / "b" / UNIT).touch()

    ((key, what),) = config.doubts()

    assert key == "command"
    assert "may do almost nothing" in what


@as_root
def test_check_doubts_what_would_be_refused_without_reaching_for_anything(
    folder: Path,
) -> None:
    class Here(CommandSinkConfig, frozen=True, kw_only=True):
        service = Service((folder,))
        hooks = folder

    path = hook(folder, 0o777)
    command = Here(name="drain", type="command", command=(str(path),))
    unit = Here(name="drain", type="command", unit="sebridge-hook@drain.service")

    said = f"{path} may be written by others (0777)"
    assert list(command.doubts()) == [("command", said)]
    assert list(unit.doubts()) == [("unit", said)]
    path.chmod(0o755)
    assert [*command.doubts(), *unit.doubts()] == []
    path.unlink()  # it may be a configuration for another machine
    assert [*command.doubts(), *unit.doubts()] == []


def test_rights_of_this_account_are_asked_of_the_system(folder: Path) -> None:
    me = Account(uid=os.geteuid(), words="me")

    assert ownership.unusable((str(hook(folder)),), me) is None
    assert "is not executable" in str(
        ownership.unusable((str(hook(folder, 0o600)),), me)
    )
