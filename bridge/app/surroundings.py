"""What a forwarder is given, whoever this VM is."""

from dataclasses import dataclass
from typing import Protocol

from bridge.app.supervisor import Supervisor
from bridge.approvals.rotation import Rotation
from bridge.foundation.clock import Clock
from bridge.foundation.workers import Worker
from bridge.health.status import Standing, StatusSource
from bridge.imds.client import MetadataClient
from bridge.outbox.lock import StateLock
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.telemetry.metrics import Metrics


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
    status_source: StatusSource
    client: MetadataClient
    supervisor: Supervisor
    patience: float
    lock: StateLock
    probe: Probe | None = None
