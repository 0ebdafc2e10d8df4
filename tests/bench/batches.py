"""A backlog drained in batches: to a webhook, to Service Bus; one event alone."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.bench.drain import bare_posts, drained, stored, tables
from tests.bench.figures import Figure, Measure, in_turns
from tests.bench.measuring import Counter, imds, running, served
from tests.support.builders import patient_outbox, route, router
from tests.system.processes import simulator

MOST = 100


class BatchCounter(Counter):
    """A webhook that counts the events in what it takes.

    Attributes:
        first: when the first one came since it was set to 0.
    """

    first: float = 0.0

    async def take_many(self, request: web.Request) -> web.Response:
        """Take a batch; the events are counted as a receiver would find them."""
        for _ in json.loads(await request.read()):
            await self.count_one()
        return web.Response()

    async def count_one(self) -> None:
        """Count an event."""
        self.count += 1
        self.last = time.perf_counter()
        self.first = self.first or self.last
        if self.count >= self.wanted:
            self.is_enough.set()

    async def take(self, request: web.Request) -> web.Response:
        """Take an event."""
        self.first = self.first or time.perf_counter()
        return await super().take(request)


async def figures(count: int, turns: int) -> list[Figure]:
    """Return all figures."""
    return [
        *await webhook(count, turns),
        await service_bus(max(count // 10, 500), turns),
    ]


async def webhook(count: int, turns: int) -> list[Figure]:
    """Drain to a webhook by 100, and one by one, against a bare POST loop.

    Each is measured from the first event on, as to Service Bus, and with the start of
    the forwarder, which checks all of the state file before it sends anything.
    """
    counter = BatchCounter()
    routes = [
        *imds(lambda: {"Events": []}),
        web.post("/many", counter.take_many),
        web.post("/one", counter.take),
    ]
    async with served(routes) as url, stored("sink", count) as copy:

        def drain(name: str, **keys: object) -> Measure:
            async def measure() -> list[float]:
                config = tables(url, copy(), [])
                sink = {"name": "sink", "type": "webhook", "url": f"{url}/{name}"}
                config["sinks"] = [{**sink, **keys}]
                began, counter.first = time.perf_counter(), 0.0
                async with running(config):
                    await counter.expect(count)
                    end = time.perf_counter()
                    return [count / (end - counter.first), count / (end - began)]

            return measure

        async def bare() -> list[float]:
            return [await bare_posts(f"{url}/one", count, counter)] * 2

        async def disk() -> list[float]:
            return [await settled(copy(), count)] * 2

        many = drain("many", content_mode="batch", batch=MOST)
        by_many = await in_turns(many, bare, turns)
        by_one = await in_turns(drain("one"), bare, turns)
        ((again, most), _) = await in_turns(many, disk, turns)
    return [
        *_rates(f"backlog to a webhook by {MOST}", by_many, ">= 2"),
        *_rates("backlog to a webhook one by one", by_one, ">= 0.6"),
        Figure(
            what=f"backlog by {MOST}, of what the outbox can settle",
            ours=again,
            bare=most,
            unit="1/s",
        ),
    ]


def _rates(
    what: str, measured: Sequence[Sequence[tuple[float, ...]]], wanted: str
) -> list[Figure]:
    (mine, least), (whole, _) = measured
    return [
        Figure(
            what=f"{what}, events per second",
            ours=mine,
            bare=least,
            unit="1/s",
            wanted=wanted,
        ),
        Figure(what=f"{what}, with the start", ours=whole, bare=least, unit="1/s"),
    ]


async def settled(state: Path, count: int) -> float:
    """Return how many deliveries a second the outbox reads and settles, unsent."""
    async with patient_outbox(state, router({"sink": route()})) as outbox:
        began = time.perf_counter()
        while True:
            now = time.time()
            due, _ = await outbox.deliveries.due("sink", now=now, limit=2 * MOST)
            if not due:
                return count / (time.perf_counter() - began)
            await outbox.deliveries.delivered(*due, now=now)


async def service_bus(count: int, turns: int) -> Figure:
    """Drain to a topic, against the bare SDK that sends the same batches.

    Both are measured from the first messages on: the link of both is open then. Each
    turn has a broker of its own, because a subscription that nobody reads is full soon.
    """
    async with stored("bus", count) as copy:

        async def ours() -> list[float]:
            async with simulator("--imds-port", "0") as at:
                state = copy()
                config = tables(at.imds, state, [])
                sink = {
                    "name": "bus",
                    "type": "servicebus",
                    "connection_string": at.connection_string,
                    "topic": "scheduled-events",
                    "batch": MOST,
                }
                config["sinks"] = [sink]
                async with running(config):
                    first = await drained(state, 1)
                    began = time.perf_counter()
                    last = await drained(state, count)
                    return [(last - first) / (time.perf_counter() - began)]

        async def bare() -> list[float]:
            async with simulator("--imds-port", "0") as at:
                return [await bare_batches(at.connection_string, count)]

        ((mine, least),) = await in_turns(ours, bare, turns)
    return Figure(
        what=f"backlog to Service Bus by {MOST}, events per second",
        ours=mine,
        bare=least,
        unit="1/s",
        wanted=">= 0.6",
    )


async def bare_batches(connection_string: str, count: int) -> float:
    """Return how many messages a second the bare SDK sends in the same batches.

    The messages have what those of the bridge have: a bare body would be another load.
    """
    async with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_topic_sender("scheduled-events") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("warm"))
        began = time.perf_counter()
        for first in range(0, count, MOST):
            batch = await sender.create_message_batch()
            for number in range(first, min(first + MOST, count)):
                batch.add_message(_message(f"{began}-{number}"))
            await sender.send_messages(batch)
        return count / (time.perf_counter() - began)


def _message(name: str) -> ServiceBusMessage:
    return ServiceBusMessage(
        b"x" * 1400,
        content_type="application/cloudevents+json",
        message_id=name,
        subject="sebridge.scheduledevent.scheduled.v1",
        correlation_id=name,
        session_id=name,
        application_properties={
            f"cloudEvents_{key}": "x" * 40
            for key in (
                "specversion",
                "id",
                "source",
                "type",
                "time",
                "datacontenttype",
                "dataschema",
                "correlationid",
            )
        },
    )
