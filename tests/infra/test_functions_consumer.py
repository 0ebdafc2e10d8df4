"""The Azure Function to copy: it hears what the bridge's sink has sent."""

import importlib.util
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, cast

import azure.functions as func
import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.foundation.values import Secret
from bridge.servicebus.namespace import NamespaceConfig
from bridge.servicebus.sender import Sender
from bridge.simulator.servicebus.broker import Broker
from tests.infra.functions_world import ENTITIES, cloud_event, decoded, on_the_bus
from tests.support.builders import imds_event

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parents[2] / "infra" / "consumers" / "function"


def consumer() -> func.FunctionApp:
    """Return the app, as the host loads it."""
    path = HERE / "function_app.py"
    spec = importlib.util.spec_from_file_location("consumer_function", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("func.FunctionApp", module.app)


async def test_function_logs_what_the_bridge_has_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (function,) = consumer().get_functions()
    called = function.get_user_function()
    announce = cast("Callable[[func.ServiceBusMessage], None]", called)
    event = imds_event(EventType="Reboot")

    async with Broker(ENTITIES) as broker:
        secret = Secret(broker.connection_string, {})
        address = NamespaceConfig(connection_string=secret)
        sender = Sender(address, "scheduled-events")
        await sender.send(on_the_bus(cloud_event("scheduled", event)))
        await sender.close()
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        async with (
            client,
            client.get_subscription_receiver(
                "scheduled-events", "consumer"
            ) as receiver,
        ):
            (message,) = await receiver.receive_messages(1)
            with caplog.at_level(logging.INFO, "scheduled-events"):
                announce(decoded(message))

    said = [one for one in caplog.records if one.name == "scheduled-events"]
    (line,) = (one.getMessage() for one in said)
    kind = "sebridge.scheduledevent.scheduled.v1"
    assert line.startswith(f"{kind} {event['EventId']} Reboot of ")


def test_trigger_is_the_subscription_of_the_settings() -> None:
    (function,) = consumer().get_functions()
    (binding,) = json.loads(function.get_function_json())["bindings"]

    assert binding["type"] == "serviceBusTrigger"
    assert binding["topicName"] == "%TOPIC%"
    assert binding["subscriptionName"] == "%SUBSCRIPTION%"
    assert binding["connection"] == "SERVICEBUS"


def test_host_and_requirements_are_those_of_the_approver() -> None:
    """What is known of the host there holds here, too."""
    theirs = json.loads((HERE.parents[1] / "functions" / "host.json").read_text())
    ours = json.loads((HERE / "host.json").read_text())
    pinned = (HERE.parents[1] / "functions" / "requirements.txt").read_text()

    assert ours["extensionBundle"] == theirs["extensionBundle"]
    assert (HERE / "requirements.txt").read_text().strip() in pinned
