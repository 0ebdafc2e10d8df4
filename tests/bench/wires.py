"""The local broker on its own AMQP library, against the same broker on Qpid Proton.

Two simulators, each a process of its own, and the SDK as their client. The work of a
client is the same on both, so only what the broker does can differ.
"""

import time
from collections.abc import Sequence

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from bridge.simulator.servicebus.wires import VARIABLE
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import cpu, quantile
from tests.system.processes import Addresses, simulator

QUEUE = "replies"
BODY = b"x" * 512
BATCH = 100


async def figures(count: int, turns: int) -> list[Figure]:
    """Send and receive so many messages in each turn, on one wire and the other."""
    async with (
        simulator("--imds-port", "0", environ={VARIABLE: "python"}) as ours,
        simulator("--imds-port", "0", environ={VARIABLE: "proton"}) as bare,
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


async def measured(at: Addresses, count: int) -> Sequence[float]:
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
