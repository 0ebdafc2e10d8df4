"""Builds the traffic probe, which is opened first and closed last.

    read the state file once ─▶ open the port ─▶ attach: the state file is open ─▶ …

Until it is attached, the probe answers from the values in the state file.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from prometheus_client import Gauge

from bridge.app.identify import IDENTITY, decoded, remembered
from bridge.configuration.config import Config
from bridge.events.identity import Identity, IdentityConfig
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.imds.poller import LEAST_OVERDUE
from bridge.net.listening import Port
from bridge.outbox.records import CHECKPOINT, TRAFFIC
from bridge.outbox.statefile import glance
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.telemetry.metrics import Metrics
from bridge.traffic.config import TrafficConfig
from bridge.traffic.gate import Announcer, Gate
from bridge.traffic.probe import open_app, serve
from bridge.traffic.rotation import Record, decode


class Known(Struct):
    """The present watch and identity; until the observer exists, the stored ones.

    Attributes:
        given: ``[identity]``, which takes precedence.
        last: the identity that was stored before the restart.
        early: the watch that was stored before the restart.
        observer: has the present watch and identity; None until it exists.
    """

    given: IdentityConfig
    last: Identity
    early: Watch
    observer: Observer | None = None

    def watch(self) -> Watch:
        """Return the watch: all known scheduled events."""
        return self.early if self.observer is None else self.observer.watch

    def me(self) -> Identity:
        """Return the identity of this VM; until it is known, the stored one."""
        if self.observer is not None and self.observer.event_context.identity.vm_name:
            return self.observer.event_context.identity
        return self.last.overridden(self.given)


class Probe(Struct):
    """The probe while the forwarder runs.

    Attributes:
        rotation: knows whether this VM is in rotation.
        port: the port of the probe.
    """

    rotation: Gate
    port: Port
    known: Known
    clock: Clock
    gauge: Gauge

    async def attach(self, outbox: Outbox, observer: Observer) -> Announcer:
        """Use the open state file; return the worker that announces changes.

        The state file is read again, because the values that were read before may
        belong to another VM.
        """
        self.known.last = await remembered(outbox.database) or Identity()
        self.known.observer = observer
        record = _record(await outbox.observations.load(TRAFFIC))
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
    listener: socket.socket | None = None,
) -> AsyncIterator[Probe]:
    """Answer probes while the context is open, as soon as the port is free.

    Args:
        config: the configuration.
        traffic: its section ``[traffic]``.
        clock: the clock of the process.
        metrics: the metrics of the process.
        listener: a socket to use in place of ``traffic.listen``; None = none.
    """
    found = await glance(Path(config.state.path), (CHECKPOINT, IDENTITY, TRAFFIC))
    known = Known(
        given=config.identity,
        last=decoded(found.get(IDENTITY)) or Identity(),
        early=_watch(found.get(CHECKPOINT)),
    )
    gate = Gate(
        config=traffic,
        clock=clock,
        blind_after=max(3 * config.imds.poll_interval, LEAST_OVERDUE),
        watch=known.watch,
        me=known.me,
    )
    record = _record(found.get(TRAFFIC))
    gate.restore(record.standing if record else None)
    metrics.traffic_in.set(not gate.look().is_out)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            open_app(traffic.app, traffic.app_timeout, clock)
        )
        port = await stack.enter_async_context(
            serve(traffic, gate, app, clock, listener)
        )
        yield Probe(gate, port, known, clock, metrics.traffic_in)


def _record(body: bytes | None) -> Record | None:
    return None if body is None else decode(body)


def _watch(body: bytes | None) -> Watch:
    with suppress(msgspec.DecodeError):
        return Watch() if body is None else Watch.from_json(body)
    return Watch()
