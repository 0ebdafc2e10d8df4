"""Faults of the broker, asked for over HTTP, as the Python SDK meets them."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.http_control import broker_routes
from tests.simulator.imds_client import HttpClient, http_client
from tests.simulator.servicebus_fixtures import opened

FAULTS = "/simulator/servicebus/faults"
MESSAGE = ServiceBusMessage("x", session_id="a")


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[HttpClient]:
    async with (
        ImdsSimulator(control=broker_routes(broker)) as imds,
        http_client(imds.url) as client,
    ):
        yield client


async def befall(http: HttpClient, fault: str, **fields: object) -> Any:
    reply = await http.send("POST", FAULTS, {"fault": fault, **fields})
    assert reply.status == 200, reply.json
    return reply.json["faults"]


async def test_sends_meet_a_busy_and_a_full_broker(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        assert await befall(http, "server-busy", sends=1) == {"server-busy": 1}
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(MESSAGE)

        assert await befall(http, "full", entity="Plain") == {"full": ["plain"]}
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(MESSAGE)

        assert (await http.send("DELETE", FAULTS)).json["faults"] == {}
        await sender.send_messages(MESSAGE)

    state = (await http.send("GET", "/simulator/servicebus")).json
    assert state["entities"]["plain"]["active"] == 1


async def test_session_receiver_meets_a_dropped_connection(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(receiver):
        assert await befall(http, "drop-connections") == {}
        with pytest.raises((ServiceBusConnectionError, SessionLockLostError)):
            await receiver.receive_messages(1, max_wait_time=30)


async def test_replies_come_late_or_never(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        assert await befall(http, "delay", seconds=0.3) == {"delay": 0.3}
        started = monotonic()
        await sender.send_messages(MESSAGE)
        assert monotonic() - started >= 0.3
        await http.send("DELETE", FAULTS)

        assert await befall(http, "freeze") == {"freeze": True}
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(MESSAGE, timeout=0.3)
        await http.send("DELETE", FAULTS)
        await asyncio.sleep(0.1)


async def test_attach_is_refused_with_the_chosen_condition(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    condition = "amqp:unauthorized-access"
    in_force = await befall(
        http, "refuse-attach", entity="news/Subscriptions/all", condition=condition
    )
    assert in_force == {"refuse-attach": {"news/subscriptions/all": condition}}

    with pytest.raises(ServiceBusAuthorizationError):
        async with broker_client.get_subscription_receiver("news", "all"):
            pass


async def test_lock_expires_at_once(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    async with opened(sender, receiver):
        await sender.send_messages(MESSAGE)
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        await befall(http, "expire-locks", entity="plain")

        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
        (again,) = await receiver.receive_messages(1, max_wait_time=30)
        assert again.delivery_count == 1


async def test_session_lock_outlives_a_drop_until_the_fault_is_lifted(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    await befall(http, "hold-session-locks")
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    heir = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(receiver):
        await befall(http, "drop-connections")
        with pytest.raises(SessionCannotBeLockedError):
            await heir.__aenter__()

    await befall(http, "expire-locks", entity="sessions")
    async with opened(broker_client.get_queue_receiver("sessions", session_id="a")):
        pass


async def test_links_are_detached(
    http: HttpClient, broker_client: ServiceBusClient
) -> None:
    one = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(one):
        await befall(http, "detach-links", entity="plain")
        assert await one.receive_messages(1, max_wait_time=0.2) == []
        await befall(http, "detach-links")
        with pytest.raises(ServiceBusConnectionError):
            await one.receive_messages(1, max_wait_time=30)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"fault": "explode"}, 400, "'explode' - at `$.fault`; allowed: drop-conn"),
        ({}, 400, "missing required field `fault`; allowed: drop-connections, det"),
        ({"fault": "full"}, 400, "missing required field `entity`"),
        ({"fault": "freeze", "entity": "plain"}, 400, "unknown field `entity`"),
        ({"fault": "delay", "seconds": 0}, 400, "> 0.0 - at `$.seconds`"),
        (
            {"fault": "refuse-attach", "entity": "plain", "condition": "tired"},
            400,
            "`$.condition`; allowed: com.microsoft:argument-error, amqp:",
        ),
        ({"fault": "full", "entity": "plian"}, 404, "'plian' could not be found"),
        ({"fault": "detach-links", "entity": "plian"}, 404, "'plian'"),
        ({"fault": "refuse-attach", "entity": "plian"}, 404, "'plian'"),
        ({"fault": "expire-locks", "entity": "news"}, 400, "name a subscription"),
        (b"{", 400, "truncated"),
    ],
)
async def test_what_is_not_understood_is_reported(
    http: HttpClient, body: object, status: int, words: str
) -> None:
    reply = await http.send("POST", FAULTS, body)

    assert (reply.status, list(reply.json)) == (status, ["error"])
    assert words in reply.json["error"]
