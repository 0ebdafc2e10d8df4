"""What a partitioned entity refuses, and transfer dead letters, which there are not."""

from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from bridge.simulator.servicebus.administration.server import Administration
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.intake import check_partition
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.values import Condition, RefusedError
from bridge.simulator.wire.values import Symbol
from tests.simulator.servicebus_fixtures import message

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def keyed(key: str | None, session_id: str | None = None) -> Message:
    annotations = {} if key is None else {Symbol("x-opt-partition-key"): key}
    return message(annotations=annotations, session_id=session_id)


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [keyed(None), keyed(None)],
        [keyed("a"), keyed("a"), keyed(None)],
        [keyed("a", "a"), keyed(None, "a"), keyed("a")],
    ],
)
def test_messages_of_one_partition_pass(batch: list[Message]) -> None:
    check_partition("q", batch)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([keyed("a"), keyed("b")], "all messages of a batch need the same"),
        ([keyed(None, "a"), keyed("b")], "all messages of a batch need the same"),
        ([keyed("a", "b")], "the partition key of a message with a session id"),
    ],
)
def test_messages_of_several_partitions_are_refused(
    batch: list[Message], words: str
) -> None:
    with pytest.raises(RefusedError, match=f"q is partitioned: {words}") as caught:
        check_partition("q", batch)

    assert caught.value.condition is Condition.NOT_ALLOWED


@pytest.mark.parametrize(("kind", "sender"), [("Queue", "queue"), ("Topic", "topic")])
async def test_partitioned_entity_is_made_and_refuses_what_it_cannot_take(
    kind: str, sender: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    inner = "<EnablePartitioning>true</EnablePartitioning>"
    described = f'<{kind}Description xmlns="{CONNECT}">{inner}</{kind}Description>'
    body = f'<entry xmlns="http://www.w3.org/2005/Atom"><content>{described}</content>'
    async with (
        Administration(broker) as door,
        aiohttp.ClientSession(door.url) as http,
        http.put("/split", data=f"{body}</entry>") as reply,
    ):
        assert (reply.status, inner in await reply.text()) == (201, True)
    opened: Any = getattr(broker_client, f"get_{sender}_sender")("split")
    async with opened:
        with pytest.raises(ServiceBusError, match="split is partitioned"):
            await opened.send_messages(
                [ServiceBusMessage("x", partition_key=key) for key in "ab"]
            )
        await opened.send_messages(
            [ServiceBusMessage("x", partition_key="a") for _ in "ab"]
        )


@pytest.mark.parametrize(
    "entity",
    [{"queue_name": "plain"}, {"topic_name": "news", "subscription_name": "all"}],
)
async def test_transfer_dead_letters_are_refused_in_words(
    entity: dict[str, str], broker_client: ServiceBusClient
) -> None:
    kind = "queue" if "queue_name" in entity else "subscription"
    receiver: Any = getattr(broker_client, f"get_{kind}_receiver")(
        **entity, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    )

    with pytest.raises(ServiceBusError, match="keeps no transfer dead letters"):
        await receiver.receive_messages(1, max_wait_time=5)
