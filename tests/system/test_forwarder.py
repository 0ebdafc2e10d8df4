"""The forwarder and the simulator as separate processes, on real sockets."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus.aio import ServiceBusClient
from jsonschema import FormatChecker, validate

from bridge.simulator.imds.document import NEWEST, document
from bridge.simulator.imds.scenario import load
from tests.support.schemas import validator
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator,
    simulator_here,
    written_config,
)

pytestmark = pytest.mark.integration

DATA = Path(__file__).parent.parent / "data"
CLOUDEVENTS = json.loads((DATA / "cloudevents.schema.json").read_text())
SCENARIOS = {
    "live-migration": ["scheduled", "started", "completed"],
    "user-reboot": ["scheduled", "started", "completed"],
    "host-agent-maintenance": ["scheduled", "started", "completed"],
    "redeploy-after-host-failure": ["scheduled", "started", "completed"],
    "user-redeploy": ["scheduled", "started", "completed"],
    "cancelled-maintenance": ["scheduled", "cancelled"],
    "spot-eviction": ["scheduled", "ended"],
    "host-failure": ["started", "completed"],
}


def steps(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the CloudEvents of scheduled events among messages, in order."""
    bodies = [m["body"] for m in messages]
    return [
        body
        for body in bodies
        if isinstance(body, dict) and ".scheduledevent." in str(body["type"])
    ]


def kinds(events: list[dict[str, object]]) -> list[str]:
    return [str(event["type"]).split(".")[-2] for event in events]


async def until(
    at: Addresses, is_enough: Callable[[list[dict[str, object]]], bool]
) -> list[dict[str, object]]:
    """Return the events at the webhook as soon as there are enough of them."""
    async with asyncio.timeout(PATIENCE):
        while not is_enough(found := steps(await at.messages("/siem"))):
            await asyncio.sleep(0.1)
    return found


def more_than(count: int) -> Callable[[list[dict[str, object]]], bool]:
    return lambda found: len(found) > count


async def on_the_topic(at: Addresses, count: int) -> list[dict[str, object]]:
    """Read the subscription as a consumer does, until ``count`` events have come."""
    client = ServiceBusClient.from_connection_string(at.connection_string)
    found: list[dict[str, object]] = []
    async with (
        asyncio.timeout(PATIENCE),
        client,
        client.get_subscription_receiver("scheduled-events", "consumer") as receiver,
    ):
        async for message in receiver:
            event = json.loads(b"".join(message.body))
            if ".scheduledevent." in event["type"]:
                found.append(event)
            await receiver.complete_message(message)
            if len(found) == count:
                return found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("which", [slice(n, n + 2) for n in range(0, 8, 2)])
async def test_every_transition_of_a_scenario_reaches_every_sink(
    which: slice, tmp_path: Path
) -> None:
    """Several at a time, each with a simulator of its own: they mostly wait.

    Each document stays until its event has come: the start of a forwarder on a busy
    machine takes longer than a phase that is played fast.
    """
    async with asyncio.TaskGroup() as group:
        for name in list(SCENARIOS)[which]:
            group.create_task(plays_whole(name, tmp_path / name), name=name)


def documents(name: str) -> Iterator[object]:
    """Yield what IMDS shows in a scenario after its empty document.

    A spot VM goes within five seconds of its NotBefore: else it were cancelled.
    """
    event = load(name).lives[0].faster(10.0, least=0.0).born(time.time(), "E-1")
    for number, kind in enumerate(SCENARIOS[name], 2):
        if kind == "started":
            event = event.started(time.time())
        shown = (event,) if kind in {"scheduled", "started"} else ()
        yield document(shown, number, NEWEST)


async def plays_whole(name: str, folder: Path) -> None:
    expected, at_webhook = SCENARIOS[name], list[dict[str, object]]()
    folder.mkdir()
    async with simulator_here(vm_name="WestNO_0") as at:
        process = await forwarder(written_config(folder, at))
        try:
            async with asyncio.timeout(PATIENCE):
                while not await at.messages("/siem"):
                    await asyncio.sleep(0.1)
            for shown in documents(name):
                await at.control("PUT", "document", shown)
                at_webhook = await until(at, more_than(len(at_webhook)))
            on_bus = await on_the_topic(at, len(expected))
            async with asyncio.timeout(PATIENCE):
                while len(await at.messages("/slack")) < len(expected):
                    await asyncio.sleep(0.1)
        finally:
            code = await ended(process)

    assert kinds(at_webhook) == kinds(on_bus) == expected, name
    for event in (*at_webhook, *on_bus):
        validate(event, CLOUDEVENTS, format_checker=FormatChecker())
        validator("event").validate(event)
    assert [e["id"] for e in at_webhook] == [e["id"] for e in on_bus], name
    assert code == 0, name


@pytest.mark.slow
async def test_ids_are_equal_over_two_runs_on_the_same_documents(
    tmp_path: Path,
) -> None:
    async def ids(run: str) -> list[object]:
        playing = {"scenario": "documents-live-migration", "speed": 1000.0}
        async with simulator_here(**playing) as at:
            process = await forwarder(written_config(tmp_path, at, run))
            found = await until(at, lambda found: "completed" in kinds(found))
            await ended(process)
        return [event["id"] for event in found]

    first, second = await asyncio.gather(ids("first"), ids("second"))

    assert first == second
    assert len(first) == 3


@pytest.mark.slow
async def test_a_killed_forwarder_loses_nothing_and_repeats_equal_ids(
    tmp_path: Path,
) -> None:
    """Ten kills at random moments, while events appear, start and go away."""
    chance = random.Random(20261121)  # noqa: S311 - when to kill
    async with simulator() as at:
        config = written_config(tmp_path, at)
        logged, process = 0, await forwarder(config)
        for number in range(10):
            event = {
                "type": "Freeze",
                "resources": ["WestNO_0"],
                "eventId": f"00000000-0000-0000-0000-{number:012}",
                "notBefore": 900,
            }
            await at.control("POST", "events", event)
            await asyncio.sleep(chance.uniform(0.0, 1.2))
            process.kill()
            await process.wait()
            logged = config.with_suffix(".log").stat().st_size
            process = await forwarder(config)
        await settled(config, logged)
        found = await until(at, lambda found: len({e["subject"] for e in found}) == 10)
        code = await ended(process)

    by_subject: dict[object, set[object]] = {}
    for event in found:
        by_subject.setdefault(event["subject"], set()).add(event["id"])
    assert all(len(ids) == 1 for ids in by_subject.values())
    assert code == 0


@pytest.mark.slow
async def test_a_second_instance_on_the_same_state_file_is_refused(
    tmp_path: Path,
) -> None:
    async with simulator() as at:
        config = written_config(tmp_path, at)
        first = await forwarder(config)
        async with asyncio.timeout(PATIENCE):
            while not await at.messages("/siem"):
                await asyncio.sleep(0.1)

        second = await forwarder(config)
        code = await asyncio.wait_for(second.wait(), PATIENCE)
        first_code = await ended(first)

    assert code == 1
    assert first_code == 0
    assert "a forwarder already runs" in config.with_suffix(".log").read_text()
