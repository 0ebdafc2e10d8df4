"""The contract between the relay and a sink, and what every sink is given.

A new sink is one file with a ``SinkConfig`` and a ``Sink``, and one line in
``registry.py``. Rendering belongs into a pure function of that file.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import aiohttp
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Route, Scope, Transition, When
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.rate_limit import Pace
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration, Rate

if TYPE_CHECKING:
    from bridge.servicebus.namespace import Entity
    from bridge.sinks.acting import Actor, Outlook


class Sink(Protocol):
    """Where events go."""

    async def deliver(self, event: CloudEvent) -> None:
        """Make one attempt, and return when the other side has taken the event.

        Never sleeps, never retries, ends within a timeout of its own. May be
        called again before an earlier call has returned, up to ``concurrency``
        of the config, once more for what is urgent, and beside calls that hang.
        May be cancelled when another call shows that the other side is back. After a
        ``RefusedDeliveryError`` the next call reads secrets again and connects anew.

        Raises:
            TransientDeliveryError: it may work later.
            RefusedDeliveryError: whatever is sent would be refused.
            PermanentDeliveryError: this event will never be taken.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAddress:
    """Where approvals are received, for `ReplyTo` on what is sent.

    Attributes:
        namespace: host and port as Service Bus names it, in lower case.
        entity: the queue or topic.
        session: the session an approval is to be sent to; None = no sessions.
    """

    namespace: str
    entity: str
    session: str | None


class Memory(Protocol):
    """What one sink keeps across restarts, by EventId in upper case.

    Goes with ``state.retention`` after the event has; never holds a secret.
    """

    async def all(self) -> Mapping[str, bytes]:
        """Return everything that is kept."""
        ...

    async def recall(self, key: str) -> bytes | None:
        """Return what is kept under ``key``; None = nothing."""
        ...

    async def keep(self, key: str, value: bytes) -> None:
        """Keep ``value`` in the place of what was kept under ``key``.

        Raises:
            OutboxError: it cannot be kept.
        """
        ...


@dataclass(frozen=True, slots=True)
class Notebook:
    """A memory that ends with the process: for a look, or a test."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the composition root lends to a sink.

    Attributes:
        http: the shared client session: no redirects are followed by its users,
            no proxy from the environment, no cookies.
        expand: fills in ``{vm_id}``, ``{vm_name}``, ``{group}``; ValueError.
        vm_id: session of events that have no EventId; None when unknown.
        approvals: where replies go, when approvals are configured.
        pace: the relay's, for a sink whose other side says how much it takes, or that
            sends more than it is given.
        clock: what time it is, and how to wait.
        memory: what the sink keeps across restarts.
    """

    http: aiohttp.ClientSession
    expand: Callable[[str], str]
    vm_id: str | None = None
    approvals: ApprovalAddress | None = None
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=SystemClock)
    memory: Memory = field(default_factory=Notebook)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would be sent for one event; nothing in it is secret.

    Attributes:
        head: such as ``POST https://host`` and a line per header or property;
            a secret shows as ``<secret>``, a URL as scheme and host.
        body: as it would go out, before compression.
    """

    head: tuple[str, ...]
    body: bytes


class RetryConfig(Section, frozen=True, kw_only=True):
    """``[sinks.retry]``: how long a delivery is tried.

    Attributes:
        max_age: how long a delivery is tried before it is a dead letter; at least three
            times in any case.
        max_backoff: the longest wait between two attempts at a delivery.
    """

    max_age: Duration = Duration(86400)
    max_backoff: Duration = Duration(60)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse to try without a pause."""
        if not self.max_backoff:
            yield "max_backoff", "must be more than 0s"


class SinkConfig(Section, frozen=True, kw_only=True):
    """What every sink has; each type adds its own keys and ``open``.

    Attributes:
        name: what the sink is called in metrics and status: letters, digits, - and _.
            Example: ``"ops"``.
        type: what kind of sink it is.
        when: which events the sink is told of. Example: ``{"event_types": ["Reboot",
            "Redeploy"]}``.
        retry: how long a delivery is tried. Example: ``{"max_age": "24h"}``.
        max_rate: how many deliveries there may be; urgent ones go first. Left out: no
            limit.
    """

    default_scope: ClassVar[Scope] = "own"
    default_lifecycle: ClassVar[bool] = True
    default_transitions: ClassVar[tuple[Transition, ...] | None] = None  # None: all
    # Whether only steps of scheduled events go there: nothing else is ever routed.
    is_for_steps: ClassVar[bool] = False
    concurrency: ClassVar[int] = 8
    # Whether an event whose delivery hangs may be sent again beside it: only where
    # calls do not wait for each other, and the other side knows events by their id.
    repeats: ClassVar[bool] = False

    name: str
    type: str
    when: When = When()
    retry: RetryConfig = RetryConfig()
    max_rate: Rate | None = None

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
        """The Service Bus entity that is sent to; None where there is none."""
        return None

    @property
    def needs_approvals(self) -> str | None:
        """The key that makes no sense without ``[approvals]``; None where none is."""
        return None

    @property
    def file(self) -> str | None:
        """The file that is written to, ``-`` for standard output; None: there is none.

        Nobody else may write to it.
        """
        return None

    def actor(
        self,
        outlook: "Outlook",  # noqa: ARG002 - the contract's
        resources: Resources,  # noqa: ARG002 - the contract's
    ) -> "Actor | None":
        """Return who acts on steps in the place of a ``Sink`` that sends them.

        None, as of most types: there is nobody, and all steps are sent.
        """
        return None

    def open(self, resources: Resources) -> AbstractAsyncContextManager[Sink]:
        """Return a context manager that connects lazily and closes cleanly.

        Raises:
            MissingExtraError: an optional package is not installed.
            ConfigError: a placeholder has no value on this machine.
        """
        raise NotImplementedError

    async def reach(self, resources: Resources) -> str:
        """Reach the other side, publish nothing, and say in a line what was found.

        Raises:
            DeliveryError: it cannot be reached, or refuses.
            UnprovenError: it is there, and its answer says no more.
            MissingExtraError: as ``open``.
            ConfigError: as ``open``.
        """
        raise NotImplementedError

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be sent for an event; connects to nothing.

        Raises:
            PermanentDeliveryError: the event cannot be rendered for this sink.
            MissingExtraError: as ``open``.
            ConfigError: as ``open``.
        """
        raise NotImplementedError
