"""A test world in which a command runs before an event, and a rule then approves.

Outbox, poller, relay and auto_approver are real; IMDS, the command and time are fake.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.context import ApprovalContext
from bridge.approvals.policy import Terms
from bridge.approvals.rotation import Rotation
from bridge.approvals.rules import ReplyRules, Rule
from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.events.routing import Route, When
from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.clock import Clock, ReferenceClock
from bridge.foundation.pace import Pace, RetryPolicy
from bridge.foundation.values import Duration
from bridge.imds.client import Answer
from bridge.imds.config import ImdsConfig
from bridge.imds.poller import Metadata, Poller
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.store import Outbox
from bridge.pipeline.acting import ActingRelay
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.observer import Observer
from bridge.sinks.command.actor import CommandActor
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.telemetry.metrics import Metrics
from tests.approvals.approval_world import counted
from tests.pipeline.acting_world import ScriptedRunner, config_of
from tests.support.book import sent_to
from tests.support.builders import (
    EVENT_ID,
    ME,
    body_of,
    event_context_of,
    imds_event,
    observed,
    router,
)
from tests.support.fakes import START, FakeClock, settled

DRAIN, SIEM = "drain", "siem"
PATIENCE = 60.0


def reboot(event_id: str = EVENT_ID, **fields: object) -> dict[str, object]:
    """Return a Reboot that names only this VM."""
    return imds_event(
        event_id, **{"EventType": "Reboot", "Resources": ["WestNO_0"], **fields}
    )


def after_rule(**fields: Any) -> Rule:
    """Return a rule that approves after the command has succeeded."""
    values: dict[str, Any] = {
        "name": "drained",
        "event_types": ("Reboot", "Redeploy"),
        "action": "auto-approve",
        "after": (DRAIN,),
        **fields,
    }
    values["delay"] = Duration(values.pop("delay", 0))
    return Rule(**values)


@dataclass
class PlayedImds:
    """A fake IMDS: shows a document and accepts StartRequests, over several runs.

    Attributes:
        done: for each POST: the commands whose success was on disk at that moment.
        hangs: whether a POST is never answered.
        time: the time of IMDS, for the Date of its answers; None = they have none.
    """

    path: Path
    events: tuple[object, ...] = ()
    incarnation: int = 1
    posts: list[str] = field(default_factory=list)
    done: list[list[str]] = field(default_factory=list)
    hangs: bool = False
    time: Callable[[], datetime] | None = None
    config: ImdsConfig = field(default_factory=ImdsConfig)

    def shows(self, *events: object) -> None:
        self.events = events
        self.incarnation += 1

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the protocol's word
        body = body_of(*self.events, incarnation=self.incarnation)
        date = None if self.time is None else self.time().replace(microsecond=0)
        return Answer(body=body, etag=None, date=date)

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        self.posts.append(event_id)
        self.done.append(self.successes())
        if self.hangs:
            await asyncio.Event().wait()
        return StartAnswer(result=StartResult.ACCEPTED, status=200)

    def successes(self) -> list[str]:
        """Return the commands with a success in the state file on disk."""
        disk = sqlite3.connect(self.path)
        try:
            query = "SELECT sink FROM command_successes ORDER BY sink"
            return [sink for (sink,) in disk.execute(query)]
        finally:
            disk.close()


@dataclass
class Life:
    """One run of a bridge on a state file, with all its workers.

    Attributes:
        file: the same state file, opened for the test.
        time: the clock of all workers.
        runner: a fake of the command; an end in ``ends``, or ``let``, ends a run.
    """

    outbox: Outbox
    file: Outbox
    imds: PlayedImds
    clock: FakeClock
    time: Clock
    runner: ScriptedRunner
    rules: tuple[Rule, ...]
    options: Mapping[str, Any]
    me: Identity
    rotation: Rotation | None
    config: CommandSinkConfig = field(init=False)
    poller: Poller = field(init=False)
    observer: Observer = field(init=False)
    relay: ActingRelay = field(init=False)
    pilot: AutoApprover = field(init=False)

    def __post_init__(self) -> None:
        self.config = config_of(name=DRAIN, **self.options)
        siem = Route(when=When(), scope="all", lifecycle=True)
        self.outbox.router = router({DRAIN: self.config.route, SIEM: siem}, self.me)
        self.poller, self.observer = observed(
            self.imds,
            self.outbox,
            event_context_of(self.me),
            self.time,
            Metrics((DRAIN, SIEM), "1", acting=(DRAIN,)),
        )
        self.relay = self._relay()
        self.poller.rules = self.pilot = AutoApprover(self.context())

    @property
    def counts(self) -> list[str]:
        return counted(self.poller.metrics)

    @property
    def identity(self) -> Identity:
        return self.me

    @property
    def document(self) -> Any:
        return self.observer.document

    @property
    def watch(self) -> Any:
        return self.observer.watch

    def _relay(self) -> ActingRelay:
        actor = CommandActor(
            terms=self.config,
            outlook=self,
            runner=self.runner,
            clock=self.time,
            account=None,
            outer={"PATH": "/bin"},
        )
        return ActingRelay(
            sink=DRAIN,
            deliver=_never,
            outbox=self.outbox,
            clock=self.time,
            metrics=self.poller.metrics,
            policy=RelayPolicy(backoff=RetryPolicy(), max_age=1, slots=1),
            chance=lambda: 0.5,
            pace=Pace(most=self.config.max_rate),
            actor=actor,
            event_context=lambda: event_context_of(self.me),
        )

    def context(self) -> ApprovalContext:
        return ApprovalContext(
            entity="",
            terms=Terms(unknown_grace=15, max_age=86400, rules=self.rules, me=self.me),
            abandons_unknown=False,
            replies=ReplyRules.of([], []),
            outbox=self.outbox,
            event_context=event_context_of(self.me),
            poller=self.poller,
            clock=self.time,
            chance=lambda: 0.5,
            rotation=self.rotation,
        )

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        """Let time pass until a condition is true."""
        async with asyncio.timeout(PATIENCE):
            while not await _truth(is_so):
                await settled(self.file)
                await self.clock.advance(0.25)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and let the workers do what is due."""
        for _ in range(int(seconds * 2)):
            await self.clock.advance(0.5)
            await settled(self.file)

    async def sees(self, *events: object) -> None:
        """Change the document, and let the poller read it."""
        self.imds.shows(*events)
        number = self.imds.incarnation
        await self.until(lambda: self.poller.watch.incarnation == number)
        await settled(self.file)

    async def ran(self, count: int = 1) -> None:
        """Wait until the command was started so many times in this world."""
        await self.until(lambda: len(self.runner.ran) >= count)

    async def published(self) -> list[CloudEvent]:
        """Return the events about outcomes, oldest first."""
        found = await self.file.database.read(lambda db: sent_to(db, SIEM))
        events = [CloudEvent.from_json(delivery.body) for delivery in found]
        return [event for event in events if ".startrequest." in event.type]

    async def outcomes(self) -> list[tuple[str, object]]:
        """Return the published outcomes with their reasons."""
        return [
            (str(event.data["outcome"]), event.data["reason"])
            for event in await self.published()
        ]

    async def has(self, outcome: str) -> bool:
        return outcome in [kind for kind, _ in await self.outcomes()]

    async def is_published(self, outcome: str) -> None:
        """Wait until an outcome is published."""
        await self.until(lambda: self.has(outcome))

    async def posted(self, posts: int) -> None:
        """Wait until IMDS has received so many StartRequests."""
        await self.until(lambda: len(self.imds.posts) >= posts)

    async def is_held(self) -> None:
        """Wait until any event is held."""
        await self.until(lambda: bool(self.pilot.withheld))

    async def states(self) -> list[str]:
        """Return the states of the command's deliveries, oldest first."""
        found = await self.file.database.read(lambda db: sent_to(db, DRAIN))
        return [delivery.state for delivery in found]


async def _truth(is_so: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = is_so()
    return found if isinstance(found, bool) else await found


async def _never(_: object) -> None:
    raise AssertionError("nothing is sent")


@dataclass
class Stage:
    """The parts that survive a run: state file, IMDS, clock, and the fake command.

    Attributes:
        follows_imds: whether IMDS's answers have a Date, which the bridge's clock
            follows, while the clock of the machine is set.
    """

    path: Path
    clock: FakeClock = field(default_factory=FakeClock)
    rules: tuple[Rule, ...] = field(default_factory=lambda: (after_rule(),))
    options: Mapping[str, Any] = field(default_factory=dict)
    me: Identity = ME
    rotation: Rotation | None = None
    follows_imds: bool = False
    imds: PlayedImds = field(init=False)
    runner: ScriptedRunner = field(init=False)

    def __post_init__(self) -> None:
        self.imds = PlayedImds(self.path)
        if self.follows_imds:
            self.imds.time = self._truth
        self.runner = ScriptedRunner(self.clock)

    def _truth(self) -> datetime:
        return START + timedelta(seconds=self.clock.monotonic() - 1000.0)

    @asynccontextmanager
    async def life(
        self,
        around: Callable[[Database], Any] = lambda database: database,
        *,
        may_degrade: bool = False,
    ) -> AsyncIterator[Life]:
        """Run a bridge; it is killed when the context is left.

        Args:
            around: makes the object that the outbox uses in place of the state file.
            may_degrade: whether the state file is kept in memory while its disk fails.
        """
        async with Database.open(File(self.path, may_degrade=may_degrade)) as database:
            outbox = await Outbox.of(around(database), router())
            life = Life(
                outbox=outbox,
                file=outbox,
                imds=self.imds,
                clock=self.clock,
                time=ReferenceClock(self.clock) if self.follows_imds else self.clock,
                runner=self.runner,
                rules=self.rules,
                options=self.options,
                me=self.me,
                rotation=self.rotation,
            )
            await life.observer.restore()
            stop = asyncio.Event()
            runs = (life.poller.run, life.relay.run)
            running = [asyncio.create_task(run(stop)) for run in runs]
            try:
                yield life
            finally:
                for task in running:
                    task.cancel()
                found = await asyncio.gather(*running, return_exceptions=True)
            for error in found:
                if isinstance(error, Exception):
                    raise error


def _doubles_fit(imds: PlayedImds) -> Metadata:
    return imds
