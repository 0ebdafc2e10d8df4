"""One life of the forwarder: from its start to its stop, or its death."""

import asyncio
import gc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bridge.foundation.workers import run_workers
from tests.simulation.commits import Commits
from tests.simulation.edges import Imds
from tests.simulation.forwarder import Forwarder
from tests.simulation.machine import CrashError, InlineDatabase, open_now
from tests.simulation.plan import Event, PlannedApproval
from tests.simulation.timeline import StuckError, VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

_PATIENCE = 4 * 3600.0
_MOST_CRASHES = 8
_DELICATE = {"post": 10, "posted": 20, "settle": 10, "settled": 10, "delivered": 3}


@dataclass(slots=True)
class Life:
    """One life of the forwarder: from its start to its stop, or its death."""

    world: "World"
    number: int
    clock: VirtualClock
    is_dead: bool = False
    is_done: bool = False
    moments: int = 0
    stopped_at: float = float("inf")
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # an approval
    imds: Imds = field(init=False)
    database: InlineDatabase = field(init=False)
    commits: Commits = field(init=False)
    _loop: VirtualLoop = field(init=False)

    def __post_init__(self) -> None:
        self.imds, self.commits = Imds(self), Commits(self)

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
        if world.is_killed(what):
            raise CrashError(what)
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

    def live(self) -> None:
        """Live until all is quiet, a planned stop, or death."""
        world = self.world
        began, world.is_alive = world.now, True
        self._loop, is_clean = VirtualLoop(began), False
        try:
            self._loop.run_until_complete(self._run())
            is_clean = True
        except CrashError:
            pass
        except StuckError:
            world.blame("everybody waits for nothing")
            self.is_done = True
        finally:
            world.now = self.now()
            self.is_dead, world.is_alive = True, False
            self._bury()
        world.lives.append((began, world.now))
        world.ends.append(min(self.stopped_at, world.now))
        world.clean.append(is_clean)

    def _bury(self) -> None:
        """Let nothing of this life run on."""
        self.database.bury()
        self._loop.set_exception_handler(lambda *_: None)
        end_all(self._loop)
        self._loop.close()
        gc.collect()  # now, and not within a later life, whose loop would be found

    async def _run(self) -> None:
        await open_now(self)
        stop = asyncio.Event()
        workers = (await Forwarder.of(self)).workers()
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._jump()),
                group.create_task(self._send()),
                group.create_task(self._end(stop)),
            ]
            await run_workers(workers, stop, grace=lambda: 10.0)
            for task in others:
                task.cancel()
        await self.database.finish()

    def lose(self, sink: str) -> None:
        """Note that there was no room for a delivery."""
        self.world.lost += 1

    async def _jump(self) -> None:
        """Set the wall clock when the plan says so."""
        world = self.world
        for at, _ in world.planned_jumps:
            await asyncio.sleep(max(0.0, at - self.now()))
            world.now = self.now()
            world.jump()

    async def _send(self) -> None:
        """Send what somebody approves, when the plan says so."""
        broker = self.world.broker
        for planned in self.world.plan.approvals[len(broker.messages) :]:
            await asyncio.sleep(max(0.0, planned.at - self.now()))
            broker.put(replace(planned, at=self.now()), self._seen(planned))
            self.arrived.set()

    def _seen(self, planned: PlannedApproval) -> Event | None:
        """Return what the sender of an approval was told of the event."""
        at = self.now() - planned.thinks
        if not planned.thinks:
            return self.world.azure.show(at).get(planned.event_id)
        looks = [look for look in self.world.looks if look.at <= at]
        return looks[-1].events.get(planned.event_id) if looks else None

    async def _end(self, stop: asyncio.Event) -> None:
        """Ask to stop when the plan says so, or when all is quiet."""
        world, plan = self.world, self.world.plan
        planned = [at for at in plan.stops if at > self.now()]
        if planned:
            await asyncio.sleep(planned[0] - self.now())
            self._stop(stop)
            return
        await asyncio.sleep(max(20.0, plan.end + 10 - self.now()))
        while not (self._has_seen_the_end() and self._is_quiet()):
            if self.now() > plan.end + _PATIENCE:
                world.blame("it never comes to rest")
                break
            await asyncio.sleep(20)
        self.is_done = True
        self._stop(stop)

    def _stop(self, stop: asyncio.Event) -> None:
        self.stopped_at = self.now()
        stop.set()
        self.arrived.set()

    def _has_seen_the_end(self) -> bool:
        """Whether IMDS was read in this life after all that was planned."""
        looks = self.world.looks
        return bool(looks) and looks[-1].at >= self.world.plan.end

    def _is_quiet(self) -> bool:
        return self._is_delivered() and self.world.broker.is_quiet()

    def _is_delivered(self) -> bool:
        if self.database.is_degraded:
            return False
        rows = self.database.rows_of("deliveries").values()
        return all(row[3] != "pending" for row in rows)


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
