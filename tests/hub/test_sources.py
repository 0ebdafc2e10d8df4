"""What is received is settled once it is kept, and not before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from msgspec.structs import replace
from sqlalchemy import select

from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import HubStoreAwayError
from bridge.foundation.values import Address, Secret
from bridge.hub.config import AzureSource, BridgesSource, HubConfig, SourceConfig
from bridge.hub.metrics import HubMetrics
from bridge.hub.sources import SourceReader, read
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import bridges, events, unreadable
from bridge.servicebus.decode import ReceivedMessage
from bridge.servicebus.receiver import open_queue
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.support.fakes import FakeClock
from tests.support.fleet import at, azure, event, step
from tests.support.ports import free_port
from tests.support.postgres import Cluster

ENTITIES = Entities(
    queues=(QueueSettings(name="azure-events"),),
    topics=(
        TopicSettings(
            name="t",
            subscriptions=(
                SubscriptionSettings(name="hub", lock_duration=timedelta(seconds=5)),
            ),
        ),
    ),
)


@pytest.fixture
async def broker(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(ENTITIES, port=free_port()) as running:
        yield running


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Store]:
    config = HubConfig(store=Address(f"sqlite:{tmp_path / 'hub.db'}", {}))
    async with open_store(config) as opened:
        yield opened


class Away:
    """A store that is away for so many times."""

    def __init__(self, store: Store, times: int) -> None:
        self._store = store
        self.times = times

    async def keep(self, batch: Any) -> None:
        self.times -= 1
        if self.times >= 0:
            raise HubStoreAwayError("the store is away (OperationalError)")
        await self._store.keep(batch)


def bridges_source(broker: Broker) -> SourceConfig:
    return BridgesSource(
        name="bridges",
        type="bridges",
        connection_string=Secret(broker.connection_string, {}),
        topic="t",
        subscription="hub",
    )


def azure_source(broker: Broker) -> SourceConfig:
    return AzureSource(
        name="azure",
        type="azure",
        connection_string=Secret(broker.connection_string, {}),
        queue="azure-events",
    )


def reader(source: SourceConfig, store: Any, clock: Any = None) -> SourceReader:
    metrics = HubMetrics((source.name,), "1.2.3")
    return SourceReader(source, store, clock or SystemClock(), metrics)


async def send(broker: Broker, entity: str, *bodies: bytes, **fields: Any) -> None:
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_queue_sender(entity) as sender:
        for body in bodies:
            await sender.send_messages(ServiceBusMessage(body, **fields))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.02)


async def rows(store: Store, table: Any) -> list[Any]:
    return await store.read(lambda c: list(c.execute(select(table)).all()))


def figure(one: SourceReader, outcome: str) -> float:
    found = one.metrics.registry.get_sample_value(
        "sebridge_hub_messages_total",
        {"source": one.config.name, "outcome": outcome},
    )
    assert found is not None
    return found


async def test_what_bridges_and_azure_say_is_kept_and_settled(
    broker: Broker, kept: Store
) -> None:
    await send(
        broker,
        "t",
        step("scheduled"),
        b"\0 no JSON",
        b'{"specversion": "1.0", "type": "x", "id": "1", "source": "s"}',
        reply_to="vm-approvals",
        reply_to_session_id="web",
    )
    await send(broker, "azure-events", azure("Scheduled", event("OTHER")))
    both = [reader(bridges_source(broker), kept), reader(azure_source(broker), kept)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for one in both:
            group.create_task(one.run(stop))

        async def is_empty() -> bool:
            counts = broker.snapshot()
            left = [counts[n].active for n in ("t/Subscriptions/hub", "azure-events")]
            return left == [0, 0]

        async def is_kept() -> bool:
            return len(await rows(kept, events)) == 2 and await is_empty()

        await until(is_kept)
        stop.set()

    assert len(await rows(kept, bridges)) == 1
    (bad,) = await rows(kept, unreadable)
    assert (bad.body, bad.origin) == (b"\0 no JSON", "bridges")
    assert [figure(both[0], o) for o in ("kept", "left-out", "unreadable")] == [1, 1, 1]
    assert both[0].is_connected
    assert both[0].listening() is not None


@pytest.mark.slow  # 5.7 s of waiting
async def test_nothing_is_settled_while_the_store_is_away(
    broker: Broker, kept: Store
) -> None:
    await send(broker, "t", step("scheduled"))
    clock = FakeClock()
    one = reader(bridges_source(broker), Away(kept, 3), clock)
    stop = asyncio.Event()
    async with open_queue(one.config, one.config.origin, SystemClock()) as queue:
        stepping = asyncio.create_task(one.step(queue, stop))
        for _ in range(3):
            await until(lambda: _is(bool(clock.waits)))
            assert not queue.attached
            assert one.listening() is None
            assert broker.snapshot()["t/Subscriptions/hub"].active == 1
            clock.waits.clear()
            await clock.advance(5)
        await stepping
        await one.step(queue, stop)

    assert len(await rows(kept, events)) == 1
    assert broker.snapshot()["t/Subscriptions/hub"].active == 0
    assert one.last_error is None


@pytest.mark.slow
async def test_store_that_takes_nothing_costs_no_delivery(
    broker: Broker, cluster: Cluster
) -> None:
    """The broker counts deliveries, and dead-letters what it delivered too often."""
    cluster.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    stop, clock = asyncio.Event(), FakeClock()
    async with AsyncExitStack() as stack:
        config = HubConfig(store=Address(cluster.url, {}))
        store = await stack.enter_async_context(open_store(config))
        one = reader(bridges_source(broker), store, clock)
        opened = open_queue(one.config, one.config.origin, SystemClock())
        queue = await stack.enter_async_context(opened)
        stack.callback(read_only, cluster, "off")  # others use it after this test
        await asyncio.to_thread(read_only, cluster, "on")
        await send(broker, "t", step("scheduled"))
        stepping = asyncio.create_task(one.step(queue, stop))
        for _ in range(3):
            await until(lambda: _is(bool(clock.waits)))
            assert not queue.attached
            clock.waits.clear()
            await clock.advance(5)
        await asyncio.to_thread(read_only, cluster, "off")
        while not stepping.done():
            await clock.advance(5)
            await asyncio.sleep(0.02)
        assert len(await rows(store, events)) == 1
        await one.step(queue, stop)

    assert broker.snapshot()["t/Subscriptions/hub"].active == 0


def read_only(cluster: Cluster, word: str) -> None:
    """Let a database take nothing, as one that is failing over, or take it again."""
    change = f"ALTER DATABASE postgres SET default_transaction_read_only = {word}"
    cluster.sql(f"BEGIN READ WRITE; {change}; COMMIT")
    cluster.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'sebridge hub'"
    )


async def _is(value: bool) -> bool:  # noqa: FBT001 - of ``until``
    return value


async def test_source_that_is_not_there_is_tried_again(
    broker: Broker, kept: Store, caplog: pytest.LogCaptureFixture
) -> None:
    source = bridges_source(broker)
    gone = BridgesSource(
        name="b",
        type="bridges",
        connection_string=source.connection_string,
        queue="nowhere",
    )
    clock = FakeClock()
    one = reader(gone, kept, clock)
    stop = asyncio.Event()
    async with open_queue(one.config, one.config.origin, SystemClock()) as queue:
        stop.set()
        await one.step(queue, stop)
        await one.step(queue, stop)

    assert clock.waits == [30.0, 30.0]
    assert not one.is_connected
    assert "does not exist" in str(one.last_error)
    assert [r.message for r in caplog.records].count("source cannot be read") == 1


def test_source_is_drained_once_nothing_waits_in_it(
    broker_less: SourceReader, clock: FakeClock
) -> None:
    one = broker_less
    (old,) = read(one.config, message(heard=-60.0), at(0))
    (new,) = read(one.config, message(heard=0.0), at(0))

    assert one.listening() is None
    one._connected()
    assert one.listening() is None
    clock.pass_by(1)
    assert one.listening() == at(1)
    one._note_lag([old], at(1))
    assert one._since is None
    one._note_lag([new], at(2))
    assert one.listening() == at(2)


@pytest.fixture
def broker_less(clock: FakeClock) -> SourceReader:
    source = AzureSource(name="a", type="azure", namespace="n.example", queue="q")
    return reader(source, None, clock)


def message(heard: float | None, **fields: Any) -> ReceivedMessage:
    found = ReceivedMessage(
        lock_token="t",
        message_id="m",
        sequence_number=1,
        enqueued_at=None if heard is None else at(heard),
        body=azure("Started"),
    )
    return replace(found, **fields)


def test_message_is_read_whatever_the_broker_tells(broker_less: SourceReader) -> None:
    (bare,) = read(broker_less.config, message(None), at(9))
    (broken,) = read(broker_less.config, message(0, fault="no AMQP"), at(9))

    assert bare.heard == at(9)
    assert bare.fact is not None
    assert (broken.fault, broken.fact) == ("no AMQP", None)
