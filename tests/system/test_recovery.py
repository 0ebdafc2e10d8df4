"""200 deliveries wait for a sink that is away: all are out soon after its return.

Real sinks against real servers, each kind of outage. ``SEBRIDGE_LONG_OUTAGES=1`` lets
each last for a minute; ``-rA`` shows how long it took from the return to the last.
"""

import asyncio
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.foundation.clock import SystemClock
from bridge.foundation.pace import RetryPolicy
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.simulator.servicebus.broker import Broker
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry.metrics import Metrics
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.ports import free_port
from tests.support.servers import brisk_sdk
from tests.support.sink_fixtures import drained, sink_config
from tests.support.stopwatch import Stopwatch
from tests.system.proxy import Proxy, proxy_to

__all__ = ["brisk_sdk"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    # The SDK leaves a connection that it is interrupted in opening to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OUTAGE = 60.0 if "SEBRIDGE_LONG_OUTAGES" in os.environ else 15.5
# Other tests compute beside this one; who waits out its own backoff takes far longer.
WITHIN = 5.0 if "SEBRIDGE_LONG_OUTAGES" in os.environ else 12.0
EVENTS, STEPS = 40, 5


class Names(AbstractResolver):
    """A name server that is away at times."""

    def __init__(self) -> None:
        self.is_away = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if self.is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return [
            ResolveResult(
                hostname=host,
                host="127.0.0.1",
                port=port,
                family=family,
                proto=0,
                flags=0,
            )
        ]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass
class Place:
    """A port, and whoever serves it just now.

    Attributes:
        taken: the ids of what was taken, in order.
    """

    port: int
    status: int = 200
    tls: ssl.SSLContext | None = None
    names: Names = field(default_factory=Names)
    taken: list[str] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def take(self, request: web.Request) -> web.Response:
        event = await request.json()
        if self.status == 200:
            self.taken.append(event["id"])
        return web.Response(status=self.status)

    async def open(self) -> None:
        """Serve."""
        app = web.Application()
        app.router.add_post("/", self.take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()

    async def be_silent(self) -> None:
        """Accept connections and never answer, nor close them."""

        async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.is_over.wait()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", self.port)
        self._stack.callback(server.close)

    async def close(self) -> None:
        """Serve nobody any more."""
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


async def refuse(place: Place) -> None:
    """Begin: nobody listens. Nothing to be done."""


async def answer_503(place: Place) -> None:
    place.status = 503
    await place.open()


async def lose_the_name(place: Place) -> None:
    place.names.is_away = True
    await place.open()


async def show_a_strangers_certificate(place: Place) -> None:
    right, place.tls = place.tls, context_of(trustme.CA())
    await place.open()
    place.tls = right


OUTAGES = {
    "refused": refuse,
    "503": answer_503,
    "half-open": Place.be_silent,
    "dns": lose_the_name,
    "tls": show_a_strangers_certificate,
}


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("siem.example").configure_cert(context)
    return context


@asynccontextmanager
async def relayed(
    config: SinkConfig, outbox: Outbox, resolver: AbstractResolver | None = None
) -> AsyncIterator[Relay]:
    """Run a relay with a sink as the forwarder would."""
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(resolver=resolver)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector)
        )
        resources = Resources(http=http, expand=Identity().expand)
        sink = await stack.enter_async_context(config.open(resources))

        async def deliver(delivery: Delivery) -> None:
            await sink.deliver(CloudEvent.from_json(delivery.body))

        relay = Relay(
            sink=SINK,
            deliver=deliver,
            outbox=outbox,
            clock=SystemClock(),
            metrics=Metrics([SINK], "1"),
            policy=RelayPolicy(
                backoff=RetryPolicy(max_backoff=config.retry.max_backoff),
                max_age=config.retry.max_age,
                slots=config.concurrency,
            ),
            chance=random.random,
            repeats=config.repeats,
        )
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            try:
                yield relay
            finally:
                stop.set()


async def put_all(outbox: Outbox) -> None:
    """Put 200 deliveries into the outbox: five steps of forty events."""
    for step in range(STEPS):
        events = [outgoing(f"{n}-{step}", key=f"K{n}") for n in range(EVENTS)]
        await outbox.commit(events, now=time.time())


async def delivered(outbox: Outbox, count: int) -> float:
    """Wait until so many are delivered; returns how many seconds it took."""
    watch = Stopwatch()
    async with asyncio.timeout(OUTAGE + 60):
        while (await outbox.deliveries.tallies())[SINK].delivered < count:
            await asyncio.sleep(0.02)
    return watch.seconds


def assert_in_order(names: list[str]) -> None:
    """Check that nothing is missing, and the steps of each event are in order."""
    first = list(dict.fromkeys(names))
    assert len(first) == EVENTS * STEPS
    for number in range(EVENTS):
        of_event = [name for name in first if name.startswith(f"{number}-")]
        assert of_event == [f"{number}-{step}" for step in range(STEPS)]


async def test_webhook_gets_everything_within_5_seconds_of_its_return(
    tmp_path: Path,
) -> None:
    """Each kind of outage has a webhook of its own: they mostly wait."""
    async with asyncio.TaskGroup() as group:
        for kind in OUTAGES:
            (tmp_path / kind).mkdir()
            group.create_task(webhook_recovers(kind, tmp_path / kind), name=kind)


async def webhook_recovers(kind: str, folder: Path) -> None:
    authority = trustme.CA()
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    place = Place(free_port(), tls=context_of(authority))
    if kind == "half-open":  # its TLS would not even begin
        place.tls = None
    scheme = "https" if place.tls else "http"
    options: Mapping[str, object] = {
        "type": "webhook",
        "url": f"{scheme}://siem.example:{place.port}/",
        **({"ca_file": str(folder / "ca.pem")} if place.tls else {}),
    }
    async with patient_outbox(folder / "state.db", router()) as outbox:
        await OUTAGES[kind](place)
        await put_all(outbox)
        async with relayed(sink_config(options), outbox, place.names):
            await asyncio.sleep(OUTAGE)
            assert not place.taken
            await place.close()
            place.status, place.names.is_away = 200, False
            await place.open()
            took = await delivered(outbox, EVENTS * STEPS)
        await place.close()
        place.is_over.set()

    print(f"{kind}: {took:.1f} s from the return to the last of 200")  # noqa: T201 - the result
    assert_in_order(place.taken)
    assert took <= WITHIN


async def stop(broker: Broker, cable: Proxy) -> None:
    await broker.__aexit__(None, None, None)


async def start(broker: Broker, cable: Proxy) -> None:
    await broker.__aenter__()


async def cut(broker: Broker, cable: Proxy) -> None:
    cable.cut()


async def mend(broker: Broker, cable: Proxy) -> None:
    await cable.mend()


async def silence(broker: Broker, cable: Proxy) -> None:
    cable.silence()


async def speak(broker: Broker, cable: Proxy) -> None:
    cable.speak()


async def forget(broker: Broker, cable: Proxy) -> None:
    cable.forget()


Do = Callable[[Broker, Proxy], Awaitable[None]]


BROKEN: dict[str, tuple[Do, Do]] = {
    "restarted": (stop, start),
    "cut off": (cut, mend),
    "silent": (silence, speak),
    "half-open": (silence, forget),
}


@pytest.mark.usefixtures("brisk_sdk")
async def test_broker_gets_everything_within_5_seconds_of_its_return(
    tmp_path: Path,
) -> None:
    """The real SDK; the broker restarts, or the network between them is away."""
    async with asyncio.TaskGroup() as group:
        for name in BROKEN:
            group.create_task(broker_recovers(name, tmp_path / f"{name}.db"), name=name)


async def broker_recovers(name: str, state: Path) -> None:
    begin, end = BROKEN[name]
    async with (
        Broker(port=free_port()) as broker,
        proxy_to(broker.port) as cable,
        patient_outbox(state, router()) as outbox,
    ):
        text = broker.connection_string.replace(f":{broker.port}", f":{cable.port}")
        config = sink_config(
            {
                "type": "servicebus",
                "connection_string": text,
                "topic": "scheduled-events",
            }
        )
        async with relayed(config, outbox):
            await outbox.commit([outgoing("first")], now=time.time())
            await delivered(outbox, 1)
            await begin(broker, cable)
            await put_all(outbox)
            await asyncio.sleep(OUTAGE)
            assert (await outbox.deliveries.tallies())[SINK].delivered == 1
            await end(broker, cable)
            took = await delivered(outbox, 1 + EVENTS * STEPS)
        messages = await drained(broker, count=EVENTS * STEPS + 1)

    names = [str(message.message_id) for message in messages]
    print(f"{name}: {took:.1f} s from the return to the last of 200")  # noqa: T201 - the result
    assert_in_order([one for one in names if one != "first"])
    assert took <= WITHIN
