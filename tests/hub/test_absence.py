"""A hub that is away harms nobody, and clocks that differ mislead nobody."""

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Secret
from bridge.hub.bridges import Liveness, liveness, of_report
from bridge.hub.config import BridgesSource
from bridge.hub.metrics import HubMetrics
from bridge.hub.sources import SourceReader
from bridge.hub.store.rows import micros
from bridge.hub.store.store import Store
from bridge.hub.store.tables import bridges, events
from bridge.servicebus.receiver import open_queue
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    SubscriptionSettings,
    TopicSettings,
)
from tests.hub.test_sources import reader, rows, send
from tests.simulator.servicebus_fixtures import WallClock
from tests.support.fakes import FakeClock
from tests.support.fleet import at, event, life, step, vm
from tests.support.hub import BUS, received
from tests.support.ports import free_port

_DAY = timedelta(days=1)
_QUOTA = 150_000  # bytes: more than a day of these events, less than two


def entities(*, has_limit: bool) -> Entities:
    """Return the hub's subscription as infra makes it, or with no end of anything."""
    limit = _DAY if has_limit else None
    hub = SubscriptionSettings(name="hub", default_time_to_live=limit, max_bytes=_QUOTA)
    return Entities(topics=(TopicSettings(name="t", subscriptions=(hub,)),))


async def days_pass(broker: Broker, clock: WallClock, hours: int) -> None:
    """Let bridges publish, hour by hour, while nobody reads."""
    short = timedelta(seconds=180)
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_topic_sender("t") as sender:
        for hour in range(hours):
            clock.ahead = hour * 3600.0
            steps = [step("scheduled", event(f"E-{hour}-{n}")) for n in range(3)]
            beats = [
                life("heartbeat", who=vm(n), intervalSeconds=60) for n in range(20)
            ]
            await sender.send_messages([ServiceBusMessage(one) for one in steps])
            await sender.send_messages(
                [ServiceBusMessage(one, time_to_live=short) for one in beats]
            )


async def test_hub_that_is_down_for_days_fills_nothing(
    brisk_sdk: None, store: Store
) -> None:
    clock = WallClock()
    async with Broker(
        entities(has_limit=True), port=free_port(), clock=clock
    ) as broker:
        await days_pass(broker, clock, 60)
        clock.ahead += 600  # the last heartbeats are over
        await send(broker, "t", step("scheduled", event("NOW")))
        left = broker.snapshot()["t/Subscriptions/hub"]
        assert left.dead == 0
        source = BridgesSource(
            name="b",
            type="bridges",
            connection_string=Secret(broker.connection_string, {}),
            topic="t",
            subscription="hub",
        )
        await _drained(reader(source, store), broker)

    found = {row.event_key for row in await rows(store, events)}
    wanted = {f"E-{hour}-{n}" for hour in range(36, 60) for n in range(3)}
    assert found == wanted | {"NOW"}, "a day of it"


async def test_without_the_limits_of_infra_bridges_would_be_refused(
    brisk_sdk: None,
) -> None:
    clock = WallClock()
    async with Broker(
        entities(has_limit=False), port=free_port(), clock=clock
    ) as broker:
        with pytest.raises(ServiceBusError):
            await days_pass(broker, clock, 60)


async def _drained(one: SourceReader, broker: Broker) -> None:
    stop = asyncio.Event()
    async with open_queue(one.config, one.config.origin, SystemClock()) as queue:
        while broker.snapshot()["t/Subscriptions/hub"].active:
            await one.step(queue, stop)


# -- clocks ------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 600.0, 86400.0])
def test_clock_of_the_hub_makes_no_bridge_silent(ahead: float) -> None:
    """Each minute a heartbeat comes; the broker's clock and the bridge's are right."""
    clock = FakeClock(at(ahead))
    one = SourceReader(BUS, None, clock, HubMetrics(("b",), "1"))  # type: ignore[arg-type]  # nothing is kept
    one._connected()
    for minute in range(60):
        beat = received(life("heartbeat", intervalSeconds=60), 60.0 * minute)
        one._note_lag([beat], clock.now())
        one._connected()
        assert beat.report is not None
        for _ in range(6):
            clock.pass_by(10)
            found = liveness(
                of_report(beat.report),
                clock.now(),
                listening=one.listening(),
                forget_after=7 * 86400,
            )
            assert found in {Liveness.ALIVE, Liveness.UNKNOWN}


@pytest.mark.parametrize("ahead", [-86400.0, 86400.0])
async def test_bridge_is_heard_by_the_clock_of_the_broker(
    store: Store, ahead: float
) -> None:
    beat = received(life("heartbeat", seconds=ahead, intervalSeconds=60), 5)
    await store.keep([beat])

    (row,) = await rows(store, bridges)
    assert row.heard == micros(at(5))


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_bridge_whose_clock_is_wrong_keeps_no_event_open(
    store: Store, ahead: float
) -> None:
    wrong = [
        received(step("scheduled", seconds=ahead, who=vm(1), repeats=1), 1),
        received(step("completed", seconds=ahead + 60, who=vm(1), repeats=1), 61),
    ]
    right = [
        received(step("scheduled"), 0),
        received(step("completed", seconds=60), 60),
    ]
    await store.keep([*wrong, *right])

    (row,) = await rows(store, events)
    assert not row.is_open
