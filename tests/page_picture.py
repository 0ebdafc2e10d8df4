"""Takes the picture of the page for the README: ``python -m tests.page_picture``.

A real forwarder beside the simulator, one sink that cannot be reached, one event that
is approved and under way, and one to come.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp

from bridge.simulator.lifecycle import EventLife
from bridge.simulator.serve import Simulator, SimulatorOptions
from tests.browser import find
from tests.integration.processes import PATIENCE, ended, forwarder

PICTURE = Path(__file__).parents[1] / ".github" / "page.png"
WIDTH, HEIGHT = 1100, 850
LISTEN = "127.0.0.1:19465"
CONFIG = """
[imds]
endpoint = "{imds}"
[state]
path = "{state}"
[http]
listen = "{listen}"
[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "{bus}"
topic = "scheduled-events"
[[sinks]]
name = "siem"
type = "webhook"
url = "http://127.0.0.1:9/ingest"
[approvals]
connection_string = "{bus}"
queue = "vm-approvals"
"""
FREEZE = EventLife(
    event_type="Freeze",
    resources=("web-0", "web-1"),
    notice_seconds=900,
    duration_seconds=5,
    description="Host server is undergoing maintenance.",
)
REBOOT = EventLife(
    event_type="Reboot",
    resources=("web-0",),
    source="User",
    notice_seconds=900,
    started_seconds=600,
    description="Virtual machine is going to be restarted as requested by "
    "authorized user.",
)


async def main() -> None:
    """Live through an approval, and look."""
    if (browser := find()) is None:
        sys.exit("there is no Chromium here")
    async with Simulator(SimulatorOptions(vm_name="web-0")) as simulator:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "bridge.toml"
            at = simulator.addresses()
            config.write_text(
                CONFIG.format(
                    imds=at["imds"]["url"],
                    bus=at["servicebus"]["connectionString"],
                    state=config.with_name("state.db").as_posix(),
                    listen=LISTEN,
                )
            )
            bridge = await forwarder(config)
            try:
                await until(lambda status: status["missing"] == [])
                reboot = simulator.imds.schedule(REBOOT)
                await until(lambda status: len(status["document"]["events"]) == 1)
                await approve(config, reboot.event_id)
                simulator.imds.schedule(FREEZE)
                await until(lambda status: len(status["document"]["events"]) == 2)
                await asyncio.sleep(2)
                PICTURE.write_bytes(
                    await browser.picture(f"http://{LISTEN}/", WIDTH, HEIGHT)
                )
            finally:
                await ended(bridge)


async def until(holds: Callable[..., bool]) -> None:
    """Wait until something holds of the status."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError, KeyError):
                async with session.get(f"http://{LISTEN}/status") as response:
                    if holds(await response.json()):
                        return
            await asyncio.sleep(0.2)


async def approve(config: Path, event_id: str) -> None:
    """Approve an event as a person would."""
    words = ("--reason", "drained, no users at night", "--approved-by", "anna")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "approve", "-c", str(config), event_id),
        *words,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    await until(lambda status: len(status["approvals"]) == 1)


if __name__ == "__main__":
    asyncio.run(main())
