"""A sink with batches, as the forwarder runs it: relay, state file, real requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from aiohttp import web

from bridge.foundation.clock import SystemClock
from bridge.outbox.questions import Selection
from bridge.outbox.store import Outbox
from bridge.pipeline.opening import open_sink, relay_of
from bridge.pipeline.relay import Relay
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry.metrics import Metrics
from tests.bench.measuring import served
from tests.support.book import Book
from tests.support.builders import SINK, outgoing
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import sink_config

Answer = Callable[[list[str]], web.Response]


@dataclass
class Bulk:
    """An Elasticsearch that answers as it is told; it keeps the ids of each request."""

    answer: Answer
    requests: list[list[str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        lines = (await request.read()).decode().splitlines()
        ids = [json.loads(line)["create"]["_id"] for line in lines[::2]]
        self.requests.append(ids)
        return self.answer(ids)


def items(statuses: list[int]) -> web.Response:
    found = [{"create": {"status": status}} for status in statuses]
    return web.json_response({"errors": max(statuses) > 299, "items": found})


@asynccontextmanager
async def relayed(
    bulk: Bulk, outbox: Outbox, resources: Resources, **keys: object
) -> AsyncIterator[Relay]:
    """Run the relay of an Elastic sink by 100 until the test has seen enough."""
    async with (
        served([web.post("/_bulk", bulk.take)]) as url,
        AsyncExitStack() as stack,
    ):
        table = {"name": SINK, "type": "webhook", "preset": "elastic", "batch": 100}
        config = sink_config({**table, "url": f"{url}/_bulk", **keys})
        relay = await opened(config, resources, outbox, stack)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            try:
                yield relay
            finally:
                stop.set()


async def opened(
    config: SinkConfig, resources: Resources, outbox: Outbox, stack: AsyncExitStack
) -> Relay:
    metrics = Metrics([SINK], "1")
    relay = relay_of(config, resources, outbox, metrics, chance=lambda: 0.01)
    await open_sink(relay, config, resources, stack)
    return relay


async def put(outbox: Outbox, count: int, *, key: str | None = None) -> None:
    now = SystemClock().now().timestamp()
    events = [outgoing(f"{n}", key=key or f"K{n}") for n in range(count)]
    await outbox.commit(events, now=now)


async def states(outbox: Outbox) -> dict[str, tuple[str, int]]:
    """Return state and number of attempts of each delivery, by CloudEvent id."""
    found = await Book(outbox).find(Selection())
    return {str(row.cloud_event_id): (row.state, row.attempts) for row in found}


async def settled(outbox: Outbox) -> dict[str, tuple[str, int]]:
    """Wait until nothing is pending any more."""
    async with asyncio.timeout(60):
        while any(state == "pending" for state, _ in (await states(outbox)).values()):
            await asyncio.sleep(0.01)
    return await states(outbox)


async def test_only_what_failed_is_sent_again(
    outbox: Outbox, resources: Resources
) -> None:
    """As the state file has it, too: the others have had one attempt."""
    busy = {"3", "7"}

    def answer(ids: list[str]) -> web.Response:
        statuses = [429 if one in busy else 400 if one == "5" else 201 for one in ids]
        busy.clear()
        return items(statuses)

    bulk = Bulk(answer)
    await put(outbox, 10)
    async with relayed(bulk, outbox, resources):
        found = await settled(outbox)

    assert found == {
        f"{n}": ("dead", 1) if n == 5 else ("delivered", 2 if n in {3, 7} else 1)
        for n in range(10)
    }
    first, *later = bulk.requests
    assert sorted(first) == [f"{n}" for n in range(10)]
    assert sorted(one for ids in later for one in ids) == ["3", "7"]


async def test_backlog_goes_in_full_requests(
    outbox: Outbox, resources: Resources
) -> None:
    bulk = Bulk(lambda ids: items([201] * len(ids)))
    await put(outbox, 500)
    async with relayed(bulk, outbox, resources):
        await settled(outbox)

    assert sum(map(len, bulk.requests)) == 500
    assert max(map(len, bulk.requests)) == 100
    assert len(bulk.requests) <= 8, [len(ids) for ids in bulk.requests]


async def test_guilty_event_is_a_dead_letter_alone(
    outbox: Outbox, resources: Resources
) -> None:
    """Of a request that is refused as a whole."""

    def answer(ids: list[str]) -> web.Response:
        return web.Response(status=413) if "6" in ids else items([201] * len(ids))

    bulk = Bulk(answer)
    await put(outbox, 10)
    async with relayed(bulk, outbox, resources):
        found = await settled(outbox)

    assert [name for name, (state, _) in found.items() if state == "dead"] == ["6"]
    delivered = [state for state, _ in found.values() if state == "delivered"]
    assert len(delivered) == 9


async def test_steps_of_one_event_id_go_one_after_the_other(
    outbox: Outbox, resources: Resources
) -> None:
    bulk = Bulk(lambda ids: items([201] * len(ids)))
    await put(outbox, 5, key="K")
    async with relayed(bulk, outbox, resources):
        await settled(outbox)

    assert bulk.requests == [["0"], ["1"], ["2"], ["3"], ["4"]]


@pytest.mark.parametrize("wait", ["0s", "200ms"])
async def test_outage_loses_nothing(
    wait: str, outbox: Outbox, resources: Resources
) -> None:
    left = 3

    def answer(ids: list[str]) -> web.Response:
        nonlocal left
        left -= 1
        return web.Response(status=503) if left >= 0 else items([201] * len(ids))

    bulk = Bulk(answer)
    await put(outbox, 150)
    async with relayed(bulk, outbox, resources, batch_wait=wait):
        found = await settled(outbox)

    assert {state for state, _ in found.values()} == {"delivered"}


async def test_sink_without_batches_sends_one_by_one(
    outbox: Outbox, resources: Resources
) -> None:
    bulk = Bulk(lambda ids: items([201] * len(ids)))
    await put(outbox, 5)
    async with relayed(bulk, outbox, resources, batch=1):
        await settled(outbox)

    assert sorted(bulk.requests) == [[f"{n}"] for n in range(5)]


async def test_alertmanager_is_told_again_of_what_fires(
    outbox: Outbox, resources: Resources
) -> None:
    """By the worker of its sink; an earlier run of the bridge sent it."""
    received = asyncio.Queue[list[dict[str, dict[str, str]]]]()

    async def alerts(request: web.Request) -> web.Response:
        await received.put(await request.json())
        return web.Response()

    clock, stop = FakeClock(), asyncio.Event()
    ends = (clock.now() + timedelta(hours=1)).isoformat()
    kept = [{"labels": {"alert_key": "K"}, "startsAt": ends, "endsAt": ends}]
    await resources.memory.keep("K", json.dumps(kept).encode())
    given = msgspec.structs.replace(resources, clock=clock)
    async with (
        served([web.post("/api/v2/alerts", alerts)]) as url,
        AsyncExitStack() as stack,
    ):
        table = {"name": SINK, "type": "webhook", "preset": "alertmanager"}
        config = sink_config({**table, "url": f"{url}/api/v2/alerts"})
        relay = await opened(config, given, outbox, stack)
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            async with asyncio.timeout(60):
                while 240.0 not in clock.waits:
                    await asyncio.sleep(0.01)
                clock.pass_by(240)
                (alert,) = await received.get()
            stop.set()

    assert alert["labels"] == {"alert_key": "K"}
