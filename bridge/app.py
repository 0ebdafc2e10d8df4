"""The composition root: opens every resource, builds the workers, runs them.

Knows nothing of signals, arguments or exit codes, so that it can run anywhere.

    lock → health port → who am I → state file → sinks → workers … stop
"""

import asyncio
import logging
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bridge import __version__, health, statefile, threads
from bridge.clock import Clock
from bridge.cloudevent import CloudEvent
from bridge.config import Config
from bridge.errors import ConfigError
from bridge.events import Teller
from bridge.imds.client import MetadataClient, open_client
from bridge.introduction import introduce, settle
from bridge.notify import NOBODY, Supervisor, attended
from bridge.outbox.database import Database
from bridge.outbox.memory import SinkMemory
from bridge.outbox.rows import Delivery
from bridge.outbox.store import Outbox
from bridge.pace import Pace
from bridge.poller import Poller
from bridge.reception import Reception, address_of
from bridge.relay import Deliver, Relay, RelayPolicy
from bridge.retry import RetryPolicy
from bridge.routing import Router
from bridge.sinks.base import ApprovalAddress, Resources, Sink, SinkConfig
from bridge.status import Board
from bridge.telemetry import Metrics
from bridge.transport import open_session
from bridge.upkeep import Upkeep
from bridge.vitals import Vitals
from bridge.workers import Worker, run_workers, unless

log = logging.getLogger(__name__)


async def run(
    config: Config,
    stop: asyncio.Event,
    clock: Clock,
    supervisor: Supervisor = NOBODY,
) -> None:
    """Run the forwarder until ``stop`` is set, and tell ``supervisor`` how it fares.

    Raises:
        BridgeError: it cannot start or go on; also inside an ExceptionGroup.
    """
    path = Path(config.state.path)
    threads.lend()
    async with AsyncExitStack() as stack:
        stack.enter_context(statefile.locked(path))
        await stack.enter_async_context(attended(supervisor, stop, clock))
        metrics = Metrics((sink.name for sink in config.sinks), __version__)
        board = Board(clock=clock, metrics=metrics)
        await stack.enter_async_context(health.serve(config.http, board))
        client = await stack.enter_async_context(
            open_client(config.imds, clock, metrics)
        )
        identity = await unless(stop, introduce(client, config.identity, clock, stop))
        if stop.is_set():
            return
        database = await stack.enter_async_context(
            statefile.open_database(path, identity.vm_id if identity else None)
        )
        origin = await settle(database, identity, config.events.source)
        config = config.filled_in(origin.identity.expand)
        teller = Teller(
            prefix=config.events.type_prefix,
            source=origin.source,
            identity=origin.identity,
            version=__version__,
        )
        house = House(config, clock, metrics, board, client, database, teller)
        workers = await house.furnish(stack)
        log.info("forwarder started", extra={"vm": teller.reporter})
        supervisor.ready()
        await run_workers(workers, stop, grace=config.shutdown_grace)
    log.info("forwarder stopped")


@dataclass(slots=True)
class House:
    """Everything that lives as long as the forwarder runs."""

    config: Config
    clock: Clock
    metrics: Metrics
    board: Board
    client: MetadataClient
    database: Database
    teller: Teller

    async def furnish(self, stack: AsyncExitStack) -> list[Worker]:
        """Open the sinks and build the workers.

        Raises:
            ConfigError: a placeholder has no value on this machine.
            MissingExtraError: an optional package is not installed.
        """
        outbox = Outbox(self.database, self._router(), lost=self._note_loss)
        relays = [await self._relay(stack, sink, outbox) for sink in self.config.sinks]
        poller = Poller(
            client=self.client,
            outbox=outbox,
            teller=self.teller,
            clock=self.clock,
            metrics=self.metrics,
            with_documents=self.config.events.documents,
        )
        await poller.restore()
        path = Path(self.config.state.path)
        vitals = Vitals(
            outbox=outbox,
            poller=poller,
            relays=relays,
            teller=self.teller,
            clock=self.clock,
            heartbeat=self.config.events.heartbeat,
            state_path=path,
        )
        upkeep = Upkeep(
            outbox=outbox,
            poller=poller,
            relays=relays,
            clock=self.clock,
            metrics=self.metrics,
            retention=self.config.state.retention,
            max_size=self.config.state.max_size,
        )
        self.board.outbox, self.board.poller = outbox, poller
        self.board.teller, self.board.relays = self.teller, relays
        reception = await self._reception(stack, outbox, poller)
        return [poller, vitals, upkeep, *relays, *reception]

    async def _reception(
        self, stack: AsyncExitStack, outbox: Outbox, poller: Poller
    ) -> list[Worker]:
        config = self.config.approvals
        if config is None:
            return []
        reception = Reception(
            config=config,
            outbox=outbox,
            poller=poller,
            client=self.client,
            teller=self.teller,
            clock=self.clock,
            metrics=self.metrics,
            sink_entities=tuple(
                entity
                for sink in self.config.sinks
                if isinstance(entity := getattr(sink, "entity", None), str)
            ),
        )
        try:
            listeners, self.board.receivers = await reception.open(stack)
        except ValueError as error:
            raise ConfigError([f"approvals.sessions: {error}"]) from error
        return [*listeners, *reception.autopilots(), reception.replies(stack)]

    def _note_loss(self, sink: str) -> None:
        self.metrics.deliveries.labels(sink, "dead").inc()

    def _router(self) -> Router:
        return Router(
            routes={sink.name: sink.route for sink in self.config.sinks},
            scope=self.config.events.scope,
            identity=self.teller.identity,
        )

    async def _relay(
        self, stack: AsyncExitStack, config: SinkConfig, outbox: Outbox
    ) -> Relay:
        http = await stack.enter_async_context(
            open_session(user_agent=f"scheduled-events-bridge/{__version__}")
        )
        pace = Pace(most=config.max_rate)
        resources = Resources(
            http=http,
            expand=self.teller.identity.expand,
            vm_id=self.teller.identity.vm_id,
            approvals=self._approval_address(),
            pace=pace,
            clock=self.clock,
            memory=SinkMemory(self.database, config.name, self.clock),
        )
        sink = await stack.enter_async_context(config.open(resources))
        return self._make_relay(
            config.name,
            outbox,
            _delivering(sink),
            RelayPolicy(
                backoff=RetryPolicy(max_backoff=config.retry.max_backoff),
                max_age=config.retry.max_age,
                slots=config.concurrency,
            ),
            pace,
        )

    def _make_relay(
        self,
        name: str,
        outbox: Outbox,
        deliver: Deliver,
        policy: RelayPolicy,
        pace: Pace,
    ) -> Relay:
        return Relay(
            sink=name,
            deliver=deliver,
            outbox=outbox,
            clock=self.clock,
            metrics=self.metrics,
            policy=policy,
            chance=random.random,
            pace=pace,
        )

    def _approval_address(self) -> ApprovalAddress | None:
        if self.config.approvals is None:
            return None
        try:
            return address_of(self.config.approvals, self.teller.identity.expand)
        except ValueError as error:
            raise ConfigError([f"approvals.sessions: {error}"]) from error


def _delivering(sink: Sink) -> Deliver:
    async def deliver(delivery: Delivery) -> None:
        await sink.deliver(CloudEvent.from_json(delivery.body))

    return deliver
