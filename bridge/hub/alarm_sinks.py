"""Publishes alarms to the sinks of ``hub.toml``, through an outbox as in a forwarder.

row in the store ──▶ outbox of this hub, committed ──▶ row marked ──▶ relay ──▶ sink

After a crash before the mark, an alarm is published again: its event comes twice.
"""

import asyncio
import logging
import random
import secrets
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from bridge import __version__
from bridge.events.alarm import HubContext
from bridge.events.identity import Identity
from bridge.events.routing import Route, Router
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreError
from bridge.foundation.pace import Pace, Pause
from bridge.foundation.workers import Worker
from bridge.hub.load import HubFile
from bridge.hub.store import alarms
from bridge.hub.store.alarms import AlarmContext, events_of
from bridge.hub.store.store import Store
from bridge.net.http_client import open_session
from bridge.outbox import statefile
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.store import Outbox
from bridge.pipeline.housekeeping import Housekeeping, StateWatch
from bridge.pipeline.opening import open_sink, relay_of
from bridge.pipeline.relay import Relay
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_EVERY = 5.0
_LEASE_SECONDS = 30.0  # only the hub with the lease publishes alarms
_OLDEST = timedelta(days=1)  # older alarms are dropped: they are of no use
_PREFIX = "sebridge"
_OWN, _HOLDER = "(hub)", "holder"  # a key in the state file; no sink has such a name


class AlarmPublisher(Struct):
    """Publishes alarms to the outbox until asked to stop.

    Attributes:
        context: the prefix, source and version in all events of this hub.
        holder: the id of this hub, among several hubs on one store.
        is_stored: whether that id is from the state file.
    """

    store: Store
    outbox: Outbox
    clock: Clock
    context: HubContext
    public_url: str
    holder: str = field(default_factory=lambda: secrets.token_hex(8))
    name: str = "alarms"
    is_stored: bool = False

    async def run(self, stop: asyncio.Event) -> None:
        """Publish waiting alarms, again and again."""
        while not stop.is_set():
            try:
                await self.step()
            except HubStoreError as error:
                log.warning("alarms cannot be read", extra={"fault": str(error)})
            await self.clock.wait(stop, _EVERY)

    async def step(self) -> int:
        """Publish the waiting alarms; returns how many.

        Raises:
            HubStoreError: the store cannot be used now.
            OutboxError: the outbox cannot be written.
        """
        if self.is_stored and self.outbox.database.is_degraded:
            # Its lock may be lost: then another hub may start with the id in it.
            self.holder, self.is_stored = _fresh_holder(), False
        now = self.clock.now()
        is_ours = await self.store.write(
            lambda c: alarms.take_lease(c, self.holder, now, _LEASE_SECONDS)
        )
        if not is_ours:
            return 0
        rows, silent = await self.store.read(
            lambda c: (alarms.waiting(c), alarms.count_silent(c))
        )
        if not rows:
            return 0
        fresh = [row for row in rows if now - row.time < _OLDEST]
        shared = AlarmContext(
            context=self.context, public_url=self.public_url, silent=silent, now=now
        )
        if fresh:
            events = events_of(fresh, shared)
            await self.outbox.commit(events, now=now.timestamp())
        ids = [row.id for row in rows]
        await self.store.write(lambda c: alarms.mark_published(c, ids, now))
        return len(fresh)


class _NoDocument(Struct, frozen=True):
    """Stands for the observer, which a hub does not have: an empty watch."""

    watch: Watch = field(default_factory=Watch)


@asynccontextmanager
async def open_alarms(
    file: HubFile, store: Store, clock: Clock, metrics: Metrics
) -> AsyncIterator[list[Worker]]:
    """Open the sinks; yields the workers that publish alarms, none without sinks.

    Raises:
        OutboxError: the state file cannot be used.
        ConfigError: a sink cannot be opened on this machine.
        MissingExtraError: an optional package is not installed.
    """
    if not file.sinks:
        yield []
        return
    path = Path(file.state.path)
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(statefile.locked(path, "hub"))
        database = await stack.enter_async_context(
            statefile.open_database(path, None, clock=clock, lock=lock)
        )
        routes = {sink.name: route_of(sink) for sink in file.sinks}
        router = Router(routes=routes, scope="all", identity=Identity())
        outbox = await Outbox.of(database, router)
        opening = _Sinks(outbox, clock, metrics, stack)
        workers = [await opening.open(sink) for sink in file.sinks]
        upkeep = Housekeeping(
            outbox=outbox,
            observer=_NoDocument(),
            clock=clock,
            retention=file.state.retention,
            max_size=file.state.max_size,
        )
        publisher = AlarmPublisher(
            store, outbox, clock, context_of(file), file.hub.public_url
        )
        if not database.is_degraded:
            memory = SinkMemory(outbox, _OWN, clock)
            publisher.holder, publisher.is_stored = await _stored_holder(memory), True
        yield [StateWatch(database), upkeep, *workers, publisher]


async def _stored_holder(memory: SinkMemory) -> str:
    """Return the id of this hub, from the state file; the first time, create it.

    A hub that was killed and restarted has the same id, so it still holds its lease.
    Only the process with the lock of the state file has this id; a hub that goes on in
    memory has a fresh one.
    """
    known = await memory.recall(_HOLDER)
    holder = known.decode() if known else _fresh_holder()
    await memory.keep(_HOLDER, holder.encode())
    return holder


def _fresh_holder() -> str:
    return secrets.token_hex(8)


def context_of(file: HubFile) -> HubContext:
    """Return the prefix, source, name and version in all events of this hub."""
    url, host = file.hub.public_url, socket.gethostname()
    return HubContext(
        prefix=_PREFIX,
        source=url or f"urn:sebridge:hub:{host}",
        name=url.partition("://")[2] or f"hub on {host}",
        version=__version__,
    )


def route_of(sink: SinkConfig) -> Route:
    """Return the route of a sink of a hub: it gets every alarm."""
    return sink.routed(replace(sink.when, lifecycle=True))


class _Sinks(Struct, frozen=True):
    """Opens sinks, each with its relay."""

    outbox: Outbox
    clock: Clock
    metrics: Metrics
    stack: AsyncExitStack
    busy: defaultdict[str, Pause] = field(default_factory=lambda: defaultdict(Pause))

    async def open(self, config: SinkConfig) -> Relay:
        agent = f"scheduled-events-bridge-hub/{__version__}"
        resources = Resources(
            http=await self.stack.enter_async_context(open_session(user_agent=agent)),
            expand=Identity().expand,
            pace=Pace(most=config.max_rate),
            busy=self.busy[config.namespace_host or config.name],
            clock=self.clock,
            memory=SinkMemory(self.outbox, config.name, self.clock),
        )
        relay = relay_of(
            config, resources, self.outbox, self.metrics, chance=random.random
        )
        await open_sink(relay, config, resources, self.stack)
        return relay
