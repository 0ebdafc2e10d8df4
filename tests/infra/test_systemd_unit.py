"""The unit: what systemd itself says of it, and that it fits the program."""

import asyncio
import re
import shutil
import socket as sockets
import subprocess
import tomllib
from ipaddress import ip_address
from pathlib import Path

import pytest

from bridge.app.supervisor import attended, supervisor_of
from bridge.configuration.config import Settings
from bridge.configuration.load import load
from bridge.foundation.errors import ConfigError
from bridge.health.config import HttpConfig
from bridge.hub.config import HubConfig
from bridge.hub.load import HubFile
from bridge.outbox.statefile import default_path
from bridge.sinks.command.unit import Places
from bridge.traffic.config import TrafficConfig
from bridge.traffic.probe import HEALTH as HEALTH_LISTENER
from bridge.traffic.probe import TRAFFIC
from tests.support.fakes import FakeClock, turns

SYSTEMD = Path(__file__).parents[2] / "infra" / "systemd"
UNIT = SYSTEMD / "sebridge.service"
HUB = SYSTEMD / "sebridge-hub.service"
SOCKET = SYSTEMD / "sebridge-traffic.socket"
HEALTH = SYSTEMD / "sebridge-health.socket"
WANTED = 2.0
PAUSE = 300.0  # of the VM, which the unit outlives
SLACK = 1.0  # by so much a wait may end later

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing (Debian: systemd)",
)


def setting(key: str) -> list[str]:
    """Return the values of a setting, in order."""
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own unit
        ["systemd-analyze", "--no-pager", *arguments],  # noqa: S607 - from the PATH
        capture_output=True,
        text=True,
        check=False,
    )


async def test_pause_of_five_minutes_is_no_dead_loop(
    tmp_path: Path, clock: FakeClock
) -> None:
    """At its worst moment: just before a sign of life, and systemd's clock runs on."""
    (text,) = setting("WatchdogSec")
    limit = 60.0 * int(text.removesuffix("min"))
    address = str(tmp_path / "notify")
    usec = f"{limit * 1e6:.0f}"
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(0)
        found = supervisor_of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": usec})
        async with attended(found, asyncio.Event(), clock):
            await turns()
            assert manager.recv(100) == b"WATCHDOG=1"
            last = clock.monotonic()

            await clock.advance(found.interval - 0.01)
            clock.pass_by(PAUSE)
            await turns()

            assert manager.recv(100) == b"WATCHDOG=1"
            assert clock.monotonic() - last + SLACK < limit


@needs_systemd
def test_exposure_is_2_or_better() -> None:
    found = analyze(
        "security", "--offline=true", f"--threshold={WANTED * 10:.0f}", str(UNIT)
    )

    assert found.returncode == 0, found.stdout
    assert "Overall exposure level" in found.stdout


@needs_systemd
def test_exposure_of_the_hub_is_2_or_better() -> None:
    found = analyze(
        "security", "--offline=true", f"--threshold={WANTED * 10:.0f}", str(HUB)
    )

    assert found.returncode == 0, found.stdout


@needs_systemd
def test_systemd_understands_every_line_of_the_hub(tmp_path: Path) -> None:
    copy = tmp_path / HUB.name
    copy.write_text(
        HUB.read_text().replace("/opt/sebridge-hub/bin/sebridge", "/bin/true")
    )

    assert analyze("verify", str(copy)).stderr == ""


def test_hub_may_keep_what_its_defaults_say() -> None:
    lines = HUB.read_text().splitlines()
    assert "StateDirectory=sebridge-hub" in lines
    for path in (HubFile().state.path, str(HubConfig().sqlite_file)):
        assert path.startswith("/var/lib/sebridge-hub/")


def test_hub_and_forwarder_are_two_accounts_with_two_folders() -> None:
    """Neither is led by what the other leaves in its folder."""
    accounts = dict[str, str]()
    for unit, users in ((UNIT, "sysusers.conf"), (HUB, "sysusers-hub.conf")):
        text = unit.read_text()
        (name,) = re.findall(r"(?m)^User=(.+)$", text)
        assert re.findall(r"(?m)^(?:Group|StateDirectory)=(.+)$", text) == [name] * 2
        (made,) = re.findall(r"(?m)^u (\S+) - ", (SYSTEMD / users).read_text())
        assert made == name
        accounts[unit.name] = name
    assert len(set(accounts.values())) == 2
    assert "-c /etc/sebridge-hub/hub.toml" in HUB.read_text()


@needs_systemd
def test_threshold_of_the_exposure_can_fail(tmp_path: Path) -> None:
    bare = tmp_path / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")

    found = analyze(
        "security", "--offline=true", f"--threshold={WANTED * 10:.0f}", str(bare)
    )

    assert found.returncode != 0


@needs_systemd
@pytest.mark.parametrize(
    "drop_in", [None, "closed-network.conf", "traffic.conf", "health.conf"]
)
def test_systemd_understands_every_line(tmp_path: Path, drop_in: str | None) -> None:
    unit = tmp_path / UNIT.name  # only the program is not there
    unit.write_text(UNIT.read_text().replace("/opt/sebridge/bin/sebridge", "/bin/true"))
    if drop_in:
        folder = tmp_path / f"{UNIT.name}.d"
        folder.mkdir()
        shutil.copy(SYSTEMD / drop_in, folder)
    for socket in (SOCKET, HEALTH):
        shutil.copy(socket, tmp_path)

    found = analyze("verify", str(unit))

    assert found.returncode == 0, found.stderr
    assert UNIT.name not in found.stderr


@needs_systemd
@pytest.mark.parametrize("socket", [SOCKET, HEALTH])
def test_systemd_understands_every_line_of_a_socket(
    tmp_path: Path, socket: Path
) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/sebridge/bin/sebridge", "/bin/true"))
    shutil.copy(socket, tmp_path)

    found = analyze("verify", str(tmp_path / socket.name))

    assert found.returncode == 0, found.stderr
    assert socket.name not in found.stderr


@needs_systemd
@pytest.mark.parametrize("kind", ["path", "service"])
def test_systemd_understands_every_line_of_the_units_of_hooks(
    tmp_path: Path, kind: str
) -> None:
    for unit in SYSTEMD.glob("sebridge-hook@.*"):
        text = unit.read_text().replace("/opt/sebridge/bin/python", "/bin/true")
        (tmp_path / unit.name).write_text(text)

    found = analyze("verify", str(tmp_path / f"sebridge-hook@drain.{kind}"))

    assert found.returncode == 0, found.stderr
    assert "sebridge-hook@" not in found.stderr


def test_forwarder_asks_root_where_the_units_of_hooks_look() -> None:
    """What a real systemd makes of it: tests/system/test_hook_units.py."""
    places = Places()
    path = (SYSTEMD / "sebridge-hook@.path").read_text()
    service = (SYSTEMD / "sebridge-hook@.service").read_text()

    assert f"PathExists={places.requests}/%i/request\n" in path
    assert f"RuntimeDirectory={places.results.name}/%i\n" in service
    assert setting("RuntimeDirectory") == [places.requests.parent.name]
    assert setting("RuntimeDirectoryPreserve") == ["yes"]
    assert "EnvironmentFile" not in service
    assert "/opt/sebridge/libexec/hook_launcher.py run %i" in service
    assert "ExecStopPost" in service


def test_hook_is_not_signalled_beside_the_bridge_and_takes_nobody_with_it() -> None:
    assert setting("KillMode") == ["mixed"]
    assert setting("OOMPolicy") == ["continue"]


def test_sockets_hold_listeners_under_the_names_they_are_looked_for() -> None:
    for socket, listen, name in (
        (SOCKET, TrafficConfig().listen, TRAFFIC),
        (HEALTH, HttpConfig().listen, HEALTH_LISTENER),
    ):
        lines = socket.read_text().splitlines()

        assert f"ListenStream={listen}" in lines
        assert f"FileDescriptorName={name}" in lines
        assert f"Service={UNIT.name}" in lines
        assert f"Sockets={socket.name}" in (SYSTEMD / f"{name}.conf").read_text()


def test_azures_load_balancer_may_probe_in_a_closed_network() -> None:
    text = (SYSTEMD / "closed-network.conf").read_text()

    assert (
        "IPAddressAllow=localhost 169.254.169.254 168.63.129.16 fe80::1234:5678:9abc\n"
        in text
    )


def test_azures_load_balancer_may_probe_by_ipv6_although_it_is_link_local() -> None:
    lines = UNIT.read_text().splitlines()
    (allowed,) = (line for line in lines if line.startswith("IPAddressAllow="))

    assert "IPAddressDeny=link-local multicast" in lines
    assert ip_address("fe80::1234:5678:9abc").is_link_local
    assert "fe80::1234:5678:9abc" in allowed.split()


@pytest.mark.parametrize("unit", [UNIT, HUB], ids=["forwarder", "hub"])
def test_no_unit_waits_for_a_network_that_may_never_be_called_ready(unit: Path) -> None:
    settings = [line for line in unit.read_text().splitlines() if line[:1] != "#"]

    assert "After=network.target" in settings
    assert "network-online" not in "\n".join(settings)


def test_imds_and_the_health_port_are_allowed_whatever_is_denied() -> None:
    for text in (UNIT, SYSTEMD / "closed-network.conf"):
        allowed = [
            line
            for line in text.read_text().splitlines()
            if line.startswith("IPAddressAllow=localhost 169.254.169.254")
        ]
        assert len(allowed) == 1, text


def test_state_of_the_program_is_the_state_directory_of_the_unit() -> None:
    assert (
        Path(default_path("linux")).parent
        == Path("/var/lib") / setting("StateDirectory")[0]
    )


def test_stop_is_given_longer_than_the_programs_grace() -> None:
    assert setting("TimeoutStopSec") == ["45s"]
    assert Settings().shutdown_grace < 45


def test_first_configuration_is_valid_as_it_is_and_with_everything(
    tmp_path: Path,
) -> None:
    first = SYSTEMD / "bridge.toml"
    assert tomllib.loads(first.read_text()) == {}
    assert load(first, {}, allow_empty=True).sinks == ()
    with pytest.raises(ConfigError, match="has neither"):
        load(first, {})

    whole = tmp_path / "bridge.toml"
    _, _, parts = first.read_text().partition("\n\n")  # after the words at the top
    whole.write_text("\n".join(x.removeprefix("# ") for x in parts.splitlines()))
    (tmp_path / "slack-webhook-url").write_text("https://hooks.slack.example/x")

    config = load(whole, {"CREDENTIALS_DIRECTORY": str(tmp_path)})

    assert [sink.name for sink in config.sinks] == ["bus", "ops"]
    assert config.approvals is not None
