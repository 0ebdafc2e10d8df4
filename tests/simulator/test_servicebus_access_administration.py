"""Rules of shared access that the administration API makes are in force at once."""

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus._pyamqp.utils import generate_sas_token
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from bridge.simulator.servicebus.access import ROOT
from bridge.simulator.servicebus.administration.server import Administration
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import Entities, QueueSettings

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@pytest.fixture
async def bus(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(Entities(queues=(QueueSettings(name="other"),))) as running:
        yield running


@pytest.fixture
async def http(bus: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    make: Any = generate_sas_token  # it has no types
    async with Administration(bus) as door:
        token = make(door.url, ROOT.name, ROOT.keys[0], 2**31)
        async with aiohttp.ClientSession(
            door.url, headers={"Authorization": token}
        ) as session:
            yield session


def queue(rules: str) -> str:
    inner = (
        "" if rules == "none" else f"<AuthorizationRules>{rules}</AuthorizationRules>"
    )
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<QueueDescription xmlns="{CONNECT}">{inner}</QueueDescription>'
        f"</content></entry>"
    )


def rule(name: str, *rights: str, keys: str = "<PrimaryKey>k1</PrimaryKey>") -> str:
    found = "".join(f"<AccessRights>{each}</AccessRights>" for each in rights)
    inner = f"<KeyName>{name}</KeyName>{keys}<Rights>{found}</Rights>"
    return f"<AuthorizationRule>{inner}</AuthorizationRule>"


async def put(
    http: aiohttp.ClientSession, path: str, body: str, *, is_change: bool = False
) -> str:
    headers = {"If-Match": "*"} if is_change else {}
    async with http.put(path, data=body, headers=headers) as reply:
        text = await reply.text()
        assert reply.status in {200, 201}, text
        return text


def client(bus: Broker, name: str, key: str) -> ServiceBusClient:
    root = f"SharedAccessKeyName={ROOT.name};SharedAccessKey={ROOT.keys[0]}"
    own = f"SharedAccessKeyName={name};SharedAccessKey={key}"
    text = bus.connection_string.replace(root, own)
    return ServiceBusClient.from_connection_string(text, retry_total=0)


async def is_refused(bus: Broker, name: str, key: str, entity: str) -> None:
    async with client(bus, name, key) as own:
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await own.get_queue_sender(entity).send_messages(ServiceBusMessage("x"))
    assert isinstance(caught.value.inner_exception, TokenAuthFailure)
    assert caught.value.inner_exception.status_code == 401


async def sends(bus: Broker, name: str, key: str, entity: str) -> None:
    async with (
        client(bus, name, key) as own,
        own.get_queue_sender(entity) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("x"))


async def test_key_of_a_made_queue_is_good_for_it_with_its_rights(
    bus: Broker, http: aiohttp.ClientSession
) -> None:
    await put(http, "/orders", queue(rule("shop", "Send")))

    await sends(bus, "shop", "k1", "orders")
    async with client(bus, "shop", "k1") as own:
        with pytest.raises(ServiceBusError, match="'Listen' claim"):
            await own.get_queue_receiver("orders").receive_messages(1, max_wait_time=1)
    await is_refused(bus, "shop", "k1", "other")
    await is_refused(bus, "shop", "wrong", "orders")
    await sends(bus, ROOT.name, ROOT.keys[0], "other")


async def test_rules_change_with_the_queue_and_go_with_it(
    bus: Broker, http: aiohttp.ClientSession
) -> None:
    """With the last rule, the broker is again as it began: any key is good."""
    await put(http, "/orders", queue(rule("shop", "Send")))
    await put(http, "/orders", queue(rule("new", "Send")), is_change=True)
    await is_refused(bus, "shop", "k1", "orders")
    await sends(bus, "new", "k1", "orders")
    await put(http, "/orders", queue("none"), is_change=True)  # says nothing of rules
    await sends(bus, "new", "k1", "orders")

    async with http.delete("/orders") as reply:
        assert reply.status == 200

    await sends(bus, "whoever", "whatever", "other")


async def test_open_connection_keeps_what_its_token_allows(
    bus: Broker, http: aiohttp.ClientSession
) -> None:
    """A broker without rules becomes one with rules while a client is there."""
    root = client(bus, ROOT.name, ROOT.keys[0])
    async with root, root.get_queue_sender("other") as sender:
        await put(http, "/orders", queue(rule("shop", "Send")))

        await sender.send_messages(ServiceBusMessage("x"))
        async with root.get_queue_receiver("other") as receiver:
            assert len(await receiver.receive_messages(1, max_wait_time=30)) == 1


async def test_rule_without_keys_gets_new_ones_that_are_reported(
    bus: Broker, http: aiohttp.ClientSession
) -> None:
    found = await put(http, "/orders", queue(rule("shop", "Send", keys="")))

    keys = re.findall(r"<(?:Primary|Secondary)Key>([^<]{44})<", found)
    assert len(set(keys)) == 2
    for key in keys:
        await sends(bus, "shop", key, "orders")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (rule("shop"), "The AuthorizationRule 'shop' needs Rights: some of Listen,"),
        (
            rule("shop", "Send") + rule("shop", "Listen"),
            "Two AuthorizationRules have the KeyName 'shop'.",
        ),
    ],
)
async def test_faulty_rule_makes_no_queue(
    bus: Broker, http: aiohttp.ClientSession, rules: str, words: str
) -> None:
    async with http.put("/orders", data=queue(rules)) as reply:
        text = (await reply.text()).replace("&apos;", "'")

    assert (reply.status, words in text) == (400, True), text
    assert set(bus.snapshot()) == {"other"}
