"""Trying a configuration out: a test event sent, a preview, a look at the routing.

Nothing here touches the outbox: a forwarder of the same configuration may be running.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace as with_fields

from bridge import __version__, samples, threads
from bridge.clock import Clock
from bridge.cloudevent import CloudEvent
from bridge.config import Config, Settings
from bridge.errors import (
    BridgeError,
    MetadataError,
    OutboxError,
    PermanentDeliveryError,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.events import Teller
from bridge.identity import Identity
from bridge.imds.client import open_client
from bridge.introduction import makeshift_source, remembered
from bridge.options import nearest
from bridge.outbox.database import Database
from bridge.reception import address_of
from bridge.routing import Obstacle, Router
from bridge.samples import Sample
from bridge.sinks.base import Preview, Resources, SinkConfig
from bridge.telemetry import Metrics
from bridge.transport import open_session

_PATIENCE = 5.0  # seconds for instance metadata
_USER_AGENT = f"scheduled-events-bridge/{__version__}"
_CONSEQUENCES: Sequence[tuple[type[BridgeError], str]] = (
    (TransientDeliveryError, "the bridge would try again"),
    (RefusedDeliveryError, "the bridge would try again, and soon park the sink"),
    (PermanentDeliveryError, "the bridge would make it a dead letter"),
)


def chosen(config: Config, names: Sequence[str]) -> Config:
    """Return the configuration with the named sinks alone; with all if none is named.

    Raises:
        ValueError: there is no such sink.
    """
    known = [sink.name for sink in config.sinks]
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"there are: {_list(known)}"
            raise ValueError(f"no sink is called {name!r}; {hint}")
    sinks = tuple(s for s in config.sinks if not names or s.name in names)
    if not sinks:
        raise ValueError("the configuration has no sinks")
    return with_fields(config, sinks=sinks)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# -- who tells -----------------------------------------------------------------


async def known_here(config: Settings, otherwise: Identity | None = None) -> Identity:
    """Return who this VM is without asking anybody.

    ``[identity]`` says so, and for the rest the state file of the forwarder here.

    Args:
        config: of the forwarder.
        otherwise: who it is where there is no state file.
    """
    last = await _last_known(Path(config.state.path))
    return (last or otherwise or Identity()).overridden(config.identity)


async def _last_known(path: Path) -> Identity | None:
    """Return what the forwarder here knew last; None where it cannot be read."""
    try:
        if not await asyncio.to_thread(path.is_file):
            return None
        async with Database.open(path) as database:
            return await remembered(database)
    except (OutboxError, OSError):
        return None


async def _asked(config: Config, clock: Clock) -> tuple[Identity, str | None]:
    """Ask instance metadata once; return also why it did not say who this is."""
    try:
        async with (
            open_client(config.imds, clock, Metrics((), __version__)) as client,
            asyncio.timeout(_PATIENCE),
        ):
            found = Identity.from_metadata(await client.instance())
    except TimeoutError:
        trouble = f"no answer within {_PATIENCE:g} s"
    except MetadataError as error:
        trouble = str(error)
    else:
        return found.overridden(config.identity), None
    known = await known_here(config)
    who = f"it is taken for {known.vm_name}" if known.vm_name else "it is not known"
    return known, f"who this VM is was not to be learned ({trouble}): {who}"


def teller_of(config: Settings, identity: Identity) -> Teller:
    """Return who tells, as the forwarder would have it."""
    return Teller(
        prefix=config.events.type_prefix,
        source=config.events.source or identity.source or makeshift_source(),
        identity=identity,
        version=__version__,
    )


# -- send-test -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one attempt.

    Attributes:
        seconds: how long it took.
        error: why the sink did not take the event; None if it did.
    """

    sink: str
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was sent, and what the sinks answered.

    Attributes:
        warning: why it is not known who this VM is; None if it is.
    """

    event: CloudEvent
    attempts: tuple[Attempt, ...]
    warning: str | None

    @property
    def is_good(self) -> bool:
        """Whether every sink has taken it."""
        return all(attempt.error is None for attempt in self.attempts)


async def send_test(config: Config, event_type: str, clock: Clock) -> Report:
    """Send one marked event to every sink, in one attempt each, side by side.

    It says nowhere how it could be approved.

    Raises:
        ConfigError: a placeholder in the name of an entity has no value here.
    """
    threads.lend()
    identity, warning = await _asked(config, clock)
    config = with_fields(config, approvals=None).filled_in(identity.expand)
    event = samples.marked_event(
        teller_of(config, identity),
        event_type,
        unique=str(uuid4()).upper(),
        now=clock.now(),
    )
    tries = [_sent(sink, identity, event, clock) for sink in config.sinks]
    attempts = tuple(await asyncio.gather(*tries))
    return Report(event=event, attempts=attempts, warning=warning)


async def _sent(
    sink: SinkConfig, identity: Identity, event: CloudEvent, clock: Clock
) -> Attempt:
    began, error = clock.monotonic(), None
    try:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(open_session(user_agent=_USER_AGENT))
            resources = Resources(
                http=http, expand=identity.expand, vm_id=identity.vm_id
            )
            opened = await stack.enter_async_context(sink.open(resources))
            # Read from bytes, as the relay reads it from the outbox.
            await opened.deliver(CloudEvent.from_json(event.to_json()))
    except (BridgeError, ValueError) as trouble:
        hints = [text for kind, text in _CONSEQUENCES if isinstance(trouble, kind)]
        error = "; ".join([str(trouble), *hints])
    return Attempt(sink=sink.name, seconds=clock.monotonic() - began, error=error)


# -- render --------------------------------------------------------------------


async def preview(config: Config, sample: Sample, identity: Identity) -> Preview:
    """Return what the one sink of ``config`` would send; connects to nothing.

    A placeholder whose value is not known here stands for itself.

    Raises:
        DeliveryError: the event cannot be rendered for this sink.
        BridgeError: the sink cannot be opened.
    """
    shown = _standing_in(identity)
    config = config.filled_in(shown.expand)
    (sink,), approvals = config.sinks, config.approvals
    async with open_session(user_agent=_USER_AGENT) as http:
        resources = Resources(
            http=http,
            expand=shown.expand,
            vm_id=shown.vm_id,
            approvals=address_of(approvals, shown.expand) if approvals else None,
        )
        return await sink.preview(resources, sample.event)


def _standing_in(identity: Identity) -> Identity:
    return replace(
        identity,
        vm_name=identity.vm_name or "{vm_name}",
        vm_id=identity.vm_id or "{vm_id}",
        vm_scale_set_name=identity.group or "{group}",
    )


# -- route ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Whether a sink is told of an event, and if not, why.

    Attributes:
        obstacles: the conditions that do not hold; empty if it is told.
    """

    sink: str
    obstacles: tuple[Obstacle, ...]

    @property
    def is_told(self) -> bool:
        """Whether the sink is told."""
        return not self.obstacles


def routings(router: Router, sample: Sample) -> tuple[Routing, ...]:
    """Say of each sink whether it would be told of an event it has heard nothing of."""
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
    """Return what has to be said of routes beside."""
    found = []
    if identity.vm_name is None and sample.subject.events:
        found.append(
            "this VM's name is not known here (--vm or identity.vm_name would say it), "
            "and who does not know his name passes every scope"
        )
    if sample.subject.events and not all(route.is_told for route in routes):
        found.append(
            "a sink that was told of an EventId is told to its end, whatever "
            "when.event_types, event_sources, resources and scope say later"
        )
    return tuple(found)
