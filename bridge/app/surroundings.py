"""The parts of the process that do not depend on the identity of this VM."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from bridge.app.identify import PATIENCE
from bridge.app.supervisor import Supervisor
from bridge.approvals.rotation import Rotation
from bridge.foundation.clock import Clock
from bridge.foundation.workers import Worker
from bridge.health.status import Standing, StatusSource
from bridge.imds.client import MetadataClient
from bridge.net.listening import Port
from bridge.outbox.storage.lock import StateLock
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.servicebus.timings import TIMINGS as BUS_TIMINGS
from bridge.servicebus.timings import Timings as BusTimings
from bridge.telemetry.metrics import Metrics


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
