"""``sebridge approve`` as a process, against a forwarder and a simulator as others."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
    started,
    written_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

FIRST, SECOND = (
    "00000000-0000-0000-0000-00000000000A",
    "00000000-0000-0000-0000-00000000000B",
)


@dataclass(frozen=True, slots=True)
class Result:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str


async def approve(config: Path, *arguments: str, stdin: bytes = b"") -> Result:
    process = await started(
        *(sys.executable, "-m", "bridge", "approve", "-c", str(config), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LOGNAME": "ann"},
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), PATIENCE)
    return Result(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def running(
    at: Addresses, config: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a forwarder that has published two events that wait for approval."""
    process = await forwarder(config)
    try:
        await settled(config, 0)
        for event_id in (FIRST, SECOND):
            event = {
                "type": "Reboot",
                "resources": ["WestNO_0"],
                "eventId": event_id,
                "notBefore": 900,
            }
            await at.control("POST", "events", event)
        yield process
    finally:
        await ended(process)


async def received(at: Addresses, kind: str, event_id: str) -> dict[str, object]:
    """Return what came to the webhook, ``kind`` being a part of its type."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for message in await at.messages("/siem"):
                body = message["body"]
                if not isinstance(body, dict) or body.get("subject") != event_id:
                    continue
                if kind in str(body["type"]):
                    return body
            await asyncio.sleep(0.05)


async def test_two_approvers_at_once_an_unknown_event_and_a_dead_forwarder(
    tmp_path: Path,
) -> None:
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        with config.open("a") as file:
            file.write('unknown_grace = "500ms"\n')
        async with running(at, config) as process:
            seen = [await received(at, ".scheduled.", one) for one in (FIRST, SECOND)]
            first, second, unknown = await asyncio.gather(
                approve(config, FIRST, "--wait", "--json", "--reason", "at night"),
                approve(
                    config,
                    *("--from-event", "-", "--wait"),
                    stdin=json.dumps(seen[1]).encode(),
                ),
                approve(config, "NO-SUCH", "--force", "--wait", "--timeout", "30s"),
            )
            relayed = await received(at, ".relayed.", FIRST)
            process.kill()
            nobody = await approve(config, FIRST, "--wait", "--timeout", "500ms")

    assert (first.code, second.code) == (0, 0), (first, second)
    assert json.loads(first.out)["outcome"] in {"relayed", "already-started"}
    assert second.out.startswith(f"{SECOND}: ")
    request = relayed["data"]["request"]  # type: ignore[index]  # as the schema has it
    assert (request["approvedBy"], request["reason"]) == ("ann", "at night")
    assert (unknown.code, unknown.out.split(": ")[1].strip()) == (1, "unknown-event")
    assert nobody.code == 1
    assert "no reply at replies within 0.5 s" in nobody.err


@pytest.mark.parametrize("is_from_event", [True, False])
async def test_session_of_the_vm_that_reported(
    tmp_path: Path, *, is_from_event: bool
) -> None:
    """It stands in the event; on the VM itself, the command finds its own."""
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        text = config.read_text().replace(
            'queue = "vm-approvals"',
            'queue = "vm-approvals-sessions"\nsessions = ["{vm_id}"]',
        )
        config.write_text(text)
        async with running(at, config):
            seen = tmp_path / "event.json"
            seen.write_text(json.dumps(await received(at, ".scheduled.", FIRST)))
            given = ["--from-event", str(seen)] if is_from_event else [FIRST]
            result = await approve(config, *given, "--wait", "--json")

    assert result.code == 0, result
    answer = json.loads(result.out)
    assert answer["outcome"] == "relayed"
    assert answer["session"] == json.loads(seen.read_text())["data"]["reporter"]["vmId"]


def entities_of_a_topic() -> dict[str, object]:
    """Return entities where each VM has a subscription of its own for approvals."""
    subscriptions = [
        {
            "Name": name,
            "Rules": [
                {
                    "Name": "mine",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {"SessionId": name},
                    },
                }
            ],
        }
        for name in ("vm-a", "vm-b")
    ]
    topics = [
        {"Name": "scheduled-events", "Subscriptions": [{"Name": "consumer"}]},
        {"Name": "approvals", "Subscriptions": subscriptions},
    ]
    namespace = {"Name": "local", "Queues": [{"Name": "replies"}], "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace]}}


async def test_topic_with_a_subscription_for_each_vm(tmp_path: Path) -> None:
    entities = tmp_path / "Config.json"
    entities.write_text(json.dumps(entities_of_a_topic()))
    async with simulator_here(servicebus_config=entities) as at:
        config = written_config(tmp_path, at)
        text = config.read_text().replace(
            'queue = "vm-approvals"', 'topic = "approvals"\nsubscription = "vm-a"'
        )
        config.write_text(text)
        async with running(at, config):
            await received(at, ".scheduled.", FIRST)
            elsewhere, here = await asyncio.gather(
                approve(
                    config, SECOND, "--session", "vm-b", "--wait", "--timeout", "2s"
                ),
                approve(config, FIRST, "--session", "vm-a", "--wait"),
            )

    assert here.code == 0, here
    assert here.out.startswith(f"{FIRST}: relayed")
    assert elsewhere.code == 1
    assert "no reply" in elsewhere.err
