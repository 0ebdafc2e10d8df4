"""The configuration of a Service Bus namespace, and clients for it.

Used by the sink, the approval receiver and replies. The SDK costs 4 MiB and
azure-identity 7 MiB more, so both are imported only when a namespace is opened.
"""

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.sections import Section
from bridge.foundation.values import Address, FilePath, Secret
from bridge.net.addresses import host_fault, target_fault
from bridge.net.entra import CredentialKind, TokenUse
from bridge.net.tls import TlsFiles, context_with_roots

if TYPE_CHECKING:
    from azure.servicebus.aio import (
        ServiceBusClient,
        ServiceBusReceiver,
        ServiceBusSender,
    )

Handle = TypeVar("Handle", "ServiceBusSender", "ServiceBusReceiver")
TransportKind = Literal["amqp", "amqp-websocket"]

# Compiled at its first use: most forwarders have no Service Bus.
_HOST = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9-]+)+"
SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"
_TRY_SECONDS = 8.0  # to open a link, including the token


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long Service Bus may take: limits and periods, in seconds.

    Attributes:
        attempt: to open a sender and send with it.
        stale: to find out that an open sender is dead.
        beside: until a second link is opened while the first one hangs.
        idle: a sender that was not used for so long is opened again. The load balancers
            of Azure drop a connection that was idle for 4 minutes.
        open: to open a receiver.
        settle: to settle a message.
        look: a receiver peeks at its queue this often, and must get an answer.
        renew: to renew a lock.
        least_renew: to renew a short lock; the first renewal opens a link.
        close: to close a link.
    """

    attempt: float = 10.0
    stale: float = 5.0
    beside: float = 3.0
    idle: float = 200.0
    open: float = 10.0
    settle: float = 10.0
    look: float = 20.0
    renew: float = 5.0
    least_renew: float = 2.0
    close: float = 1.0


TIMINGS = Timings()


class ApprovalSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where approvals come from: a queue, or a subscription of a topic.

    Attributes:
        session: the session to accept; None = the entity has no sessions.
        at_once: the most messages that are received at a time. More than one only if
            each is settled soon: messages that the broker sends to a dead connection
            stay locked until their locks end.
    """

    queue: str = ""
    topic: str = ""
    subscription: str = ""
    session: str | None = None
    at_once: int = 1

    @property
    def entity(self) -> str:
        """The queue, or the topic and its subscription."""
        return self.queue or f"{self.topic}/{self.subscription}"

    def __str__(self) -> str:
        session = "" if self.session is None else f" session {self.session}"
        return f"{self.entity}{session}"


class ConnectionString(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a connection string, without its secret.

    Attributes:
        host: in lower case; with a port only for an emulator at an unusual port, as in
            the SDK.
        entity: EntityPath: the only entity that may be used; None = any.
        is_emulator: whether to connect to an emulator, without TLS.
    """

    host: str
    entity: str | None
    is_emulator: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a connection string, more strictly than the SDK.

        Raises:
            ValueError: what is wrong; the text repeats nothing of the string.
        """
        pairs = [part.partition("=") for part in text.strip().split(";") if part]
        parts = {key.strip().lower(): value.strip() for key, _, value in pairs}
        host, is_emulator = _endpoint(parts.get("endpoint", "")), _is_emulator(parts)
        key = parts.get("sharedaccesskeyname") and parts.get("sharedaccesskey")
        if not (key or parts.get("sharedaccesssignature")):
            raise ValueError(
                "has neither SharedAccessKeyName and SharedAccessKey "
                "nor a SharedAccessSignature"
            )
        return cls(
            host=host.removesuffix(":5672") if is_emulator else host.partition(":")[0],
            entity=parts.get("entitypath") or None,
            is_emulator=is_emulator,
        )


def _endpoint(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        parts.port  # noqa: B018  reading it raises ValueError if it is invalid
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "sb" or not parts.hostname:
        raise ValueError("has no Endpoint=sb://… in it")
    if what := host_fault(parts.hostname):
        raise ValueError(f"has an Endpoint that {what}")
    return parts.netloc.lower()


def _is_emulator(parts: dict[str, str]) -> bool:
    flag = parts.get("usedevelopmentemulator", "false")
    if flag != "true" and flag.lower() != "false":
        raise ValueError(
            'must say UseDevelopmentEmulator=true with "true" in lower case: '
            "with any other value the SDK uses TLS, as for the cloud"
        )
    return flag == "true"


class NamespaceConfig(Section, frozen=True, kw_only=True):
    """The connection to a Service Bus namespace.

    Attributes:
        namespace: the host name of the Service Bus namespace; needs a credential.
            Example: ``"contoso.servicebus.windows.net"``.
        connection_string: a connection string, in place of namespace and credential.
        credential: how the bridge authenticates.
        client_id: the id of a user-assigned managed identity; "" is the system-assigned
            one. Example: ``"00001111-aaaa-2222-bbbb-3333cccc4444"``.
        transport: "amqp": port 5671; "amqp-websocket": port 443, for networks that
            allow only HTTPS.
        http_proxy: the URL of a proxy; only with "amqp-websocket". Example:
            ``"http://proxy.example:3128"``.
        ca_file: the authorities that may sign the namespace's certificate, in place of
            those of the system. Example: ``"/etc/sebridge/ca.pem"``.
    """

    namespace: str = ""
    connection_string: Secret | None = None
    credential: CredentialKind = "managed-identity"
    client_id: str = ""
    transport: TransportKind = "amqp"
    http_proxy: Address | None = None
    ca_file: FilePath | None = None

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check that exactly one of the two connections is given, and is valid."""
        if bool(self.namespace) == (self.connection_string is not None):
            one = "exactly one of namespace and connection_string must be given"
            yield "namespace", one
        if self.namespace and not re.fullmatch(_HOST, self.namespace, re.IGNORECASE):
            yield (
                "namespace",
                'must be a host name such as "contoso.servicebus.windows.net"',
            )
        elif self.namespace and (what := host_fault(self.namespace)):
            yield "namespace", what
        if self.connection_string is not None:
            try:
                ConnectionString.parse(self.connection_string.reveal())
            except ValueError as error:
                yield "connection_string", str(error)
            if self.client_id:
                yield "client_id", "is for a namespace with a credential"
        yield from self._proxy_faults()
        yield from TlsFiles(authorities=self.ca_file).faults()

    def _proxy_faults(self) -> Iterator[tuple[str, ...]]:
        if self.http_proxy is None:
            return
        if self.transport != "amqp-websocket":
            yield "http_proxy", 'needs transport = "amqp-websocket"', "transport"
        wanted = 'a URL such as "http://proxy.example:3128"'
        if what := target_fault(self.http_proxy.reveal(), wanted):
            yield "http_proxy", what

    @property
    def token_use(self) -> TokenUse | None:
        """The Entra ID token that is needed; None with a connection string."""
        return None if self.connection_string is not None else _token_use(self)

    @property
    def parsed(self) -> ConnectionString | None:
        """The parts of the connection string; None = there is none.

        Raises:
            ValueError: it cannot be read any more; so do ``host`` and ``entity``.
        """
        if self.connection_string is None:
            return None
        return ConnectionString.parse(self.connection_string.reveal())

    @property
    def host_if_known(self) -> str:
        """The host for texts; "" if the connection string cannot be read now."""
        with suppress(ValueError):
            return self.host
        return ""

    @property
    def host(self) -> str:
        """Host in lower case, with the port of an emulator, to compare namespaces."""
        found = self.parsed
        return self.namespace.lower() if found is None else found.host

    @property
    def entity(self) -> str | None:
        """The EntityPath of the connection string; None = any entity."""
        found = self.parsed
        return None if found is None else found.entity


UNKNOWN_HOST = ""  # the connection string cannot be read on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue or topic, for comparisons; case does not matter.

    Attributes:
        key: the configuration key, ``queue`` or ``topic``; not compared.
        host: ``NamespaceConfig.host``, or ``UNKNOWN_HOST``.
        name: the name in lower case.
    """

    key: str = field(compare=False)
    host: str
    name: str


def entity_in(where: NamespaceConfig, queue: str, topic: str) -> Entity:
    """Return the queue or topic of a namespace.

    Raises:
        ValueError: the connection string cannot be read any more.
    """
    key, name = ("queue", queue) if queue else ("topic", topic)
    return Entity(key=key, host=where.host, name=name.strip("/").lower())


def entity_faults(
    where: NamespaceConfig, queue: str, topic: str
) -> Iterator[tuple[str, str]]:
    """Check that there is one entity, and that the connection string allows it."""
    if bool(queue) == bool(topic):
        yield "queue", "exactly one of queue and topic must be given"
        return
    with suppress(ValueError):  # reported as a fault of connection_string
        key, name = ("queue", queue) if queue else ("topic", topic)
        if (where.entity or name).lower() != name.lower():
            yield key, "is not the EntityPath in connection_string"


@asynccontextmanager
async def open_client(config: NamespaceConfig) -> AsyncIterator["ServiceBusClient"]:
    """Open a client that does not retry; its credential is closed with it.

    No connection is made yet: each sender and receiver has its own connection.

    Raises:
        RefusedDeliveryError: a secret cannot be read, or something that the credential
            needs is missing on this machine.
    """
    async with AsyncExitStack() as stack:
        try:
            client = await _client(config, stack)
        except ValueError as error:
            text = f"Service Bus cannot be opened: {error}"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error
        yield await stack.enter_async_context(client)


@asynccontextmanager
async def open_handle(
    config: NamespaceConfig, make: Callable[["ServiceBusClient"], Handle]
) -> AsyncIterator[Handle]:
    """Open a sender or receiver, made by ``make``, with its own client.

    Raises:
        RefusedDeliveryError: as ``open_client``.
    """
    async with open_client(config) as client:
        handle = make(client)
        wires = Wires(handle)
        try:
            async with handle:
                wires.note()
                yield handle
        finally:
            await wires.hang_up()


async def _client(config: NamespaceConfig, stack: AsyncExitStack) -> "ServiceBusClient":
    from azure.servicebus.aio import ServiceBusClient  # noqa: PLC0415  costs memory

    options = _client_options(config)
    if config.connection_string is not None:
        text = _without_entity(config.connection_string.reveal())
        return ServiceBusClient.from_connection_string(text, **options)
    credential = _token_use(config).open()
    await stack.enter_async_context(credential)
    return ServiceBusClient(config.namespace, credential, **options)


def _client_options(config: NamespaceConfig) -> dict[str, Any]:
    from azure.servicebus import TransportType  # noqa: PLC0415  costs memory

    is_websocket = config.transport == "amqp-websocket"
    kind = TransportType.AmqpOverWebsocket if is_websocket else TransportType.Amqp
    options = {"retry_total": 0, "try_timeout": _TRY_SECONDS, "transport_type": kind}
    given = config.parsed
    if given is None or not given.is_emulator:
        options["ssl_context"] = _ssl_context(config)
    if config.http_proxy is not None:
        options["http_proxy"] = _proxy(config.http_proxy.reveal())
    return options


def _ssl_context(config: NamespaceConfig) -> ssl.SSLContext:
    try:
        return context_with_roots(TlsFiles(authorities=config.ca_file))
    except ValueError as error:
        raise ValueError(f"ca_file: {error}") from error


def _proxy(url: str) -> dict[str, object]:
    """Return a proxy in the SDK's form, with values that aiohttp below it accepts.

    The host name contains the scheme, because otherwise aiohttp reads the host as a
    scheme. It also contains user name and password, because the SDK's own options for
    them are deprecated in aiohttp.
    """
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    at = parts.netloc if parts.port is None else parts.netloc.rpartition(":")[0]
    return {
        "proxy_hostname": f"{parts.scheme}://{at}",
        "proxy_port": parts.port or default,
    }


def _without_entity(text: str) -> str:
    """Remove EntityPath: with it, the SDK refuses other entities, as for replies."""
    parts = (part for part in text.strip().split(";") if part)
    return ";".join(p for p in parts if not p.strip().lower().startswith("entitypath="))


def _token_use(config: NamespaceConfig) -> TokenUse:
    return TokenUse(
        credential=config.credential,
        client_id=config.client_id,
        scope=SERVICE_BUS_SCOPE,
        proxy=config.http_proxy,
    )


# -- Closes the sockets of the SDK's senders and receivers, which may stay open --------


class Wires:
    """The sockets of one sender or receiver.

    The SDK leaks a file descriptor with each connection that breaks (it marks the
    connection as ended before it closes the socket), and with each that does not open
    in time. The SDK has no public access to the sockets. If the internal names used
    here change, descriptors leak again.
    """

    def __init__(self, handle: Any) -> None:
        self._handlers: list[object] = []
        self._wires: list[object] = []
        create = getattr(handle, "_create_handler", None)
        if create is None:
            return

        def remember(*args: object) -> None:
            create(*args)
            self._handlers.append(getattr(handle, "_handler", None))

        handle._create_handler = remember  # noqa: SLF001  see above

    def note(self) -> None:
        """Record the open sockets, before the SDK forgets them."""
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            self._wires.append(getattr(connection, "_transport", None))

    async def hang_up(self) -> None:
        """Close the sockets that are still open."""
        self.note()
        for wire in self._wires:
            if writer := getattr(wire, "writer", None):
                writer.transport.abort()
            if session := getattr(wire, "session", None):  # of a websocket
                await session.close()
