"""One run: lives of the forwarder, one after the other, until all is quiet."""

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.approvals.desk import Desk
from bridge.approvals.envelope import ReplyRules
from bridge.approvals.listener import Listener
from bridge.approvals.policy import Terms
from bridge.outbox.records import CHECKPOINT
from bridge.outbox.statements import load
from bridge.outbox.store import Outbox
from bridge.poller import Poller
from bridge.relay import Relay, RelayPolicy
from bridge.retry import RetryPolicy
from bridge.routing import Route, Router, When
from bridge.telemetry import Metrics
from bridge.upkeep import Upkeep
from bridge.workers import Worker, run_workers
from tests.builders import ME, teller_of
from tests.simulation.edges import (
    Azure,
    Broker,
    Imds,
    Shown,
    SimulatedQueue,
    SimulatedSink,
    Taken,
)
from tests.simulation.machine import CrashError, InlineDatabase, open_now
from tests.simulation.oracle import judge
from tests.simulation.plan import Plan, plan_of
from tests.simulation.timeline import StuckError, VirtualClock, VirtualLoop, Wall

ROUTES = {
    "steady": Route(when=When(), scope="all", lifecycle=True),
    "shaky": Route(when=When(), scope="all", lifecycle=True),
    "reboots": Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True),
}
ENTITY = "vm-approvals"
_PATIENCE = 4 * 3600.0
_MOST_CRASHES = 4


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
    looks: list[Shown] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    refused: set[tuple[str, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    jumped: int = 0

    def blame(self, what: str) -> None:
        """Note what must never happen."""
        self.faults.append(f"{self.now:.1f} s: {what}")


@dataclass(slots=True)
class Life:
    """One life of the forwarder: from its start to its stop, or its death."""

    world: World
    number: int
    clock: VirtualClock
    is_dead: bool = False
    is_done: bool = False
    moments: int = 0
    imds: Imds = field(init=False)
    database: InlineDatabase = field(init=False)
    _checkpoint: bytes | None = None
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
        if luck < 0.002 and world.now < world.plan.end:
            world.crashes += 1
            raise CrashError(what)

    def is_disk_full(self) -> bool:
        """Whether the disk has no room now."""
        begin, end = self.world.plan.full
        return begin <= self.now() < end

    def committed(self) -> None:
        """Note which document is on disk, if that has changed."""
        checkpoint = load(self.database.connection, CHECKPOINT)
        if checkpoint != self._checkpoint and self.imds.shown is not None:
            is_durable = not self.database.is_degraded
            self.world.shown.append(replace(self.imds.shown, is_durable=is_durable))
        self._checkpoint = checkpoint

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

    def _bury(self) -> None:
        """Let nothing of this life run on."""
        self.database._is_closed = True
        for connection in (
            self.database._file,
            self.database._memory and self.database._memory.twin,
        ):
            if connection:
                connection.close()
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
        self.database._finish()

    async def _workers(self) -> list[Worker]:
        plan = self.world.plan
        metrics, teller = Metrics(ROUTES, "1"), teller_of()
        router = Router(routes=ROUTES, scope="all", identity=ME)
        outbox = Outbox(self.database, router)
        poller = Poller(
            client=self.imds,
            outbox=outbox,
            teller=teller,
            clock=self.clock,
            metrics=metrics,
        )
        await poller.restore()
        relays = [
            Relay(
                sink=name,
                deliver=SimulatedSink(name, self).deliver,
                outbox=outbox,
                clock=self.clock,
                metrics=metrics,
                policy=RelayPolicy(
                    backoff=RetryPolicy(max_backoff=60), max_age=86400, slots=3
                ),
                chance=lambda: plan.chance("jitter", self.number, self.moments),
            )
            for name in ROUTES
        ]
        upkeep = Upkeep(
            outbox=outbox,
            poller=poller,
            relays=relays,
            clock=self.clock,
            metrics=metrics,
            retention=7 * 86400,
            max_size=10**9,
        )
        desk = Desk(
            entity=ENTITY,
            terms=Terms(unknown_grace=15.0, max_age=86400.0),
            abandons_unknown=False,
            replies=ReplyRules.of([], [ENTITY]),
            outbox=outbox,
            teller=teller,
            watcher=poller,
            starter=self.imds,
            clock=self.clock,
            chance=lambda: plan.chance("pursuit", self.number, self.moments),
            count=lambda _: None,
        )
        listener = Listener(SimulatedQueue(self), desk)
        return [poller, upkeep, *relays, listener]

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
            stop.set()
            return
        await asyncio.sleep(max(20.0, plan.end + 10 - self.now()))
        while not (self._is_delivered() and world.broker.is_quiet()):
            if self.now() > plan.end + _PATIENCE:
                world.blame("it never comes to rest")
                break
            await asyncio.sleep(20)
        self.is_done = True
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
