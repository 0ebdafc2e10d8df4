"""The whole simulator: IMDS, broker and inbox, opened together."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TextIO

from bridge.simulator.errors import SimulatorError
from bridge.simulator.imds import ImdsSimulator
from bridge.simulator.inbox import Inbox
from bridge.simulator.instance import Machine
from bridge.simulator.scenario import Player, Scenario, load
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import default_entities, load_entities

__all__ = ["Simulator", "SimulatorError", "SimulatorOptions", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """What to open, and what to play. Port 0 = any.

    Attributes:
        servicebus_config: a file in the official emulator's Config.json format.
        scenario: a name or a file; None = an empty document.
        vm_name: of the VM in instance metadata; None = the first in the scenario.
    """

    imds_port: int = 0
    servicebus_port: int = 0
    servicebus_config: Path | None = None
    inbox_port: int = 0
    scenario: str | None = None
    speed: float = 1.0
    vm_name: str | None = None
    host: str = "127.0.0.1"


@dataclass(slots=True)
class Simulator:
    """All three, open. ``async with Simulator(options) as simulator: …``."""

    options: SimulatorOptions
    imds: ImdsSimulator = field(init=False)
    broker: Broker = field(init=False)
    inbox: Inbox = field(init=False)
    scenario: Scenario | None = field(init=False, default=None)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def play(self) -> None:
        """Play the scenario to its end, if there is one."""
        if self.scenario is not None:
            player = Player(self.imds.lifecycle, self.options.speed)
            await player.play(self.scenario, self.imds.enabled)

    def addresses(self) -> dict[str, object]:
        """Return where all three listen, as the line on standard output has it."""
        return {
            "imds": {"url": self.imds.url},
            "servicebus": {"connectionString": self.broker.connection_string},
            "inbox": {"url": self.inbox.url},
        }

    async def _open(self) -> None:
        options = self.options
        if options.speed <= 0:
            raise SimulatorError("--speed must be more than 0")
        if options.scenario is not None:
            self.scenario = load(options.scenario)
        named = options.vm_name or (self.scenario and self.scenario.vm_name)
        machine = Machine(name=named) if named else Machine()
        self.imds = await self._stack.enter_async_context(
            ImdsSimulator(options.host, options.imds_port, machine)
        )
        self.broker = await self._open_broker()
        self.inbox = await self._stack.enter_async_context(
            Inbox(options.host, options.inbox_port)
        )

    async def _open_broker(self) -> Broker:
        options = self.options
        try:
            entities = (
                load_entities(options.servicebus_config)
                if options.servicebus_config
                else default_entities()
            )
            broker = Broker(entities, host=options.host, port=options.servicebus_port)
            return await self._stack.enter_async_context(broker)
        except ValueError as error:
            raise SimulatorError(f"{options.servicebus_config}: {error}") from error
        except OSError as error:
            where = error.filename or f"{options.host}:{options.servicebus_port}"
            text = f"the broker cannot use {where}: {error.strerror}"
            raise SimulatorError(text) from error


async def serve(options: SimulatorOptions, stop: asyncio.Event, out: TextIO) -> None:
    """Run the simulator until ``stop`` is set; one line of JSON once all listen.

    Raises:
        SimulatorError: a port is taken, or a file or scenario is none.
    """
    async with Simulator(options) as simulator, asyncio.TaskGroup() as tasks:
        out.write(json.dumps(simulator.addresses()) + "\n")
        out.flush()
        playing = tasks.create_task(simulator.play(), name="scenario")
        await stop.wait()
        playing.cancel()
