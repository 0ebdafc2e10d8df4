"""The Functions app on one machine, as its page says: simulator.json, local settings.

There is no Functions host here: what it hands to the functions, a receiver hands over.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest
from azure.servicebus.aio import ServiceBusClient

from approver.handlers import Handlers
from approver.settings import Settings
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    kill_rest,
    simulator_here,
)

ROOT = Path(__file__).parents[2]
APP = ROOT / "infra" / "functions"
EXAMPLE = ROOT / "config" / "examples" / "simulator.toml"


def local_settings(at: Addresses) -> Settings:
    """Return those of the example, with the port that the simulator has got."""
    found = json.loads((APP / "local.settings.example.json").read_text())
    values = {**found["Values"], "SERVICEBUS": at.connection_string}
    return Settings.from_environment(values)


def body_of_the_page(event_id: str) -> bytes:
    """Return what the page posts to approve an event."""
    page = (APP / "README.md").read_text()
    found = re.search(r'localhost:7071/api/approvals -d "(.+)"$', page, re.MULTILINE)
    assert found
    return found[1].replace('\\"', '"').replace("$event", event_id).encode()


def bridge_of(folder: Path, at: Addresses) -> Path:
    """Write the example of a forwarder, with the ports that the simulator has got."""
    text = EXAMPLE.read_text()
    for written, found in (
        ("http://127.0.0.1:8080", at.imds),
        ("http://127.0.0.1:8081", at.inbox),
        ("./sebridge-simulator.db", str(folder / "state.db")),
    ):
        assert written in text
        text = text.replace(written, found)
    path = folder / "bridge.toml"
    path.write_text(text)
    return path


async def hear_until(
    handlers: Handlers, at: Addresses, event_id: str, kind: str
) -> None:
    """Hand messages of the subscription over until one of this kind was among them."""
    client = ServiceBusClient.from_connection_string(at.connection_string)
    async with (
        client,
        client.get_subscription_receiver("scheduled-events", "approver") as receiver,
        asyncio.timeout(2 * PATIENCE),
    ):
        async for message in receiver:
            body = b"".join(message.body)
            await handlers.record(body, message.reply_to, message.reply_to_session_id)
            await receiver.complete_message(message)
            event = json.loads(body)
            if event.get("subject") == event_id and event["type"].endswith(kind):
                return


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_app_approves_by_the_files_of_its_page(tmp_path: Path) -> None:
    entities = APP / "simulator.json"
    async with simulator_here(servicebus_config=entities) as at:
        secrets = {"SERVICEBUS": at.connection_string, "SEBRIDGE__HTTP__LISTEN": ""}
        bridge = await forwarder(bridge_of(tmp_path, at), secrets)
        try:
            event = await at.control("POST", "events", {"type": "Reboot"})
            assert isinstance(event, dict)
            event_id = str(event["eventId"])
            async with Handlers(local_settings(at)) as handlers:
                await hear_until(handlers, at, event_id, ".scheduled.v1")
                status, body = await handlers.approve(body_of_the_page(event_id))
                assert (status, body.get("entity")) == (202, "vm-approvals-sessions")
                await hear_until(handlers, at, event_id, ".startrequest.relayed.v1")
        finally:
            await ended(bridge)
            kill_rest()
