"""What an idle forwarder costs, as ratios to bare scripts in the same run.

    python -m tests.bench.idle [seconds]

Memory is resident memory at the end; CPU is what the process used after it had
settled, per poll. The bare scripts do the least that could be called the same:
a GET loop with aiohttp, and with the SDK one sender and one receiver open.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

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


def resident(pid: int) -> float:
    """Return resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(pid: int) -> float:
    """Return the CPU seconds used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
) -> None:
    """Measure a bare script and the forwarder, and print both and the ratios."""
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
    sys.stdout.write(
        f"{what}: memory {two[0]:.1f} MiB / {one[0]:.1f} = {two[0] / one[0]:.2f}; "
        f"CPU per poll {two[1]:.2f} ms / {one[1]:.2f} = "
        f"{two[1] / max(one[1], 0.01):.2f}\n"
    )


async def main(seconds: float) -> None:
    """Print both pairs."""
    async with simulator() as at:
        await pair("webhook only", BARE_HTTP, WEBHOOK_ONLY, at, seconds)
        await pair("Service Bus and approvals", BARE_SDK, WITH_BUS, at, seconds)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
