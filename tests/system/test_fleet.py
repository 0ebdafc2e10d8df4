"""Forwarders that see the same document: one voice, one at a time, and never none."""

import asyncio
import gc
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.configurations import toml
from tests.support.servers import brisk_sdk
from tests.support.stopwatch import Stopwatch
from tests.system.fleets import LOCK_SECONDS, PATIENCE, Fleet, fleet
from tests.system.processes import (
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
    started,
    written_config,
)

__all__ = ["brisk_sdk"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    # The SDK leaves a connection that it is interrupted in opening to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = 6


@pytest.fixture
async def town(brisk_sdk: None, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(COUNT, tmp_path) as running:
        yield running
    gc.collect()  # here, and not in the middle of another file's test


async def until_all_know(town: Fleet, event_id: str) -> None:
    """Wait until each VM has served an approval of its own session."""
    for vm in town.vms:
        await town.approve(event_id, session=f"vm-{vm.number}")
    async with asyncio.timeout(PATIENCE):
        while len({by for _, by in town.consumer.outcomes(event_id)}) < len(town.vms):
            await asyncio.sleep(0.05)


async def test_each_transition_is_published_once_and_each_approval_served_by_one(
    town: Fleet,
) -> None:
    """Also when the one that serves the group's session dies with the lock in hand."""
    first, second, third = (town.schedule() for _ in range(3))
    await town.until_received(first, "scheduled")
    await until_all_know(town, third)
    await town.approve(first)
    served = await town.until_decided(first)
    await town.until_received(first, "started")
    await town.approve("no-such-event")
    unknown = await town.until_decided("no-such-event")

    serving = served.removeprefix("relayed by ")
    town.broker.faults.hold_session_locks = True
    (dying,) = [vm for vm in town.vms if vm.name == serving]
    dying.die()
    watch = Stopwatch()
    await town.approve(second)
    taken_over = await town.until_decided(second)
    took = watch.seconds
    await town.until_received(second, "started")
    town.imds.remove(first)
    await town.until_received(first, "completed")
    await asyncio.sleep(1)  # for whatever would come twice

    received = [town.consumer.steps(event_id) for event_id in (first, second, third)]
    assert received == [
        ["scheduled", "started", "completed"],
        ["scheduled", "started"],
        ["scheduled", "started"],
    ]
    assert town.consumer.repeated() == []
    assert unknown == f"unknown-event by {serving}"
    assert taken_over.startswith("relayed by ")
    assert taken_over != f"relayed by {serving}"
    assert took < LOCK_SECONDS * 1.25 + 3
    assert [town.posted(event_id) for event_id in (first, second)] == [1, 1]
    assert town.posted("no-such-event") == 0
    assert town.broker.snapshot()["approvals"].active == 0
    assert town.broker.snapshot()["approvals"].dead == 1


async def test_final_state_is_the_true_one_although_some_were_away(
    town: Fleet,
) -> None:
    """All but the first miss some of the history, and tell the rest their way."""
    chance = random.Random(20261121)  # noqa: S311 - who is away when
    ids = [town.schedule() for _ in range(6)]
    for event_id in ids:
        await town.until_received(event_id, "scheduled")
    for _ in range(8):
        for vm in town.vms[1:]:
            away = chance.random() < 0.5
            vm.imds.cut() if away else await vm.imds.mend()
        for event_id in ids[:3]:
            event = town.imds.find(event_id)
            later = event.not_before + chance.choice([-60, 60, 120])
            town.imds.change(replace(event, not_before=later))
        await asyncio.sleep(0.6)
    for event_id in ids[1:3]:
        town.imds.start(event_id)
        await town.until_received(event_id, "started")
    town.imds.remove(ids[2])
    town.imds.remove(ids[3])  # cancelled, for those who were there
    town.imds.start(ids[4])
    await town.until_received(ids[2], "completed")
    await town.until_received(ids[4], "started")
    for vm in town.vms:
        await vm.imds.mend()
    last = town.schedule()
    await until_all_know(town, last)
    await asyncio.sleep(1)

    assert town.consumer.repeated() == []
    shown = {e["EventId"]: e for e in json.loads(town.imds.peek().body)["Events"]}
    for event_id in (*ids[:2], *ids[4:]):
        assert town.consumer.held(event_id) == ("there", shown[event_id])
    assert town.consumer.held(ids[2])[0] == "completed"
    assert town.consumer.held(ids[3])[0] in {"ended", "cancelled"}
    assert {e["subject"] for e in town.consumer.events} == {*ids, last}


ENTITY_FILE = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "vm-approvals",
                        "Properties": {
                            "RequiresSession": True,
                            "LockDuration": f"PT{LOCK_SECONDS:.0f}S",
                        },
                    },
                    {"Name": "replies"},
                ],
                "Topics": [
                    {
                        "Name": "scheduled-events",
                        "Properties": {"RequiresDuplicateDetection": True},
                        "Subscriptions": [{"Name": "consumer"}],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def session_config(folder: Path, at: Addresses, name: str) -> Path:
    """Write the configuration of a VM of the group."""
    path = written_config(folder, at, name)
    more = {"identity": {"vm_id": name, "vm_name": name}}
    path.write_text(f'{path.read_text()}sessions = ["group-7"]\n{toml(more)}')
    return path


async def approved(at: Addresses, config: Path, event_id: str) -> dict[str, object]:
    """Approve with the command, and return the outcome."""
    process = await started(
        *(sys.executable, "-m", "bridge", "approve", event_id, "-c", str(config)),
        *("--session", "group-7"),
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    async with asyncio.timeout(PATIENCE):
        while True:
            for message in await at.messages("/siem"):
                body = message["body"]
                assert isinstance(body, dict)
                if "outcome" in body["data"] and body["subject"] == event_id:
                    found: dict[str, object] = body["data"]
                    return found
            await asyncio.sleep(0.1)


async def test_process_that_serves_a_session_is_killed_and_another_takes_over(
    tmp_path: Path,
) -> None:
    """With a broker that keeps the dead one's session until its lock ends."""
    entities = tmp_path / "Config.json"
    entities.write_text(json.dumps(ENTITY_FILE))
    async with simulator_here(servicebus_config=entities) as at:
        configs = [session_config(tmp_path, at, name) for name in ("one", "two")]
        first = await forwarder(configs[0])
        await settled(configs[0], 0)
        ids = [f"0000000{number}-0000-0000-0000-000000000000" for number in (1, 2)]
        for event_id in ids:
            event = {"type": "Freeze", "resources": ["one", "two"], "notBefore": 900}
            await at.control("POST", "events", {**event, "eventId": event_id})
        served = await approved(at, configs[0], ids[0])
        second = await forwarder(configs[1])
        await settled(configs[1], 0)
        await at.control("POST", "servicebus/faults", {"fault": "hold-session-locks"})
        first.kill()
        await first.wait()
        watch = Stopwatch()
        taken_over = await approved(at, configs[1], ids[1])
        took = watch.seconds
        code = await ended(second)

    assert [outcome_of(data) for data in (served, taken_over)] == [
        ("relayed", "one"),
        ("relayed", "two"),
    ]
    assert took < LOCK_SECONDS * 1.25 + 6  # starting a command included
    assert code == 0


def outcome_of(data: dict[str, object]) -> tuple[object, object]:
    """Return what was decided, and by whom."""
    reporter = data["reporter"]
    assert isinstance(reporter, dict)
    return data["outcome"], reporter["vmName"]
