"""The way of one event through the code: which files and functions a process enters.

A forwarder, started as by ``sebridge run``, counts every call of a function of
``bridge/`` between two signals, in all of its threads. The simulator is not counted.

    python -m tests.system.trips        print the golden list, from three runs

``trips.json`` is the golden list: what a walk may enter. ``test_trips.py`` compares.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.support.configurations import approvals, config_text, webhook
from tests.system.processes import Addresses, settled, simulator_here, started

GOLDEN = Path(__file__).with_name("trips.json")
ROOT = Path(__file__).parent.parent.parent
_PATIENCE = 60.0
_QUIET = 0.3  # seconds after the last step, in which rows are settled
_RUNS = 3

# Runs the program. SIGUSR1 begins to count, SIGUSR2 ends it and writes the calls.
COUNTING = """
import json, signal, sys, threading
root, out = sys.argv.pop(1), sys.argv.pop(1)
left_out = (root + "simulator/", root + "demo/")
calls, is_on = [], False

def note(frame, event, _):
    if is_on and event == "call":
        name = frame.f_code.co_filename
        if name.startswith(root) and not name.startswith(left_out):
            calls.append((name[len(root):], frame.f_code.co_qualname))

def begin(*_):
    global is_on
    calls.clear()
    is_on = True

def end(*_):
    global is_on
    is_on = False
    with open(out + ".part", "w") as file:
        json.dump(calls, file)
    import os
    os.replace(out + ".part", out)

signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
threading.setprofile(note)
sys.setprofile(note)
from bridge.__main__ import main
main()
"""


@dataclass(frozen=True)
class Trip:
    """What one walk entered.

    Attributes:
        files: the names of the files below bridge/.
        functions: each as its file and its name.
        moves: how often the next call was in another file.
    """

    files: frozenset[str]
    functions: frozenset[str]
    moves: int

    @classmethod
    def of(cls, calls: list[tuple[str, str]]) -> "Trip":
        files = [file for file, _ in calls]
        return cls(
            frozenset(files),
            frozenset(f"{file}:{name}" for file, name in calls),
            sum(a != b for a, b in pairwise(files)),
        )


@dataclass
class Walk:
    """A forwarder that counts, between IMDS and a webhook.

    Attributes:
        refusals: how many of the next requests the webhook answers with 503.
        told: the transitions and outcomes that the webhook has accepted.
    """

    at: Addresses
    folder: Path
    refusals: int = 0
    told: asyncio.Queue[str] = None  # type: ignore[assignment]  # made in the loop
    process: asyncio.subprocess.Process = None  # type: ignore[assignment]  # likewise

    @asynccontextmanager
    async def running(self, state: Path) -> AsyncIterator[None]:
        self.told = asyncio.Queue()
        app = web.Application()
        app.router.add_post("/", self._receive)
        async with TestServer(app) as server:
            config = self.folder / "bridge.toml"
            bus = self.at.connection_string
            config.write_text(
                config_text(
                    webhook(f"http://127.0.0.1:{server.port}/"),
                    imds=self.at.imds,
                    state=state,
                    approvals=approvals(bus),
                )
            )
            with config.with_suffix(".log").open("ab") as log:
                self.process = await started(
                    *(sys.executable, "-c", COUNTING, f"{ROOT}/bridge/"),
                    *(str(self._calls), "run", "-c", str(config)),
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                )
            await settled(config, 0)
            await self.until("bridge.started")
            try:
                yield
            finally:
                self.process.send_signal(signal.SIGKILL)
                await self.process.wait()

    @property
    def _calls(self) -> Path:
        return self.folder / "calls.json"

    async def _receive(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.told.put_nowait(body["type"].removeprefix("sebridge."))
        return web.Response()

    async def until(self, what: str) -> None:
        """Wait until the webhook has accepted an event whose type begins so."""
        async with asyncio.timeout(_PATIENCE):
            while not (await self.told.get()).startswith(what):
                pass

    async def schedule(self, number: int) -> str:
        event_id = f"00000000-0000-0000-0000-{number:012}"
        event = {"type": "Reboot", "eventId": event_id, "notBefore": 600}
        await self.at.control("POST", "events", event)
        return event_id

    async def counted(self, step: Callable[[], Awaitable[None]]) -> Trip:
        """Count the calls of a step, and of what settles it."""
        self._calls.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        await step()
        await asyncio.sleep(_QUIET)
        self.process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(_PATIENCE):
            while not self._calls.exists():
                await asyncio.sleep(0.02)
        return Trip.of([(a, b) for a, b in json.loads(self._calls.read_text())])


async def trips(folder: Path) -> dict[str, Trip]:
    """Walk every way once, with its files in a folder."""
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(simulator_here())
        walk = Walk(at, folder)
        await stack.enter_async_context(walk.running(folder / "state.db"))

        async def failed() -> None:
            walk.refusals = 1
            await one_more(walk, 2)

        async def approved() -> None:
            await approve(at, "00000000-0000-0000-0000-000000000001")
            await walk.until("startrequest.relayed")

        await one_more(walk, 1)  # the first also opens the connections
        return {
            "delivered": await walk.counted(lambda: one_more(walk, 4)),
            "first attempt fails": await walk.counted(failed),
            "approval": await walk.counted(approved),
        }


async def one_more(walk: Walk, number: int) -> None:
    await walk.schedule(number)
    await walk.until("scheduledevent.scheduled")


async def approve(at: Addresses, event_id: str) -> None:
    """Put a StartRequest on the approval queue."""
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_sender("vm-approvals") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(body))


def merged(runs: list[dict[str, Trip]]) -> dict[str, dict[str, object]]:
    """Return the golden list of several runs: all that one of them entered."""
    return {
        name: {
            "moves": max(run[name].moves for run in runs),
            "files": sorted(frozenset().union(*(run[name].files for run in runs))),
            "functions": sorted(
                frozenset().union(*(run[name].functions for run in runs))
            ),
        }
        for name in runs[0]
    }


def _main() -> None:
    runs = []
    for _ in range(_RUNS):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(asyncio.run(trips(Path(folder))))
    found = merged(runs)
    for name, trip in found.items():
        counts = {key: len(trip[key]) for key in ("files", "functions")}  # type: ignore[arg-type]  # lists
        sys.stderr.write(f"{name}: {counts}, {trip['moves']} moves{os.linesep}")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _main()
