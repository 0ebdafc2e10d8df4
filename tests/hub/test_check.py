"""``check --connect`` of a hub: its store, its sources, and who else decides."""

import json
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.check_connect import examine_hub
from bridge.cli.main import main
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Address, Secret
from bridge.hub.config import BridgesSource, HubConfig
from bridge.hub.store.store import Store
from bridge.simulator.servicebus.broker import Broker
from tests.support.builders import EVENT_ID
from tests.support.fleet import outcome
from tests.support.hub import HubWorld, config, received

NOWHERE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=s"


def approved(by: str | None, message_id: str, seconds: float) -> bytes:
    """Return the outcome of an approval that somebody has sent."""
    found = orjson.loads(outcome("relayed", message_id, seconds=seconds))
    found["data"]["request"]["approvedBy"] = by
    return orjson.dumps(found)


async def findings(given: HubConfig) -> list[tuple[str, str]]:
    found = await examine_hub(given, SystemClock())
    return [(one.result, one.text) for one in found]


async def test_whoever_approves_beside_the_hub_is_named(
    store: Store, hub_config: HubConfig
) -> None:
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        await world.post()
        ours = (await world.decision())["id"]
    assert await findings(hub_config) == [("ok", "the store answers")]

    await store.keep(
        [
            received(approved("ann", ours, 1), 1),
            received(approved("slack:bob", "m-1", 2), 2),
            received(approved("slack:bob", "m-2", 3), 3),
            received(approved(None, "m-3", 4), 4),
        ]
    )
    by = f"approved {EVENT_ID} without this hub, reported at 2026-03-02T12:00:0"
    assert await findings(hub_config) == [
        ("ok", "the store answers"),
        ("warning", f"an approver without a name {by}4Z"),
        ("warning", f"slack:bob {by}3Z"),
    ]


async def test_source_is_reached_and_nothing_is_taken(
    store: Store, hub_config: HubConfig, broker: Broker
) -> None:
    text = broker.connection_string
    found = BridgesSource(
        name="b",
        type="bridges",
        connection_string=Secret(text, {}),
        topic="scheduled-events",
        subscription="consumer",
    )
    gone = replace(found, name="c", subscription="nowhere")
    both = replace(hub_config, sources=(found, gone))

    (_, *sources) = await findings(both)

    assert [mark for mark, _ in sources] == ["ok", "fault"]
    assert "hub.sources c" in sources[1][1]


async def test_file_that_is_not_there_yet_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    found = await findings(HubConfig(store=Address(f"sqlite:{path}", {})))

    assert found == [("warning", f"hub.store: there is no {path} yet: a hub makes it")]
    assert not path.exists()


async def test_store_that_is_away_is_a_fault() -> None:
    given = HubConfig(store=Address("postgresql://u:hunter2@127.0.0.1:1/d", {}))
    ((mark, text),) = await findings(given)
    assert (mark, "hunter2" in text) == ("fault", False)


@pytest.mark.timeout(120)
def test_command_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(
        f'[hub]\nstore = "sqlite:{tmp_path}/hub.db"\n'
        f'[[hub.sources]]\nname = "b"\ntype = "bridges"\nqueue = "q"\n'
        f'connection_string = "{NOWHERE};UseDevelopmentEmulator=true"\n'
    )
    given = ["check", "-c", str(path), "--connect", "--json"]

    found = CliRunner().invoke(main, given)

    assert found.exit_code == 1
    results = [one["result"] for one in json.loads(found.stdout)["findings"]]
    assert results == ["warning", "fault"]


async def test_folder_that_is_missing_is_a_fault_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "none" / "hub.db"
    ((mark, text),) = await findings(HubConfig(store=Address(f"sqlite:{path}", {})))

    assert mark == "fault"
    assert f"there is no folder {path.parent}: sebridge-hub.service makes" in text


def test_wrong_mode_is_one_fault(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "config" / "examples" / "hub.toml"
    access = '[hub.access]\nmode = "easyauth"\ntrusted_proxies = ["10.0.0.0/24"]\n'
    path = tmp_path / "hub.toml"
    path.write_text(f"{example.read_text()}\n{access}")

    result = CliRunner(env={"SLACK_WEBHOOK_URL": "https://x.example"}).invoke(
        main, ["check", "-c", str(path)]
    )

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "hub.access.mode: must be one of" in line
