"""The composition root: opens every resource, builds the workers, runs them.

It does not use signals, arguments or exit codes, so that it can run anywhere.

    lock → traffic probe → health port → identity → state file → sinks → workers … stop

If the identity of this VM is not known at once, the document is read nevertheless, and
events that cannot wait are delivered. The other workers begin when it is known.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct

from bridge import __version__
from bridge.app.composition import (
    TIMINGS,
    Forwarder,
    Probe,
    Surroundings,
    Timings,
)
from bridge.app.identify import (
    ask_once,
    ask_repeatedly,
    provisional,
    settle,
)
from bridge.app.supervisor import NO_SUPERVISOR, Supervisor, attended
from bridge.configuration.config import Config
from bridge.events.identity import Identity, IdentityConfig
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Clock, ReferenceClock
from bridge.foundation.workers import run_together, run_workers, unless, waking
from bridge.health import port
from bridge.health.status import StatusSource
from bridge.imds.client import open_client
from bridge.outbox import statefile
from bridge.outbox.statefile import is_foreign, set_owner
from bridge.telemetry.metrics import Metrics, log_unseen_errors

log = logging.getLogger(__name__)


async def run(
    config: Config,
    stop: asyncio.Event,
    clock: Clock,
    supervisor: Supervisor = NO_SUPERVISOR,
    timings: Timings = TIMINGS,
) -> None:
    """Run the forwarder until ``stop`` is set.

    Args:
        config: the configuration, with its placeholders.
        stop: set to stop the forwarder.
        clock: the clock of this machine; it is corrected by the time of IMDS.
        supervisor: is notified when the forwarder is ready, alive, and stopping.
        timings: the time limits of the forwarder's requests.

    Raises:
        BridgeError: the forwarder cannot start or go on; may be in an ExceptionGroup.
    """
    path, clock = Path(config.state.path), ReferenceClock(clock)
    daemon_threads.lend()
    log_unseen_errors(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        lock = await stack.enter_async_context(statefile.locking(path))
        metrics = Metrics(
            (sink.name for sink in config.sinks),
            __version__,
            has_traffic=config.traffic is not None,
            acting=(sink.name for sink in config.sinks if sink.is_for_steps),
        )
        status_source = StatusSource(clock, metrics, path)
        listeners = _inherited()
        probe = await _probe(config, status_source, listeners.get("traffic"), stack)
        await stack.enter_async_context(
            attended(supervisor, stop, clock, status_source.is_alive)
        )
        await stack.enter_async_context(
            port.serve(config.http, status_source, listeners.get("health"))
        )
        await stack.enter_async_context(port.serve_commands(lock, status_source))
        client = await stack.enter_async_context(
            open_client(config.imds, clock, metrics)
        )
        around = Surroundings(
            clock=clock,
            metrics=metrics,
            status_source=status_source,
            client=client,
            supervisor=supervisor,
            timings=timings,
            lock=lock,
            environ=os.environ,
            probe=probe,
        )
        identity = await unless(stop, ask_once(client, config.identity))
        while not stop.is_set():
            identity = await _run_on_state(config, identity, stop, around)
    log.info("forwarder stopped")


def _inherited() -> Mapping[str, socket.socket]:
    """Return the listeners that systemd passed, by their names."""
    if "LISTEN_FDS" not in os.environ:
        return {}
    # Only loaded with a socket unit: few have one.
    from bridge.traffic.probe import (  # noqa: PLC0415 - see above
        inherited_listeners,
    )

    return inherited_listeners(os.environ)


async def _probe(
    config: Config,
    status_source: StatusSource,
    listener: socket.socket | None,
    stack: AsyncExitStack,
) -> Probe | None:
    """Open the traffic probe; it is closed after all parts that are opened later."""
    if config.traffic is None:
        return None
    # Only loaded if it is configured: it costs memory.
    from bridge.app.traffic import open_probe  # noqa: PLC0415 - see above

    clock, metrics = status_source.clock, status_source.metrics
    probe = await stack.enter_async_context(
        open_probe(config, config.traffic, clock, metrics, listener)
    )
    status_source.rotation = probe.rotation
    status_source.ports.append(probe.port)
    return probe


async def _run_on_state(
    config: Config,
    identity: Identity | None,
    stop: asyncio.Event,
    around: Surroundings,
) -> Identity | None:
    """Run on one state file until ``stop`` is set.

    Args:
        config: the configuration, with its placeholders.
        identity: the identity of this VM; None while it is not known.
        stop: set to stop the forwarder.
        around: the parts that are open already.

    Returns:
        None after the stop. The identity of this VM, if the state file turned out to
        belong to another VM: then the state file must be opened again.
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
            workers = await forwarder.build_workers()
            log.info(
                "forwarder started", extra={"vm": forwarder.event_context.reporter}
            )
            around.supervisor.ready()
            await run_workers(workers, stop, grace=config.shutdown_grace)
            return None
        origin = await provisional(database, given, source)
        forwarder = Forwarder(config, around, database, stack, origin)
        finder = IdentityFinder(forwarder, given)
        workers = [*await forwarder.build_early_workers(), finder]
        reporter = forwarder.event_context.reporter
        log.warning(
            "polling begins before the identity of this VM is known",
            extra={"vm": reporter},
        )
        around.supervisor.ready()
        over = asyncio.Event()
        async with waking(stop, over):
            await run_workers(workers, over, grace=config.shutdown_grace)
        return finder.other


class IdentityFinder(Struct):
    """Finds out the identity of this VM while the document is read already.

    Attributes:
        given: ``[identity]``.
        other: the identity of this VM, if the state file belongs to another VM.
    """

    forwarder: Forwarder
    given: IdentityConfig
    other: Identity | None = None
    name: str = "identity"

    async def instance(
        self,
        timeout: float,  # noqa: ASYNC109 - how long the request may take
    ) -> Mapping[str, object]:
        """Read instance metadata, between two looks.

        Raises:
            MetadataError: instance metadata cannot be read now.
        """
        async with self.forwarder.poller.alone:
            return await self.forwarder.around.client.instance(timeout)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the workers that had to wait for the identity, as soon as it is known.

        Sets ``stop`` if the state file belongs to another VM.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        forwarder, around = self.forwarder, self.forwarder.around
        identity = await ask_repeatedly(
            self, self.given, around.clock, stop, around.timings.identity
        )
        if stop.is_set():
            return
        vm_id = identity.vm_id if identity else None
        if vm_id and await is_foreign(forwarder.database, vm_id):
            self.other = identity
            around.status_source.outbox = around.status_source.poller = None
            stop.set()
            return
        if vm_id:
            set_owner(forwarder.database, vm_id)
        source = forwarder.config.events.source
        forwarder.origin = await settle(forwarder.database, identity, source)
        async with AsyncExitStack() as stack:
            workers = await forwarder.set_identity(stack)
            log.info(
                "forwarder started", extra={"vm": forwarder.event_context.reporter}
            )
            await run_together(workers, stop)
