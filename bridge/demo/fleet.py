"""The demo of a fleet: many forwarders, a hub with its page, and two approvals.

web-1 … web-N   one IMDS; the approval is sent to a bridge, which posts a StartRequest
db-1            another IMDS; its bridge is killed, and the hub acknowledges the event
                at Azure Resource Manager instead

The forwarders and the hub are processes, started by their commands. IMDS, Service Bus,
Event Grid and Azure Resource Manager are simulated in this process.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from msgspec import Struct, field

from bridge.demo.actors import end, secret_file
from bridge.demo.hub_page import PATIENCE, FleetError, HubPage
from bridge.demo.timeline import Line, Timeline, undone_by_signal
from bridge.demo.week import AZURE, RESOURCE, WEEK, past_messages
from bridge.simulator.arm import Arm
from bridge.simulator.errors import SimulatorError
from bridge.simulator.event_grid import EventGrid, Place
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import default_entities

# -- The configurations of the fleet demo, and how it starts its processes -------------


FORWARDER = """\
# Written by `sebridge demo --fleet`: a whole configuration of a forwarder.
[imds]
endpoint = "{imds}"
poll_interval = "1s"

[identity]
vm_name = "{name}"
vm_id = "00000000-0000-0000-0000-{number}"
resource_id = "{resource}"
location = "westeurope"

[state]
path = "{state}"

[http]
listen = ""

[events]
heartbeat = "2s"

[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "file:{bus}"
topic = "scheduled-events"

[approvals]
connection_string = "file:{bus}"
queue = "vm-approvals-sessions"
sessions = ["{{vm_id}}", "{prefix}"]
"""
HUB = """\
# Written by `sebridge demo --fleet`: a whole configuration of a hub.
[hub]
listen = "127.0.0.1:0"
store = "sqlite:{store}"

[[hub.sources]]
name = "bridges"
type = "bridges"
connection_string = "file:{bus}"
topic = "scheduled-events"
subscription = "consumer"
[hub.sources.approvals]
entities = ["vm-approvals*"]

[[hub.sources]]
name = "azure"
type = "azure"
connection_string = "file:{bus}"
queue = "azure-events"

[hub.arm]
endpoint = "{arm}"
credential = "none"

[hub.access]
approvers = ["local"]
"""


def program() -> list[str]:
    """Return the command that starts this program."""
    return [sys.executable, "-m", "bridge"]


def environ_of() -> dict[str, str]:
    """Return the environment of new processes, without the bridge's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEBRIDGE_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}


# -- The demo of a fleet: many forwarders, a hub with its page, and two approvals ------


_RUNS_FOR = 5.0  # seconds that an event is Started
_NOTICE = 900.0
_SEEN = ("scheduled", "approved", "started", "completed")


def play(count: int, *, is_ended: bool, patience: float = PATIENCE) -> int:
    """Play a fleet and show it; return the exit code.

    Args:
        count: how many forwarders; at least 3.
        is_ended: whether to end after the last step; else it runs until Ctrl-C.
        patience: how many seconds each step may take.
    """
    folder, timeline = Path(tempfile.mkdtemp(prefix="sebridge-fleet-")), Timeline()
    try:
        opened = _opened(count, folder, timeline, patience)
        return asyncio.run(_perform(opened, is_ended=is_ended))
    except (FleetError, SimulatorError) as error:
        timeline.verdict(f"Failed: {error}.", is_good=False)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        timeline.verdict("interrupted; everything is cleaned up", is_good=False)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _perform(
    opened: AbstractAsyncContextManager["Fleet"], *, is_ended: bool
) -> int:
    async with AsyncExitStack() as stack:
        with undone_by_signal() as asked:
            fleet = await stack.enter_async_context(opened)
            is_good = await fleet.perform()
        if is_good and not is_ended:
            fleet.stay()
            await asked.wait()
    return 0 if is_good else 1


@asynccontextmanager
async def _opened(
    count: int, folder: Path, timeline: Timeline, patience: float
) -> AsyncIterator["Fleet"]:
    timeline.headline(f"a fleet of {count}", "forwarders, a hub, and its page")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(default_entities()))
        web, db = (ImdsSimulator(ImdsSettings(vm_name=n)) for n in ("web-1", "db-1"))
        for imds in (web, db):
            await stack.enter_async_context(imds)
        arm = await stack.enter_async_context(Arm([web, db]))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        hub = HubPage(http, patience)
        fleet = Fleet(folder, timeline, broker, web, db, arm, hub, stack)
        for document, name in ((web, "web-1"), (db, "db-1")):
            grid = EventGrid(
                document=document,
                place=Place(vm_name=name),
                publish=lambda body: broker.put(AZURE, body),
                copies=2,
                with_foreign=True,
            )
            task = asyncio.create_task(grid.run(asyncio.Event()))
            stack.callback(task.cancel)
        await fleet.start(count)
        yield fleet


class Fleet(Struct):
    """One run of the demo.

    Attributes:
        seen: the steps of each event that the hub has shown, in order.
        ways: the requests by which an approval has reached Azure.
        processes: the hub and the forwarders, in the order of their start.
    """

    folder: Path
    timeline: Timeline
    broker: Broker
    web: ImdsSimulator
    db: ImdsSimulator
    arm: Arm
    hub: HubPage
    stack: AsyncExitStack
    count: int = 0
    seen: dict[str, list[str]] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, count: int) -> None:
        """Start the hub and the forwarders.

        Raises:
            FleetError: the hub does not start.
        """
        self.count = count
        self.stack.push_async_callback(self._end_all)
        bus = secret_file(self.folder, "servicebus", self.broker.connection_string)
        store = self.folder / "hub.db"
        text = HUB.format(bus=bus, store=store.as_posix(), arm=self.arm.url)
        hub = await self._spawn("hub", text, "hub")
        assert hub.stdout is not None  # noqa: S101 - for mypy  # nosec B101
        try:
            async with asyncio.timeout(self.hub.patience):
                self.hub.url = (await hub.stdout.readline()).decode().strip()
        except TimeoutError:
            text = f"the hub does not start in time: {self._log_end('hub')}"
            raise FleetError(text) from None
        if not self.hub.url.startswith("http://"):
            raise FleetError(f"the hub does not start: {self._log_end('hub')}")
        self.timeline.happened("hub", f"its page is {self.hub.url}")
        names = [*(f"web-{n}" for n in range(1, count)), "db-1"]
        for number, name in enumerate(names, start=1):
            imds = self.db if name == "db-1" else self.web
            text = FORWARDER.format(
                imds=imds.url,
                name=name,
                number=f"{number:012}",
                resource=RESOURCE.format(name=name),
                state=(self.folder / f"{name}.db").as_posix(),
                bus=bus,
                prefix=name.partition("-")[0],
            )
            await self._spawn(name, text, "run")
        self.timeline.happened(
            "forwarder", f"{count} processes, starting: one or two seconds for each"
        )

    async def _spawn(
        self, name: str, text: str, command: str
    ) -> asyncio.subprocess.Process:
        config = self.folder / f"{name}.toml"
        config.write_text(text, encoding="utf-8")
        with (self.folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *program(),
                command,
                "-c",
                str(config),
                env=environ_of(),
                stdout=asyncio.subprocess.PIPE if command == "hub" else log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process only
            )
        self.processes.append(process)
        return process

    async def _end_all(self) -> None:
        """End all processes at the same time: each takes about two seconds."""
        await asyncio.gather(*map(end, self.processes))

    def _log_end(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        lines = path.read_text("utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it has logged nothing"

    async def perform(self) -> bool:
        """Play both events; return whether the hub saw every step.

        Raises:
            FleetError: a step did not happen in time.
        """
        alive = f"{self.count} bridges alive"
        await self.hub.until(alive, self.hub.has(self.count, "alive"))
        self.timeline.happened("hub", alive)
        await self._past_week()
        await self._by_bridge()
        await self._by_arm()
        return self._summarize()

    async def _past_week(self) -> None:
        """Tell the hub of a week that is over, and wait for its report."""
        now = time.time()
        for past in WEEK:
            for entity, body in past_messages(past, now):
                self.broker.put(entity, body)
        down = sum(past.down for past in WEEK)
        paused = sum(past.paused for past in WEEK)
        is_reported = self.hub.reports(down, paused)
        await self.hub.until("the report of a week", is_reported)
        self.timeline.happened(
            "hub", f"last week: {down:g} s down, {paused:g} s paused"
        )

    async def _by_bridge(self) -> None:
        """Announce an event of two machines, and approve it through a bridge."""
        resources = ("web-1", "web-2")
        event_id = self._announce(self.web, "Redeploy", resources)
        reached = asyncio.Event()
        self.web.on_approved.append(lambda _: reached.set())
        await self._await_shown(event_id, "web", "scheduled")
        await self._approve(event_id, "web", "bridge")
        try:
            async with asyncio.timeout(self.hub.patience):
                await reached.wait()
        except TimeoutError:
            raise FleetError("no StartRequest of a bridge reached IMDS") from None
        self.ways.append("StartRequest")
        self.timeline.happened("IMDS", "StartRequest of a bridge")
        for step in ("started", "completed"):
            await self._await_shown(event_id, "web", step)

    async def _by_arm(self) -> None:
        """Kill the bridge of a machine, and approve its event through Azure."""
        event_id = self._announce(self.db, "Reboot", ("db-1",))
        await self._await_shown(event_id, "db", "scheduled")
        self.processes[-1].kill()
        self.timeline.happened("forwarder", "the process of db-1 is killed")
        await self.hub.until("db-1 silent", self.hub.has(1, "silent"))
        self.timeline.happened("hub", "db-1 is silent")
        await self._approve(event_id, "db", "arm")
        for step in ("started", "completed"):
            await self._await_shown(event_id, "db", step)
        if any("acknowledge" in one.path for one in self.arm.requests):
            self.ways.append("acknowledge")

    def _announce(
        self, imds: ImdsSimulator, kind: str, resources: tuple[str, ...]
    ) -> str:
        life = EventLife(
            event_type=kind,
            resources=resources,
            notice_seconds=_NOTICE,
            started_seconds=_RUNS_FOR,
            description="Host maintenance, made up by the demo",
        )
        event = imds.schedule(life)
        self.timeline.happened("IMDS", f"{kind} of {', '.join(resources)} is announced")
        return event.event_id

    async def _await_shown(self, event_id: str, name: str, status: str) -> None:
        is_shown = self.hub.shows(event_id, status)
        await self.hub.until(f"{name}: {status}", is_shown)
        self._record(name, status)

    async def _approve(self, event_id: str, name: str, via: str) -> None:
        """Approve with the hub's API, as a program does, and wait for the outcome."""
        hub = self.hub
        is_accepted = hub.approves(event_id, via, "the demo says so")
        await hub.until(f"{name}: approval taken", is_accepted)
        self.timeline.happened("approver", f"POST …/approval, via {via}")
        await hub.until(f"{name}: approved", hub.has_done(event_id))
        self._record(name, "approved")

    def _record(self, name: str, step: str) -> None:
        self.seen.setdefault(name, []).append(step)
        self.timeline.happened("hub", f"{name}: {step}")

    def _summarize(self) -> bool:
        """Show the result; return whether every step was seen."""
        lines = [
            Line(
                channel=f"hub, {name}",
                expected=list(_SEEN),
                seen=self.seen.get(name, []),
                latencies=[],
            )
            for name in ("web", "db")
        ]
        ways = ["StartRequest", "acknowledge"]
        lines.append(Line(channel="Azure", expected=ways, seen=self.ways, latencies=[]))
        self.timeline.summary(lines)
        is_good = not any(line.missing for line in lines)
        words = "The hub saw every step, and both approvals reached Azure."
        self.timeline.verdict(words if is_good else "Failed.", is_good=is_good)
        return is_good

    def stay(self) -> None:
        """Announce one more event, which the user can approve on the page."""
        self._announce(self.web, "Freeze", ("web-1", "web-2"))
        self.timeline.commands(
            "The demo runs until Ctrl-C.",
            [
                (self.hub.url, "the page: approve the Freeze"),
                (f"{self.hub.url}/report", "the report of last week"),
                (f"{self.hub.url}/machines?name=web-1", "why was web-1 down?"),
            ],
        )
