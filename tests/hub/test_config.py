"""``hub.toml``: every fault at once, with its place, and never a secret."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import main
from bridge.foundation.errors import ConfigError
from bridge.foundation.values import Duration
from bridge.hub.access import is_named
from bridge.hub.config import AzureSource
from bridge.hub.load import HubFile, load

EMULATOR = (
    "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k;"
    "UseDevelopmentEmulator=true"
)
SMALL = """
[hub]
[[hub.sources]]
name = "bridges"
type = "bridges"
connection_string = "env:BUS"
topic = "scheduled-events"
subscription = "hub"
"""
FULL = """
shutdown_grace = "5s"
[state]
path = "/data/hub-state.db"
[[sinks]]
name = "ops"
type = "slack"
webhook_url = "https://hooks.slack.example/x"
[hub]
listen = "127.0.0.1:9470"
public_url = "https://maintenance.contoso.com"
store = "env:STORE"
retention = "90d"
audit_retention = "730d"
token = "env:TOKEN"
[[hub.sources]]
name = "bridges"
type = "bridges"
connection_string = "env:BUS"
topic = "scheduled-events"
subscription = "hub"
[hub.sources.approvals]
entities = ["vm-approvals*"]
[[hub.sources]]
name = "azure"
type = "azure"
namespace = "contoso.servicebus.windows.net"
queue = "azure-events"
missing_after = "60s"
expect = ["/subscriptions/*"]
[hub.arm]
credential = "managed-identity"
[hub.access]
mode = "easy-auth"
trusted_proxies = ["10.0.0.0/24", "fd00::7"]
approvers = ["role:operators", "tid/oid"]
[[hub.access.rules]]
event_types = ["Redeploy", "Terminate"]
resource_groups = ["web"]
persons = 2
"""
ENVIRON = {
    "BUS": EMULATOR,
    "STORE": "postgresql://hub:hunter2@db.example/hub",
    "TOKEN": "t",
}


def read(folder: Path, text: str, **environ: str) -> HubFile:
    path = folder / "hub.toml"
    path.write_text(text)
    return load(path, {**ENVIRON, **environ})


def faults(folder: Path, text: str, **environ: str) -> list[str]:
    """Return what is wrong, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **environ)
    return [str(fault).replace(f"{folder}/", "") for fault in caught.value.faults]


def test_file_of_a_forwarder_is_said_to_be_one(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "[http]\nlisten = ''\n")

    assert "is the file of a forwarder" in fault
    assert "`sebridge run -c " in fault


def test_smallest_file_has_the_defaults_of_the_contract(tmp_path: Path) -> None:
    hub = read(tmp_path, SMALL).hub

    assert [(at.host, at.port) for at in hub.addresses] == [("127.0.0.1", 9470)]
    assert str(hub.sqlite_file) == "/var/lib/sebridge-hub/hub.db"
    assert (hub.retention, hub.audit_retention) == (
        Duration(90 * 86400),
        Duration(730 * 86400),
    )
    assert hub.arm is None
    assert hub.access.mode == "loopback"
    assert (hub.access.viewers, hub.access.approvers) == (("*",), ())
    assert [one.origin.entity for one in hub.sources] == ["scheduled-events/hub"]


def test_every_key_of_the_contract_is_read(tmp_path: Path) -> None:
    file = read(tmp_path, FULL)
    hub = file.hub
    bridges, azure = hub.sources

    assert hub.bridge_sources == (bridges,)
    assert isinstance(azure, AzureSource)
    assert hub.bridge_sources[0].approvals is not None
    assert hub.bridge_sources[0].approvals.entities == ("vm-approvals*",)
    assert azure.missing_after == Duration(60)
    assert hub.arm is not None
    assert hub.arm.api_version == "2025-11-01"
    assert hub.sqlite_file is None
    assert hub.access.most_persons == 2
    assert [sink.name for sink in file.sinks] == ["ops"]
    assert file.warnings() == []


def test_all_faults_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """
[hub]
lisen = "x"
public_url = "http://maintenance.contoso.com/path"
store = "mysql://x"
retention = 0
[[hub.sources]]
name = "a"
type = "brigdes"
[[hub.sources]]
name = "a"
type = "bridges"
connection_string = "env:BUS"
topic = "{vm_id}"
[hub.sources.approvals]
entities = []
[hub.arm]
endpoint = "http://arm.example"
credential = "none"
api_version = "new"
[hub.access]
trusted_proxies = ["x"]
approvers = ["role:operators", "*"]
[[hub.access.rules]]
persons = 2
[[hub.access.rules]]
persons = 0
"""

    found = faults(tmp_path, text)

    assert [fault.partition(": ")[0] for fault in found] == sorted(
        (fault.partition(": ")[0] for fault in found), key=lambda at: int(at[9:])
    )
    places = [fault.split(": ")[1] for fault in found]
    assert set(places) == {
        *("hub.lisen", "hub.public_url", "hub.store", "hub.retention"),
        *("hub.sources[0].type", "hub.sources[0]", "hub.sources[1].name"),
        *("hub.sources[1].subscription", "hub.sources[1].topic"),
        *("hub.sources[1].approvals.entities", "hub.arm.endpoint"),
        *("hub.arm.credential", "hub.arm.api_version"),
        *("hub.access.trusted_proxies[0]", "hub.access.trusted_proxies"),
        *("hub.access.approvers[0]", "hub.access.approvers[1]"),
        *("hub.access.rules[0].persons", "hub.access.rules[1].persons"),
    } - {"hub.sources[0]"} | {p for p in places if p.startswith("hub.sources[0].")}
    assert "did you mean 'bridges'?" in "\n".join(found)


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ('listen = "nowhere"', "hub.listen", "host:port"),
        ('listen = "0.0.0.0:9470"', "hub.listen", "loopback"),
        ('listen = ["127.0.0.1:1", "nowhere"]', "hub.listen[1]", "host:port"),
        ('listen = ["127.0.0.1:1", "[::]:1"]', "hub.listen", "loopback"),
        ('store_credential = "default"', "hub.store_credential", "PostgreSQL alone"),
        ('store_client_id = "a"', "hub.store_client_id", "for a store_credential"),
        (
            'store = "postgresql://u:p@127.0.0.1/d"\nstore_credential = "default"',
            "hub.store_credential",
            "without a password",
        ),
        (
            'store="postgresql://u@x.io/d?sslmode=require"\nstore_credential="default"',
            "hub.store_credential",
            "sslmode=verify-full",
        ),
        ('public_url = "ftp://x"', "hub.public_url", "URL without a path"),
        ('public_url = "http://x.example"', "hub.public_url", "https://"),
        ('store = "sqlite:"', "hub.store", "sqlite:/path"),
        ('store = "postgresql://h:x/d"', "hub.store", "postgresql://"),
        ('store = "postgresql://host"', "hub.store", "postgresql://"),
        ('forget_after = "0s"', "hub.forget_after", "more than 0"),
        ('arm.endpoint = "x"', "hub.arm.endpoint", "http"),
        (
            'arm = {endpoint="http://127.0.0.1:1",credential="none",client_id="c"}',
            "hub.arm.client_id",
            "credential",
        ),
        ('access.user_header = "a b"', "hub.access.user_header", "header"),
        ('access.approvers = [""]', "hub.access.approvers[0]", "nobody"),
        ('access.approvers = ["me"]', "hub.access.approvers[0]", "loopback"),
        ('access.mode = "header"', "hub.access.trusted_proxies", "proxy"),
        (
            'access = {mode="header",trusted_proxies=["::1"],viewers=["role:x"]}',
            "hub.access.viewers[0]",
            "no roles",
        ),
    ],
)
def test_fault_names_the_place_and_what_is_allowed(
    tmp_path: Path, line: str, place: str, words: str
) -> None:
    (found,) = faults(tmp_path, SMALL.replace("[hub]", f"[hub]\n{line}", 1))

    assert f": {place}: " in found
    assert words in found


def test_ca_file_of_a_source_is_read_before_the_start(tmp_path: Path) -> None:
    text = FULL.replace('queue = "azure-events"', 'queue = "q"\nca_file = "/nowhere"')

    (found,) = faults(tmp_path, text)

    assert "hub.sources[1].ca_file: no certificates in PEM can be read" in found


def test_pattern_of_expected_machines_is_checked(tmp_path: Path) -> None:
    text = FULL.replace('"/subscriptions/*"', '"web"')

    assert "hub.sources[1].expect[0]" in faults(tmp_path, text)[0]
    text = FULL.replace('"vm-approvals*"', '" "')
    assert "hub.sources[0].approvals.entities[0]" in faults(tmp_path, text)[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("hub = 1", "hub"),
        ("[log]\nlevel = 'info'", "hub"),
        ("[hub]", "hub"),
        ("[hub]\nsources = 1", "hub.sources"),
        ("[hub]\n[[hub.sources]]\nname = 'x'", "hub.sources[0].type"),
    ],
)
def test_file_that_says_nothing_is_a_fault(
    tmp_path: Path, text: str, place: str
) -> None:
    assert any(f": {place}: " in fault for fault in faults(tmp_path, text))


def test_sink_that_belongs_on_a_vm_is_a_fault(tmp_path: Path) -> None:
    text = f"""{SMALL}
[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "env:BUS"
queue = "{{vm_id}}"
[[sinks]]
name = "hook"
type = "command"
command = ["/bin/true"]
[[sinks]]
name = "ops"
type = "slack"
token = "x"
channel = "C1"
buttons = true
button_secret = "01234567890123456789012345678901"
"""

    found = "\n".join(faults(tmp_path, text))

    assert "sinks.bus.queue: holds a placeholder" in found
    assert "sinks.ops.buttons: works only in the bridge.toml of a forwarder" in found
    assert "sinks.hook.type: works only in the bridge.toml of a forwarder" in found


def test_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = read(tmp_path, SMALL, SEBRIDGE__HUB__LISTEN="127.0.0.1:1")

    assert file.hub.listen == "127.0.0.1:1"


def test_no_secret_is_reported(tmp_path: Path) -> None:
    text = SMALL.replace("[hub]", '[hub]\nstore = "mysql://u:hunter2@h/d"', 1)

    assert "hunter2" not in "\n".join(faults(tmp_path, text))
    assert "hunter2" not in repr(read(tmp_path, FULL))


def test_what_is_hardly_meant_is_a_warning(tmp_path: Path) -> None:
    nobody = FULL.replace('approvers = ["role:operators", "tid/oid"]', "")
    literal = 'store = "postgresql://u:p@h/d"\naccess.approvers = ["local"]'

    assert "nobody can decide" in read(tmp_path, nobody).warnings()[0]
    found = read(tmp_path, SMALL.replace("[hub]", f"[hub]\n{literal}", 1)).warnings()
    assert "nothing can be approved" in found[0]
    assert "a literal secret" in found[1]


@pytest.mark.parametrize("proxy", ["127.0.0.1", "::1", "127.0.0.0/8", "0.0.0.0/0"])
def test_proxy_that_is_every_program_of_this_machine_is_a_warning(
    tmp_path: Path, proxy: str
) -> None:
    (warning,) = read(tmp_path, FULL.replace("fd00::7", proxy)).warnings()

    assert warning.startswith(f"hub.access.trusted_proxies: {proxy} is this machine")


def test_check_knows_the_file_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(SMALL)
    run = CliRunner().invoke
    no_bus = run(main, ["check", "-c", str(path), "--json"])
    monkeypatch.setenv("BUS", EMULATOR)
    good = run(main, ["check", "-c", str(path)])

    assert (good.exit_code, good.output) == (0, f"{path}: ok\n")
    assert no_bus.exit_code == 2
    (fault,) = json.loads(no_bus.output)["faults"]
    assert fault["place"] == "hub.sources[0].connection_string"
    assert fault["line"] == 6


def test_person_is_named_by_id_or_by_role() -> None:
    assert is_named("tid/oid", (), ("tid/oid",))
    assert is_named("x", ("operators",), ("role:operators",))
    assert is_named("x", (), ("*",))
    assert not is_named("x", ("operators",), ("operators",))


def test_hub_that_decides_says_that_it_must_be_alone(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(FULL)
    environ = {"BUS": EMULATOR, "STORE": "postgresql://u@h/d", "TOKEN": "t"}
    (note,) = load(path, environ).notes()
    assert "assumes that it alone decides for vm-approvals*" in note
    path.write_text(SMALL)
    assert load(path, environ).notes() == []
