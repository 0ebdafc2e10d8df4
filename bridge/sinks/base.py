"""The contract between the relay and a sink, and the resources of a sink.

A new sink is a package with a ``SinkConfig`` and a ``Sink``, and one line in
``registry.py``. Rendering is a pure function of that package.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Route, Scope, Transition, When
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.pace import Pace, Pause
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration, Rate
from bridge.servicebus.namespace import TIMINGS, Timings

if TYPE_CHECKING:
    import aiohttp

    from bridge.net.entra import TokenUse
    from bridge.servicebus.namespace import Entity
    from bridge.sinks.acting import Actor, Outlook


class Sink(Protocol):
    """A destination of events."""

    async def deliver(self, event: CloudEvent) -> None:
        """Make one attempt; return when the other side has accepted the event.

        Never sleeps, never retries, ends within a timeout of its own. May be
        called again before an earlier call has returned: up to ``most_slots`` calls of
        the config, one more for an urgent event, and more beside calls that hang.
        May be cancelled when another call shows that the other side is back. After a
        ``RefusedDeliveryError`` the next call reads secrets again and reconnects.

        Raises:
            TransientDeliveryError: a later attempt may succeed.
            RefusedDeliveryError: every event would be refused now.
            PermanentDeliveryError: this event will never be accepted.
        """
        ...


@runtime_checkable
class Probing(Protocol):
    """A sink that can ask whether its address answers, without sending an event."""

    async def probe(self) -> None:
        """Ask once, and end within a few seconds; any answer at all is good.

        Raises:
            DeliveryError: the address does not answer.
        """
        ...


@runtime_checkable
class Reminding(Protocol):
    """A sink whose other side must be reminded of what it was told."""

    async def remind(self, stop: asyncio.Event) -> None:
        """Send what still holds again, every few minutes, until ``stop`` is set."""
        ...


class ApprovalAddress(Struct, frozen=True, kw_only=True):
    """The approval entity, for `ReplyTo` in what is sent.

    Attributes:
        namespace: host and port in lower case, as Service Bus names them.
        entity: the queue or topic.
        session: the session an approval must be sent to; None = no sessions.
    """

    namespace: str
    entity: str
    session: str | None


class Memory(Protocol):
    """What one sink keeps across restarts, by EventId in upper case.

    An entry is deleted ``state.retention`` after its event. It never holds a secret.
    """

    async def all(self) -> Mapping[str, bytes]:
        """Return all entries."""
        ...

    async def recall(self, key: str) -> bytes | None:
        """Return the entry of ``key``; None = there is none."""
        ...

    async def keep(self, key: str, value: bytes) -> None:
        """Store ``value`` as the entry of ``key``.

        Raises:
            OutboxError: the entry cannot be stored.
        """
        ...


class Notebook(Struct, frozen=True):
    """A memory that ends with the process: for dry runs and tests."""

    pages: dict[str, bytes] = field(default_factory=dict)

    async def all(self) -> Mapping[str, bytes]:
        """See ``Memory.all``."""
        return dict(self.pages)

    async def recall(self, key: str) -> bytes | None:
        """See ``Memory.recall``."""
        return self.pages.get(key)

    async def keep(self, key: str, value: bytes) -> None:
        """See ``Memory.keep``."""
        self.pages[key] = value


class Resources(Struct, frozen=True, kw_only=True):
    """What the composition root gives to a sink.

    Attributes:
        http: the shared client session. Its users follow no redirects; it takes no
            proxy from the environment and keeps no cookies.
        expand: fills in ``{vm_id}``, ``{vm_name}``, ``{group}``; raises ValueError.
        vm_id: session of events that have no EventId; None when unknown.
        approvals: the approval entity, if approvals are configured.
        pace: the relay's rate limit, for a sink whose other side states a limit, or
            that sends more messages than deliveries.
        busy: the pause that all sinks of the same Service Bus namespace share.
        clock: the time, and how to wait.
        memory: what the sink keeps across restarts.
        bus: how long Service Bus may take.
        environ: the environment of this process, for a program that the sink starts.
    """

    http: "aiohttp.ClientSession"
    expand: Callable[[str], str]
    vm_id: str | None = None
    approvals: ApprovalAddress | None = None
    pace: Pace = field(default_factory=Pace)
    busy: Pause = field(default_factory=Pause)
    clock: Clock = field(default_factory=SystemClock)
    memory: Memory = field(default_factory=Notebook)
    bus: Timings = TIMINGS
    environ: Mapping[str, str] = field(default_factory=dict)


class Preview(Struct, frozen=True, kw_only=True):
    """What would be sent for one event; it holds no secret.

    Attributes:
        head: such as ``POST https://host`` and a line for each header or property;
            a secret shows as ``<secret>``, a URL as scheme and host.
        body: as it would be sent, before compression.
    """

    head: tuple[str, ...]
    body: bytes


class BatchLimits(Struct, frozen=True, kw_only=True):
    """What one request to a sink may hold, and how long it waits for more events.

    Attributes:
        most: the most events; at least two.
        size: the most bytes of all events together, as JSON; a larger event goes alone.
        wait: seconds that a request waits for more events if it is not full.
        requests: how many may be in flight at the same time.
        alone: how many may be in flight beside them, each with one urgent event.
    """

    most: int
    size: int
    wait: float = 0.0
    requests: int = 2
    alone: int = 1


class RetryConfig(Section, frozen=True, kw_only=True):
    """``[sinks.retry]``: how long a delivery is retried.

    Attributes:
        max_age: how long a delivery is retried before it becomes a dead letter; it gets
            at least three attempts in any case.
        max_backoff: the longest wait between two attempts at a delivery.
    """

    max_age: Duration = Duration(86400)
    max_backoff: Duration = Duration(60)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse retries without a pause."""
        if not self.max_backoff:
            yield "max_backoff", "must be more than 0s"


class SinkConfig(Section, frozen=True, kw_only=True):
    """The keys of every sink; each type adds its own keys and ``open``.

    Attributes:
        name: the name of the sink in metrics and status: letters, digits, - and _.
            Example: ``"ops"``.
        type: the kind of sink.
        when: which events the sink gets. Example: ``{"event_types": ["Reboot",
            "Redeploy"]}``.
        retry: how long a delivery is retried. Example: ``{"max_age": "24h"}``.
        max_rate: the highest rate of deliveries; urgent ones go first. It counts
            events, also where several go in one request. Left out: no limit.
    """

    default_scope: ClassVar[Scope] = "own"
    default_lifecycle: ClassVar[bool] = True
    default_transitions: ClassVar[tuple[Transition, ...] | None] = None  # None: all
    # Whether only steps of scheduled events are routed to the sink.
    is_for_steps: ClassVar[bool] = False
    concurrency: ClassVar[int] = 8

    name: str
    type: str
    when: When = When()
    retry: RetryConfig = RetryConfig()
    max_rate: Rate | None = None

    @property
    def slots(self) -> int:
        """How many deliveries may be under way at the same time."""
        return self.concurrency

    @property
    def most_slots(self) -> int:
        """How many may be under way while all answers are successes, but slow."""
        return self.slots

    @property
    def batch_limits(self) -> BatchLimits | None:
        """What a request may hold; None: one event.

        With limits, ``open`` returns a ``bridge.sinks.batch.BatchSink``.
        """
        return None

    @property
    def repeats(self) -> bool:
        """Whether an urgent event may be sent again while its first delivery hangs.

        Only if calls do not wait for each other, and the receiver recognises an event
        by its id.
        """
        return False

    @property
    def route(self) -> Route:
        """The route with this type's defaults filled in."""
        return self.routed(self.when)

    @classmethod
    def routed(cls, when: When) -> Route:
        """Return the route of a sink of this type."""
        lifecycle, wanted = when.lifecycle, when.transitions
        return Route(
            when=replace(when, transitions=wanted or cls.default_transitions),
            scope=when.scope or cls.default_scope,
            lifecycle=cls.default_lifecycle if lifecycle is None else lifecycle,
            is_for_steps=cls.is_for_steps,
        )

    @property
    def target(self) -> "Entity | None":
        """The Service Bus entity that the sink sends to; None if there is none."""
        return None

    @property
    def namespace_host(self) -> str:
        """The host of the Service Bus namespace; "" = none, or it is not known."""
        return ""

    @property
    def entities(self) -> Mapping[str, str]:
        """The names of entities by their keys; "" is none.

        Placeholders in them are checked with the configuration. Before ``open``, they
        are replaced by what they mean on this VM.
        """
        return {}

    @property
    def token_use(self) -> "TokenUse | None":
        """The Entra ID token that the sink needs; None if it needs none."""
        return None

    @property
    def needs_approvals(self) -> str | None:
        """The key that requires ``[approvals]``; None if there is none."""
        return None

    @property
    def file(self) -> str | None:
        """The file that the sink writes, ``-`` for standard output; None: no file.

        No other sink may write to it.
        """
        return None

    def doubts(self) -> Iterator[tuple[str, str]]:
        """Yield ``(key, text)`` for each value that is probably wrong on this VM."""
        return iter(())

    def actor(
        self,
        outlook: "Outlook",  # noqa: ARG002 - the contract's
        resources: Resources,  # noqa: ARG002 - the contract's
    ) -> "Actor | None":
        """Return the actor, if the sink acts on steps instead of sending them.

        Most types return None: all steps are sent by the ``Sink``.
        """
        return None

    def load(self) -> None:
        """Import the optional package that the sink needs, if any.

        Raises:
            MissingExtraError: it is not installed.
        """

    def open(self, resources: Resources) -> AbstractAsyncContextManager[Sink]:
        """Return a context manager that connects lazily and closes cleanly.

        Raises:
            MissingExtraError: an optional package is not installed.
            ConfigError: a placeholder has no value on this machine.
        """
        raise NotImplementedError

    async def reach(self, resources: Resources) -> str:
        """Test the connection, publish nothing, and return in a line what was found.

        Raises:
            DeliveryError: the other side cannot be reached, or refuses.
            UnprovenError: the other side answers, but this does not prove that it
                takes events.
            MissingExtraError: as ``open``.
            ConfigError: as ``open``.
        """
        raise NotImplementedError

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be sent for an event; nothing is connected.

        Raises:
            PermanentDeliveryError: the event cannot be rendered for this sink.
            MissingExtraError: as ``open``.
            ConfigError: as ``open``.
        """
        raise NotImplementedError
