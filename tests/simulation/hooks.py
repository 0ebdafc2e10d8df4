"""The commands of a simulated machine: processes that are slow, fail, or never end."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import When
from bridge.events.watch import Watch
from bridge.foundation.values import Duration
from bridge.pipeline.observer import Observer
from bridge.sinks.command.actor import CommandActor
from bridge.sinks.command.process import Exit
from bridge.sinks.command.sink import CommandSinkConfig
from tests.simulation.oracle_commands import judge_begin
from tests.simulation.plan import DRAINED_TYPES, HOOK_TIMEOUT, Event
from tests.support.builders import ME

if TYPE_CHECKING:
    from tests.simulation.life import Life

DRAIN = "drain"
CONFIG = CommandSinkConfig(
    name=DRAIN,
    type="command",
    command=("/etc/sebridge/hooks/drain",),
    timeout=Duration(HOOK_TIMEOUT),
    when=When(event_types=DRAINED_TYPES),
)
_SECONDS_TO_DIE = 0.2
_TERMINATED, _KILLED = -15, -9


@dataclass(slots=True)
class HookRun:
    """A command that was run.

    Attributes:
        cause: the id of the CloudEvent that it was given.
        others: EventIds that it is told of beside its own.
        code: None while it runs, and where the forwarder died before it ended.
        stopped_here: whether the forwarder ended it.
    """

    began: float
    life: int
    key: str
    cause: str
    action: str
    transition: str
    event: Event
    others: frozenset[str] = frozenset()
    ended: float | None = None
    code: int | None = None
    stopped_here: bool = False

    @property
    def name(self) -> str:
        """What it is called by the judge."""
        span = f"{self.began:.2f} to {self.ended:.2f} s" if self.ended else "now"
        why = f"{self.action} of {self.key} ({self.transition})"
        return f"{why}, {span} in life {self.life}, code {self.code}"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a command is decided by."""

    observer: Observer
    identity: Identity = ME

    @property
    def document(self) -> Document | None:
        """The last good document of this life."""
        return self.observer.document

    @property
    def watch(self) -> Watch:
        """What is known after it."""
        return self.observer.watch


@dataclass(frozen=True, slots=True)
class SimulatedRunner:
    """Runs commands as the seed will have it."""

    life: "Life"

    async def run(
        self,
        command: tuple[str, ...],
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run a command to its end, by itself or not."""
        assert command == CONFIG.command
        life, world = self.life, self.life.world
        life.moment("hook")
        run = _run_of(life, json.loads(given), environment)
        number = len(world.runs)
        judge_begin(life, run)
        world.runs.append(run)
        seconds, code = _fate(life, number)
        try:
            was_stopped = await life.clock.wait(stop, min(seconds, limit))
            timed_out = not was_stopped and seconds > limit
            run.stopped_here = was_stopped or timed_out
            if run.stopped_here:
                await asyncio.sleep(_SECONDS_TO_DIE)
            life.moment("hook ends")
            run.code = _TERMINATED if run.stopped_here else code
        finally:
            run.ended = life.now()  # it dies with the forwarder
        return Exit(
            code=run.code,
            timed_out=timed_out,
            was_stopped=was_stopped,
            seconds=run.ended - run.began,
        )


def _run_of(life: "Life", event: Event, environ: Mapping[str, str]) -> HookRun:
    data = event["data"]
    return HookRun(
        began=life.now(),
        life=life.number,
        key=data["event"]["EventId"].upper(),
        cause=event["id"],
        action=environ["SEBRIDGE_ACTION"],
        transition=data["transition"],
        event=data["event"],
        others=frozenset(environ["SEBRIDGE_OTHER_EVENTS"].split()),
    )


def _fate(life: "Life", number: int) -> tuple[float, int]:
    """Return how long a run takes by itself, and how it ends."""
    plan = life.world.plan
    pace, luck = plan.chance("hook takes", number), plan.chance("hook ends", number)
    seconds = 2 * pace / 0.5
    if pace > 0.5:
        seconds = 5 + 30 * (pace - 0.5)
    if pace > 0.9:
        seconds = 10 * HOOK_TIMEOUT  # it hangs
    if number >= plan.fails_from:
        return 2 * pace, 1
    if luck > 0.3:
        return seconds, 0
    return seconds, 75 if luck > 0.15 else 1 if luck > 0.05 else _KILLED


def actor_of(life: "Life", observer: Observer) -> CommandActor:
    """Return who runs the commands of a life."""
    return CommandActor(
        terms=CONFIG,
        outlook=Outlook(observer),
        runner=SimulatedRunner(life),
        clock=life.clock,
        account=None,  # the program is no file here
        outer={},
    )
