"""From the answer of IMDS to a consumer on Service Bus, through the durable outbox.

Against one synchronous=FULL commit plus one message of the bare SDK to that consumer.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.bench.figures import Figure, in_turns
from tests.bench.latency import World, announced, committing, hooked, percentiles
from tests.bench.measuring import quantile
from tests.system.processes import simulator

_TOPIC, _SUBSCRIPTION = "scheduled-events", "consumer"


async def figures(rounds: int, turns: int) -> list[Figure]:
    """Return p50 and p99 against a bare commit and message."""
    world = World()
    async with (
        simulator("--imds-port", "0") as at,
        hooked(world) as (config, folder, _),
        consuming(at.connection_string, world.arrived),
    ):
        config["sinks"] = [
            {
                "name": "hook",
                "type": "servicebus",
                "connection_string": at.connection_string,
                "topic": _TOPIC,
                "when": {"lifecycle": False},
            }
        ]

        async def ours() -> list[float]:
            return await announced(world, config, rounds)

        async def bare() -> list[float]:
            times = await bare_sends(
                folder, at.connection_string, rounds, world.arrived
            )
            return [quantile(times, share) for share in (0.5, 0.95, 0.99)]

        found = await in_turns(ours, bare, turns)
    return percentiles("consumer on Service Bus", found)


@contextlib.asynccontextmanager
async def consuming(
    connection_string: str, arrived: "asyncio.Queue[float]"
) -> AsyncIterator[None]:
    """Take each message of the subscription, and note when."""
    client = ServiceBusClient.from_connection_string(connection_string)
    receiver = client.get_subscription_receiver(_TOPIC, _SUBSCRIPTION)

    async def take() -> None:
        async for message in receiver:
            arrived.put_nowait(time.perf_counter())
            await receiver.complete_message(message)

    async with client, receiver:
        taking = asyncio.create_task(take())
        try:
            yield
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


async def bare_sends(
    folder: Path,
    connection_string: str,
    rounds: int,
    arrived: "asyncio.Queue[float]",
) -> list[float]:
    """Return the milliseconds of one commit plus one message each."""
    client = ServiceBusClient.from_connection_string(connection_string)
    sender = client.get_topic_sender(_TOPIC)
    found = []
    with committing(folder) as commit:
        async with client, sender:
            await sender.send_messages(ServiceBusMessage("warm"))
            await arrived.get()
            for _ in range(rounds):
                began = time.perf_counter()
                commit()
                await sender.send_messages(ServiceBusMessage(b"x" * 1400))
                found.append((await arrived.get() - began) * 1000)
                await asyncio.sleep(0.05)  # as idle as ours is in between
    return found
