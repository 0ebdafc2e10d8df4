"""CloudEvents to a Service Bus queue or topic.

Source: the AMQP binding of CloudEvents (structured
mode, with every attribute repeated as an application property for filters).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import ClassVar, Literal

from msgspec import Struct

from bridge.events.cloudevent import STRUCTURED_TYPE, CloudEvent
from bridge.events.routing import Scope
from bridge.foundation.background import in_background
from bridge.foundation.errors import ConfigError, DeliveryError
from bridge.foundation.values import Address, FilePath, Secret
from bridge.net.entra import CredentialKind, TokenUse
from bridge.servicebus.errors import remedy
from bridge.servicebus.namespace import (
    Entity,
    NamespaceConfig,
    TransportKind,
    entity_faults,
    entity_in,
)
from bridge.servicebus.sender import Message, Sender, short_id
from bridge.sinks.base import ApprovalAddress, Preview, Resources
from bridge.sinks.batch import BatchKeys

SessionBy = Literal["event", "vm", "none"]
MessageIdBy = Literal["event", "body"]

_INTERVALS = 3  # heartbeats that are missing until a bridge counts as silent
_LONGEST_LIFE = 14 * 86400.0


class ServiceBusSinkConfig(BatchKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "servicebus"``.

    The first seven keys are those of ``NamespaceConfig``: a msgspec class can have only
    one base with fields. A test compares the two.

    Attributes:
        queue: the queue that events are sent to; or set topic. Example:
            ``"scheduled-events"``.
        topic: the topic that events are sent to; or set queue. Example:
            ``"scheduled-events"``.
        session: the SessionId of a message: the EventId, the vmId, or none.
        message_id: the MessageId: the id of the event, by which duplicate detection
            drops what several VMs report; or a hash of the body, which nobody knows
            before, so that nobody can have an event dropped by sending its id first.
    """

    default_scope: ClassVar[Scope] = "all"  # the broker drops duplicates
    concurrency: ClassVar[int] = 32  # so that a backlog is sent in batches

    namespace: str = ""
    connection_string: Secret | None = None
    credential: CredentialKind = "managed-identity"
    client_id: str = ""
    transport: TransportKind = "amqp"
    http_proxy: Address | None = None
    ca_file: FilePath | None = None
    queue: str = ""
    topic: str = ""
    session: SessionBy = "event"
    message_id: MessageIdBy = "event"

    @property
    def where(self) -> NamespaceConfig:
        """The namespace of the entity."""
        keys = NamespaceConfig.__struct_fields__
        return NamespaceConfig(**{key: getattr(self, key) for key in keys})

    @property
    def entity(self) -> str:
        """The queue or topic that events are sent to."""
        return self.queue or self.topic

    @property
    def target(self) -> Entity:
        """The entity with its namespace, for comparisons."""
        return entity_in(self.where, self.queue, self.topic)

    @property
    def namespace_host(self) -> str:
        """The host of the namespace; "" if the connection string cannot be read."""
        return self.where.host_if_known

    @property
    def entities(self) -> Mapping[str, str]:
        """The names of the queue and the topic; see ``SinkConfig.entities``."""
        return {"queue": self.queue, "topic": self.topic}

    @property
    def token_use(self) -> TokenUse | None:
        """The Entra ID token of the namespace; None with a connection string."""
        return self.where.token_use

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the namespace, and that there is one entity to send to."""
        yield from BatchKeys.faults(self)
        yield from self.where.faults()
        yield from entity_faults(self.where, self.queue, self.topic)

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["ServiceBusSink"]:
        """Create the sink, and keep its sender connected.

        Raises:
            ConfigError: the connection string can no longer be read.
        """
        form = self._form(resources)
        sender = Sender(self.where, self.entity, resources.bus)
        if self.batch > 1:
            sender.most = self.batch
        sink = ServiceBusSink(sender, form)
        name, clock = f"{self.name}: warmth", resources.clock
        try:
            async with in_background(sender.keep_warm, name=name, clock=clock):
                yield sink
        finally:
            await sender.close()

    async def reach(self, resources: Resources) -> str:
        """Open a link to the entity; see ``SinkConfig.reach``."""
        try:
            async with self.open(resources) as sink:
                await sink.sender.reach()
        except DeliveryError as error:
            help_ = remedy(error, "Sender", self.entity)
            raise type(error)(f"{error}{help_}", error.reason) from error
        return f"{self.entity} in {self.where.host} can be sent to"

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return the message for an event; see ``SinkConfig.preview``."""
        message = self._form(resources)(event)
        kind = "queue" if self.queue else "topic"
        named = (
            ("MessageId", message.message_id),
            ("ContentType", message.content_type),
            ("Subject", message.subject),
            ("CorrelationId", message.correlation_id),
            ("SessionId", message.session_id),
            ("ReplyTo", message.reply_to),
            ("ReplyToSessionId", message.reply_to_session_id),
            *message.application_properties.items(),
        )
        if message.time_to_live is not None:
            seconds = f"{message.time_to_live.total_seconds():g} s"
            named = (*named, ("TimeToLive", seconds))
        lines = (f"{name}: {value}" for name, value in named if value is not None)
        place = f"Service Bus {kind} {self.entity} in {self._host()}"
        return Preview(head=(place, *lines), body=message.body)

    def _form(self, resources: Resources) -> Callable[[CloudEvent], Message]:
        """Return what makes the message for an event; see ``render``."""
        approvals, host = resources.approvals, self._host()
        is_here = approvals is not None and approvals.namespace == host
        return partial(
            render,
            session=self.session,
            message_id=self.message_id,
            vm_id=resources.vm_id,
            approvals=approvals if is_here else None,
        )

    def _host(self) -> str:
        try:
            return self.where.host
        except ValueError as error:
            raise ConfigError(
                [f"sinks.{self.name}.connection_string: {error}"]
            ) from error


class ServiceBusSink(Struct, frozen=True):
    """Sends each event to one entity.

    Attributes:
        form: makes the message for an event.
    """

    sender: Sender
    form: Callable[[CloudEvent], Message]

    async def deliver(self, event: CloudEvent) -> None:
        """Send the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.servicebus.errors`` maps it.
        """
        await self.sender.send(self.form(event))

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """Send several events in one transfer, or in as many as the entity needs.

        See ``BatchSink.deliver_many``. It raises an error only if it is cancelled.
        """
        return await self.sender.send_many([self.form(event) for event in events])


def render(
    event: CloudEvent,
    *,
    session: SessionBy,
    vm_id: str | None,
    approvals: ApprovalAddress | None,
    message_id: MessageIdBy = "event",
) -> Message:
    """Return the message for an event.

    Args:
        event: what is sent.
        session: the SessionId of the message.
        vm_id: the session of an event without EventId; None: its source.
        approvals: the approval entity; None unless it is in the same namespace.
        message_id: the MessageId of the message.
    """
    body, event_id = event.to_json(), event.text("correlationid")
    name = short_id(event.id) if message_id == "event" else sha256(body).hexdigest()
    # An entity with sessions refuses a message without one, so each message has one.
    vm = vm_id or event.source
    session_id = {"event": event_id or vm, "vm": vm, "none": None}[session]
    reply_to = approvals if _can_be_approved(event) else None
    return Message(
        body=body,
        content_type=STRUCTURED_TYPE,
        message_id=name,
        subject=event.type,
        correlation_id=event_id,
        session_id=None if session_id is None else short_id(session_id),
        reply_to=reply_to.entity if reply_to else None,
        reply_to_session_id=reply_to.session if reply_to else None,
        time_to_live=_lifetime(event),
        application_properties={
            f"cloudEvents_{name}": value for name, value in event.attributes().items()
        },
    )


def _lifetime(event: CloudEvent) -> timedelta | None:
    """Return the time to live of a heartbeat; None = the default of the entity.

    Without it, heartbeats in a subscription that nobody reads would fill the topic.
    """
    interval = event.data.get("intervalSeconds")
    if not event.type.endswith(".bridge.heartbeat.v1"):
        return None
    if not isinstance(interval, (int, float)) or isinstance(interval, bool):
        return None
    return timedelta(seconds=min(max(_INTERVALS * interval, 1.0), _LONGEST_LIFE))


def _can_be_approved(event: CloudEvent) -> bool:
    """Whether the event has not started, so that an approval makes sense."""
    transition, raw = event.data.get("transition"), event.data.get("event")
    if not event.type.endswith(f".scheduledevent.{transition}.v1"):
        return False  # the type of a command's result names a step, too
    if transition == "updated" and isinstance(raw, dict):
        return raw.get("EventStatus") == "Scheduled"
    return transition == "scheduled"
