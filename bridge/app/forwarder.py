"""The composition root: opens every resource, builds the workers, runs them.

Knows nothing of signals, arguments or exit codes, so that it can run anywhere.

    lock → traffic probe → health port → who am I → state file → sinks → workers … stop

Where nobody says at once who this VM is, the document is read all the same, and what
cannot wait is delivered with what is known; the rest begins when it is known.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bridge import __version__
from bridge.app.composition import Forwarder
from bridge.app.identify import PATIENCE, introduce, meet, provisional, settle
from bridge.app.supervisor import NOBODY, Supervisor, attended
from bridge.app.surroundings import Probe, Surroundings
from bridge.configuration.config import Config
from bridge.events.identity import Identity, IdentityConfig
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Clock
from bridge.foundation.workers import run_together, run_workers, unless, waking
from bridge.health import port
from bridge.health.status import StatusSource
from bridge.imds.client import open_client
from bridge.outbox import statefile
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.unseen_errors import log_unseen_errors

log = logging.getLogger(__name__)


async def run(
    config: Config,
    stop: asyncio.Event,
    clock: Clock,
    supervisor: Supervisor = NOBODY,
    patience: float = PATIENCE,
) -> None:
    """Run the forwarder until ``stop`` is set, and tell ``supervisor`` how it fares.

    Args:
        config: as it was read.
        stop: when to stop.
        clock: what time it is.
        supervisor: is told how it fares.
        patience: seconds for which it is asked who this VM is.

    Raises:
        BridgeError: it cannot start or go on; also inside an ExceptionGroup.
    """
    path = Path(config.state.path)
    daemon_threads.lend()
    log_unseen_errors(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(statefile.locked(path))
        metrics = Metrics(
            (sink.name for sink in config.sinks),
            __version__,
            has_traffic=config.traffic is not None,
            acting=(sink.name for sink in config.sinks if sink.is_for_steps),
        )
        status_source = StatusSource(clock=clock, metrics=metrics)
        probe = await _probe(config, clock, metrics, stack)
        status_source.rotation = probe.rotation if probe else None
        await stack.enter_async_context(
            attended(supervisor, stop, clock, status_source.is_alive)
        )
        await stack.enter_async_context(port.serve(config.http, status_source))
        client = await stack.enter_async_context(
            open_client(config.imds, clock, metrics)
        )
        around = Surroundings(
            clock=clock,
            metrics=metrics,
            status_source=status_source,
            client=client,
            supervisor=supervisor,
            patience=patience,
            lock=lock,
            probe=probe,
        )
        identity = await unless(stop, meet(client, config.identity))
        while not stop.is_set():
            identity = await _live(config, identity, stop, around)
    log.info("forwarder stopped")


async def _probe(
    config: Config, clock: Clock, metrics: Metrics, stack: AsyncExitStack
) -> Probe | None:
    """Open the traffic probe; it closes after all that is opened later."""
    if config.traffic is None:
        return None
    # Who has no balancer does without.
    from bridge.app.traffic import open_probe  # noqa: PLC0415 - see above

    return await stack.enter_async_context(
        open_probe(config, config.traffic, clock, metrics)
    )


async def _live(
    config: Config,
    identity: Identity | None,
    stop: asyncio.Event,
    around: Surroundings,
) -> Identity | None:
    """Run on one state file until ``stop`` is set.

    Args:
        config: as it was read.
        identity: who this VM is; None while it is not known.
        stop: when to stop.
        around: what is there already.

    Returns:
        Who this VM is, if the state file turned out to be another VM's: it was opened
        before that was known, and is to be opened again.
    """
    path, given = Path(config.state.path), config.identity
    vm_id = identity.vm_id if identity else given.vm_id
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            statefile.open_database(path, vm_id, clock=around.clock, lock=around.lock)
        )
        source = config.events.source
        if identity is not None:
            origin = await settle(database, identity, source)
            forwarder = Forwarder(config, around, database, stack, origin)
            workers = await forwarder.furnish()
            log.info(
                "forwarder started", extra={"vm": forwarder.event_context.reporter}
            )
            around.supervisor.ready()
            await run_workers(workers, stop, grace=config.shutdown_grace)
            return None
        origin = await provisional(database, given, source)
        forwarder = Forwarder(config, around, database, stack, origin)
        introducer = Introducer(forwarder, given)
        workers = [*await forwarder.furnish_early(), introducer]
        reporter = forwarder.event_context.reporter
        log.warning(
            "polling begins before it is known who this VM is", extra={"vm": reporter}
        )
        around.supervisor.ready()
        over = asyncio.Event()
        async with waking(stop, over):
            await run_workers(workers, over, grace=config.shutdown_grace)
        return introducer.other


@dataclass(slots=True)
class Introducer:
    """Finds out who this VM is while the document is read already.

    Attributes:
        given: ``[identity]``.
        other: who this VM is, if the state file is another VM's.
    """

    forwarder: Forwarder
    given: IdentityConfig
    other: Identity | None = None
    name: str = "introducer"

    async def run(self, stop: asyncio.Event) -> None:
        """Run what had to wait for the identity, as soon as it is known.

        Sets ``stop`` where the state file turns out to be another VM's.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        forwarder, around = self.forwarder, self.forwarder.around
        identity = await introduce(
            around.client, self.given, around.clock, stop, around.patience
        )
        if stop.is_set():
            return
        vm_id = identity.vm_id if identity else None
        if vm_id and await statefile.is_foreign(forwarder.database, vm_id):
            self.other = identity
            around.status_source.outbox = around.status_source.poller = None
            stop.set()
            return
        if vm_id:
            await forwarder.database.own(vm_id)
        source = forwarder.config.events.source
        forwarder.origin = await settle(forwarder.database, identity, source)
        async with AsyncExitStack() as stack:
            workers = await forwarder.introduce(stack)
            log.info(
                "forwarder started", extra={"vm": forwarder.event_context.reporter}
            )
            await run_together(workers, stop)
