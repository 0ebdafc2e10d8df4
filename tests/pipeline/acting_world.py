"""The relay of a command against the real outbox, with a runner that runs nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge.events.build import OutgoingEvent, from_transition
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import Route, When
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.pace import Pace, RetryPolicy
from bridge.outbox.questions import Selection
from bridge.outbox.store import Outbox
from bridge.pipeline.acting import ActingRelay
from bridge.pipeline.attempt import RelayPolicy
from bridge.sinks.command.actor import CommandActor
from bridge.sinks.command.process import Exit
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.telemetry.metrics import Metrics
from tests.support.book import Book
from tests.support.builders import (
    EVENT_ID,
    ME,
    document,
    event_context_of,
    imds_event,
    patient_outbox,
    router,
    started,
)
from tests.support.fakes import FakeClock, settled

OTHER = "AAAAAAAA-0000-4000-8000-000000000001"
DRAIN, SIEM = "drain", "siem"
POLL = 1.0


@dataclass
class ScriptedRunner:
    """Runs nothing: it notes what is run, and ends as it is told.

    Attributes:
        ends: the ends to come; where there is none, a run waits for ``let``.
        ran: the environment of each run.
    """

    clock: FakeClock
    ends: list[Exit] = field(default_factory=list)
    ran: list[Mapping[str, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    let: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(
        self,
        command: tuple[str, ...],
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        assert orjson.loads(given)["id"] == environment["SEBRIDGE_ID"]
        self.ran.append(environment)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self.ends:
                return self.ends.pop(0)
            stopping = asyncio.ensure_future(stop.wait())
            letting = asyncio.ensure_future(self.let.wait())
            await asyncio.wait({stopping, letting}, return_when=asyncio.FIRST_COMPLETED)
            was_stopped = stopping.done()
            stopping.cancel()
            letting.cancel()
            return Exit(code=-15, was_stopped=True) if was_stopped else Exit(code=0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    @property
    def actions(self) -> list[tuple[str, str]]:
        return [(e["SEBRIDGE_ACTION"], e["SEBRIDGE_TRANSITION"]) for e in self.ran]


@dataclass
class World:
    """A document, an outbox, and the relay of one command, moved by hand."""

    outbox: Outbox
    clock: FakeClock
    runner: ScriptedRunner
    metrics: Metrics
    group: asyncio.TaskGroup
    config: CommandSinkConfig
    path: Path
    identity: Identity = ME
    document: Document | None = None
    watch: Watch = field(default_factory=Watch)
    incarnation: int = 1
    relay: ActingRelay = field(init=False)

    def __post_init__(self) -> None:
        self.outbox.router = router(
            {
                DRAIN: self.config.route,
                SIEM: Route(when=When(), scope="all", lifecycle=True),
            },
            self.identity,
        )
        self.relay = self.new_relay()

    def new_relay(self) -> ActingRelay:
        actor = CommandActor(
            terms=self.config,
            outlook=self,
            runner=self.runner,
            clock=self.clock,
            account=None,
            outer={"PATH": "/bin", "SECRET": "x"},
        )
        return ActingRelay(
            sink=DRAIN,
            deliver=_never,
            outbox=self.outbox,
            clock=self.clock,
            metrics=self.metrics,
            policy=RelayPolicy(backoff=RetryPolicy(), max_age=1, slots=1),
            chance=lambda: 0.5,
            pace=Pace(),
            actor=actor,
            event_context=lambda: event_context_of(self.identity),
        )

    def begin_new_life(self) -> None:
        """Forget what only a process knows."""
        self.document = None
        seen = self.watch.seen and Moment(at=self.watch.seen.at, monotonic=None)
        self.watch = Watch(
            incarnation=self.watch.incarnation, known=self.watch.known, seen=seen
        )
        self.relay = self.new_relay()

    async def see(self, *events: object, looks: bool = True) -> None:
        """Read a document, commit its steps, and let the relay look."""
        self.clock.pass_by(POLL)
        self.incarnation += 1
        found = document(*events, incarnation=self.incarnation)
        at = self.clock.now()
        moment = Moment(at=at, monotonic=self.clock.monotonic())
        watch, steps = diff(self.watch, found, moment, poll_interval=POLL)
        published = [
            from_transition(
                event_context_of(self.identity),
                step,
                incarnation=self.incarnation,
                observed_at=at,
                repeats=0,
            )
            for step in steps
        ]
        await self.commit(*published)
        self.watch, self.document = watch, found
        if looks:
            await self.look()

    async def commit(self, *events: OutgoingEvent) -> None:
        await self.outbox.commit(events, now=self.clock.now().timestamp())

    async def look(self) -> float:
        """Look until nothing more happens by itself; return when to look again."""
        news = self.outbox.wakeups.of(DRAIN)
        wait = 0.0
        while wait <= 0 or news.is_set():
            wait = await self.relay.step(self.group)
            await settled(self.outbox)
            await asyncio.to_thread(int)  # after who looks at who may write it
            await settled(self.outbox)
        return wait

    async def later(self, seconds: float) -> None:
        self.clock.pass_by(seconds)
        await self.look()

    async def states(self) -> list[str]:
        found = await Book(self.outbox).find(Selection(sink=DRAIN))
        return [delivery.state for delivery in found]

    async def results(self) -> list[dict[str, Any]]:
        """Return what the other sink got of commands, in order."""
        found = await Book(self.outbox).find(Selection(sink=SIEM))
        bodies = [orjson.loads(delivery.body) for delivery in found]
        return [body for body in bodies if ".command." in body["type"]]

    async def outcomes(self) -> list[tuple[str, str]]:
        return [
            (body["type"].split(".")[2], body["data"]["transition"])
            for body in await self.results()
        ]

    async def successes(self, key: str = EVENT_ID) -> list[str]:
        return [s.sink for s in await self.outbox.commands.successes(key)]

    def count(self, outcome: str) -> float:
        labels = {"sink": DRAIN, "outcome": outcome}
        return (
            self.metrics.registry.get_sample_value("sebridge_commands_total", labels)
            or 0.0
        )


async def _never(_: object) -> None:
    raise AssertionError("nothing is sent")


def config_of(**options: object) -> CommandSinkConfig:
    values: dict[str, Any] = {
        "name": DRAIN,
        "type": "command",
        "command": ("/hooks/drain",),
        **options,
    }
    return CommandSinkConfig(**values)


def reboot(event_id: str = EVENT_ID, **fields: object) -> dict[str, object]:
    return imds_event(event_id, **{"EventType": "Reboot", **fields})


def rebooting() -> dict[str, object]:
    return started(EventType="Reboot")


Make = Callable[..., "World"]


@asynccontextmanager
async def worlds(path: Path) -> AsyncIterator[Make]:
    """Yield what makes a world, with options of the command."""
    in_turn = ThreadPoolExecutor(max_workers=1)  # one thing after another
    asyncio.get_running_loop().set_default_executor(in_turn)
    async with patient_outbox(path, router()) as outbox, asyncio.TaskGroup() as group:

        def made(**options: object) -> World:
            clock = FakeClock()
            return World(
                outbox=outbox,
                clock=clock,
                runner=ScriptedRunner(clock),
                metrics=Metrics((DRAIN, SIEM), "1", acting=(DRAIN,)),
                group=group,
                config=config_of(**options),
                path=path,
            )

        yield made
        for task in asyncio.all_tasks():
            if task.get_name().startswith("relay:drain:"):
                task.cancel()
