"""Builds the forwarder: outbox, poller, sinks, approvals.

The workers that observe and deliver can be built before the identity of this VM is
known. The others (lifecycle events, approvals) need the identity. When it becomes
known, all of this is closed, and built again with it.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from bridge import __version__
from bridge.app.identify import PATIENCE, Origin
from bridge.app.supervisor import Supervisor
from bridge.approvals.config import ApprovalsConfig, connection_faults
from bridge.approvals.rotation import Rotation
from bridge.approvals.rules import ReplyRules
from bridge.configuration.config import Config
from bridge.events.build import EventContext
from bridge.events.routing import Router
from bridge.foundation.clock import Clock, PauseMeter
from bridge.foundation.errors import ConfigError
from bridge.foundation.pace import Pace, Pause
from bridge.foundation.workers import Worker
from bridge.health.status import Standing, StatusSource
from bridge.imds.client import MetadataClient
from bridge.imds.poller import Poller
from bridge.net.http_client import open_session
from bridge.net.listening import Port
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.lock import StateLock
from bridge.outbox.store import Outbox
from bridge.pipeline.housekeeping import Housekeeping, StateWatch
from bridge.pipeline.lifecycle_events import LifecycleEvents
from bridge.pipeline.observer import Observer
from bridge.pipeline.opening import open_sink, relay_of
from bridge.pipeline.relay import Relay
from bridge.servicebus.namespace import TIMINGS as BUS_TIMINGS
from bridge.servicebus.namespace import Timings as BusTimings
from bridge.sinks.base import ApprovalAddress, Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_KEY_PATIENCE = 3.0


# -- The parts of the process that do not depend on the identity of this VM ------------


class Gate(Rotation, Standing, Protocol):
    """Knows whether this VM is in rotation."""


class Probe(Protocol):
    """The traffic probe, which is loaded only if it is configured."""

    @property
    def rotation(self) -> Gate:
        """Knows whether this VM is in rotation."""
        ...

    @property
    def port(self) -> Port:
        """The port of the probe."""
        ...

    async def attach(self, outbox: Outbox, observer: Observer) -> Worker:
        """Use the open state file; return the worker that announces changes."""
        ...


class Timings(Struct, frozen=True, kw_only=True):
    """The time limits of the forwarder's requests.

    Attributes:
        identity: for how many seconds to ask for the identity of this VM.
        bus: the time limits of Service Bus.
    """

    identity: float = PATIENCE
    bus: BusTimings = BUS_TIMINGS


TIMINGS = Timings()


class Surroundings(Struct, frozen=True, kw_only=True):
    """The parts that are opened before the state file.

    Attributes:
        supervisor: is notified when all parts are open.
        lock: the lock of the state file.
        probe: the traffic probe; None if none is configured.
        timings: the time limits of the forwarder's requests.
        environ: the environment of this process, for the programs that sinks start.
    """

    clock: Clock
    metrics: Metrics
    status_source: StatusSource
    client: MetadataClient
    supervisor: Supervisor
    lock: StateLock
    environ: Mapping[str, str]
    probe: Probe | None = None
    timings: Timings = TIMINGS


# -- The parts that exist as long as the state file is open ----------------------------


@dataclass(slots=True)
class Forwarder:
    """All parts that exist as long as the state file is open.

    Attributes:
        config: the configuration; its placeholders are filled in when the identity of
            this VM is known.
        around: the parts that were opened before the state file.
        origin: identity and source, as far as known.
        is_early: whether the identity is still asked for. Then only the workers that
            observe and deliver are built, and only the sinks are open that do not need
            the identity.
    """

    config: Config
    around: Surroundings
    database: Database
    stack: AsyncExitStack
    origin: Origin
    is_early: bool = False
    outbox: Outbox = field(init=False)
    observer: Observer = field(init=False)
    poller: Poller = field(init=False)
    relays: list[Relay] = field(init=False)
    _busy: defaultdict[str, Pause] = field(default_factory=lambda: defaultdict(Pause))

    @property
    def event_context(self) -> EventContext:
        """Prefix, source and VM of the events, as far as known."""
        return EventContext(
            prefix=self.config.events.type_prefix,
            source=self.origin.source,
            identity=self.origin.identity,
            version=__version__,
            link=self.config.events.link,
        )

    @property
    def is_acting(self) -> bool:
        """Whether a command runs, which must not be cut short."""
        return any(relay.is_acting for relay in self.relays)

    @property
    def is_unsaved(self) -> bool:
        """Whether closing would cut a command short, or lose what is in memory only."""
        database = self.database
        waiting = database.journal.waiting()
        return self.is_acting or database.is_degraded or bool(waiting)

    async def set_identity(self, origin: Origin) -> None:
        """Publish the events that wait for the identity of this VM."""
        self.origin = origin
        self.outbox.router = self._router()
        await self.observer.set_identity(self.event_context)

    async def build_workers(self) -> list[Worker]:
        """Open the sinks, and build the workers.

        Raises:
            ConfigError: a placeholder has no value on this machine.
            MissingExtraError: an optional package is not installed.
        """
        if not self.is_early:
            self.config = self.config.filled_in(self.origin.identity.expand)
        around, config = self.around, self.config
        self.outbox = await Outbox.of(
            self.database, self._router(), lost=self._note_loss
        )
        self.observer = Observer(
            outbox=self.outbox,
            event_context=self.event_context,
            clock=around.clock,
            metrics=around.metrics,
            poll_interval=config.imds.poll_interval,
            pauses=PauseMeter(around.clock, around.metrics.paused.observe),
            with_documents=config.events.documents,
            is_waiting=self.is_early,
        )
        await self.observer.restore()
        self.poller = Poller(
            client=around.client,
            observer=self.observer,
            clock=around.clock,
            metrics=around.metrics,
        )
        approvals = self._approval_address()
        sinks = [await self._open(sink, approvals) for sink in config.sinks]
        self.relays = [relay for relay, _ in sinks]
        housekeeping = Housekeeping(
            outbox=self.outbox,
            observer=self.observer,
            clock=around.clock,
            retention=config.state.retention,
            max_size=config.state.max_size,
        )
        status_source = around.status_source
        status_source.outbox, status_source.poller = self.outbox, self.poller
        status_source.event_context = self.event_context
        status_source.relays = self.relays
        workers: list[Worker] = [
            StateWatch(self.database),
            self.poller,
            housekeeping,
            *(relay for relay, is_open in sinks if is_open),
        ]
        if around.probe is not None:
            workers.append(await around.probe.attach(self.outbox, self.observer))
        if not self.is_early:
            workers += await self._build_identity_workers()
        return workers

    async def _build_identity_workers(self) -> list[Worker]:
        """Build the workers that need the identity: lifecycle events and approvals."""
        if self.config.events.sign:
            await self._sign()
        lifecycle = LifecycleEvents(
            outbox=self.outbox,
            poller=self.poller,
            relays=self.relays,
            event_context=self.event_context,
            clock=self.around.clock,
            heartbeat=self.config.events.heartbeat,
            state_path=Path(self.config.state.path),
            offer=self._offer(),
            signer=self.around.status_source.signer,
        )
        return [lifecycle, *await self._build_approval_workers()]

    async def _sign(self) -> None:
        """Let all events be signed from now on; until then the vmId is not known."""
        from bridge.signing import own_key  # noqa: PLC0415 - only if configured

        state, source = Path(self.config.state.path), self.around.status_source
        vm = self.origin.identity
        ids = (vm.vm_id or "", vm.resource_id or "")
        source.signer = signer = own_key.EventSigner((), token_hex(8))
        signer.count = self.around.metrics.unsigned.inc
        self.outbox.sign = signer.signed
        try:
            async with asyncio.timeout(_KEY_PATIENCE):  # a disk may hang
                signer.keys = await asyncio.to_thread(own_key.own_keys, state, *ids)
        except (TimeoutError, ValueError) as error:
            signer.fault = str(error)
            log.warning("events are not signed", extra={"fault": str(error)})

    def _offer(self) -> dict[str, object] | None:
        """Return the member ``approvals`` of lifecycle events; None without approvals.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        if (config := self.config.approvals) is None:
            return None
        from bridge.approvals.config import offer  # noqa: PLC0415 - only if configured

        try:
            return offer(config, self.event_context.identity.expand)
        except ValueError as error:
            raise ConfigError([f"approvals.sessions: {error}"]) from error

    async def _build_approval_workers(self) -> list[Worker]:
        config, around, stack = self.config.approvals, self.around, self.stack
        if config is None:
            return []
        from bridge.app.approvals import (  # noqa: PLC0415 - only if configured
            ApprovalWorkers,
        )

        approval_workers = ApprovalWorkers(
            config=config,
            outbox=self.outbox,
            poller=self.poller,
            event_context=self.event_context,
            clock=around.clock,
            metrics=around.metrics,
            reply_rules=self._reply_rules(config),
            rotation=around.probe.rotation if around.probe else None,
            bus=around.timings.bus,
        )
        listeners, around.status_source.receivers = await approval_workers.open(stack)
        around.status_source.listeners = listeners
        self.poller.rules = approval_workers.rules()
        return [*listeners, *approval_workers.replies(stack)]

    def _reply_rules(self, config: ApprovalsConfig) -> ReplyRules:
        if not config.has_entity:
            return ReplyRules.of([], [])
        targets = []
        for sink in self.config.sinks:
            with connection_faults(f"sinks.{sink.name}"):
                targets.append(sink.target)
        with connection_faults("approvals"):
            return config.reply_rules(targets)

    def _note_loss(self, sink: str) -> None:
        self.around.metrics.deliveries.labels(sink, "dead").inc()

    def _router(self) -> Router:
        return Router(
            routes={sink.name: sink.route for sink in self.config.sinks},
            scope=self.config.events.scope,
            identity=self.origin.identity,
        )

    async def _open(
        self, config: SinkConfig, approvals: ApprovalAddress | None
    ) -> tuple[Relay, bool]:
        """Open a sink; return its relay, and whether the sink is open.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        agent = f"scheduled-events-bridge/{__version__}"
        http = await self.stack.enter_async_context(open_session(user_agent=agent))
        clock, me = self.around.clock, self.origin.identity
        resources = Resources(
            http=http,
            expand=me.expand,
            vm_id=me.vm_id,
            approvals=approvals,
            pace=Pace(most=config.max_rate),
            busy=self._busy[config.namespace_host or config.name],
            clock=clock,
            memory=SinkMemory(self.outbox, config.name, clock),
            bus=self.around.timings.bus,
            environ=self.around.environ,
        )
        kind, metrics = self._kind_of_relay(config, resources), self.around.metrics
        relay = relay_of(
            config, resources, self.outbox, metrics, chance=random.random, kind=kind
        )
        alone = replace(self.config, sinks=(config,), approvals=None)
        try:
            (filled_in,) = alone.filled_in(me.expand).sinks
            await open_sink(relay, filled_in, resources, self.stack)
        except ConfigError:
            if self.is_early:
                return relay, False
            raise
        return relay, True

    def _kind_of_relay(
        self, config: SinkConfig, resources: Resources
    ) -> Callable[..., Relay]:
        """Return what makes the relay of a sink: one that sends, or one that acts."""
        actor = config.actor(self.observer, resources)
        if actor is None:
            return Relay
        from bridge.pipeline.acting import ActingRelay  # noqa: PLC0415 - only if needed

        return partial(
            ActingRelay, actor=actor, event_context=lambda: self.event_context
        )

    def _approval_address(self) -> ApprovalAddress | None:
        if (approvals := self.config.approval_entity) is None:
            return None
        try:
            return approvals.address(self.origin.identity.expand)
        except ValueError as error:
            if self.is_early:
                return None
            raise ConfigError([f"approvals.sessions: {error}"]) from error
