"""From the answer of IMDS to the request at the webhook, through the durable outbox.

Against one synchronous=FULL commit plus one bare POST, in the same run.
"""

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.bench.drain import tables
from tests.bench.measuring import Row, imds, quantile, running, served


async def rows(rounds: int) -> list[Row]:
    """Return p50 and p99."""
    incarnation = 1
    answered = 0.0
    arrived: asyncio.Queue[float] = asyncio.Queue()

    def document() -> object:
        nonlocal answered
        answered = time.perf_counter()
        if incarnation % 2:
            return {"DocumentIncarnation": incarnation, "Events": []}
        event = {
            "EventId": f"{incarnation}",
            "EventStatus": "Scheduled",
            "EventType": "Freeze",
            "Resources": ["vm"],
        }
        return {"DocumentIncarnation": incarnation, "Events": [event]}

    async def hook(request: web.Request) -> web.Response:
        await request.read()
        arrived.put_nowait(time.perf_counter())
        return web.Response()

    async with served([*imds(document), web.post("/hook", hook)]) as url:
        with tempfile.TemporaryDirectory() as folder:
            config = tables(url, Path(folder) / "state.db", ["hook"])
            config["imds"] = {"endpoint": url, "poll_interval": "250ms"}
            sink = {"name": "hook", "type": "webhook", "url": f"{url}/hook"}
            config["sinks"] = [{**sink, "when": {"lifecycle": False}}]
            ours = []
            async with running(config):
                for _ in range(rounds):  # an event appears, then it is gone
                    incarnation += 1
                    at = await arrived.get()
                    ours.append((at - answered) * 1000)
                    incarnation += 1
                    await arrived.get()
            bare = await bare_commits(Path(folder), f"{url}/hook", rounds, arrived)
    return [
        Row(
            what=f"IMDS answer to webhook, {name}",
            ours=quantile(ours, share),
            bare=quantile(bare, share),
            unit="ms",
            wanted="<= 3",
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]


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
            await asyncio.sleep(0.05)  # as idle as ours is in between
    db.close()
    return found
