"""Azure as the simulator has it: a VM with a bridge on it, a namespace, and the app.

    python -m acceptance.simulated --out FOLDER

plays the same two reboots as infra/acceptance.sh does in Azure, and records the same.
The VM is two processes, the bridge and the witness, which a reboot kills.
"""

import argparse
import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Self

from msgspec.structs import replace

from acceptance.app import KEY, app
from acceptance.story import Story
from acceptance.topic import Bus
from bridge.simulator.imds.document import Status
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.scenario import load
from bridge.simulator.serve import Simulator, SimulatorOptions

HERE = Path(__file__).parent
_CLOUD_INIT = HERE.parent / "bicep" / "cloud-init.yaml"
VM = "sebridge-vm"
_ENTITIES = HERE / "entities.json"
_LOOK = 0.1
_READY = 120.0
_IMPACT = 3.0  # seconds from Started until the VM is down: seven, by Azure's pages
_DOWN = 1.0
_GRACE = 20.0  # seconds that a process has to stop
_STAND_IN = "127.0.0.1:9470"


def bridge_toml(cloud_init: str) -> str:
    """Return the configuration that main.bicep puts on a VM, for a local broker."""
    begin = cloud_init.index(
        "content: |", cloud_init.index("/etc/sebridge/bridge.toml")
    )
    end = cloud_init.index("\n  - path:", begin)
    text = dedent(cloud_init[cloud_init.index("\n", begin) + 1 : end])
    text = re.sub(r"(?m)^client_id = .*\n|^credential = .*\n", "", text)
    text = re.sub(r"(?m)^namespace = .*$", 'connection_string = "env:BUS"', text)
    return text.replace("@SESSIONS@", '["{vm_id}"]')


def reboot() -> EventLife:
    """Return the life of a User reboot, as the scenario has it."""
    (life,) = load("user-reboot").lives
    return replace(life, resources=(VM,))


@dataclass(slots=True)
class World:
    """The simulator with a VM, used as an async context manager.

    Attributes:
        folder: of the VM: its configuration, its state, and its records.
        life: what a restart announces.
        address: of the app.
        stand_in: the port that stands in for Slack.
    """

    folder: Path
    life: EventLife = field(default_factory=reboot)
    address: str = ""
    stand_in: int = 0
    simulator: Simulator = field(
        default_factory=lambda: Simulator(
            SimulatorOptions(servicebus_config=_ENTITIES, vm_name=VM)
        )
    )
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _running: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def records(self) -> Path:
        """The records of the witness."""
        return self.folder / "witness.jsonl"

    @property
    def bus(self) -> Bus:
        """The namespace."""
        return Bus(self.simulator.broker.connection_string)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.simulator)
            self.address = await opening.enter_async_context(app(self.bus.address))
            self.stand_in = _free_port()
            self._write_config()
            opening.push_async_callback(self._halt, signal.SIGTERM)
            await self._boot()
            await self._ready()
            rebooting = asyncio.create_task(self._reboot_when_started())
            opening.push_async_callback(_end, rebooting)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        """Announce a reboot, as ``az vm restart`` does."""
        self.simulator.imds.schedule(self.life)

    def _write_config(self) -> None:
        text = bridge_toml(_CLOUD_INIT.read_text("utf-8"))
        text += (HERE / "slack.toml").read_text("utf-8")
        text = text.replace(_STAND_IN, f"127.0.0.1:{self.stand_in}")
        text += f'\n[imds]\nendpoint = "{self.simulator.imds.url}"\n'
        text += f'[state]\npath = "{(self.folder / "state.db").as_posix()}"\n'
        (self.folder / "bridge.toml").write_text(text + '[http]\nlisten = ""\n')

    async def _boot(self) -> None:
        config, imds = self.folder / "bridge.toml", self.simulator.imds.url
        witness = HERE / "witness.py"
        to = ("--out", self.records, "--imds", imds, "--port", str(self.stand_in))
        self._running = []
        await self._start("bridge", "-m", "bridge", "run", "-c", config)
        await self._start("witness", witness, *to, "--every", "0.3")

    async def _ready(self) -> None:
        """Wait until the bridge runs and the witness has recorded a document."""
        async with asyncio.timeout(_READY):
            while not self._is_ready():  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(_LOOK)

    def _is_ready(self) -> bool:
        has_begun = _has(self.folder / "bridge.log", "forwarder started")
        return has_begun and _has(self.records, '"kind": "document"')

    async def _start(self, name: str, *words: str | Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *map(str, words),
                stdout=log,
                stderr=log,
                env={**os.environ, "BUS": self.bus.address},
            )
        self._running.append(process)

    async def _halt(self, how: signal.Signals) -> None:
        for process in self._running:
            if process.returncode is None:
                process.send_signal(how)
        for process in self._running:
            try:
                async with asyncio.timeout(_GRACE):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _reboot_when_started(self) -> None:
        done = set[str]()
        while True:
            for event in self.simulator.imds.events():
                if event.status is Status.STARTED and event.event_id not in done:
                    done.add(event.event_id)
                    await asyncio.sleep(_IMPACT)
                    await self._halt(signal.SIGKILL)
                    await asyncio.sleep(_DOWN)
                    await self._boot()
            await asyncio.sleep(_LOOK)


def _has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text("utf-8")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _end_at_a_signal() -> None:
    """Let SIGTERM end everything, the processes of the VM too."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - called by a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def play(out: Path, life: EventLife) -> None:
    """Play the reboots against the simulator, and leave the records in ``out``."""
    _end_at_a_signal()
    with tempfile.TemporaryDirectory(prefix="sebridge-acceptance-") as folder:
        async with World(Path(folder), life) as world:
            story = Story(
                out=out,
                bus=world.bus,
                function=world.address,
                key=KEY,
                restart=world.restart,
            )
            await story.tell()
            shutil.copy(world.records, out / "witness.jsonl")


def main() -> int:
    """Play the reboots; return the exit code."""
    words = argparse.ArgumentParser(description="Reboot twice in the simulator.")
    words.add_argument("--out", type=Path, required=True, help="where the records go")
    words.add_argument(
        "--started",
        type=float,
        metavar="SECONDS",
        help="how long a reboot is Started (default: as in the scenario)",
    )
    given = words.parse_args()
    life = reboot()
    if given.started is not None:
        life = replace(life, started_seconds=given.started)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(play(given.out, life))
    except TimeoutError as error:
        print(f"acceptance: the simulator: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 143
    return 0


if __name__ == "__main__":
    sys.exit(main())
