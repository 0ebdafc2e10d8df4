"""The composition root: opens every resource, builds the workers, runs them.

It does not use signals, arguments or exit codes, so that it can run anywhere.

    lock → traffic probe → health port → identity → state file → sinks → workers … stop

If the identity of this VM is not known at once, the document is read nevertheless, and
events that cannot wait are delivered. When it is known, or after a minute without an
answer, all from the state file on is closed and opened again, as at a restart; and once
more if the answer comes later.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

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
    ask_slowly,
    provisional,
    settle,
)
from bridge.app.supervisor import NO_SUPERVISOR, Supervisor, attended
from bridge.configuration.config import Config
from bridge.events.identity import Identity
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Bell, Clock, ReferenceClock
from bridge.foundation.errors import OutboxUnavailableError
from bridge.foundation.workers import run_workers, unless, waking
from bridge.health import port
from bridge.health.status import StatusSource
from bridge.imds.client import open_client
from bridge.outbox import statefile
from bridge.outbox.statefile import is_foreign
from bridge.telemetry.metrics import Metrics, log_unseen_errors

log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
_FOR_DISK = 10.0  # what waits for the disk may delay the rest, for example approvals
_BRIEFLY = 1.0  # what is in flight may last, when all is opened again: nothing polls


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
        finder = IdentityFinder(config, identity, is_asking=identity is None)
        while not stop.is_set():
            await _run_on_state(config, finder, stop, around)
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
    config: Config, finder: "IdentityFinder", stop: asyncio.Event, around: Surroundings
) -> None:
    """Run on one state file until ``stop`` is set, or ``finder`` has an identity.

    Args:
        config: the configuration, with its placeholders.
        finder: knows the identity of this VM, or asks for it.
        stop: set to stop the forwarder.
        around: the parts that are open already.
    """
    path, source, over = Path(config.state.path), config.events.source, Bell()
    identity = finder.identity or Identity().overridden(config.identity)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            statefile.open_database(
                path, identity.vm_id, clock=around.clock, lock=around.lock
            )
        )
        is_early = finder.identity is None
        decide = provisional if is_early else settle
        origin = await decide(database, identity, source)
        forwarder = Forwarder(config, around, database, stack, origin, is_early)
        workers = await forwarder.build_workers()
        if finder.is_asking:
            finder.forwarder = forwarder
            workers.append(finder)
        reporter = forwarder.event_context.reporter
        if is_early:
            log.warning(
                "polling begins before the identity of this VM is known",
                extra={"vm": reporter},
            )
        else:
            log.info("forwarder started", extra={"vm": reporter})
        around.supervisor.ready()
        async with waking(stop, over):
            await run_workers(
                workers,
                over,
                grace=lambda: config.shutdown_grace if stop.is_set() else _BRIEFLY,
            )
        around.status_source.outbox = around.status_source.poller = None


@dataclass(slots=True)
class IdentityFinder:
    """Asks for the identity of this VM while the document is read already.

    Attributes:
        config: the configuration, with its placeholders.
        identity: the identity to run with; None = only what cannot wait is published.
        is_asking: whether instance metadata has not answered yet, but may.
        forwarder: the parts that are open now.
    """

    config: Config
    identity: Identity | None
    is_asking: bool
    forwarder: Forwarder = field(init=False)
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
        """Set ``stop`` when the state file must be opened with another identity."""
        around, given = self.forwarder.around, self.config.identity
        is_early = self.identity is None
        ask = ask_repeatedly if is_early else ask_slowly
        asked = ask(self, given, around.clock, stop, around.timings.identity)
        found = await unless(stop, asked)
        self.is_asking = found is None
        if is_early and not stop.is_set():
            self.identity = found or Identity().overridden(given)
            with suppress(OutboxUnavailableError):  # else the first look publishes it
                await self._publish_held(self.identity)
            await self.forwarder.outbox.state.write({})  # usually in milliseconds
            late = around.clock.monotonic() + _FOR_DISK
            await self._wait_while(
                lambda: (
                    self.forwarder.is_acting
                    or (self.forwarder.is_unsaved and around.clock.monotonic() < late)
                ),
                stop,
            )
        elif found is not None and found != self.forwarder.origin.identity:
            vm = {"vm": found.members}
            log.warning("identity of this VM is known now", extra=vm)
            self.identity = found
            await self._wait_while(lambda: self.forwarder.is_unsaved, stop)
        else:
            await stop.wait()  # nothing has changed
        stop.set()

    async def _publish_held(self, identity: Identity) -> None:
        """Publish what waits for the identity, unless the file is of another VM."""
        forwarder, vm_id = self.forwarder, identity.vm_id
        if not (vm_id and await is_foreign(forwarder.database, vm_id)):
            source = self.config.events.source
            origin = await settle(forwarder.database, identity, source)
            await forwarder.set_identity(origin)

    async def _wait_while(self, is_so: Callable[[], bool], stop: asyncio.Event) -> None:
        clock = self.forwarder.around.clock
        while is_so() and not await clock.wait(stop, _LOOK_EVERY):
            pass
