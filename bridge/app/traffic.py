"""Composes the traffic probe: open before anything else is, and closed last.

    a glance at the state file ─▶ the port opens ─▶ attach: the state file is open ─▶ …

Until it is attached, it answers by what an earlier life has left behind.
"""

import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bridge.app.identify import IDENTITY, remembered
from bridge.configuration.config import Config
from bridge.events import checkpoint
from bridge.events.identity import Identity, IdentityConfig
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.imds.client import ImdsConfig
from bridge.imds.poller import LEAST_OVERDUE
from bridge.outbox.glance import glance
from bridge.outbox.records import CHECKPOINT, TRAFFIC
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.telemetry.counters import Level
from bridge.telemetry.metrics import Metrics
from bridge.traffic.activation import inherited_listener
from bridge.traffic.announcer import Announcer
from bridge.traffic.app_check import open_app
from bridge.traffic.config import TrafficConfig
from bridge.traffic.gate import Gate
from bridge.traffic.probe import serve
from bridge.traffic.rotation import Record, decode


@dataclass(slots=True)
class Known:
    """What is known just now: at first what the state file shows at a glance.

    Attributes:
        given: ``[identity]``, which goes before all else.
        last: who this VM was in an earlier life.
        early: the document as an earlier life saw it.
        observer: knows it better, once it is there.
    """

    given: IdentityConfig
    last: Identity
    early: Watch
    observer: Observer | None = None

    def watch(self) -> Watch:
        """Return what is known of the document."""
        return self.early if self.observer is None else self.observer.watch

    def me(self) -> Identity:
        """Return who this VM is; until that is known, who it was."""
        if self.observer is not None and self.observer.event_context.identity.vm_name:
            return self.observer.event_context.identity
        return self.last.overridden(self.given)


@dataclass(slots=True)
class Probe:
    """The probe while the forwarder runs.

    Attributes:
        rotation: says how this VM stands.
    """

    rotation: Gate
    known: Known
    clock: Clock
    gauge: Level

    async def attach(self, outbox: Outbox, observer: Observer) -> Announcer:
        """Go on with the state file that is open now; returns who tells of changes.

        What was seen of another VM's state file at a glance is forgotten by that.
        """
        self.known.last = await remembered(outbox.database) or Identity()
        self.known.observer = observer
        record = _record(await outbox.load(TRAFFIC))
        self.rotation.restore(record.standing if record else None)
        observer.changed = self.rotation.changed.set
        return Announcer(
            gate=self.rotation,
            outbox=outbox,
            observer=observer,
            clock=self.clock,
            gauge=self.gauge,
            is_told_out=record is not None and record.is_told_out,
        )


@asynccontextmanager
async def open_probe(
    config: Config,
    traffic: TrafficConfig,
    clock: Clock,
    metrics: Metrics,
    environ: MutableMapping[str, str] = os.environ,
) -> AsyncIterator[Probe]:
    """Answer probes as long as the context is open.

    Raises:
        BridgeError: the address cannot be listened on.
    """
    found = await glance(Path(config.state.path), (CHECKPOINT, IDENTITY, TRAFFIC))
    known = Known(
        given=config.identity,
        last=_identity(found.get(IDENTITY)),
        early=_watch(found.get(CHECKPOINT)),
    )
    gate = Gate(
        config=traffic,
        clock=clock,
        blind_after=_blind_after(config.imds),
        watch=known.watch,
        me=known.me,
    )
    record = _record(found.get(TRAFFIC))
    gate.restore(record.standing if record else None)
    metrics.traffic_in.set(not gate.look().is_out)
    listener = inherited_listener(environ)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            open_app(traffic.app, traffic.app_timeout, clock)
        )
        await stack.enter_async_context(serve(traffic, gate, app, listener))
        yield Probe(gate, known, clock, metrics.traffic_in)


def _blind_after(config: ImdsConfig) -> float:
    return max(3 * config.poll_interval, LEAST_OVERDUE)


def _record(body: bytes | None) -> Record | None:
    return None if body is None else decode(body)


def _watch(body: bytes | None) -> Watch:
    with suppress(msgspec.DecodeError):
        return Watch() if body is None else checkpoint.decode(body)
    return Watch()


def _identity(body: bytes | None) -> Identity:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return Identity() if body is None else msgspec.json.decode(body, type=Identity)
    return Identity()
