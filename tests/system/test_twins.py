"""One approval sent three times over, to a forwarder that is killed meanwhile."""

import asyncio
import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
    written_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]
COPIES = 3
_APPROVALS = {"LockDuration": "PT5S", "MaxDeliveryCount": 100}
_TOPIC = {
    "Name": "scheduled-events",
    "Subscriptions": [{"Name": "consumer", "Properties": {}}],
}
ENTITIES = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {"Name": "vm-approvals", "Properties": _APPROVALS},
                    {"Name": "replies", "Properties": {}},
                ],
                "Topics": [_TOPIC],
            }
        ]
    }
}


async def approve(at: Addresses, event_id: str) -> None:
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    copies = [
        ServiceBusMessage(body, message_id="twin", reply_to="replies")
        for _ in range(COPIES)
    ]
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_sender("vm-approvals") as sender,
    ):
        await sender.send_messages(copies)


async def outcomes(at: Addresses) -> dict[str, object]:
    """Return the data of the outcomes that the webhook received, by id."""
    bodies = [one["body"] for one in await at.messages("/siem")]
    events = [body for body in bodies if isinstance(body, dict)]
    found = [event for event in events if ".startrequest." in event["type"]]
    data = {event["id"]: event["data"] for event in found}
    assert all(event["data"] == data[event["id"]] for event in found)
    return data


async def replies(at: Addresses) -> dict[str, object]:
    """Return the replies by MessageId, as soon as there is one for each copy."""
    found: dict[str, object] = {}
    async with (
        asyncio.timeout(PATIENCE),
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_receiver("replies") as receiver,
    ):
        while len(found) < COPIES:
            for message in await receiver.receive_messages(COPIES, max_wait_time=1):
                body = json.loads(b"".join(message.body))
                assert found.setdefault(str(message.message_id), body) == body
                await receiver.complete_message(message)
    return found


async def test_copies_of_an_approval_have_one_decision_over_kills(
    tmp_path: Path,
) -> None:
    entities = tmp_path / "entities.json"  # with locks that a kill leaves for long not
    entities.write_text(json.dumps(ENTITIES))
    async with simulator_here(servicebus_config=entities) as at:
        config = written_config(tmp_path, at)
        await at.control(
            "POST",
            "events",
            {"type": "Freeze", "resources": ["WestNO_0"], "notBefore": 900},
        )
        state = await at.control("GET", "state")
        assert isinstance(state, dict)
        (event,) = state["events"]
        await approve(at, event["eventId"])
        for number in range(1, COPIES + 1):
            log = config.with_suffix(".log")
            logged = log.stat().st_size if log.exists() else 0
            process = await forwarder(config)
            await settled(config, logged)
            async with asyncio.timeout(PATIENCE):
                while len(await outcomes(at)) < number:
                    await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
        process = await forwarder(config)
        answered = await replies(at)
        async with asyncio.timeout(PATIENCE):
            while len(received := await outcomes(at)) < COPIES:
                await asyncio.sleep(0.01)

        assert await ended(process) == 0
        assert len(received) == len(answered) == COPIES
        first, *others = received.values()
        assert first["outcome"] == "relayed"  # type: ignore[index]  # JSON
        assert all(other == first for other in others)
        assert all(
            body == {"messageId": "twin", "outcomes": [first]}
            for body in answered.values()
        )
        requests = await at.control("GET", "requests")
        assert str(requests).count("'POST'") == 1
