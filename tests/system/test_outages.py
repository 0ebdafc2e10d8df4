"""A broker that is away, silent, or no longer takes the token: nothing lost or doubled.

``SEBRIDGE_LONG_OUTAGES=1`` also waits for half a minute and for ten minutes of real
time; without it these pass on a clock that hurries while the broker is away.
"""

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, _base_handler
from azure.servicebus.aio import ServiceBusClient, _base_handler_async

from bridge.app.composition import TIMINGS, Timings
from bridge.foundation.clock import SystemClock
from bridge.servicebus.namespace import Timings as BusTimings
from tests.support.servers import brisk_sdk
from tests.support.stopwatch import Stopwatch
from tests.system.fleets import Fleet, connection_string, fleet
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator,
    simulator_here,
    written_config,
)
from tests.system.proxy import Proxy, proxy_to

__all__ = ["brisk_sdk"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    # The SDK leaves a connection that it is interrupted in opening to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

long = (
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "SEBRIDGE_LONG_OUTAGES" not in os.environ, reason="takes as long as it says"
    ),
)


# -- in this process, where time can be hurried ------------------------------------


class HurryingClock(SystemClock):
    """A clock that a test lets run faster, and then as usual again."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = 1.0
        self._base = self._since = time.monotonic()
        self._begun = self._base, datetime.now(UTC)

    def hurry(self, rate: float) -> None:
        """Run so many times as fast from now on."""
        self._base, self._since = self.monotonic(), time.monotonic()
        self._rate = rate

    def monotonic(self) -> float:
        return self._base + (time.monotonic() - self._since) * self._rate

    def now(self) -> datetime:
        begun, moment = self._begun
        return moment + timedelta(seconds=self.monotonic() - begun)

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        until = self.monotonic() + seconds
        while (left := until - self.monotonic()) > 0:
            if await super().wait(event, min(left / self._rate, 0.05)):
                return True
        return event.is_set()


@asynccontextmanager
async def alone(
    folder: Path, clock: SystemClock | None = None, timings: Timings = TIMINGS
) -> AsyncIterator[tuple[Fleet, Proxy]]:
    """Run one forwarder; yields it with the cable to its broker."""
    async with fleet(1, folder, clock, timings) as town:
        yield town, town.vms[0].bus
    gc.collect()  # here, and not in the middle of another file's test


Fault = tuple[Callable[[Proxy], object], Callable[[Proxy], object]]
CUT: Fault = (Proxy.cut, Proxy.mend)
SILENCE: Fault = (Proxy.silence, Proxy.speak)


@pytest.mark.parametrize(
    ("fault", "minutes"),
    [(CUT, 10), (SILENCE, 10)],
    ids=["cut-10", "silent-10"],
)
async def test_outage_is_survived_and_approvals_are_served_afterwards(
    fault: Fault, minutes: float, tmp_path: Path, brisk_sdk: None
) -> None:
    """With a patience that fits the four real seconds that the broker is away."""
    begin, end = fault
    clock = HurryingClock()
    brief = BusTimings(stale=0.5, attempt=1.0, open=1.0, least_renew=1.0)
    async with alone(tmp_path, clock, Timings(bus=brief)) as (town, bus):
        first = town.schedule()
        await town.until_received(first, "scheduled")
        begin(bus)
        town.imds.start(first)
        second = town.schedule(notice=3600)
        clock.hurry(minutes * 60 / 4)
        await asyncio.sleep(4)
        clock.hurry(5)  # the forwarder asks again after half a minute at most
        town.imds.remove(first)
        if (mended := end(bus)) is not None:
            assert asyncio.iscoroutine(mended)
            await mended
        await town.approve(second)
        decided = await town.until_decided(second)
        await town.until_received(second, "scheduled", "started")
        await town.until_received(first, "completed")

    assert town.consumer.steps(first) == ["scheduled", "started", "completed"]
    assert town.consumer.steps(second) == ["scheduled", "started"]
    assert town.consumer.repeated() == []
    assert decided == "relayed by web-0"
    assert town.posted(second) == 1


async def test_token_that_expires_again_and_again_is_made_anew(
    tmp_path: Path, brisk_sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK refreshes what it uses; what only waits it lets die, and raises."""
    make = _base_handler._generate_sas_token
    async with alone(tmp_path) as (town, bus):

        def brief(uri: str, policy: str, key: str) -> object:
            is_ours = f":{bus.port}/" in uri
            return make(uri, policy, key, timedelta(seconds=2 if is_ours else 3600))

        monkeypatch.setattr(_base_handler_async, "_generate_sas_token", brief)
        first = town.schedule()
        await town.until_received(first, "scheduled")
        opened = bus.opened
        for _ in range(2):
            await asyncio.sleep(3)
            event_id = town.schedule()
            watch = Stopwatch()
            await town.until_received(event_id, "scheduled")
            took = watch.seconds
            await town.approve(event_id)
            decided = await town.until_decided(event_id)
            await town.until_received(event_id, "started")

            assert took < 3
            assert decided == "relayed by web-0"
            assert town.consumer.steps(event_id) == ["scheduled", "started"]
    assert bus.opened > opened
    assert town.consumer.repeated() == []


# -- as processes, in real time ----------------------------------------------------


def freeze(number: int) -> dict[str, object]:
    event_id = f"00000000-0000-0000-0000-{number:012}"
    return {"type": "Freeze", "resources": ["WestNO_0"], "eventId": event_id}


async def on_the_topic(at: Addresses, *wanted: str) -> list[str]:
    """Read the subscription until all has come, and nothing more for a second.

    Each delivery has a due time of its own, after a long outage a minute off at most.
    """
    client = ServiceBusClient.from_connection_string(at.connection_string)
    receiver = client.get_subscription_receiver("scheduled-events", "consumer")
    found: list[str] = []
    async with asyncio.timeout(2 * PATIENCE), client, receiver:
        while True:
            messages = await receiver.receive_messages(50, max_wait_time=1)
            for message in messages:
                event = json.loads(str(message))
                if ".scheduledevent." in event["type"]:
                    number = int(event["subject"][-12:])
                    found.append(f"{number} {event['type'].split('.')[-2]}")
                await receiver.complete_message(message)
            if not messages and {*wanted} <= {*found}:
                return found


async def approve(at: Addresses, number: int) -> None:
    """Send an approval straight to the broker."""
    body = json.dumps({"StartRequests": [{"EventId": freeze(number)["eventId"]}]})
    client = ServiceBusClient.from_connection_string(at.connection_string)
    async with client, client.get_queue_sender("vm-approvals") as sender:
        await sender.send_messages(ServiceBusMessage(body))


async def history(at: Addresses) -> None:
    """Let event 1 start and event 2 appear."""
    first = str(freeze(1)["eventId"])
    await at.control("POST", f"events/{first}/start")
    await at.control("POST", "events", freeze(2))


@asynccontextmanager
async def watched(folder: Path, at: Addresses, bus: str) -> AsyncIterator[None]:
    """Run a forwarder that has published event 1, on a broker of its own."""
    config = written_config(folder, replace(at, connection_string=bus))
    process = await forwarder(config)
    try:
        await settled(config, 0)
        await at.control("POST", "events", freeze(1))
        async with asyncio.timeout(PATIENCE):
            while not any(map(is_scheduled, await at.messages("/siem"))):
                await asyncio.sleep(0.05)
        yield
    finally:
        assert await ended(process) == 0


def is_scheduled(message: Mapping[str, object]) -> bool:
    body = message["body"]
    return isinstance(body, dict) and str(body["type"]).endswith(".scheduled.v1")


SEEN = ["1 scheduled", "1 started", "2 scheduled", "2 started"]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(5, marks=long),
        pytest.param(30, marks=long),
        pytest.param(600, marks=long),
    ],
)
async def test_process_survives_a_broker_that_is_away(
    seconds: float, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(simulator_here())
        port = int(at.connection_string.partition(";")[0].rpartition(":")[2])
        cable = await stack.enter_async_context(proxy_to(port))
        bus = connection_string(cable.port)
        await stack.enter_async_context(watched(tmp_path, at, bus))
        cable.cut()
        await history(at)
        await asyncio.sleep(seconds)
        await cable.mend()
        await approve(at, 2)
        found = await on_the_topic(at, *SEEN)

    assert sorted(found) == SEEN


@pytest.mark.parametrize("seconds", [8, pytest.param(600, marks=long)])
async def test_process_survives_a_broker_that_is_stopped(
    seconds: float, tmp_path: Path
) -> None:
    """A black hole: SIGSTOP. What was sent in doubt is sent again with the same id."""
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(simulator_here())
        broker = await stack.enter_async_context(simulator())
        bus = broker.connection_string
        await stack.enter_async_context(watched(tmp_path, at, bus))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            await history(at)
            await asyncio.sleep(seconds)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await approve(broker, 2)
        found = await on_the_topic(broker, *SEEN)

    assert sorted(found) == SEEN
