"""From the answer of IMDS to the request at the webhook, through the durable outbox.

    python -m tests.bench.latency [rounds]

Against one synchronous=FULL commit plus one bare POST, in the same run.
"""

import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from bridge import app
from bridge import config as configuration
from bridge.clock import SystemClock


async def main(rounds: int) -> None:
    """Print p50 and p99 of both, and the ratios."""
    incarnation = 1
    answered = 0.0
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def document(_: web.Request) -> web.Response:
        nonlocal answered
        answered = time.perf_counter()
        event = {
            "EventId": f"{incarnation}",
            "EventStatus": "Scheduled",
            "EventType": "Freeze",
            "Resources": ["vm"],
        }
        return web.json_response(
            {"DocumentIncarnation": incarnation, "Events": [event]}
        )

    async def compute(_: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    async def hook(request: web.Request) -> web.Response:
        body = await request.text()
        if ".scheduled.v1" in body or body == "bare":
            arrived.put_nowait(time.perf_counter())
        return web.Response()

    server = web.Application()
    server.router.add_get("/metadata/scheduledevents", document)
    server.router.add_get("/metadata/instance/compute", compute)
    server.router.add_post("/hook", hook)
    runner = web.AppRunner(server, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    with tempfile.TemporaryDirectory() as folder:
        tables = {
            "imds": {"endpoint": url, "poll_interval": "250ms"},
            "state": {"path": f"{folder}/state.db"},
            "http": {"listen": ""},
            "sinks": [{"name": "h", "type": "webhook", "url": f"{url}/hook"}],
        }
        config = configuration.parse(tables, file="bench", environ={})
        stop = asyncio.Event()
        task = asyncio.create_task(app.run(config, stop, SystemClock()))
        ours = []
        for _ in range(rounds):
            incarnation += 1
            at = await arrived.get()
            ours.append((at - answered) * 1000)
        stop.set()
        await task
        bare = await bare_commits(Path(folder), f"{url}/hook", rounds, arrived)
    await runner.cleanup()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        a, b = quantile(ours, share), quantile(bare, share)
        sys.stdout.write(f"{name}: {a:.2f} ms / {b:.2f} ms = {a / b:.2f}\n")


async def bare_commits(
    folder: Path, url: str, rounds: int, arrived: "asyncio.Queue[float]"
) -> list[float]:
    """Return the milliseconds of one commit plus one POST each."""
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (body TEXT)")
    found = []
    async with aiohttp.ClientSession() as session:
        for _ in range(rounds):
            began = time.perf_counter()
            db.execute("INSERT INTO t VALUES (?)", ("x" * 1000,))
            async with session.post(url, data="bare") as response:
                await response.read()
            found.append((await arrived.get() - began) * 1000)
    db.close()
    return found


def quantile(values: list[float], share: float) -> float:
    """Return a quantile."""
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 999)]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
