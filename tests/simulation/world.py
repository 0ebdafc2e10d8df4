"""One run: lives of the forwarder, one after the other, until all is quiet."""

import asyncio
import contextlib
import gc
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.approvals.auto_approve import Autopilot
from bridge.approvals.context import Desk
from bridge.approvals.listener import Listener
from bridge.approvals.policy import Terms
from bridge.approvals.posting import Poster
from bridge.approvals.reply import ReplyRules
from bridge.approvals.rules import Rule
from bridge.approvals.waits import Waits
from bridge.events.routing import Route, Router, When
from bridge.foundation.retry import RetryPolicy
from bridge.foundation.values import Duration
from bridge.foundation.workers import Worker, run_workers
from bridge.outbox.records import CHECKPOINT, REPLIES, Decision
from bridge.outbox.statements import load
from bridge.outbox.store import Outbox
from bridge.pipeline.housekeeping import Upkeep
from bridge.pipeline.policy import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.builders import ME, observed, teller_of
from tests.simulation.approval_queue import Broker, SimulatedQueue
from tests.simulation.edges import (
    Azure,
    Imds,
    Shown,
    SimulatedSink,
    Taken,
    Tried,
)
from tests.simulation.machine import CrashError, InlineDatabase, open_now
from tests.simulation.oracle import judge
from tests.simulation.plan import (
    ALLOW_DELAY,
    AUTO_DELAY,
    POLL,
    Plan,
    plan_of,
)
from tests.simulation.rows import Row
from tests.simulation.timeline import StuckError, VirtualClock, VirtualLoop, Wall

ROUTES = {
    "steady": Route(when=When(), scope="all", lifecycle=True),
    "shaky": Route(when=When(), scope="all", lifecycle=True),
    "reboots": Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True),
}
ENTITY = "vm-approvals"
_PATIENCE = 4 * 3600.0
_MOST_CRASHES = 8
_TAKEN_OVER = 14  # what came with one look, before the disk was found to hang
_DELICATE = {"post": 10, "posted": 20, "settle": 10, "settled": 10, "delivered": 3}
_RULES = (
    Rule(name="never", action="deny", event_types=("Redeploy",)),
    Rule(
        name="soon",
        action="auto-approve",
        event_types=("Freeze",),
        delay=Duration(AUTO_DELAY),
    ),
    Rule(name="later", action="allow", delay=Duration(ALLOW_DELAY)),
)


_ROWS = """SELECT d.id, d.sink, d.key, i.id, i.kind, i.body
    FROM deliveries d JOIN items i ON i.id = d.item WHERE d.id > ? ORDER BY d.id"""


@dataclass(slots=True)
class World:
    """Everything that outlives a life of the forwarder."""

    plan: Plan
    path: Path
    azure: Azure
    broker: Broker
    wall: Wall = field(default_factory=Wall)
    now: float = 0.0
    crashes: int = 0
    lives: list[tuple[float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when each began nothing more
    looks: list[Shown] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    requests: list[tuple[float, int]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    last_row: int = 0
    lost: int = 0
    refused: set[tuple[str, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    jumped: int = 0

    def blame(self, what: str) -> None:
        """Note what must never happen."""
        self.faults.append(f"{self.now:.1f} s: {what}")


class WatchedOutbox(Outbox):
    """An outbox that shows the judge which POSTs were begun, by its marks on disk."""

    marked: set[str]

    async def intend(self, decision: Decision, *, now: float) -> None:
        if decision.posted:
            self.marked.add(decision.key)
        await super().intend(decision, now=now)


@dataclass(slots=True)
class Life:
    """One life of the forwarder: from its start to its stop, or its death."""

    world: World
    number: int
    clock: VirtualClock
    is_dead: bool = False
    is_done: bool = False
    moments: int = 0
    stopped_at: float = float("inf")
    imds: Imds = field(init=False)
    database: InlineDatabase = field(init=False)
    _checkpoint: bytes | None = None
    _since: int = 0  # the last delivery that the disk has
    _loop: VirtualLoop = field(init=False)

    def __post_init__(self) -> None:
        self.imds = Imds(self)

    def now(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def moment(self, what: str) -> None:
        """Pass a moment at which the process may be killed."""
        world = self.world
        if self.is_dead:
            raise CrashError(what)
        world.now = self.now()
        self.moments += 1
        if not world.plan.has("crashes") or world.crashes >= _MOST_CRASHES:
            return
        luck = world.plan.chance("crash", self.number, self.moments)
        rate = world.plan.crash_rate * _DELICATE.get(what, 1)
        if luck < rate and world.now < world.plan.end:
            world.crashes += 1
            raise CrashError(what)

    def is_disk_full(self) -> bool:
        """Whether the disk has no room now."""
        begin, end = self.world.plan.full
        return begin <= self.now() < end

    def committed(self) -> None:
        """Note what is on disk by now: the document, if it has changed, and rows."""
        self._note_rows()
        checkpoint = load(self.database.connection, CHECKPOINT)
        if checkpoint != self._checkpoint and self.imds.shown is not None:
            is_durable = not self.database.is_degraded
            self.world.shown.append(replace(self.imds.shown, is_durable=is_durable))
        self._checkpoint = checkpoint

    def _note_rows(self) -> None:
        world = self.world
        for *row, body in self.database.connection.execute(_ROWS, (world.last_row,)):
            number, sink, key, item, kind = row
            told = json.loads(body)
            world.last_row = number
            is_durable = not self.database.is_degraded
            self._judge_room(number, is_durable=is_durable)
            world.rows[number] = Row(
                number, sink, key, item, kind, told, self.now(), self.number, is_durable
            )
            said = told.get("data", {}).get("durable", True)
            if kind == "event" and said and not is_durable:
                world.blame(f"{told['type']} of memory is said to be durable")

    def _judge_room(self, number: int, *, is_durable: bool) -> None:
        """Blame memory that takes more events than there is room for."""
        if is_durable:
            self._since = number
            return
        query = "SELECT count(DISTINCT item) FROM deliveries WHERE id > ?"
        (waiting,) = self.database.connection.execute(query, (self._since,)).fetchone()
        room = self.world.plan.room
        if waiting > room + room // 10 + _TAKEN_OVER:
            self.world.blame(f"{waiting} events wait in memory, where {room} may")

    def live(self) -> None:
        """Live until all is quiet, a planned stop, or death."""
        world = self.world
        began = world.now
        self._loop = VirtualLoop(began)
        try:
            self._loop.run_until_complete(self._run())
        except CrashError:
            pass
        except StuckError:
            world.blame("everybody waits for nothing")
            self.is_done = True
        finally:
            world.now = self.now()
            self.is_dead = True
            self._bury()
        world.lives.append((began, world.now))
        world.ends.append(min(self.stopped_at, world.now))

    def _bury(self) -> None:
        """Let nothing of this life run on."""
        self.database._is_closed = True
        keeper = self.database.keeper
        for opened in (keeper.file, keeper.mirror):
            if opened:
                opened.close()
        self._loop.set_exception_handler(lambda *_: None)
        end_all(self._loop)
        self._loop.close()
        gc.collect()  # now, and not within a later life, whose loop would be found

    async def _run(self) -> None:
        self.database = open_now(self)
        stop = asyncio.Event()
        workers = await self._workers()
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._jump()),
                group.create_task(self._send()),
                group.create_task(self._end(stop)),
            ]
            await run_workers(workers, stop, grace=10.0)
            for task in others:
                task.cancel()
        self.database.heal_now()
        self.database.keeper.close()

    async def _workers(self) -> list[Worker]:
        plan = self.world.plan
        metrics, teller = Metrics(ROUTES, "1"), teller_of()
        router = Router(routes=ROUTES, scope="all", identity=ME)
        outbox = WatchedOutbox(self.database, router)
        outbox.marked, outbox.lost = self.world.marked, self._lose
        poller, observer = observed(self.imds, outbox, teller, self.clock, metrics)
        await observer.restore()
        relays = [
            Relay(
                sink=name,
                deliver=SimulatedSink(name, self).deliver,
                outbox=outbox,
                clock=self.clock,
                metrics=metrics,
                policy=RelayPolicy(
                    backoff=RetryPolicy(max_backoff=60), max_age=plan.max_age, slots=3
                ),
                chance=lambda: plan.chance("jitter", self.number, self.moments),
            )
            for name in (*ROUTES, REPLIES)
        ]
        upkeep = Upkeep(
            outbox=outbox,
            observer=observer,
            relays=relays,
            clock=self.clock,
            metrics=metrics,
            retention=plan.retention,
            max_size=10**9,
        )
        desk = Desk(
            entity=ENTITY,
            terms=Terms(
                unknown_grace=15.0,
                max_age=4 * 3600.0,
                rules=_RULES if plan.has("rules") else (),
            ),
            abandons_unknown=False,
            replies=ReplyRules.of(["repl*", "vm-*"], [ENTITY]),
            outbox=outbox,
            teller=teller,
            watcher=poller,
            poster=Poster(
                turns=self.imds.turns,
                watcher=poller,
                starter=self.imds,
                clock=self.clock,
                poll_interval=POLL,
            ),
            waits=Waits(poller, self.clock),
            clock=self.clock,
            chance=lambda: plan.chance("pursuit", self.number, self.moments),
            count=lambda _: None,
        )
        listener = Listener(SimulatedQueue(self), desk)
        autopilots = [Autopilot(desk)] if plan.has("rules") else []
        return [poller, upkeep, *relays, listener, *autopilots]

    def _lose(self, sink: str) -> None:
        self.world.lost += 1

    async def _jump(self) -> None:
        """Set the wall clock when the plan says so."""
        world = self.world
        for at, by in sorted(world.plan.jumps)[world.jumped :]:
            await asyncio.sleep(max(0.0, at - self.now()))
            world.wall.offset += by
            world.jumped += 1

    async def _send(self) -> None:
        """Send what somebody approves, when the plan says so."""
        broker = self.world.broker
        for planned in self.world.plan.approvals[len(broker.messages) :]:
            await asyncio.sleep(max(0.0, planned.at - self.now()))
            seen = self.world.azure.show(self.now()).get(planned.event_id)
            broker.put(replace(planned, at=self.now()), seen)

    async def _end(self, stop: asyncio.Event) -> None:
        """Ask to stop when the plan says so, or when all is quiet."""
        world, plan = self.world, self.world.plan
        planned = [at for at in plan.stops if at > self.now()]
        if planned:
            await asyncio.sleep(planned[0] - self.now())
            self._stop(stop)
            return
        await asyncio.sleep(max(20.0, plan.end + 10 - self.now()))
        while not (self._is_delivered() and world.broker.is_quiet()):
            if self.now() > plan.end + _PATIENCE:
                world.blame("it never comes to rest")
                break
            await asyncio.sleep(20)
        self.is_done = True
        self._stop(stop)

    def _stop(self, stop: asyncio.Event) -> None:
        self.stopped_at = self.now()
        stop.set()

    def _is_delivered(self) -> bool:
        if self.database.is_degraded:
            return False
        query = "SELECT count(*) FROM deliveries WHERE state = 'pending'"
        (pending,) = self.database.connection.execute(query).fetchone()
        return not pending


def end_all(loop: VirtualLoop) -> None:
    """Close the coroutines of a loop that will never run again."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own
        coroutine = task.get_coro()
        for _ in range(10):
            try:
                coroutine.close()
                break
            except BaseException:  # noqa: BLE001, S112 - its last words
                continue


def run(seed: int) -> World:
    """Run a seed to its end; what went wrong stands in ``faults``."""
    plan = plan_of(seed)
    with quiet(), tempfile.TemporaryDirectory(dir=_fast()) as folder:
        world = World(plan, Path(folder) / "state.db", Azure(plan), Broker(plan))
        for number in range(20):
            life = Life(world, number, VirtualClock(world.wall))
            life.live()
            if life.is_done:
                break
            world.now += 30 * plan.chance("downtime", number)
            for message in world.broker.messages:
                if message.locked_by == number:
                    message.again_at = min(message.again_at, world.now)
        else:
            world.blame("it never lived to the end")
        judge(world)
    return world


def _fast() -> str | None:
    """Return a folder in memory where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - names of its own are made in it


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the log and the last words of the dead to themselves."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
        logging.disable(before)
        sys.unraisablehook = hook
