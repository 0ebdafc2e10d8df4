"""The forwarder put together: outbox, poller, sinks, approvals.

What observes and delivers does without knowing who this VM is; what speaks for it
(its own life, approvals) does not, and is built when that is known.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

from msgspec.structs import replace as with_fields

from bridge import __version__
from bridge.app.identify import Origin
from bridge.app.outlet import Opening, Outlet
from bridge.app.supervisor import Supervisor
from bridge.approvals.config import ApprovalsConfig, connection_faults
from bridge.approvals.rotation import STAYS, Rotation
from bridge.configuration.load import Config
from bridge.events.build import Teller
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import Router
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import ConfigError
from bridge.foundation.rate_limit import Pace
from bridge.foundation.retry import RetryPolicy
from bridge.foundation.workers import Worker
from bridge.health.status import Board, Standing
from bridge.imds.client import MetadataClient
from bridge.imds.poller import Poller
from bridge.net.http_client import open_session
from bridge.outbox.lock import StateLock
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.storage.database import Database
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import Deliver
from bridge.pipeline.housekeeping import StateWatch, Upkeep
from bridge.pipeline.lifecycle_events import Vitals
from bridge.pipeline.observer import Observer
from bridge.pipeline.policy import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.sinks.base import ApprovalAddress, Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from bridge.approvals.reply import ReplyRules


class Gate(Rotation, Standing, Protocol):
    """Knows whether this VM is in rotation."""


class Probe(Protocol):
    """The traffic probe, which is loaded only where it is configured."""

    @property
    def rotation(self) -> Gate:
        """Says how this VM stands."""
        ...

    async def attach(self, outbox: Outbox, observer: Observer) -> Worker:
        """Go on with the state file that is open now; returns who tells of changes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is there before the state file is open.

    Attributes:
        supervisor: is told when all is open.
        patience: seconds for which it is asked who this VM is.
        lock: of the state file.
        probe: answers probes; None where none is configured.
    """

    clock: Clock
    metrics: Metrics
    board: Board
    client: MetadataClient
    supervisor: Supervisor
    patience: float
    lock: StateLock
    probe: Probe | None = None


class Common(TypedDict):
    """What the relay of every sink has."""

    sink: str
    deliver: Deliver
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]
    pace: Pace
    repeats: bool


@dataclass(slots=True)
class House:
    """Everything that lives as long as the state file is open.

    Attributes:
        config: as it was read; with placeholders filled in once this VM is known.
        origin: who tells, as far as it is known.
    """

    config: Config
    around: Surroundings
    database: Database
    stack: AsyncExitStack
    origin: Origin
    outbox: Outbox = field(init=False)
    observer: Observer = field(init=False)
    poller: Poller = field(init=False)
    outlets: list[Outlet] = field(init=False)

    @property
    def teller(self) -> Teller:
        """Who tells, as far as it is known."""
        return Teller(
            prefix=self.config.events.type_prefix,
            source=self.origin.source,
            identity=self.origin.identity,
            version=__version__,
        )

    async def furnish(self) -> list[Worker]:
        """Open the sinks and build the workers: this VM is known.

        Raises:
            ConfigError: a placeholder has no value on this machine.
            MissingExtraError: an optional package is not installed.
        """
        self.config = self.config.filled_in(self.origin.identity.expand)
        workers = await self._furnish(is_waiting=False)
        approvals = self._approval_address()
        for outlet in self.outlets:
            await outlet.open(self._opening(outlet, approvals))
        return [*workers, *await self._speak(self.stack)]

    async def furnish_early(self) -> list[Worker]:
        """Build the workers that do without knowing who this VM is."""
        workers = await self._furnish(is_waiting=True)
        approvals = None
        with suppress(ConfigError):
            approvals = self._approval_address()
        for outlet in self.outlets:
            with suppress(ConfigError):  # the sink waits
                outlet.begin_with(self._opening(outlet, approvals))
        return workers

    async def introduce(self, stack: AsyncExitStack) -> list[Worker]:
        """Go on as who this VM turned out to be; returns what had to wait for it.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        teller = self.teller
        self.outbox.router = self._router()
        self.around.board.teller = teller
        await self.observer.introduce(teller)
        self.config = self.config.filled_in(teller.identity.expand)
        approvals = self._approval_address()
        for outlet in self.outlets:
            outlet.settle(self._opening(outlet, approvals))
        return await self._speak(stack)

    async def _furnish(self, *, is_waiting: bool) -> list[Worker]:
        """Build what observes and delivers."""
        around, config = self.around, self.config
        self.outbox = Outbox(self.database, self._router(), lost=self._note_loss)
        self.outlets = [await self._outlet(sink) for sink in config.sinks]
        self.observer = Observer(
            outbox=self.outbox,
            teller=self.teller,
            clock=around.clock,
            metrics=around.metrics,
            poll_interval=config.imds.poll_interval,
            with_documents=config.events.documents,
            is_waiting=is_waiting,
        )
        await self.observer.restore()
        self.poller = Poller(
            client=around.client,
            observer=self.observer,
            clock=around.clock,
            metrics=around.metrics,
        )
        relays = [outlet.relay for outlet in self.outlets]
        upkeep = Upkeep(
            outbox=self.outbox,
            observer=self.observer,
            relays=relays,
            clock=around.clock,
            metrics=around.metrics,
            retention=config.state.retention,
            max_size=config.state.max_size,
        )
        board = around.board
        board.outbox, board.poller = self.outbox, self.poller
        board.teller, board.relays = self.teller, relays
        workers: list[Worker] = [
            StateWatch(self.database),
            self.poller,
            upkeep,
            *self.outlets,
        ]
        if around.probe is not None:
            workers.append(await around.probe.attach(self.outbox, self.observer))
        return workers

    async def _speak(self, stack: AsyncExitStack) -> list[Worker]:
        """Build what speaks for this VM: of the bridge's own life, and to approvers."""
        vitals = Vitals(
            outbox=self.outbox,
            poller=self.poller,
            relays=[outlet.relay for outlet in self.outlets],
            teller=self.teller,
            clock=self.around.clock,
            heartbeat=self.config.events.heartbeat,
            state_path=Path(self.config.state.path),
        )
        return [vitals, *await self._reception(stack)]

    async def _reception(self, stack: AsyncExitStack) -> list[Worker]:
        config, around = self.config.approvals, self.around
        if config is None:
            return []
        from bridge.app.approvals import (  # noqa: PLC0415 - not for who has none
            Reception,
        )

        reception = Reception(
            config=config,
            outbox=self.outbox,
            poller=self.poller,
            client=around.client,
            teller=self.teller,
            clock=around.clock,
            metrics=around.metrics,
            reply_rules=self._reply_rules(config),
            rotation=around.probe.rotation if around.probe else STAYS,
        )
        listeners, around.board.receivers = await reception.open(stack)
        around.board.listeners = listeners
        autopilots = around.board.autopilots = reception.autopilots()
        return [*listeners, *autopilots, *reception.replies(stack)]

    def _reply_rules(self, config: ApprovalsConfig) -> "ReplyRules":
        if not config.has_entity:
            from bridge.approvals.reply import (  # noqa: PLC0415 - not for who has none
                ReplyRules,
            )

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

    async def _outlet(self, config: SinkConfig) -> Outlet:
        http = await self.stack.enter_async_context(
            open_session(user_agent=f"scheduled-events-bridge/{__version__}")
        )
        clock, pace = self.around.clock, Pace(most=config.max_rate)
        resources = Resources(
            http=http,
            expand=self.origin.identity.expand,
            pace=pace,
            clock=clock,
            memory=SinkMemory(self.database, config.name, clock),
        )
        outlet = Outlet(config, resources, self.stack)
        outlet.relay = self._relay(outlet, pace)
        return outlet

    def _relay(self, outlet: Outlet, pace: Pace) -> Relay:
        """Return what has the steps of a sink sent, or acted on."""
        config = outlet.config
        common = Common(
            sink=config.name,
            deliver=outlet.deliver,
            outbox=self.outbox,
            clock=self.around.clock,
            metrics=self.around.metrics,
            policy=RelayPolicy(
                backoff=RetryPolicy(max_backoff=config.retry.max_backoff),
                max_age=config.retry.max_age,
                slots=config.concurrency,
            ),
            chance=random.random,
            pace=pace,
            repeats=config.repeats,
        )
        actor = config.actor(View(self), outlet.resources)
        if actor is None:
            return Relay(**common)
        from bridge.pipeline.acting import ActingRelay  # noqa: PLC0415 - who acts pays

        return ActingRelay(**common, actor=actor, teller=lambda: self.teller)

    def _opening(self, outlet: Outlet, approvals: ApprovalAddress | None) -> Opening:
        """Return how a sink is opened with what is known of this VM.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        me = self.origin.identity
        alone = with_fields(self.config, sinks=(outlet.config,), approvals=None)
        (config,) = alone.filled_in(me.expand).sinks
        resources = replace(
            outlet.resources, expand=me.expand, vm_id=me.vm_id, approvals=approvals
        )
        return Opening(config, resources)

    def _approval_address(self) -> ApprovalAddress | None:
        if (approvals := self.config.approval_entity) is None:
            return None
        try:
            return approvals.address(self.origin.identity.expand)
        except ValueError as error:
            raise ConfigError([f"approvals.sessions: {error}"]) from error


@dataclass(frozen=True, slots=True)
class View:
    """What is known now, for who acts on it; see ``bridge.sinks.acting.Outlook``."""

    house: House

    @property
    def identity(self) -> Identity:
        """Who this VM is, as far as that is known."""
        return self.house.origin.identity

    @property
    def document(self) -> Document | None:
        """The last good document of this life; None before the first."""
        return self.house.observer.document

    @property
    def watch(self) -> Watch:
        """What is known after it."""
        return self.house.observer.watch
