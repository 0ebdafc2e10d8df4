"""Forwarders side by side in this process: each with its own cables, all on one topic.

What a consumer sees of them is read as config/events.md says: by ``time`` within
``subject``, and of the ends ``completed`` before ``ended`` before ``cancelled``.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.app import forwarder as app
from bridge.app.composition import TIMINGS, Timings
from bridge.configuration import load as configuration
from bridge.foundation.clock import Clock, SystemClock
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.system.proxy import Proxy, proxy_to

Event = Mapping[str, object]
PATIENCE = 120.0  # many forwarders share one process
LOCK_SECONDS = 12.0  # longer than a busy machine stands still
ENDS = ("cancelled", "ended", "completed")
ENTITIES = Entities(
    queues=(
        QueueSettings(
            name="approvals",
            requires_session=True,
            lock_duration=timedelta(seconds=LOCK_SECONDS),
        ),
    ),
    topics=(
        TopicSettings(
            name="scheduled-events",
            duplicate_window=timedelta(minutes=10),
            subscriptions=(SubscriptionSettings(name="consumer"),),
        ),
    ),
)


@dataclass
class Vm:
    """One forwarder, and the cables between it and the world."""

    number: int
    imds: Proxy
    bus: Proxy
    state: Path
    clock: Clock
    timings: Timings = TIMINGS
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The name in instance metadata."""
        return f"web-{self.number}"

    def tables(self) -> dict[str, object]:
        """Return its configuration."""
        bus = connection_string(self.bus.port)
        return {
            "shutdown_grace": "500ms",
            "imds": {
                "endpoint": f"http://127.0.0.1:{self.imds.port}",
                "poll_interval": "500ms",
            },
            "identity": {"vm_id": f"vm-{self.number}", "vm_name": self.name},
            "state": {"path": str(self.state)},
            "http": {"listen": ""},
            "sinks": [
                {
                    "name": "bus",
                    "type": "servicebus",
                    "connection_string": bus,
                    "topic": "scheduled-events",
                    "when": {"lifecycle": False},
                    "retry": {"max_backoff": "5s"},
                }
            ],
            "approvals": {
                "connection_string": bus,
                "queue": "approvals",
                "sessions": ["{vm_id}", "group-7"],
                "unknown_grace": "1s",
            },
        }

    async def run(self) -> None:
        """Run until ``stop`` is set."""
        config = configuration.parse(self.tables(), file=self.name, environ={})
        await app.run(config, self.stop, self.clock, timings=self.timings)

    def die(self) -> None:
        """Be gone without a word, as far as anybody else can tell."""
        self.bus.cut()
        self.imds.cut()
        self.stop.set()


@dataclass
class Consumer:
    """Reads the subscription as Azure Functions do.

    Attributes:
        events: all that came, in order.
    """

    events: list[Event] = field(default_factory=list)

    async def read(self, broker: Broker) -> None:
        """Receive until cancelled."""
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        receiver = client.get_subscription_receiver("scheduled-events", "consumer")
        async with client, receiver:
            while True:
                for message in await receiver.receive_messages(50, max_wait_time=1):
                    self.events.append(json.loads(str(message)))
                    await receiver.complete_message(message)

    def of(self, event_id: str) -> list[Event]:
        """Return the events of one EventId by time."""
        found = [e for e in self.events if e["subject"] == event_id]
        return sorted(found, key=lambda e: str(e["time"]))

    def steps(self, event_id: str) -> list[str]:
        """Return the transitions of an EventId that arrived, by time."""
        return [kind for e in self.of(event_id) if (kind := step(e))]

    def outcomes(self, event_id: str) -> list[tuple[str, str]]:
        """Return what became of its approvals, and on which VM."""
        return [
            (str(data["outcome"]), str(reporter["vmName"]))
            for e in self.of(event_id)
            if isinstance(data := e["data"], dict) and "outcome" in data
            if isinstance(reporter := data["reporter"], dict)
        ]

    def held(self, event_id: str) -> tuple[str, object]:
        """Return the final state of an EventId, and the event in it."""
        received = [e for e in self.of(event_id) if step(e)]
        ends = [e for e in received if step(e) in ENDS]
        last = max(ends, key=lambda e: ENDS.index(step(e))) if ends else received[-1]
        data = last["data"]
        assert isinstance(data, dict)
        return (step(last) if ends else "there"), data["event"]

    def repeated(self) -> list[str]:
        """Return the ids that came more than once."""
        counts = Counter(str(e["id"]) for e in self.events)
        return [key for key, count in counts.items() if count > 1]


def step(event: Event) -> str:
    """Return the transition that an event tells; "" for any other event."""
    kind = str(event["type"])
    return kind.split(".")[-2] if ".scheduledevent." in kind else ""


@dataclass
class Fleet:
    """VMs that see the same document, one broker, one consumer."""

    imds: ImdsSimulator
    broker: Broker
    vms: list[Vm]
    consumer: Consumer
    group: asyncio.TaskGroup

    def schedule(self, notice: float = 900.0) -> str:
        """Let an event of all VMs appear; returns its EventId."""
        event_id = str(uuid.uuid4()).upper()
        life = EventLife(
            event_type="Freeze",
            resources=tuple(vm.name for vm in self.vms),
            event_id=event_id,
            notice_seconds=notice,
        )
        self.imds.schedule(life)
        return event_id

    async def until_received(self, event_id: str, *steps: str) -> None:
        """Wait until the consumer has received these steps."""
        async with asyncio.timeout(PATIENCE):
            while not {*steps} <= {*self.consumer.steps(event_id)}:
                await asyncio.sleep(0.05)

    async def until_decided(self, event_id: str, within: float = PATIENCE) -> str:
        """Wait for the outcome of an approval; returns "outcome by VM"."""
        async with asyncio.timeout(within):
            while not (found := self.consumer.outcomes(event_id)):
                await asyncio.sleep(0.05)
        return " by ".join(found[0])

    async def approve(self, event_id: str, session: str = "group-7") -> None:
        """Send an approval, as a remote system does."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        client = ServiceBusClient.from_connection_string(self.broker.connection_string)
        async with client, client.get_queue_sender("approvals") as sender:
            await sender.send_messages(
                ServiceBusMessage(
                    body, session_id=session, message_id=str(uuid.uuid4())
                )
            )

    def posted(self, event_id: str) -> int:
        """Return how often IMDS was asked to start an event."""
        return sum(
            request.method == "POST" and event_id in request.body
            for request in self.imds.requests
        )

    def start(self, vm: Vm) -> None:
        """Let a forwarder run."""
        self.group.create_task(vm.run(), name=vm.name)


def connection_string(port: int) -> str:
    """Return what a client needs to reach a broker, or the proxy before it."""
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=k;SharedAccessKey=v;"
        "UseDevelopmentEmulator=true;"
    )


@dataclass(frozen=True)
class ImdsClock:
    """Lets IMDS go by the clock of the forwarders."""

    clock: Clock

    def now(self) -> float:
        return self.clock.now().timestamp()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@asynccontextmanager
async def fleet(
    count: int, folder: Path, clock: Clock | None = None, timings: Timings = TIMINGS
) -> AsyncIterator[Fleet]:
    """Run so many forwarders; they stop at the end."""
    async with AsyncExitStack() as stack:
        clock = clock or SystemClock()
        imds = await stack.enter_async_context(ImdsSimulator(clock=ImdsClock(clock)))
        broker = await stack.enter_async_context(Broker(ENTITIES))
        port = urlsplit(imds.url).port
        assert port is not None
        vms = [
            Vm(
                number,
                await stack.enter_async_context(proxy_to(port)),
                await stack.enter_async_context(proxy_to(broker.port)),
                folder / f"{number}.db",
                clock,
                timings,
            )
            for number in range(count)
        ]
        consumer = Consumer()
        reading = asyncio.create_task(consumer.read(broker))
        try:
            async with asyncio.TaskGroup() as group:
                running = Fleet(imds, broker, vms, consumer, group)
                for vm in vms:
                    running.start(vm)
                try:
                    yield running
                finally:
                    for vm in vms:
                        vm.stop.set()
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
