"""Dry runs of a configuration: send a test event, render an event, show its routes.

Nothing here changes the outbox: a forwarder may run with the same configuration.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from bridge import __version__
from bridge.app.identify import IDENTITY, decoded, makeshift_source
from bridge.configuration.config import Config, Settings
from bridge.configuration.environment import no_such_sink
from bridge.configuration.load import hidden
from bridge.diagnostics.outbox_access import access
from bridge.events import samples
from bridge.events.build import EventContext
from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.events.routing import Obstacle, Router
from bridge.events.samples import Sample
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    BridgeError,
    MetadataError,
    OutboxError,
    PermanentDeliveryError,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import PLACEHOLDERS
from bridge.foundation.waiting import waiting_for
from bridge.imds.client import open_client
from bridge.net.http_client import open_session
from bridge.outbox.questions import Named
from bridge.sinks.base import Preview, Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

_PATIENCE = 5.0  # seconds for instance metadata
_USER_AGENT = f"scheduled-events-bridge/{__version__}"
_CONSEQUENCES: Sequence[tuple[type[BridgeError], str]] = (
    (TransientDeliveryError, "the bridge would retry"),
    (RefusedDeliveryError, "the bridge would retry, and soon park the sink"),
    (PermanentDeliveryError, "the bridge would make it a dead letter"),
)


def chosen(config: Config, names: Sequence[str]) -> Config:
    """Return the configuration with only the named sinks; with all if none is named.

    Raises:
        ValueError: there is no such sink.
    """
    known = [sink.name for sink in config.sinks]
    for name in names:
        if name not in known:
            raise ValueError(no_such_sink(name, known))
    sinks = tuple(s for s in config.sinks if not names or s.name in names)
    if not sinks:
        raise ValueError("the configuration has no sinks")
    return replace(config, sinks=sinks)


# -- the publishing VM ---------------------------------------------------------


async def known_here(
    config: Settings, clock: Clock, otherwise: Identity | None = None
) -> Identity:
    """Return the identity of this VM without asking instance metadata.

    It comes from ``[identity]``, then from the state file of the local forwarder.

    Args:
        config: the settings of the forwarder.
        clock: the clock of this machine.
        otherwise: the identity to use if there is no state file.
    """
    last = await _last_known(Path(config.state.path), clock)
    return (last or otherwise or Identity()).overridden(config.identity)


async def _last_known(path: Path, clock: Clock) -> Identity | None:
    """Return the identity in the local state file; None if it cannot be read."""
    try:
        if not await asyncio.to_thread(path.is_file):
            return None
        async with access(path, clock) as ledger:
            return decoded(await ledger.ask(Named(name=IDENTITY)))
    except (OutboxError, OSError):
        return None


async def _asked(
    config: Config, clock: Clock, patience: float
) -> tuple[Identity, str | None]:
    """Read instance metadata once; return also the reason if that failed."""
    try:
        async with (
            open_client(config.imds, clock, Metrics((), __version__)) as client,
            asyncio.timeout(patience),
        ):
            with waiting_for("imds: instance metadata"):
                found = Identity.from_metadata(await client.instance())
    except TimeoutError:
        trouble = f"no answer within {patience:g} s"
    except MetadataError as error:
        trouble = str(error)
    else:
        return found.overridden(config.identity), None
    known = await known_here(config, clock)
    who = f"{known.vm_name} is used" if known.vm_name else "it is not known"
    return known, f"the identity of this VM could not be read ({trouble}): {who}"


def event_context_of(config: Settings, identity: Identity) -> EventContext:
    """Return the event context that the forwarder would use."""
    return EventContext(
        prefix=config.events.type_prefix,
        source=config.events.source or identity.source or makeshift_source(),
        identity=identity,
        version=__version__,
        link=config.events.link,
    )


# -- send-test -----------------------------------------------------------------


class Attempt(Struct, frozen=True, kw_only=True):
    """The result of one attempt.

    Attributes:
        seconds: how long the attempt took.
        error: why the sink did not accept the event; None if it did.
    """

    sink: str
    seconds: float
    error: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """The event that was sent, and the answers of the sinks.

    Attributes:
        warning: why the identity of this VM is not known; None if it is.
    """

    event: CloudEvent
    attempts: tuple[Attempt, ...]
    warning: str | None

    @property
    def is_good(self) -> bool:
        """Whether every sink accepted the event."""
        return all(attempt.error is None for attempt in self.attempts)


async def send_test(
    config: Config,
    event_type: str,
    clock: Clock,
    *,
    environ: Mapping[str, str],
    patience: float = _PATIENCE,
) -> Report:
    """Send one test event to every sink: one attempt each, all at the same time.

    The event holds no address for approvals.

    Args:
        config: with the sinks that are sent to.
        event_type: of the event in IMDS.
        clock: the source of time.
        environ: the environment of this process, for a command.
        patience: seconds for instance metadata.

    Raises:
        ConfigError: a placeholder in an entity name has no value here.
    """
    daemon_threads.lend()
    identity, warning = await _asked(config, clock, patience)
    config = replace(config, approvals=None).filled_in(identity.expand)
    event = samples.marked_event(
        event_context_of(config, identity),
        event_type,
        unique=str(uuid4()).upper(),
        now=clock.now(),
    )
    tries = [_sent(sink, identity, event, clock, environ) for sink in config.sinks]
    attempts = tuple(await asyncio.gather(*tries))
    return Report(event=event, attempts=attempts, warning=warning)


async def _sent(
    sink: SinkConfig,
    identity: Identity,
    event: CloudEvent,
    clock: Clock,
    environ: Mapping[str, str],
) -> Attempt:
    began, error = clock.monotonic(), None
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(waiting_for(f"sinks.{sink.name}"))
            http = await stack.enter_async_context(open_session(user_agent=_USER_AGENT))
            resources = Resources(
                http=http,
                expand=identity.expand,
                vm_id=identity.vm_id,
                environ=environ,
            )
            opened = await stack.enter_async_context(sink.open(resources))
            # Encode and decode the event, because the outbox does so, too.
            await opened.deliver(CloudEvent.from_json(event.to_json()))
    except (BridgeError, ValueError) as trouble:
        hints = [text for kind, text in _CONSEQUENCES if isinstance(trouble, kind)]
        error = "; ".join([str(trouble), *hints])
    return Attempt(sink=sink.name, seconds=clock.monotonic() - began, error=error)


# -- render --------------------------------------------------------------------


class ShownIdentity(Struct):
    """The identity of this VM, with invented values for what is not known.

    Attributes:
        unknown: the placeholders that were filled in with invented values.
    """

    known: Identity
    unknown: set[str] = field(default_factory=set)

    @property
    def identity(self) -> Identity:
        """The identity that is shown."""
        return replace(
            self.known,
            vm_name=self.known.vm_name or samples.MADE_UP.vm_name,
            vm_id=self.known.vm_id or samples.MADE_UP.vm_id,
            vm_scale_set_name=self.known.group or samples.MADE_UP.group,
        )

    def expand(self, text: str) -> str:
        """Fill in the placeholders; see ``Identity.expand``."""
        self.unknown.update(
            name
            for name in PLACEHOLDERS
            if f"{{{name}}}" in text and not getattr(self.known, name)
        )
        return self.identity.expand(text)

    def note(self) -> str | None:
        """Return a text that names the invented values; None if there are none."""
        names = [f"{{{name}}}" for name in PLACEHOLDERS if name in self.unknown]
        if not names:
            return None
        them = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        are, those = ("is", "that") if len(names) == 1 else ("are", "those")
        return (
            f"{them} {are} not known here, and {those} of an invented VM "
            f"{are} shown; set [identity] to show this VM"
        )


async def preview(
    config: Config,
    sample: Sample,
    shown_as: ShownIdentity,
    environ: Mapping[str, str],
) -> Preview:
    """Return what the only sink of ``config`` would send; open no connection.

    Raises:
        DeliveryError: the event cannot be rendered for this sink.
        BridgeError: the sink cannot be opened.
    """
    config = config.filled_in(shown_as.expand)
    (sink,), approvals = config.sinks, config.approval_entity
    async with open_session(user_agent=_USER_AGENT) as http:
        resources = Resources(
            http=http,
            expand=shown_as.expand,
            vm_id=shown_as.identity.vm_id,
            approvals=approvals.address(shown_as.expand) if approvals else None,
            environ=environ,
        )
        found = await sink.preview(resources, sample.event)
    return replace(found, head=tuple(map(hidden, found.head)))


# -- route ---------------------------------------------------------------------


class Routing(Struct, frozen=True, kw_only=True):
    """Whether a sink gets an event, and if not, why.

    Attributes:
        obstacles: the conditions that do not hold; empty if the sink gets the event.
    """

    sink: str
    obstacles: tuple[Obstacle, ...]

    @property
    def gets_it(self) -> bool:
        """Whether the sink gets the event."""
        return not self.obstacles


def routings(router: Router, sample: Sample) -> tuple[Routing, ...]:
    """Return for each sink whether it would get an event that is new to it."""
    return tuple(
        Routing(
            sink=name,
            obstacles=router.obstacles(name, sample.subject, follows=False),
        )
        for name in router.routes
    )


def notes(
    routes: Sequence[Routing], sample: Sample, identity: Identity
) -> tuple[str, ...]:
    """Return notes about the routes as a whole."""
    found = []
    if identity.vm_name is None and sample.subject.events:
        found.append(
            "the name of this VM is not known here, so every scope lets the event "
            "through (set it with --vm or identity.vm_name)"
        )
    if sample.subject.events and not all(route.gets_it for route in routes):
        found.append(
            "a sink that got one event of an EventId gets all later ones, whatever "
            "when.event_types, event_sources, resources and scope say"
        )
    return tuple(found)
