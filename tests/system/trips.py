"""The way of one event through the code: which files and functions a process enters.

A forwarder, started as by ``sebridge run``, counts every call of a function of
``bridge/`` between two signals, in all of its threads; so does a hub for a vote. The
simulator is not counted.

Each walk has what it needs, and no more: the way of an event needs IMDS and a webhook,
and only an approval needs its queue. Documents are read so seldom that one of them is
read while an event is on its way: the one that has it. The way of an approval ends with
its settlement: its outcome is stored, and that it is sent is the way of an event. What
comes by the clock, whether there is an event or not, is left out: ``BY_THE_CLOCK`` and
the tasks of ``COUNTING``.

    python -m tests.system.trips        print the golden list, from three runs, as root

``trips.json`` is the golden list: what a walk may enter. ``test_trips.py`` compares.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.support.builders import EVENT_ID
from tests.support.configurations import approvals, config_text, toml, webhook
from tests.support.disks import Frozen, freezable
from tests.support.fleet import life, step
from tests.support.hub import offer
from tests.support.ports import free_port
from tests.system.processes import Addresses, settled, simulator_here, started

GOLDEN = Path(__file__).with_name("trips.json")
ROOT = Path(__file__).parent.parent.parent
_PATIENCE = 180.0
_QUIET = 0.3  # seconds after the last step, in which rows are settled
_POLL = "2s"  # far more than an event is on its way
_RUNS = 3

BY_THE_CLOCK = {
    "outbox/storage/database.py:Database._look",
    "outbox/storage/database.py:Database._look_in",
    "outbox/storage/database.py:Database._waits_since",
    "outbox/storage/database.py:Database._waits_since.<locals>.<listcomp>",
    "outbox/storage/journal.py:Journal.waiting",
    "outbox/storage/journal.py:ThreadDriver.is_alive",
    "hub/store/engine.py:noted",
    "hub/store/pin_rows.py:KnownPins.refresh",
    "hub/store/store.py:Store.check",
}

_HUB = """
[hub]
listen = "127.0.0.1:{port}"
store = "sqlite:{folder}/hub.db"
[[hub.sources]]
name = "b"
type = "bridges"
connection_string = "{bus}"
topic = "scheduled-events"
subscription = "consumer"
[hub.sources.approvals]
entities = ["vm-approvals"]
[hub.access]
approvers = ["local"]
"""

# Runs the program. SIGUSR1 begins to count, SIGUSR2 ends it and writes the calls.
COUNTING = """
import asyncio, json, signal, sys, threading
root, out = sys.argv.pop(1), sys.argv.pop(1)
left_out = (root + "simulator/", root + "demo/")
by_the_clock = {"upkeep", "vitals", "command socket", "store watch"}  # tasks
calls, is_on = [], False

def is_by_the_clock():
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    name = "" if task is None else task.get_name()
    return name in by_the_clock or name.startswith("locks of ")  # renewed each second

def note(frame, event, _):
    if is_on and event == "call":
        name = frame.f_code.co_filename
        is_ours = name.startswith(root) and not name.startswith(left_out)
        if is_ours and not is_by_the_clock():
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
        calls = [one for one in calls if ":".join(one) not in BY_THE_CLOCK]
        files = [file for file, _ in calls]
        return cls(
            frozenset(files),
            frozenset(f"{file}:{name}" for file, name in calls),
            sum(a != b for a, b in pairwise(files)),
        )


@dataclass
class Program:
    """A command of ``sebridge`` that counts its calls when it is asked to.

    Attributes:
        folder: where its calls are written; its log is beside its configuration.
    """

    folder: Path
    process: asyncio.subprocess.Process = None  # type: ignore[assignment]  # made in the loop

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[None]:
        """Run it; it is killed at the end."""
        with Path(arguments[-1]).with_suffix(".log").open("ab") as log:
            self.process = await started(
                *(sys.executable, "-c", COUNTING, f"{ROOT}/bridge/"),
                *(str(self._calls), *arguments),
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    @property
    def _calls(self) -> Path:
        return self.folder / "calls.json"

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


@dataclass
class Walk:
    """A forwarder that counts, between IMDS and a webhook.

    Attributes:
        has_approvals: whether it has an approval queue. Then the webhook takes only
            Reboots: the outcome of another event is stored, and delivered to nobody.
        refusals: how many of the next requests the webhook answers with 503.
        received: the transitions and outcomes that the webhook has accepted.
    """

    at: Addresses
    program: Program
    has_approvals: bool = False
    refusals: int = 0
    received: asyncio.Queue[str] = None  # type: ignore[assignment]  # made in the loop

    @asynccontextmanager
    async def running(self, state: Path) -> AsyncIterator[None]:
        self.received = asyncio.Queue()
        app = web.Application()
        app.router.add_post("/", self._receive)
        async with TestServer(app) as server:
            config = self.program.folder / "bridge.toml"
            bus = self.at.connection_string
            queue = {"approvals": approvals(bus)} if self.has_approvals else {}
            only = dict[str, Any]()
            if self.has_approvals:
                only["when"] = {"event_types": ["Reboot"]}
            config.write_text(
                config_text(
                    webhook(f"http://127.0.0.1:{server.port}/", **only),
                    imds={"endpoint": self.at.imds, "poll_interval": _POLL},
                    state=state,
                )
                + toml(queue)
            )
            async with self.program.running("run", "-c", str(config)):
                await settled(config, 0)
                await self.until("bridge.started")
                yield

    async def _receive(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.received.put_nowait(body["type"].removeprefix("sebridge."))
        return web.Response()

    async def until(self, what: str) -> None:
        """Wait until the webhook has accepted an event whose type begins so."""
        async with asyncio.timeout(_PATIENCE):
            while not (await self.received.get()).startswith(what):
                pass

    async def schedule(self, number: int, type_: str = "Reboot") -> str:
        event_id = f"00000000-0000-0000-0000-{number:012}"
        event = {"type": type_, "eventId": event_id, "notBefore": 600}
        await self.at.control("POST", "events", event)
        return event_id


async def trips(folder: Path) -> dict[str, Trip]:
    """Walk every way but the one of ``hanging``, with its files in a folder."""
    return {
        **await _delivered(folder),
        **await _approved(folder),
        **await _voted(folder),
    }


async def _delivered(folder: Path) -> dict[str, Trip]:
    async with simulator_here() as at, forwarder(at, folder / "events") as walk:

        async def failed() -> None:
            walk.refusals = 1
            await one_more(walk, 2)

        counted = walk.program.counted
        return {
            "delivered": await counted(lambda: one_more(walk, 4)),
            "first attempt fails": await counted(failed),
        }


async def _approved(folder: Path) -> dict[str, Trip]:
    """Walk with an approval, from the queue to its settlement."""
    place = folder / "approvals"
    async with (
        simulator_here() as at,
        forwarder(at, place, has_approvals=True) as walk,
    ):
        event_id = await walk.schedule(2, "Redeploy")
        await one_more(walk, 3)  # what was there before is seen by now
        await asyncio.sleep(_QUIET)

        async def approved() -> None:
            await approve(at, event_id)
            await settlement(at)

        return {"approval": await walk.program.counted(approved)}


async def hanging(folder: Path, disk: Frozen) -> dict[str, Trip]:
    """Walk with a disk that hangs at the commit of the event, and answers later."""
    state = disk.path / f"{folder.name}.db"
    async with (
        simulator_here() as at,
        forwarder(at, folder / "hanging", state=state) as walk,
    ):

        async def hung() -> None:
            disk.freeze()
            await one_more(walk, 2)
            disk.thaw()

        try:
            return {"disk hangs": await walk.program.counted(hung)}
        finally:
            disk.thaw()


async def _voted(folder: Path) -> dict[str, Trip]:
    async with simulator_here() as at:
        return {"vote": await _vote(at, folder / "hub")}


async def _vote(at: Addresses, place: Path) -> Trip:
    """Walk with a vote, from the request at the hub to the message for the bridge."""
    place.mkdir()
    config, port = place / "hub.toml", free_port()
    config.write_text(_HUB.format(port=port, folder=place, bus=at.connection_string))
    hub, url = Program(place), f"http://127.0.0.1:{port}/api/v1/events/{EVENT_ID}"

    async def voted() -> None:
        given = {"decision": "approve", "content": (await shown(url))["content"]}
        headers = {"X-Sebridge": "1"}
        asked = aiohttp.request("POST", f"{url}/approval", json=given, headers=headers)
        async with asked as found:
            assert found.status == 200
        await handed_on(at)

    async with hub.running("hub", "-c", str(config)):
        await announce(at)
        async with asyncio.timeout(_PATIENCE):
            while "content" not in await shown(url):
                await asyncio.sleep(0.05)
        await asyncio.gather(*(shown(url) for _ in range(20)))  # connections are open
        return await hub.counted(voted)


@asynccontextmanager
async def forwarder(
    at: Addresses,
    place: Path,
    *,
    state: Path | None = None,
    has_approvals: bool = False,
) -> AsyncIterator[Walk]:
    """Run a forwarder that has delivered an event: its connections are open."""
    place.mkdir()
    walk = Walk(at, Program(place), has_approvals)
    async with walk.running(state or place / "state.db"):
        await one_more(walk, 1)
        await asyncio.sleep(_QUIET)
        yield walk


async def one_more(walk: Walk, number: int) -> None:
    await walk.schedule(number)
    await walk.until("scheduledevent.scheduled")


async def approve(at: Addresses, event_id: str) -> None:
    """Put a StartRequest on the approval queue."""
    body = {"StartRequests": [{"EventId": event_id}]}
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_sender("vm-approvals") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(json.dumps(body)))


async def settlement(at: Addresses) -> None:
    """Wait until no message is left in the approval queue."""
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_receiver("vm-approvals") as receiver,
        asyncio.timeout(_PATIENCE),
    ):
        while await receiver.peek_messages(1):
            await asyncio.sleep(0.02)


async def announce(at: Addresses) -> None:
    """Say what a bridge says of itself and of an event."""
    started_ = life("started", approvals=offer(), intervalSeconds=0.0)
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_topic_sender("scheduled-events") as sender,
    ):
        for body in (started_, step("scheduled")):
            await sender.send_messages(ServiceBusMessage(body))


async def handed_on(at: Addresses) -> None:
    """Take the hub's StartRequest from the approval queue."""
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_receiver("vm-approvals") as receiver,
    ):
        (message,) = await receiver.receive_messages(1, max_wait_time=_PATIENCE)
        await receiver.complete_message(message)


async def shown(url: str) -> dict[str, str]:
    """Read an event from the hub; empty while the hub does not answer."""
    with suppress(aiohttp.ClientError):
        async with aiohttp.request("GET", url) as found:
            body: dict[str, str] = await found.json()
            return body
    return {}


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
            place = Path(folder)
            walks = asyncio.run(trips(place))
            with freezable(place) as disk:
                walks.update(asyncio.run(hanging(place, disk)))
            runs.append(walks)
    found = merged(runs)
    for name, trip in found.items():
        counts = {key: len(trip[key]) for key in ("files", "functions")}  # type: ignore[arg-type]  # lists
        sys.stderr.write(f"{name}: {counts}, {trip['moves']} moves{os.linesep}")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _main()
