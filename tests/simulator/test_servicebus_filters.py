"""What the filters of an entity file let in of what the Python SDK sends."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import load_entities, parse_entities

SAMPLE = Path(__file__).parent / "servicebus-config.json"

pytestmark = pytest.mark.usefixtures("brisk_sdk")


@asynccontextmanager
async def sent(text: str, *messages: ServiceBusMessage) -> AsyncIterator[Broker]:
    """Send messages one by one to the first topic of an entity file."""
    entities = parse_entities(text)
    async with (
        Broker(entities) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_topic_sender(entities.topics[0].name) as sender,
    ):
        for message in messages:
            await sender.send_messages(message)
        yield broker


def with_filters(subscriptions: Mapping[str, Sequence[object]]) -> str:
    """Return an entity file with a topic t, its subscriptions and their filters."""
    topic = {
        "Name": "t",
        "Subscriptions": [
            {"Name": name, "Rules": [rule(n, each) for n, each in enumerate(filters)]}
            for name, filters in subscriptions.items()
        ],
    }
    namespace = {"Name": "sbemulatorns", "Topics": [topic]}
    return orjson.dumps({"UserConfig": {"Namespaces": [namespace]}}).decode()


def rule(number: int, correlation: object) -> object:
    properties = {"FilterType": "Correlation", "CorrelationFilter": correlation}
    return {"Name": f"r{number}", "Properties": properties}


def with_property(name: str, value: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", application_properties={name: value})


def admitted(broker: Broker) -> dict[str, int]:
    """Return how many messages each subscription has."""
    return {
        path.rpartition("/")[2]: counts.active
        for path, counts in broker.snapshot().items()
        if "/Subscriptions/" in path
    }


async def test_each_system_property_is_compared() -> None:
    messages = {
        "ContentType": ServiceBusMessage("x", content_type="y"),
        "CorrelationId": ServiceBusMessage("x", correlation_id="y"),
        "Label": ServiceBusMessage("x", subject="y"),
        "MessageId": ServiceBusMessage("x", message_id="y"),
        "ReplyTo": ServiceBusMessage("x", reply_to="y"),
        "ReplyToSessionId": ServiceBusMessage("x", reply_to_session_id="y"),
        "SessionId": ServiceBusMessage("x", session_id="y"),
        "To": ServiceBusMessage("x", to="y"),
    }
    text = with_filters({name: [{name: "y"}] for name in messages})

    for message in messages.values():
        message.application_properties = {"To": "y", "Label": "y"}
    async with sent(text, *messages.values()) as broker:
        assert admitted(broker) == dict.fromkeys(messages, 1)


async def test_properties_are_joined_by_and_and_rules_by_or() -> None:
    text = with_filters(
        {
            "both": [{"Label": "alarm", "Properties": {"vm": "a"}}],
            "either": [{"Label": "alarm"}, {"Properties": {"vm": "a"}}],
            "all": [],
        }
    )

    async with sent(
        text,
        ServiceBusMessage("1", subject="alarm", application_properties={"vm": "a"}),
        ServiceBusMessage("2", subject="alarm", application_properties={"vm": "b"}),
        ServiceBusMessage("3", application_properties={"vm": "a"}),
        ServiceBusMessage("4", subject="Alarm", application_properties={"VM": "a"}),
    ) as broker:
        assert admitted(broker) == {"both": 1, "either": 3, "all": 4}


async def test_application_properties_are_compared_with_their_types() -> None:
    text = with_filters(
        {
            "text": [{"Properties": {"p": "1"}}],
            "number": [{"Properties": {"p": 1}}],
            "fraction": [{"Properties": {"p": 2.5}}],
            "flag": [{"Properties": {"p": True}}],
        }
    )

    async with sent(
        text,
        *(with_property("p", value) for value in ("1", 1, 2.5, True, None, 7)),
        with_property("q", 1),
    ) as broker:
        assert admitted(broker) == {"text": 1, "number": 1, "fraction": 1, "flag": 1}


async def test_emulators_sample_filters_as_it_says() -> None:
    async with sent(
        SAMPLE.read_text(),
        ServiceBusMessage("1", content_type="application/json"),
        with_property("prop1", "value1"),
        ServiceBusMessage(
            "3", message_id="123456", application_properties={"userProp1": "value1"}
        ),
        ServiceBusMessage("4", message_id="123456"),
    ) as broker:
        assert admitted(broker) == {
            "subscription.1": 1,
            "subscription.2": 1,
            "subscription.3": 4,
            "subscription.4": 1,
        }
        assert load_entities(SAMPLE).queues[0].name in broker.snapshot()
