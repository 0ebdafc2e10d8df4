"""What an idle forwarder costs, as ratios to bare scripts in the same run.

Memory is resident memory at the end; CPU is what the process used after it had
settled, per poll. The bare scripts do the least that could be called the same:
a GET loop with aiohttp, and with the SDK one sender and one receiver open.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.bench.measuring import Row, cpu, resident
from tests.integration.processes import Addresses, simulator

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


async def pair(
    what: str, bare: str, config: str, at: Addresses, seconds: float
) -> tuple[Row, Row]:
    """Measure a bare script and the forwarder: memory, and CPU per poll."""
    with tempfile.TemporaryDirectory() as folder:
        names = {
            "imds": at.imds,
            "bus": at.connection_string,
            "inbox": at.inbox,
            "state": f"{folder}/state.db",
        }
        path = Path(folder) / "bridge.toml"
        path.write_text(config.format(**names))
        script = Path(folder) / "bare.py"
        script.write_text(bare.format(**names))
        one, two = await asyncio.gather(
            measure([str(script)], seconds),
            measure(["-m", "bridge", "run", "-c", str(path)], seconds),
        )
    most = "<= 1.35" if bare is BARE_HTTP else "<= 1.3"
    return (
        Row(
            what=f"idle memory, {what}",
            ours=two[0],
            bare=one[0],
            unit="MiB",
            wanted=most,
        ),
        Row(
            what=f"CPU per idle poll, {what}",
            ours=two[1],
            bare=one[1],
            unit="ms",
            wanted="<= 1.5",
        ),
    )


async def rows(seconds: float) -> list[Row]:
    """Measure both pairs, side by side."""
    async with simulator() as at:
        one, two = await asyncio.gather(
            pair("webhook only", BARE_HTTP, WEBHOOK_ONLY, at, seconds),
            pair("Service Bus", BARE_SDK, WITH_BUS, at, seconds),
        )
        return [*one, *two]
