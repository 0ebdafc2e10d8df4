"""Rules at work in a real forwarder: an event approved unasked, and one denied."""

import asyncio
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

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

RULES = """
[[approvals.rules]]
name = "databases"
resources = ["db-*"]
action = "deny"

[[approvals.rules]]
name = "user-made"
event_sources = ["User"]
action = "auto-approve"
delay = "500ms"
"""
WEB, DATABASE = (
    "00000000-0000-0000-0000-00000000000A",
    "00000000-0000-0000-0000-00000000000B",
)


async def announce(at: Addresses, event_id: str, *resources: str) -> None:
    event = {
        "type": "Reboot",
        "source": "User",
        "resources": list(resources),
        "eventId": event_id,
        "notBefore": 900,
    }
    await at.control("POST", "events", event)


async def bodies(at: Addresses, event_id: str) -> list[dict[str, object]]:
    """Return the events that came to the webhook about one EventId, each once."""
    found = [message["body"] for message in await at.messages("/siem")]
    by_id = {
        str(body["id"]): body
        for body in found
        if isinstance(body, dict) and body.get("subject") == event_id
    }
    return list(by_id.values())


async def kinds(at: Addresses, event_id: str, until: str) -> list[str]:
    """Return what arrived of an EventId, once ``until`` did."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [str(b["type"]).split(".")[-2] for b in await bodies(at, event_id)]
            if until in found:
                return found
            await asyncio.sleep(0.05)


async def approve(config: Path, event_id: str) -> tuple[int, str]:
    process = await started(
        *(sys.executable, "-m", "bridge", "approve", event_id, "-c", str(config)),
        "--wait",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode or 0, out.decode()


async def dead_letter(at: Addresses) -> str | None:
    """Return why the first dead letter of the approval queue is one."""
    client = ServiceBusClient.from_connection_string(at.connection_string)
    queue = client.get_queue_receiver(
        "vm-approvals", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )
    async with client, queue:
        (message,) = await queue.receive_messages(max_wait_time=PATIENCE)
        return message.dead_letter_reason


async def test_one_event_is_approved_unasked_over_a_kill_and_another_denied(
    tmp_path: Path,
) -> None:
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        with config.open("a") as file:
            file.write(RULES)
        process = await forwarder(config)
        try:
            await settled(config, 0)
            await announce(at, DATABASE, "WestNO_0", "db-1")
            await announce(at, WEB, "WestNO_0")
            await kinds(at, WEB, until="scheduled")
            process.kill()
            await process.wait()
            process = await forwarder(config)
            web = await kinds(at, WEB, until="started")
            code, out = await approve(config, DATABASE)
            reason = await dead_letter(at)
            database = await kinds(at, DATABASE, until="denied")
        finally:
            ended_with = await ended(process)
        relayed, denied = await bodies(at, WEB), await bodies(at, DATABASE)

    assert web.count("relayed") == 1
    (outcome,) = [b["data"] for b in relayed if ".relayed." in str(b["type"])]
    assert isinstance(outcome, dict)
    assert outcome["request"]["approvedBy"] == "rule:user-made"
    assert outcome["request"]["messageId"] is None
    assert (code, "denied" in out, reason) == (1, True, "Denied")
    assert set(database) == {"scheduled", "denied"}
    (refusal,) = [b["data"] for b in denied if ".denied." in str(b["type"])]
    assert isinstance(refusal, dict)
    assert refusal["reason"] == "DeniedByRule databases"
    assert ended_with == 0
