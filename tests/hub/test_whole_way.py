"""From a message on the topic to an approval on the queue, and back; all of it real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from azure.servicebus.aio import ServiceBusClient
from msgspec.structs import replace

from bridge.approvals.message import parse
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Secret
from bridge.hub import hub
from bridge.hub.access import AccessConfig
from bridge.hub.config import ApprovalTargets, ArmConfig, BridgesSource
from bridge.hub.decisions import Claimed
from bridge.hub.facts import Address
from bridge.hub.sending import BridgeTransport
from bridge.servicebus.sender import Senders
from bridge.simulator.servicebus.broker import Broker
from tests.hub.test_hub import file_of
from tests.hub.test_sources import send, until
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, life, outcome, step
from tests.support.hub import offer


def source(broker: Broker) -> BridgesSource:
    return BridgesSource(
        name="bridges",
        type="bridges",
        connection_string=Secret(broker.connection_string, {}),
        topic="scheduled-events",
        subscription="consumer",
        approvals=ApprovalTargets(entities=("vm-approvals*",)),
    )


async def received(broker: Broker, queue: str, session: str | None = None) -> Any:
    """Return the next message of a queue."""
    async with AsyncExitStack() as stack:
        text = broker.connection_string
        client = await stack.enter_async_context(
            ServiceBusClient.from_connection_string(text)
        )
        options = {} if session is None else {"session_id": session}
        receiver = await stack.enter_async_context(
            client.get_queue_receiver(queue, max_wait_time=20, **options)  # type: ignore[arg-type]  # of the SDK
        )
        (message,) = await receiver.receive_messages(1)
        await receiver.complete_message(message)
        return message


def claimed(entity: str, session: str = "", name: str = "bridges") -> Claimed:
    body = orjson.dumps({"id": "d", "type": "sebridge.startrequest.v1"})
    return Claimed(
        id="d",
        event_key=EVENT_ID,
        event_id=EVENT_ID,
        via="bridge",
        address=Address(source=name, entity=entity, session=session),
        message=body,
        expires=at(900),
        attempt=1,
        until=at(15),
    )


@pytest.fixture
async def transport(broker: Broker) -> AsyncIterator[BridgeTransport]:
    found = BridgeTransport({"bridges": source(broker)}, SystemClock())
    yield found
    await found.senders.close()


async def test_decision_is_stored_by_the_broker(
    broker: Broker, transport: BridgeTransport
) -> None:
    found = await transport.send(claimed("vm-approvals"))
    assert found.is_accepted
    message = await received(broker, "vm-approvals")
    assert (message.message_id, message.correlation_id) == ("d", EVENT_ID)
    assert b"".join(message.body) == claimed("vm-approvals").message
    assert message.content_type == "application/cloudevents+json"
    assert message.subject == "sebridge.startrequest.v1"


async def test_session_of_an_address_is_that_of_the_message(
    broker: Broker, transport: BridgeTransport
) -> None:
    await transport.send(claimed("vm-approvals-sessions", "group-7"))
    message = await received(broker, "vm-approvals-sessions", "group-7")
    assert message.session_id == "group-7"


async def test_entity_that_is_not_there_is_reported(transport: BridgeTransport) -> None:
    found = await transport.send(claimed("nowhere"))
    assert (found.is_accepted, found.end) == (False, None)
    assert "nowhere" in found.fault


async def test_source_that_is_not_configured_is_reported(
    transport: BridgeTransport,
) -> None:
    found = await transport.send(claimed("vm-approvals", name="other"))
    assert "not configured" in found.fault


async def test_senders_that_are_idle_are_closed_beyond_a_limit(
    broker: Broker,
) -> None:
    named, senders = {"bridges": source(broker)}, Senders(most=1)
    transport = BridgeTransport(named, SystemClock(), senders)
    for entity in ("vm-approvals", "replies"):
        assert (await transport.send(claimed(entity))).is_accepted
    assert senders.entities == ["replies"]
    await senders.close()


async def test_approval_goes_the_whole_way(broker: Broker, tmp_path: Path) -> None:
    file = file_of(tmp_path, broker.connection_string)
    access = AccessConfig(approvers=("local",))
    arm = ArmConfig(endpoint="http://127.0.0.1:1", credential="none")
    config = replace(file.hub, sources=(source(broker),), access=access, arm=arm)
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()

    def listening(host: str, port: int) -> None:
        address.set_result(f"http://{host}:{port}")

    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as http:
        running = replace(file, hub=config)
        group.create_task(hub.run(running, stop, SystemClock(), listening))
        url = f"{await address}/api/v1/events/{EVENT_ID}"
        started = life("started", approvals=offer(), intervalSeconds=0.0)
        for body in (started, step("scheduled")):
            await send(broker, "scheduled-events", body)

        async def shown() -> Any:
            async with http.get(url) as found:
                return await found.json()

        async def is_there() -> bool:
            return "content" in await shown()

        async def is_done() -> bool:
            return [d["state"] for d in (await shown())["decisions"]] == ["done"]

        await until(is_there)
        given = {"decision": "approve", "content": (await shown())["content"]}
        headers = {"X-Sebridge": "1"}
        async with http.post(f"{url}/approval", json=given, headers=headers) as found:
            assert found.status == 200
            decided = (await found.json())["id"]
        message = await received(broker, "vm-approvals")
        approval = parse(b"".join(message.body), {}, prefix="sebridge")
        assert (message.message_id, approval.approved_by) == (decided, "local")
        await send(broker, "scheduled-events", outcome("relayed", decided, seconds=9))
        await until(is_done)
        stop.set()
