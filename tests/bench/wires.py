"""The local broker on its own AMQP library, against the same broker on Qpid Proton.

Two brokers, each a process of its own (this module), and the SDK as their client. The
work of a client is the same on both, so only what the broker does can differ.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.python_wire import PythonEngine
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import cpu, quantile
from tests.system.processes import PATIENCE, ended, started

QUEUE = "replies"
BODY = b"x" * 512
BATCH = 100


async def figures(count: int, turns: int) -> list[Figure]:
    """Send and receive so many messages in each turn, on one wire and the other."""
    async with (
        broker("python") as ours,
        broker("proton") as bare,
    ):
        for at in (ours, bare):
            await measured(at, BATCH)  # what is loaded at the first message
        found = await in_turns(
            lambda: measured(ours, count), lambda: measured(bare, count), turns
        )
    return [
        Figure(what=what, ours=mine, bare=theirs, unit=unit, wanted=wanted)
        for (what, unit, wanted), (mine, theirs) in zip(ROWS, found, strict=True)
    ]


ROWS = (
    ("broker: messages sent one by one, per second", "1/s", ">= 0.7"),
    ("broker: one send, p50", "ms", "<= 1.5"),
    ("broker: one send, p99", "ms", ""),
    ("broker: CPU of the broker per message sent", "us", "<= 1.5"),
    ("broker: messages sent in batches, per second", "1/s", ">= 0.7"),
    ("broker: messages received and completed, per second", "1/s", ">= 0.7"),
    ("broker: CPU of the broker per message received", "us", "<= 1.5"),
)


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that runs."""

    connection_string: str
    pid: int


@asynccontextmanager
async def broker(wire: str) -> AsyncIterator[Running]:
    """Run a broker on one wire as a process of its own."""
    process = await started(
        *(sys.executable, "-m", "tests.bench.wires", wire),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield Running(line.decode().strip(), process.pid)
    finally:
        await ended(process)


def engine(wire: str) -> Wire:
    """Return the engine of this name; only Proton's needs the extra [oracle]."""
    if wire == "python":
        return PythonEngine
    from tests.support.proton_engine import ProtonEngine  # noqa: PLC0415 - an extra

    return ProtonEngine


async def serve(wire: str) -> None:
    """Print the connection string of a broker that runs until its input ends."""
    async with Broker(wire=engine(wire)) as running:
        sys.stdout.write(f"{running.connection_string}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def measured(at: Running, count: int) -> Sequence[float]:
    """Return a value for each of the rows."""
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        one_by_one = await sent(sender, at.pid, count)
        batches = await sent_in_batches(sender, count)
        received = await completed(receiver, at.pid, count)
        await completed(receiver, at.pid, len(range(0, count, BATCH)) * BATCH)
    return [*one_by_one, batches, *received]


async def sent(sender: ServiceBusSender, pid: int, count: int) -> list[float]:
    """Return the rate, the quantiles of one send, and the CPU, one by one."""
    took, used = [], cpu(pid)
    for _ in range(count):
        began = time.perf_counter()
        await sender.send_messages(ServiceBusMessage(BODY))
        took.append((time.perf_counter() - began) * 1000)
    each = (cpu(pid) - used) / count * 1e6
    return [count * 1000 / sum(took), quantile(took, 0.5), quantile(took, 0.99), each]


async def sent_in_batches(sender: ServiceBusSender, count: int) -> float:
    """Return how many messages a second are sent in batches of 100."""
    began, batches = time.perf_counter(), range(0, count, BATCH)
    for _ in batches:
        await sender.send_messages([ServiceBusMessage(BODY) for _ in range(BATCH)])
    return len(batches) * BATCH / (time.perf_counter() - began)


async def completed(
    receiver: ServiceBusReceiver, pid: int, count: int
) -> tuple[float, float]:
    """Return the rate of receiving and completing, and the CPU of the broker."""
    began, used, done = time.perf_counter(), cpu(pid), 0
    while done < count:
        for message in await receiver.receive_messages(
            min(BATCH, count - done), max_wait_time=30
        ):
            await receiver.complete_message(message)
            done += 1
    took = time.perf_counter() - began
    return count / took, (cpu(pid) - used) / count * 1e6


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
