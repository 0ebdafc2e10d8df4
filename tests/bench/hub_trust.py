"""What whoever may send to the bridges' topic can cost a hub.

A flood: one VM sends 120 large messages at once while 100 bridges beat. The hub is a
process of its own, over AMQP; it is stopped until all of them lie in the topic. A
crowd: an event has 100,000 messages, and one more comes. A giant: an event has 2,000
machines, and all of them report it.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.bench.figures import Figure
from tests.bench.hub_scale import desk_of, gets, portions
from tests.bench.measuring import quantile
from tests.hub.test_process import Fleet, toml
from tests.hub.test_sources import send
from tests.support.builders import EVENT_ID
from tests.support.fleet import event, life, step, vm
from tests.support.hub import ENTITY, received
from tests.support.ports import free_port

_ENTITIES = Entities(
    queues=(QueueSettings(name=ENTITY),),
    topics=(
        TopicSettings(name="t", subscriptions=(SubscriptionSettings(name="hub"),)),
    ),
)
_FAR = 10**7  # the number of a VM that is in no Resources
_PATIENCE = 120.0  # seconds
_REST = 3.0  # seconds that pages are asked for after the flood


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a hub has to bear.

    Attributes:
        flood: large messages that one VM sends.
        bridges: bridges that send a heartbeat each second meanwhile.
        crowd: messages of one event.
        more: messages that are measured one by one after them.
        machines: machines of one event.
    """

    flood: int
    bridges: int
    crowd: int
    more: int
    machines: int


FULL = Size(flood=120, bridges=100, crowd=100_000, more=50, machines=2_000)
QUICK = Size(flood=20, bridges=20, crowd=3_000, more=20, machines=200)


# -- a flood -----------------------------------------------------------------------


def large(kilobytes: int, number: int) -> bytes:
    """Return a message of so many KB: Resources of one event, always other ones."""
    count = (1000 * kilobytes - 2000) // 32
    names = [f"{number:06}-{n:022}" for n in range(count)]
    raw = event("F100D000-0000-4000-8000-000000000000", Resources=names)
    body = orjson.loads(step("updated", raw, who=vm(_FAR), seconds=number))
    body["data"]["event"] = raw
    return orjson.dumps(body)


@dataclass(slots=True)
class Flooded:
    """A hub in a flood, and whoever looks at its first page.

    Attributes:
        seconds: until the Preempt was on the page; 0 = not yet.
        pages: how long each page took, in milliseconds.
    """

    fleet: Fleet
    pid: int
    seconds: float
    pages: list[float]

    async def beat(self, bridges: int) -> None:
        """Send a heartbeat of each bridge each second, until cancelled."""
        text = self.fleet.broker.connection_string
        client = ServiceBusClient.from_connection_string(text)
        async with client, client.get_queue_sender("t") as sender:
            for second in range(10**6):
                words = [
                    life("heartbeat", who=vm(n), seconds=second, intervalSeconds=60)
                    for n in range(bridges)
                ]
                await sender.send_messages([ServiceBusMessage(word) for word in words])
                await asyncio.sleep(1)

    async def look(self, name: str) -> None:
        """Ask for the first page until it shows an event, and a little longer."""
        began, until = time.perf_counter(), float("inf")
        async with aiohttp.ClientSession() as http:
            while time.perf_counter() < until:
                asked = time.perf_counter()
                async with http.get(f"{self.fleet.url}/") as found:
                    is_there = name in await found.text()
                self.pages.append(1000 * (time.perf_counter() - asked))
                if is_there and not self.seconds:
                    self.seconds = time.perf_counter() - began
                    until = time.perf_counter() + _REST
                await asyncio.sleep(0.05)

    @property
    def peak(self) -> float:
        """The most memory that the hub has had, in MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


async def flood(kilobytes: int, size: Size) -> list[Figure]:
    """Measure a hub that one VM sends large messages to."""
    preempt = event("00000000-0000-4000-8000-00000000BEEF", EventType="Preempt")
    words = [large(kilobytes, number) for number in range(size.flood)]
    with tempfile.TemporaryDirectory() as folder:
        path, port = Path(folder) / "hub.toml", free_port()
        async with Broker(_ENTITIES, port=free_port()) as broker:
            path.write_text(toml(f"sqlite:{folder}/hub.db", broker, port))
            fleet = Fleet(broker, path, f"http://127.0.0.1:{port}")
            async with fleet.hub() as process, asyncio.TaskGroup() as group:
                found = Flooded(fleet, process.pid, 0.0, [])
                beats = group.create_task(found.beat(size.bridges))
                await asyncio.sleep(3)  # all of them are alive
                before = found.peak
                os.kill(process.pid, signal.SIGSTOP)
                await send(broker, "t", *words)
                await send(broker, "t", step("scheduled", preempt))
                os.kill(process.pid, signal.SIGCONT)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await found.look(str(preempt["EventId"]))
                peak = found.peak
                beats.cancel()
    name = f"hub: {size.flood} messages of {kilobytes} KB from one VM"
    shown = found.seconds or _PATIENCE
    return [
        Figure.once(f"{name}, a Preempt on /", shown, 1, "s", "<= 5"),
        Figure.once(f"{name}, memory", peak, 1, "MiB", "<= 400"),
        Figure.once(f"{name}, memory before", before, 1, "MiB"),
        Figure.once(f"{name}, /, slowest", max(found.pages), 1, "ms", "<= 300"),
    ]


# -- a crowd -----------------------------------------------------------------------


def copies(body: bytes, changed: bytes, start: int, count: int) -> Iterator[Incoming]:
    """Yield messages like one, each with another number in place of some digits.

    To write each as a bridge does would take most of the time.
    """
    for number in range(start, start + count):
        other = body.replace(changed, b"%d" % (int(changed) + number))
        yield received(other, number / 100, session=f"{number}")


def of_crowd(start: int, count: int) -> Iterator[Incoming]:
    """Yield one message of each of many VMs that are not in Resources."""
    body = step("scheduled", who=vm(_FAR))
    return copies(body, b"%d" % _FAR, start, count)


def of_one(start: int, count: int) -> Iterator[Incoming]:
    """Yield messages of one VM in Resources, each of which changes the event."""
    raw = event(Description=f"It is change {_FAR}.")
    body = orjson.loads(step("updated", raw, who=vm(1)))
    return copies(orjson.dumps({**body, "id": f"{_FAR}"}), b"%d" % _FAR, start, count)


def voices(start: int, count: int) -> Iterator[Incoming]:
    """Yield one more message of each of some VMs of the crowd."""
    for number in range(start, start + count):
        raw = event(Description=f"It is change {number}.")
        body = step("updated", raw, who=vm(_FAR + number % 900), seconds=start)
        yield received(body, start)


def ends(start: int, count: int) -> Iterator[Incoming]:
    """Yield ends of the event, by VMs that are not in Resources."""
    for number in range(start, start + count):
        yield received(
            step("completed", who=vm(2 * _FAR + number), seconds=start), start
        )


async def one_by_one(store: Store, found: Sequence[Incoming]) -> list[list[float]]:
    """Store messages one by one; return the CPU and the time of each, in ms."""
    taken: list[list[float]] = [[], []]
    for one in found:
        began, cpu = time.perf_counter(), time.process_time()
        await store.keep([one])
        taken[0].append(1000 * (time.process_time() - cpu))
        taken[1].append(1000 * (time.perf_counter() - began))
    return taken


_CROWDS: Sequence[tuple[str, Callable[[int, int], Iterator[Incoming]]]] = (
    ("of another VM", of_crowd),
    ("of a VM that has reported it", voices),
    ("of a VM in Resources", of_one),
    ("that tells the end", ends),
    ("of another VM after that", of_crowd),
)


async def crowd(size: Size, who: str) -> list[Figure]:
    """Measure one more message of an event that has very many."""
    kinds = _CROWDS if who == "many VMs" else (("of this VM", of_one),)
    filled, figures = of_crowd if who == "many VMs" else of_one, list[Figure]()
    with tempfile.TemporaryDirectory() as folder:
        async with desk_of(f"sqlite:{folder}/hub.db") as world:
            await world.store.keep([received(step("scheduled"))])
            for portion in portions(filled(0, size.crowd)):
                await world.store.keep(portion)
            for number, (what, made) in enumerate(kinds):
                start = size.crowd + number * size.more
                cpu, wall = await one_by_one(world.store, list(made(start, size.more)))
                name = f"hub: {size.crowd:,} messages of {who}, one more {what}"
                figures += [
                    Figure.once(f"{name}: {text}", quantile(taken, share), 1, "ms", aim)
                    for text, taken, share, aim in (
                        ("CPU, median", cpu, 0.5, "<= 20"),
                        ("CPU, p95", cpu, 0.95, ""),
                        ("time, median", wall, 0.5, ""),
                        ("time, p95", wall, 0.95, ""),
                    )
                ]
    return figures


# -- a giant -----------------------------------------------------------------------


async def giant(machines: int) -> list[Figure]:
    """Measure the pages of an event of very many machines."""
    raw = event(Resources=[f"web-{n}" for n in range(machines)])
    found = (
        received(step("scheduled", raw, who=vm(n), repeats=n), n / 100)
        for n in range(machines)
    )
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        async with desk_of(f"sqlite:{folder}/hub.db") as world:
            for portion in portions(found):
                await world.store.keep(portion)
            for path in ("/", f"/events/{EVENT_ID}", f"/api/v1/events/{EVENT_ID}"):
                name = f"hub: an event of {machines:,} machines, {path}, p95"
                taken = await gets(world.url, path)
                figures.append(Figure.once(name, taken, 1, "ms"))
    return figures


async def figures(size: Size) -> list[Figure]:
    """Measure all of it, on SQLite."""
    return [
        *await flood(250, size),
        *await flood(60, size),
        *await crowd(size, "many VMs"),
        *await crowd(size, "one VM"),
        *await giant(size.machines),
    ]
