"""The way of an event and its approval, over a real Service Bus namespace.

``SEBRIDGE_TEST_NAMESPACE`` is its host name, reached with azure-identity's default
chain, or a connection string. It needs the topic ``scheduled-events`` with duplicate
detection and a subscription ``consumer``, and the queue ``vm-approvals-sessions`` with
sessions. What others left in the subscription is taken, and dropped.
"""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.app import forwarder as app
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig, open_client
from bridge.servicebus.receiver import open_queue
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator

WHERE = os.environ.get("SEBRIDGE_TEST_NAMESPACE", "")
PATIENCE = 90.0
QUEUE = "vm-approvals-sessions"

pytestmark = [
    pytest.mark.azure,
    pytest.mark.skipif(not WHERE, reason="SEBRIDGE_TEST_NAMESPACE is not set"),
]


def keys() -> dict[str, object]:
    """Return how the namespace is reached."""
    if "Endpoint=" in WHERE:
        return {"connection_string": WHERE}
    return {"namespace": WHERE, "credential": "default"}


def namespace() -> NamespaceConfig:
    if "Endpoint=" in WHERE:
        return NamespaceConfig(connection_string=Secret(WHERE, {}))
    return NamespaceConfig(namespace=WHERE, credential="default")


def session() -> str:
    """Return the name of a session that nobody else uses."""
    return f"test-{uuid.uuid4()}"


async def put(client: ServiceBusClient, session_id: str, body: str) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage(body, session_id=session_id))


async def received(
    client: ServiceBusClient, event_id: str, *kinds: str
) -> list[dict[str, object]]:
    """Receive until the subscription has got these of an EventId."""
    found: list[dict[str, object]] = []
    receiver = client.get_subscription_receiver("scheduled-events", "consumer")
    async with asyncio.timeout(PATIENCE), receiver:
        while not {*kinds} <= {str(e["type"]).split(".")[-2] for e in found}:
            for message in await receiver.receive_messages(50, max_wait_time=2):
                event = json.loads(str(message))
                if event["subject"] == event_id:
                    found.append(event)
                await receiver.complete_message(message)
    return found


@asynccontextmanager
async def forwarder(
    imds: ImdsSimulator, folder: Path, session_id: str
) -> AsyncIterator[None]:
    """Run a forwarder in this process."""
    tables = {
        "imds": {"endpoint": imds.url},
        "state": {"path": str(folder / "state.db")},
        "http": {"listen": ""},
        "sinks": [
            {
                "name": "bus",
                "type": "servicebus",
                "topic": "scheduled-events",
                "when": {"lifecycle": False},
                **keys(),
            }
        ],
        "approvals": {"queue": QUEUE, "sessions": [session_id], **keys()},
    }
    config = configuration.parse(tables, file="azure", environ={})
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run(config, stop, SystemClock()))
        try:
            yield
        finally:
            stop.set()


async def test_event_is_reported_approved_relayed_and_started(tmp_path: Path) -> None:
    session_id, event_id = session(), str(uuid.uuid4()).upper()
    life = EventLife(event_type="Freeze", resources=("WestNO_0",), event_id=event_id)
    async with (
        ImdsSimulator() as imds,
        open_client(namespace()) as client,
        forwarder(imds, tmp_path, session_id),
    ):
        imds.schedule(life)
        (scheduled,) = await received(client, event_id, "scheduled")
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        await put(client, session_id, body)
        later = await received(client, event_id, "relayed", "started")

    assert scheduled["specversion"] == "1.0"
    assert len(later) == 2
    assert [approval.event_ids for approval in imds.approvals] == [(event_id,)]


async def test_session_is_served_by_one_and_stood_by_for_by_another() -> None:
    source, stop = ApprovalSource(queue=QUEUE, session=session()), asyncio.Event()
    assert source.session is not None
    async with (
        open_client(namespace()) as client,
        open_queue(namespace(), source, SystemClock()) as one,
        open_queue(namespace(), source, SystemClock()) as two,
    ):
        await one.reach()
        received = await two.receive(stop)
        stood_by = two.stands_by
        await put(client, source.session, "{}")
        (message,) = await one.receive(stop)
        await one.settle(message)

    assert received == []
    assert stood_by
    assert message.session_id == source.session
