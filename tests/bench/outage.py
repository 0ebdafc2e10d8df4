"""From the return of a sink after an outage to its last delivery."""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from tests.bench.drain import backlog, tables
from tests.bench.figures import Figure
from tests.bench.measuring import Counter, imds, running, served
from tests.support.ports import free_port

PENDING = 200
_AIM = 5.0  # seconds


async def figures(seconds: float, turns: int) -> list[Figure]:
    """Return the seconds until all are delivered, against the aim."""
    found = [await recovery(seconds) for _ in range(turns)]
    return [
        Figure(
            what=f"{PENDING} pending after {seconds:.0f} s of outage, against the aim",
            ours=tuple(found),
            bare=(_AIM,) * turns,
            unit="s",
            wanted="<= 1",
        )
    ]


async def recovery(seconds: float) -> float:
    """Let a webhook be unreachable; return the seconds from its return to the last."""
    counter, port = Counter(), free_port()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        state = folder / "state.db"
        await backlog(state, ["hook"], PENDING)
        config = tables("", state, [])
        at = await stack.enter_async_context(served(imds(lambda: {"Events": []})))
        config["imds"] = {"endpoint": at}
        sink = {"name": "hook", "type": "webhook"}
        config["sinks"] = [{**sink, "url": f"http://127.0.0.1:{port}/hook"}]
        await stack.enter_async_context(running(config))
        await asyncio.sleep(seconds)
        runner = web.AppRunner(_receiver(counter), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        began = time.perf_counter()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await counter.expect(PENDING)
        return counter.last - began


def _receiver(counter: Counter) -> web.Application:
    app = web.Application()
    app.add_routes([web.post("/hook", counter.take)])
    return app
