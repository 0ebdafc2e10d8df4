"""The checks of this machine, which change nothing."""

import contextlib
import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics import host_checks
from bridge.diagnostics.finding import Finding
from bridge.diagnostics.host_checks import Host
from bridge.outbox.storage.file import connect
from bridge.signing.own_key import own_keys
from tests.support.configurations import config_text, webhook
from tests.support.disks import Disk, hide
from tests.support.refusing import refusing_locks

POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")


def config_of(folder: Path, **tables: object) -> Config:
    path = folder / "lib" / "state.db"
    state = {"state": {"path": str(path)}, "http": {"listen": ""}}
    return configuration.parse({**state, **tables}, file="b.toml", environ={})


# A disk with free space and an unknown type.
ROOMY = Host(mounts=Path("/nowhere"), free=lambda _: 10**12)


def state_of(config: Config, host: Host = ROOMY) -> list[Finding]:
    return list(host_checks.state(config.state, host))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir(mode=0o700)
    return tmp_path


def mounted(folder: Path, kind: str = "ext4") -> Host:
    """Make the directory look like a separate disk."""
    there, mounts = folder.resolve(), folder / "mounts"
    mounts.write_text(f"proc /proc proc rw 0 0\nx {there} {kind} rw 0 0\n")
    return replace(ROOMY, mounts=mounts, is_mount=lambda path: path == there)


# -- the state directory ---------------------------------------------------------------


def test_good_directory_is_reported_with_its_free_space(folder: Path) -> None:
    before = list(folder.rglob("*"))

    there, room = state_of(config_of(folder))

    assert there.result != "fault"
    assert there.text.startswith(f"state: {folder / 'lib'} can be written by ")
    assert (room.result == "warning", room.text.split()[1:4]) == (
        False,
        ["1,000,000", "MB", "free"],
    )
    assert list(folder.rglob("*")) == before


def test_inaccessible_directory_is_a_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(folder / "lib" / "state.db", monkeypatch)
    host = replace(ROOMY, may_write=lambda path: path != folder / "lib")

    there, _ = state_of(config_of(folder), host)

    assert there.result == "fault"
    assert there.text.startswith(f"state: {folder / 'lib'} cannot be written by ")


def test_directory_in_place_of_the_file_is_a_fault(folder: Path) -> None:
    path = folder / "lib" / "state.db"
    path.mkdir()

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert (
        there.text == f"state: {path} is a directory, and state.path must name a file"
    )
    assert there.advice == f'state.path = "{path}/state.db"'


def test_directory_in_place_of_the_lock_is_a_fault(folder: Path) -> None:
    lock = folder / "lib" / "state.db.lock"
    lock.mkdir()

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert there.text == f"state: {lock} is not a file"


@POSIX
@POSIX
def test_what_is_in_the_place_of_the_socket_is_a_warning(folder: Path) -> None:
    in_the_way = folder / "lib" / "state.db.socket"
    in_the_way.mkdir()

    found, *_ = state_of(config_of(folder))

    assert found == Finding(
        "warning",
        f"state: {in_the_way} is not a socket: move it away",
        "until then, commands cannot ask the forwarder",
    )


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_fifo_in_place_of_a_file_is_a_fault(suffix: str, folder: Path) -> None:
    path = folder / "lib" / f"state.db{suffix}"
    os.mkfifo(path, 0o600)

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert there.text == f"state: {path} is not a file"


@POSIX
@pytest.mark.parametrize("target", ["state.db", "/nowhere/state.db"])
def test_link_that_leads_nowhere_is_a_fault(target: str, folder: Path) -> None:
    path = folder / "lib" / "state.db"
    path.symlink_to(target)

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert there.text == f"state: {path} is a link that leads nowhere"


@POSIX
def test_link_to_a_file_that_is_not_there_yet_is_no_fault(folder: Path) -> None:
    (folder / "lib" / "state.db").symlink_to(folder / "state.db")

    there, *_ = state_of(config_of(folder))

    assert there.result != "fault"


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("CREATE TABLE precious (x)", "it is a database of another program"),
        (
            "CREATE TABLE meta (x); PRAGMA user_version = 99",
            "the state file has schema",
        ),
    ],
)
def test_file_that_no_start_would_use_is_a_fault(
    sql: str, fault: str, folder: Path
) -> None:
    path = folder / "lib" / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(sql)
    path.chmod(0o600)

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert there.text.startswith(f"state: {path}: {fault}")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the holder")
def test_forwarder_that_does_not_answer_is_named(folder: Path) -> None:
    path = folder / "lib" / "state.db"
    holding = (
        "import sys, pathlib; from bridge.outbox.statefile import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", holding, str(path)]
    pipe = subprocess.PIPE

    def faults(missing: list[str] | None) -> list[Finding]:
        found = host_checks.examine(config, {}, ROOMY, missing=missing)
        return [one for one in found if one.result == "fault"]

    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder,  # noqa: S603 - ours
        contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        config = config_of(folder, http={"listen": listen})
        silent, port = faults(missing=None)
        calm = faults(missing=[])
        holder.communicate(b"\n")

    text = f"state: a forwarder uses {path} (process {holder.pid}), but does not answer"
    assert silent.text == text
    assert port.advice == f"process {holder.pid} may hold it, see state above"
    assert calm == faults(missing=None) == []


@pytest.mark.parametrize("content", [b"no database " * 9, bytes(4096)])
def test_small_file_of_something_else_is_not_called_empty(
    folder: Path, content: bytes
) -> None:
    path = folder / "lib" / "state.db"
    path.write_bytes(content)

    found, *_ = state_of(config_of(folder))

    text = f"state: {path}: file is not a database"
    assert (found.result, found.text) == ("warning", text)
    assert found.advice == "the forwarder moves it aside when it starts"


def test_file_without_content_is_a_warning(folder: Path) -> None:
    path = folder / "lib" / "state.db"
    path.touch(0o600)

    found, *_ = state_of(config_of(folder))

    assert (found.result, found.text) == ("warning", f"state: {path}: it is empty")


def test_file_that_the_next_start_moves_aside_is_a_warning(folder: Path) -> None:
    path = folder / "lib" / "state.db"
    path.write_bytes(b"x" * 8192)
    path.chmod(0o600)

    there, *_ = state_of(config_of(folder))

    assert there.result == "warning"
    assert there.text == f"state: {path}: file is not a database"
    assert there.advice == "the forwarder moves it aside when it starts"
    assert [one.name for one in path.parent.iterdir()] == ["state.db"]


def test_full_disk_is_found_by_a_try(disk: Disk) -> None:
    disk.fill()
    state = {"state": {"path": str(disk.state)}, "http": {"listen": ""}}
    config = configuration.parse(state, file="b.toml", environ={})

    there, *_ = state_of(config)

    assert there.result == "fault"
    assert there.text.startswith(f"state: nothing can be stored in {disk.path}: ")
    assert [one.name for one in disk.path.iterdir()] == ["ballast"]


@pytest.mark.integration
def test_folder_without_locks_is_found_by_a_try(folder: Path) -> None:
    """As on SMB, and on NFS without lockd."""
    before = refusing_locks(errno.ENOLCK)
    config = folder / "bridge.toml"
    sink = webhook("https://127.0.0.1:9")
    config.write_text(config_text(sink, state=folder / "lib" / "state.db"))
    command = (sys.executable, "-m", "bridge", "check", "--connect", "-c", str(config))

    found = subprocess.run(  # noqa: S603 - ours
        (*before, *command), check=False, capture_output=True, text=True
    )

    (line,) = (one for one in found.stdout.splitlines() if "be stored" in one)
    assert f" state: nothing can be stored in {folder / 'lib'}: " in line
    assert "cannot be locked (No locks available)" in line
    assert "can be written by" not in found.stdout
    assert list((folder / "lib").iterdir()) == []


def test_missing_directory_is_no_fault(folder: Path) -> None:
    (folder / "lib").rmdir()

    there, _ = state_of(config_of(folder))

    assert there.result != "fault"
    assert there.text.endswith("does not exist yet; it will be created")


def test_file_in_the_way_of_the_directory_is_a_fault(folder: Path) -> None:
    (folder / "lib").rmdir()
    (folder / "lib").write_text("")

    there, *_ = state_of(config_of(folder))

    assert there.result == "fault"
    assert "is not a directory" in there.text


@pytest.mark.parametrize("part", ["lib", "lib/state.db"])
def test_unwritable_path_is_a_fault_with_its_name(part: str, folder: Path) -> None:
    """Root may write everything, and tests may run as root: so the check is faked."""
    (folder / "lib" / "state.db").touch(mode=0o600)
    host = replace(ROOMY, may_write=lambda path: path != folder / part)

    there, *_ = state_of(config_of(folder), host)

    assert there.result == "fault"
    assert there.text.startswith(f"state: {folder / part} cannot be written by ")
    assert "the user of the service" in there.advice


@POSIX
def test_state_file_readable_by_others_is_a_warning(folder: Path) -> None:
    path = folder / "lib" / "state.db"
    connect(path).close()
    path.chmod(0o640)

    there, *_ = state_of(config_of(folder))

    assert there.result == "warning"
    assert there.text.endswith("can be read by other users (640)")
    assert there.advice == f"chmod 600 {path}"


@pytest.mark.parametrize(
    ("free", "is_good", "is_warning"),
    [
        (272 * 10**6, True, False),
        (272 * 10**6 - 1, True, True),
        (16 * 10**6, True, True),
        (16 * 10**6 - 1, False, False),
    ],
)
def test_free_space_is_compared_with_max_size(
    free: int, folder: Path, *, is_good: bool, is_warning: bool
) -> None:
    host = replace(ROOMY, free=lambda _: free)

    *_, room = state_of(config_of(folder), host)

    assert (room.result != "fault", room.result == "warning") == (is_good, is_warning)
    assert bool(room.advice) is (is_warning or not is_good)


def test_temporary_disk_is_known_by_azures_own_warning(
    folder: Path,
) -> None:
    (folder / "DATALOSS_WARNING_README.txt").touch()

    _, disk, _ = state_of(config_of(folder), mounted(folder))

    assert disk.result == "warning"
    assert f"is on the temporary disk {folder}" in disk.text


@pytest.mark.parametrize(
    ("kind", "is_good", "words"),
    [("tmpfs", True, "is in memory"), ("nfs4", False, "a network file system (nfs4")],
)
def test_unsuitable_disk_is_reported(
    kind: str, words: str, folder: Path, *, is_good: bool
) -> None:
    _, disk, _ = state_of(config_of(folder), mounted(folder, kind))

    assert (disk.result != "fault") is is_good
    assert words in disk.text
    assert disk.advice


# -- the port --------------------------------------------------------------------------


def test_port_is_off_free_held_or_taken(folder: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        taken = config_of(folder, http={"listen": listen}).http
        (fault,) = host_checks.ports(taken, None)
        (ours,) = host_checks.ports(taken, [])
        not_to_be_had = f"http.listen: cannot listen on {listen}: Address in use"
        (anothers,) = host_checks.ports(taken, [not_to_be_had])
    (free,) = host_checks.ports(taken, None)
    (elsewhere,) = host_checks.ports(taken, [])
    (off,) = host_checks.ports(config_of(folder).http, None)

    assert anothers == fault
    assert elsewhere.text == f"http: the running bridge is not at {listen}"
    assert fault.result == "fault"
    assert fault.text.startswith(f"http: {listen} cannot be listened on: ")
    assert ours.text == f"http: {listen} is held by the running bridge"
    assert free.text == f"http: {listen} is free"
    assert off.text.startswith("http: off")


@pytest.mark.parametrize("listen", ["a..b:80", "[::2]:1"])
def test_invalid_address_is_a_fault(listen: str, folder: Path) -> None:
    config = config_of(folder, http={"listen": listen, "token": "t"})

    (found,) = host_checks.ports(config.http, None)

    assert found.result == "fault"


# -- secrets, proxy, versions ----------------------------------------------------------


@POSIX
def test_secret_readable_by_all_is_named_but_not_shown(folder: Path) -> None:
    path = folder / "token"
    path.write_text("S3CR3T")
    path.chmod(0o644)
    config = config_of(folder, http={"listen": "", "token": f"file:{path}"})

    found, warning = host_checks.secrets(config)
    path.chmod(0o640)

    assert found.text == "secrets: 1 can be read"
    assert warning.text == f"secrets: http.token: every user can access {path} (644)"
    assert "S3CR3T" not in f"{found}{warning}"
    assert len(list(host_checks.secrets(config))) == 1


def test_no_secrets_are_no_finding(folder: Path) -> None:
    assert list(host_checks.secrets(config_of(folder))) == []
    literal = [{"name": "a", "type": "webhook", "url": "https://a.example/"}]
    assert list(host_checks.secrets(config_of(folder, sinks=literal))) == []


def test_proxy_variable_is_reported_without_its_address() -> None:
    environ = {"HTTPS_PROXY": "http://me:S3CR3T@proxy:1", "http_proxy": ""}

    (found,) = host_checks.proxy(environ)

    assert found.result != "fault"
    assert found.text.startswith("proxy: https_proxy set: IMDS ")
    assert "S3CR3T" not in found.text
    assert list(host_checks.proxy({})) == []


@pytest.mark.parametrize(
    ("version", "has_bug"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((4, 0, 0), False),
    ],
)
def test_versions_name_the_bug_that_concerns_the_state_file(
    version: tuple[int, int, int], *, has_bug: bool
) -> None:
    found = host_checks.versions(Host(sqlite=version))

    assert found.result != "fault"
    assert ("WAL-reset" in found.text) is has_bug
    assert f"Python {sys.version.split()[0]}" in found.text


def keys_checked(folder: Path, text: str) -> Finding:
    keys = folder / "approvers.jwks"
    keys.write_text(text)
    approvals = {"queue": "q", "namespace": "n.servicebus.windows.net"}
    signed_by = {"signed_by": [f"file:{keys}"]}
    config = config_of(folder, approvals={**approvals, **signed_by})
    (found,) = host_checks.approvers(config)
    return found


@pytest.mark.parametrize("form", ["shown", "bare"])
def test_own_key_of_the_bridge_approves_nothing(folder: Path, form: str) -> None:
    """Whoever is root on the VM could approve the events of all others."""
    (own,) = own_keys(folder / "lib" / "state.db", "vm-1")
    bound = {"vmId": "vm-1"} if form == "shown" else {}
    found = keys_checked(folder, json.dumps({"keys": [{**own.jwk, **bound}]}))

    assert found.result == "fault"
    assert found.text == "approvals.signed_by[0] holds the own key of this bridge"
    assert "root on its VM could approve" in found.advice


def test_key_of_another_bridge_approves_nothing(folder: Path) -> None:
    """``key show`` prints it with its vmId."""
    (other,) = own_keys(folder / "other.db", "vm-2")
    found = keys_checked(folder, json.dumps({"keys": [{**other.jwk, "vmId": "vm-2"}]}))

    assert (found.result != "fault", "key of a bridge" in found.text) == (False, True)


def test_keys_of_approvers_are_read(folder: Path) -> None:
    (other,) = own_keys(folder / "other.db", "vm-2")  # as any key
    text = json.dumps(other.jwk)

    assert keys_checked(folder, text).result == "ok"
    assert keys_checked(folder, "{").result == "fault"
    (folder / "lib" / "state.db.key").write_text("[]")
    assert keys_checked(folder, text).result == "warning"


def test_every_check_runs_once(folder: Path) -> None:
    found = host_checks.examine(
        config_of(folder), {"http_proxy": "x"}, ROOMY, missing=["imds: no answer"]
    )

    assert [one.text.partition(":")[0] for one in found] == [
        *("forwarder", "state", "state", "http", "proxy", "versions"),
    ]
