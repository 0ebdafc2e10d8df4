"""The hub as a process: builds all parts and runs them until the stop.

open the store ──▶ find a long absence ──▶ listen ──▶ run all workers ──▶ stop
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from msgspec import Struct, field

from bridge import __version__
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Clock
from bridge.foundation.errors import BridgeError, HubStoreAwayError
from bridge.foundation.workers import Worker, run_workers
from bridge.hub.alarm_sinks import open_alarms
from bridge.hub.api import Api
from bridge.hub.arm import open_arm
from bridge.hub.config import HubConfig
from bridge.hub.decisions import ARM, BRIDGE
from bridge.hub.housekeeping import FleetMonitor, Housekeeping, StoreWatch
from bridge.hub.load import HubFile
from bridge.hub.metrics import HubMetrics
from bridge.hub.pages.routes import Pages
from bridge.hub.sending import BridgeTransport, Dispatcher, Transport
from bridge.hub.server import Hub, serve
from bridge.hub.sources import BrokerClock, Sources
from bridge.hub.store.store import Store, open_store
from bridge.net.http_client import open_session
from bridge.telemetry.metrics import Metrics, log_unseen_errors

log = logging.getLogger(__name__)

_PAUSE = 5.0


async def run(
    file: HubFile,
    stop: asyncio.Event,
    clock: Clock,
    listening: Callable[[str, int], None] = lambda _host, _port: None,
) -> None:
    """Run the hub until ``stop`` is set.

    Args:
        file: the configuration.
        stop: set in order to stop the hub.
        clock: the clock.
        listening: called with host and port, once the hub listens.

    Raises:
        BridgeError: the hub cannot start or continue; may be in an ExceptionGroup.
    """
    daemon_threads.lend()
    log_unseen_errors(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        store = await _opened(file, stop, clock, stack)
        if store is None:
            return
        parts = Parts.of(file, store, clock)
        sink_metrics = Metrics((sink.name for sink in file.sinks), __version__)
        parts.metrics.alarms = sink_metrics.of_deliveries if file.sinks else None
        alarms = open_alarms(file, store, parts.clock, sink_metrics)
        alarm_workers = await stack.enter_async_context(alarms)
        parts.transports.update(await open_transports(file.hub, parts.clock, stack))
        parts.sources.absent_until = await parts.housekeeping.begin()
        host, port = await stack.enter_async_context(serve(parts.answering()))
        listening(host, port)
        workers = [*parts.workers(), *alarm_workers]
        await run_workers(workers, stop, grace=lambda: file.shutdown_grace)
    log.info("hub stopped")


async def _opened(
    file: HubFile, stop: asyncio.Event, clock: Clock, stack: AsyncExitStack
) -> Store | None:
    """Open the store; retry while it is away. None = asked to stop before."""
    while not stop.is_set():
        try:
            return await stack.enter_async_context(open_store(file.hub))
        except HubStoreAwayError as error:
            log.warning("store cannot be opened", extra={"fault": str(error)})
            await clock.wait(stop, _PAUSE)
    return None


async def open_transports(
    config: HubConfig, clock: Clock, stack: AsyncExitStack
) -> dict[str, Transport]:
    """Open the transports for decisions.

    Raises:
        BridgeError: the identity for ARM cannot be used on this machine.
    """
    named = {source.name: source for source in config.bridge_sources}
    bridges = BridgeTransport(named, clock)
    stack.push_async_callback(bridges.senders.close)
    transports: dict[str, Transport] = {BRIDGE: bridges}
    if config.arm is not None:
        agent = f"scheduled-events-bridge-hub/{__version__}"
        http = await stack.enter_async_context(open_session(user_agent=agent))
        try:
            transports[ARM] = await stack.enter_async_context(
                open_arm(config.arm, http)
            )
        except ValueError as error:
            raise BridgeError(f"hub.arm: {error}") from error
    return transports


class Parts(Struct, frozen=True):
    """The parts of the hub."""

    file: HubFile
    store: Store
    clock: BrokerClock
    metrics: HubMetrics
    sources: Sources
    housekeeping: Housekeeping
    transports: dict[str, Transport] = field(default_factory=dict)

    @classmethod
    def of(cls, file: HubFile, store: Store, clock: Clock) -> "Parts":
        """Build every part."""
        names = tuple(source.name for source in file.hub.sources)
        metrics, broker = HubMetrics(names, __version__), BrokerClock(clock)
        sources = Sources.of(file.hub, store, broker, metrics)
        housekeeping = Housekeeping(store, file.hub, broker)
        return cls(file, store, broker, metrics, sources, housekeeping)

    def workers(self) -> list[Worker]:
        """Return the workers that run until the stop."""
        dispatcher = Dispatcher(
            store=self.store,
            config=self.file.hub,
            clock=self.clock,
            metrics=self.metrics,
            situation=self.sources.situation,
            transports=self.transports,
        )
        fleet_monitor = FleetMonitor(
            self.store,
            self.clock,
            self.metrics,
            self.sources.situation,
            retention=self.file.hub.retention,
            weekly=self.file.hub.report.weekly,
        )
        watch = StoreWatch(self.store, self.clock, self.metrics)
        upkeep = (self.housekeeping, watch)
        return [*self.sources.readers, *upkeep, dispatcher, fleet_monitor]

    def answering(self) -> Hub:
        """Return the parts that the server needs."""
        api = Api(self.store, self.file.hub, self.sources.situation)
        pages = Pages(api, self.clock)
        return Hub(
            config=self.file.hub,
            metrics=self.metrics,
            missing=self.sources.missing,
            routes=[*api.routes(), *pages.routes()],
            fault_page=pages.fault,
        )
