"""Two hubs on one store, bridges, Azure and people, on virtual time."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from bridge.hub.access import AccessConfig, AccessRule, Person
from bridge.hub.choices import Approval, VoteRequest, VoteResult
from bridge.hub.config import ArmConfig, HubConfig
from bridge.hub.decisions import Claimed, CurrentEvent, DecisionState, End, Result
from bridge.hub.metrics import HubMetrics
from bridge.hub.sending import Dispatcher
from bridge.hub.store import engine
from bridge.hub.store.current import current_event
from bridge.hub.store.deciding import handle_vote
from bridge.hub.store.intake import keep
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.start import migrate
from bridge.hub.store.store import Pool, Store
from bridge.hub.store.tables import decisions
from bridge.hub.view_rows import Situation
from tests.hub.simulation.oracle import Oracle, is_worse
from tests.hub.simulation.plan import END, PEOPLE, TWO, Act, Plan, Raw
from tests.simulation.timeline import VirtualClock, VirtualLoop, Wall
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, outcome, step, vm
from tests.support.hub import BUS, beat, grid, offer, received

T = TypeVar("T")
_MOST_CRASHES = 6
_BEAT = 10.0  # seconds between heartbeats
_ENTITY = "vm-approvals"

CONFIG = HubConfig(
    access=AccessConfig(
        mode="header",
        trusted_proxies=("10.0.0.1",),
        approvers=PEOPLE,
        rules=(AccessRule(event_types=TWO, persons=2),),
    ),
    arm=ArmConfig(endpoint="http://127.0.0.1:1", credential="none"),
    sources=(BUS,),
)


class CrashError(BaseException):
    """A hub dies at this moment."""


class Shaky(Store, frozen=True, kw_only=True):
    """A store that a hub may die before, and after, each commit of."""

    hub: "Hub"

    async def write(self, work: Callable[[Connection], T]) -> T:
        await self.hub.moment()
        found = await Store.write(self, work)
        self.hub.world.committed(found)
        await self.hub.moment()
        return found

    async def read(self, work: Callable[[Connection], T]) -> T:
        await self.hub.moment()
        return await Store.read(self, work)


@dataclass(slots=True, eq=False)
class Hub:
    """One life of a hub."""

    world: "World"
    is_dead: bool = False
    store: Shaky = field(init=False)
    dispatcher: Dispatcher = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        self.store = Shaky(
            writer=world.writer,
            reader=world.reader,
            writing=Pool(1, "none"),  # its threads are not used
            reading=Pool(1, "none"),  # as above
            hub=self,
        )
        self.dispatcher = Dispatcher(
            store=self.store,
            config=CONFIG,
            clock=world.clock,
            metrics=HubMetrics(("b",), "1"),
            situation=world.situation,
            transports={"bridge": self, "arm": self},
        )

    async def moment(self) -> None:
        """Pass a moment at which others act, and at which the hub may die."""
        world = self.world
        if self.is_dead:
            raise CrashError
        await asyncio.sleep(world.dice.choice((0.0, 0.0, 0.01, 0.4)))
        if self.is_dead:
            raise CrashError
        is_late = world.crashes >= _MOST_CRASHES or world.time > 250
        if not is_late and world.dice.random() < world.plan.crash_rate:
            world.crashes += 1
            self.is_dead = True
            raise CrashError

    async def live(self) -> None:
        """Send decisions until it dies."""
        while self.world.time < END:
            await self.dispatcher.step()
            await asyncio.sleep(self.world.dice.uniform(1, 8))

    async def ask(self, ask: VoteRequest) -> VoteResult:
        def work(
            connection: Connection,
        ) -> tuple[VoteRequest, VoteResult, CurrentEvent | None]:
            seen = current_event(connection, ask.key)
            return (
                ask,
                handle_vote(connection, ask, CONFIG, self.world.situation()),
                seen,
            )

        return (await self.store.write(work))[1]

    async def send(self, claimed: Claimed) -> Result:
        await self.moment()
        self.world.oracle.sends(claimed, self.world.time)
        luck = self.world.dice.random()
        if luck < 0.1:
            return Result(fault="away", retry_after=3)
        end = self.world.take(claimed)
        await self.moment()
        if luck < 0.2:
            return Result(fault="in doubt", retry_after=3)
        return Result(end=end) if end else Result(is_accepted=True)


@dataclass(slots=True, eq=False)
class World:
    """Everything there is in one run."""

    plan: Plan
    path: Path
    oracle: Oracle = field(init=False)
    hubs: list[Hub] = field(default_factory=list)
    crashes: int = 0
    asked: int = 0
    offers: set[int] = field(init=False)
    handled: dict[str, str] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(Wall()))
    tasks: set[Any] = field(default_factory=set)
    writer: Any = None
    reader: Any = None

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.plan)
        self.offers = {n for n, late in enumerate(self.plan.late) if not late}
        self.writer = engine.open_sqlite(self.path, writes=True)
        self.reader = engine.open_sqlite(self.path, writes=False)

    @property
    def dice(self) -> Any:
        return self.plan.dice

    @property
    def time(self) -> float:
        return self.clock.monotonic()

    def situation(self) -> Situation:
        return Situation(now=self.clock.now(), listening={"b": at(-600)})

    def current(self) -> CurrentEvent | None:
        with self.reader.begin() as connection:
            return current_event(connection, EVENT_ID)

    def committed(self, found: object) -> None:
        """Tell the judge what has just been committed."""
        if isinstance(found, tuple):
            ask, answer, seen = found
            self.oracle.answered(ask, answer, seen)
            return
        current = self.current()
        self.oracle.stands(current)
        if isinstance(found, Claimed) and current is not None:
            self.oracle.claimed(found, current, frozenset(self.offers))

    async def run(self) -> None:
        """Let everything happen until nothing is on its way."""
        self._before()
        jobs: list[Coroutine[Any, Any, None]] = [self._hub(), self._hub()]
        jobs += [self._act(act) for act in self.plan.acts]
        jobs += [self._bridge(number) for number in (0, 1)]
        jobs += [self._azure(), self._steps()]
        await asyncio.gather(*jobs)
        await asyncio.sleep(max(END - self.time, 0.0))
        with self.reader.begin() as connection:
            rows = connection.execute(select(decisions)).all()
        self.oracle.ends({row.id: row for row in rows})

    async def _hub(self) -> None:
        """Start a hub, and another one in its place whenever it dies."""
        while self.time < END:
            hub = Hub(self)
            self.hubs.append(hub)
            try:
                await hub.live()
            except BaseException as error:
                if not _is_crash(error):
                    raise
            self.hubs.remove(hub)
            await asyncio.sleep(self.dice.uniform(0.1, 90))

    def _alive(self) -> Hub | None:
        alive = [hub for hub in self.hubs if not hub.is_dead]
        return self.dice.choice(alive) if alive else None

    async def deliver(self, message: Incoming) -> None:
        """Let a hub keep a message, again and again until one has."""
        await asyncio.sleep(self.dice.choice((0.0, 0.1, 3.0)))
        while self.time < END:
            hub = self._alive()
            if hub is not None:
                with suppress(CrashError):
                    await hub.store.keep([message])
                    if self.dice.random() < 0.9:
                        return
            await asyncio.sleep(self.dice.uniform(0.5, 5))

    async def _steps(self) -> None:
        """Tell what becomes of the event, in order and one reporter each time."""
        for one in self.plan.steps:
            await asyncio.sleep(max(one.at - self.time, 0.0))
            body = step(
                one.kind,
                one.raw,
                previous=one.previous,
                seconds=one.at,
                who=vm(self.dice.choice((0, 1))),
                repeats=one.life,
            )
            await self.deliver(received(body, self.time, reply_to=_ENTITY))

    def truth(self) -> Raw | None:
        """Return the event as IMDS shows it now; None = it is not there."""
        past = [one for one in self.plan.steps if one.at <= self.time]
        if not past or past[-1].kind in {"completed", "cancelled"}:
            return None
        return past[-1].raw

    def _rules(self, number: int) -> dict[str, object]:
        rules: list[dict[str, object]] = [{"action": "allow"}]
        if denied := self.plan.denies[number]:
            rules.insert(0, {"event_types": [denied], "action": "deny"})
        return offer(*rules)

    def _before(self) -> None:
        """Let a bridge have told its rules an hour ago, unless it tells them late."""
        known = [
            beat(
                number,
                -3600.0,
                approvals=self._rules(number) if not self.plan.late[number] else None,
                intervalSeconds=_BEAT,
            )
            for number in (0, 1)
        ]
        with self.writer.begin() as connection:
            keep(connection, known)

    async def _bridge(self, number: int) -> None:
        """Be heard, and tell the rules, until it dies."""
        while self.time < self.plan.dies[number]:
            knows = self.time >= self.plan.late[number]
            approvals = self._rules(number) if knows else None
            said = beat(number, self.time, approvals=approvals, intervalSeconds=_BEAT)
            await self.deliver(said)
            if knows:
                self.offers.add(number)
            await asyncio.sleep(_BEAT)

    async def _azure(self) -> None:
        """Let Azure tell of the event every now and then."""
        while self.time < 300:
            raw = self.truth()
            if raw is not None and raw["EventStatus"] != "Started":
                body = azure("Scheduled", raw, seconds=round(self.time, 3))
                await self.deliver(grid(body, self.time))
            await asyncio.sleep(20)

    async def _act(self, act: Act) -> None:
        """Look at the event, think, and decide; again where a hub dies over it."""
        await asyncio.sleep(act.at)
        seen = self.current()
        if seen is None:
            return
        await asyncio.sleep(act.thinks)
        for _ in range(3):
            self.asked += 1
            ask = VoteRequest(
                key=EVENT_ID,
                asked=Approval(decision=act.action, content=seen.content, via=act.via),
                person=Person(id=act.who, name=act.who, may_decide=True),
                id=f"{self.asked:032x}",
            )
            hub = self._alive()
            if hub is not None:
                with suppress(CrashError):
                    await hub.ask(ask)
                    return
            await asyncio.sleep(2)

    def take(self, claimed: Claimed) -> End | None:
        """Take a decision, as the broker or ARM does."""
        if claimed.via == "arm":
            return self._acknowledge(claimed)
        task = asyncio.get_running_loop().create_task(self._relay(claimed))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return None

    def _acknowledge(self, claimed: Claimed) -> End:
        raw = self.truth()
        state, what = DecisionState.DONE, "acknowledged"
        if raw is None:
            state, what = DecisionState.FAILED, "unknown-event"
        elif raw["EventStatus"] == "Started":
            what = "already-started"
        self.oracle.outcome(claimed.id, what)
        return End(state=state, outcome=what, reason="")

    async def _relay(self, claimed: Claimed) -> None:
        """Decide on a message as a bridge does, once, and tell the outcome."""
        await asyncio.sleep(self.dice.uniform(0.1, 12))
        if self.time > max(self.plan.dies):
            return
        what, reason = self.handled.get(claimed.id, ""), None
        if what not in {"relayed", "already-started"}:
            what, reason = self._policy(claimed)
            self.handled[claimed.id] = what
        self.oracle.outcome(claimed.id, what)
        raw = self.truth() or self.plan.steps[0].raw
        body = outcome(what, claimed.id, raw, seconds=self.time, reason=reason)
        await self.deliver(received(body, self.time, reply_to=None))

    def _policy(self, claimed: Claimed) -> tuple[str, str | None]:
        raw = self.truth()
        mine = self.oracle.decided[claimed.id]
        if self.clock.now() > claimed.expires:
            return "expired", None
        if raw is None:
            return "event-ended", None
        if raw["EventStatus"] == "Started":
            return "already-started", None
        if raw["EventType"] in self.plan.denies:
            return "denied", "DeniedByRule rules[0]"
        if is_worse(mine.raw, {**raw, "NotBefore": mine.raw["NotBefore"]}):
            return "denied", "EventChanged"
        return ("relayed", None) if self.dice.random() < 0.8 else ("failed", None)


def _is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_crash(one) for one in error.exceptions)
    return isinstance(error, CrashError)


@cache
def _template() -> bytes:
    """Return a file whose schema is made."""
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        path = Path(folder) / "hub.db"
        path.touch()
        opened = engine.open_sqlite(path, writes=True)
        with opened.begin() as connection:
            migrate(connection)
        opened.dispose()
        return path.read_bytes()


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - names of its own


def run(seed: int) -> World:
    """Run a seed to its end; what went wrong stands in its oracle's faults."""
    with _quiet(), tempfile.TemporaryDirectory(dir=_fast()) as folder:
        path = Path(folder) / "hub.db"
        path.write_bytes(_template())
        world = World(Plan(seed), path)
        loop = VirtualLoop(0.0)
        try:
            loop.run_until_complete(world.run())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            for one in (world.writer, world.reader):
                one.dispose()
    return world


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
