"""What an idle forwarder costs, as ratios to bare scripts in the same run.

Memory is resident memory at the end; CPU is what the process used after the first five
seconds, per poll. The bare scripts do the least that could be called the same:
a GET loop with aiohttp, and with the SDK one sender and one receiver open. Each runs
twice, at the same time: the two say how noisy the machine is.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.measuring import cpu, resident
from tests.system.processes import Addresses, simulator

BARE_HTTP = """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get("{imds}/metadata/scheduledevents"
                    "?api-version=2020-07-01", headers={{"Metadata": "true"}}) as r:
                await r.read()
            await asyncio.sleep(1)
asyncio.run(main())
"""
BARE_SDK = """
import aiohttp, asyncio
from azure.servicebus.aio import ServiceBusClient
async def main():
    async with aiohttp.ClientSession() as session:
        client = ServiceBusClient.from_connection_string("{bus}")
        sender = client.get_topic_sender("scheduled-events")
        receiver = client.get_queue_receiver("vm-approvals")
        async with client, sender, receiver:
            while True:
                await receiver.receive_messages(max_wait_time=1)
                async with session.get("{imds}/metadata/scheduledevents"
                        "?api-version=2020-07-01", headers={{"Metadata": "true"}}) as r:
                    await r.read()
asyncio.run(main())
"""
WEBHOOK_ONLY = """
[imds]
endpoint = "{imds}"
[state]
path = "{state}"
[http]
listen = ""
[log]
level = "warning"
[[sinks]]
name = "siem"
type = "webhook"
url = "{inbox}/siem"
"""
WITH_BUS = (
    WEBHOOK_ONLY
    + """
[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "{bus}"
topic = "scheduled-events"
[approvals]
connection_string = "{bus}"
queue = "vm-approvals"
"""
)


async def measure(arguments: list[str], seconds: float) -> tuple[float, float]:
    """Run Python with arguments; return MiB and CPU milliseconds per second."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        await asyncio.sleep(5)
        before = cpu(process.pid)
        await asyncio.sleep(seconds)
        return resident(process.pid), 1000 * (cpu(process.pid) - before) / seconds
    finally:
        process.terminate()
        await process.wait()


async def measure_pair(
    bare: str, config: str, at: Addresses, seconds: float
) -> tuple[tuple[float, float], ...]:
    """Measure the forwarder and two bare scripts at the same time: memory, and CPU."""
    with tempfile.TemporaryDirectory() as folder:
        names = {
            "imds": at.imds,
            "bus": at.connection_string,
            "inbox": at.inbox,
            "state": f"{folder}/state.db",
        }
        return await measured_side_by_side(bare, config, names, Path(folder), seconds)


async def measured_side_by_side(
    bare: str, config: str, names: dict[str, str], folder: Path, seconds: float
) -> tuple[tuple[float, float], ...]:
    """Run the forwarder and two bare scripts at the same time; see ``measure``.

    Args:
        bare: the script, a template.
        config: the configuration of the forwarder, a template.
        names: what is filled in to both.
        folder: an empty directory for them.
        seconds: how long the CPU is measured.
    """
    path, script = folder / "bridge.toml", folder / "bare.py"
    path.write_text(config.format(**names))
    script.write_text(bare.format(**names))
    return await asyncio.gather(
        measure(["-m", "bridge", "run", "-c", str(path)], seconds),
        measure([str(script)], seconds),
        measure([str(script)], seconds),
    )


async def figures(seconds: float, turns: int) -> list[Figure]:
    """Measure both pairs, side by side, and start them anew for each turn."""
    pairs = {
        "webhook only": (BARE_HTTP, WEBHOOK_ONLY, "<= 1.25"),
        "Service Bus and approvals": (BARE_SDK, WITH_BUS, "<= 1.2"),
    }
    async with simulator() as at:
        found = [
            await asyncio.gather(
                *(
                    measure_pair(bare, ours, at, seconds)
                    for bare, ours, _ in pairs.values()
                )
            )
            for _ in range(turns)
        ]
    table = []
    for number, (what, (_, _, memory)) in enumerate(pairs.items()):
        of_pair = [turn[number] for turn in found]
        for index, name, unit, wanted in (
            (0, "idle memory", "MiB", memory),
            (1, "CPU per idle poll", "ms", "<= 1.25"),
        ):
            table.append(
                Figure(
                    what=f"{name}, {what}",
                    ours=tuple(ours[index] for ours, _, _ in of_pair),
                    bare=tuple(bare[index] for _, bare, _ in of_pair),
                    again=tuple(again[index] for _, _, again in of_pair),
                    unit=unit,
                    wanted=wanted,
                )
            )
    return table
