"""``sebridge check --connect``: reaches what is configured, and publishes nothing."""

import asyncio
import base64
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import orjson

from bridge import __version__, threads
from bridge.approvals.listener import ApprovalsConfig
from bridge.approvals.queue import ApprovalQueue, ApprovalSource
from bridge.clock import Clock
from bridge.config import Config
from bridge.entra import CredentialKind, open_credential
from bridge.errors import (
    ApprovalQueueError,
    BridgeError,
    ConfigError,
    DeliveryError,
    MetadataError,
    MetadataRefusedError,
    Reason,
    RefusedDeliveryError,
)
from bridge.identity import Identity
from bridge.imds.client import MetadataClient, open_client
from bridge.imds.document import parse
from bridge.namespace import NamespaceConfig
from bridge.namespace_errors import as_delivery_error, delivery_errors, remedy
from bridge.sender import Sender
from bridge.sinks.base import Resources, SinkConfig
from bridge.sinks.webhook import WebhookSinkConfig
from bridge.surroundings import Finding
from bridge.telemetry import Metrics
from bridge.transport import open_session
from bridge.values import Address

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_PATIENCE = 20.0  # seconds, for each thing; all but IMDS are tried side by side

_SLOW = "the first call may take two minutes: try again"
_NO_IMDS = (
    "is this an Azure VM, and does no firewall rule keep 169.254.169.254 away? No "
    "proxy may stand between; this asks without one"
)
_REFUSING_IMDS = (
    "does a proxy on this machine take over requests to 169.254.169.254, or is "
    "imds.api_version one that this cloud does not know?"
)
_NO_WAY = (
    "look at name resolution, routes and firewalls from this VM (Service Bus: port "
    '5671, or transport = "amqp-websocket" for 443)'
)
_NO_IDENTITY = (
    "give the VM an identity (az vm identity assign), or name in client_id which of "
    "several is meant"
)
_WRONG_CLOCK = (
    "have chrony (Linux: the host's clock at /dev/ptp_hyperv) or w32time (Windows) "
    "set it: expiry and due times go by it"
)
_WITHOUT_SESSION = "it may want sessions: name them in approvals.sessions"
_WITH_SESSION = "it may have no sessions: leave approvals.sessions out"
_SCOPE = "https://servicebus.azure.net/.default"
_SKEW_NOTED, _SKEW_WRONG = timedelta(seconds=5), timedelta(seconds=60)


async def examine(config: Config, clock: Clock) -> list[Finding]:
    """Try everything once; what fails does not keep the rest from being tried."""
    threads.lend()
    visit = _Visit(config, clock, Identity().overridden(config.identity))
    async with open_client(config.imds, clock, Metrics((), __version__)) as client:
        imds = [
            await _tried("imds: instance metadata", visit.instance(client)),
            await _tried("imds: scheduledevents", visit.document(client), _SLOW),
            *visit.noticed,
        ]
    try:
        config = config.filled_in(visit.identity.expand)
    except ConfigError as error:
        return [*imds, Finding(is_good=False, text=str(error))]
    tries = [_tried("token", visit.token(one)) for one in _uses(config)]
    tries += [_tried(f"sinks.{one.name}", visit.sink(one)) for one in config.sinks]
    if (approvals := config.approvals) is not None:
        tries += [
            _tried("approvals", visit.approvals(approvals, session))
            for session in approvals.sessions or (None,)
        ]
        tries += [
            _tried("approvals.reply_to", visit.replies(approvals, entity))
            for entity in approvals.reply_to
            if not set("*?[").intersection(entity)
        ]
    return [*imds, *await asyncio.gather(*tries)]


async def _tried(what: str, attempt: Awaitable[str], slow: str = "") -> Finding:
    """Return what came of an attempt, or that it took too long, and what helps."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return Finding(is_good=True, text=f"{what}: {await attempt}")
    except TimeoutError:
        text, advice = f"no answer within {_PATIENCE:g} s", slow or _NO_WAY
    except (BridgeError, ValueError) as error:
        text, advice = str(error), _advice(error)
    return Finding(is_good=False, text=f"{what}: {text}", advice=advice)


def _advice(error: Exception) -> str:
    """Return what helps, where the error does not say it itself; "" = not known."""
    if isinstance(error, MetadataRefusedError):
        return _REFUSING_IMDS
    if isinstance(error, MetadataError):
        return _NO_IMDS
    reason = error.reason if isinstance(error, DeliveryError) else None
    return _NO_WAY if reason in {Reason.CONNECTION, Reason.TIMEOUT} else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """A credential of Entra, and what its tokens are for."""

    credential: CredentialKind
    client_id: str
    scope: str
    proxy: Address | None = field(compare=False)

    def open(self) -> "AsyncTokenCredential":
        """Make the credential; see ``bridge.entra``."""
        proxy = self.proxy.reveal() if self.proxy is not None else None
        return open_credential(self.credential, client_id=self.client_id, proxy=proxy)


def _uses(config: Config) -> Iterator[_Use]:
    """Yield each use of a credential once."""
    every = (_use_of_sink(sink) for sink in config.sinks)
    approvals = None if config.approvals is None else _use_of(config.approvals)
    yield from dict.fromkeys(use for use in (*every, approvals) if use is not None)


def _use_of_sink(sink: SinkConfig) -> _Use | None:
    if isinstance(sink, WebhookSinkConfig):
        auth = sink.auth_meant
        if auth is None or auth.type != "entra":
            return None
        return _Use(
            credential=auth.credential,
            client_id=auth.client_id,
            scope=auth.scope,
            proxy=sink.proxy,
        )
    where = getattr(sink, "where", None)
    return _use_of(where) if isinstance(where, NamespaceConfig) else None


def _use_of(where: NamespaceConfig) -> _Use | None:
    if where.connection_string:
        return None
    return _Use(
        credential=where.credential,
        client_id=where.client_id,
        scope=_SCOPE,
        proxy=where.http_proxy,
    )


@dataclass(slots=True)
class _Visit:
    """One examination; each method tries one thing, and says what was found.

    Attributes:
        identity: what is known of this VM; ``instance`` learns more.
        noticed: what came to light while something else was tried.
    """

    config: Config
    clock: Clock
    identity: Identity
    noticed: list[Finding] = field(default_factory=list)

    async def instance(self, client: MetadataClient) -> str:
        """Ask who this VM is; it need not be known to who configures it wholly."""
        given = self.config.identity
        try:
            compute = await client.instance()
        except MetadataError as error:
            if not given.is_complete:
                raise
            return f"{error}; [identity] says {given.vm_name}"
        self.identity = Identity.from_metadata(compute).overridden(given)
        if _has_ephemeral_disk(compute):
            self.noticed.append(
                Finding(
                    is_good=True,
                    is_warning=True,
                    text="state: the OS disk of this VM is ephemeral",
                    advice="put state.path on a data disk, or a redeploy loses it",
                )
            )
        return f"this VM is {self.identity.vm_name or 'unnamed'}"

    async def document(self, client: MetadataClient) -> str:
        """Read the document; the first time, this enables the service for the VM."""
        patience = self.config.imds.first_request_timeout
        before = self.clock.now()
        answer = await client.fetch(etag=None, timeout=patience)
        self.noticed.append(compared(answer.date, before, self.clock.now()))
        return f"answers; events now: {len(parse(answer.body or b'').events)}"

    async def sink(self, config: SinkConfig) -> str:
        """Reach the other side of a sink."""
        async with open_session(
            user_agent=f"scheduled-events-bridge/{__version__}"
        ) as http:
            return await config.reach(Resources(http=http, expand=self.identity.expand))

    async def token(self, use: _Use) -> str:
        """Get a token, and say whose it is: roles are assigned to him."""
        what = "" if use.scope == _SCOPE else f" for {use.scope}"
        target = f"credential {use.credential}{what}"
        try:
            with delivery_errors(target):
                async with use.open() as credential:
                    token = await credential.get_token(use.scope)
        except RefusedDeliveryError as error:
            text = f"{error}; {_NO_IDENTITY}"
            raise RefusedDeliveryError(text, error.reason) from error
        minutes = int((token.expires_on - self.clock.now().timestamp()) / 60)
        return f"{target}: {_bearer(token.token)}; good for {minutes} min"

    async def replies(self, config: ApprovalsConfig, entity: str) -> str:
        """Open a link to where replies go, and send nothing."""
        sender = Sender(config, entity)
        try:
            await sender.reach()
        except DeliveryError as error:
            help_ = remedy(error, "Sender", entity)
            raise type(error)(f"{error}{help_}", error.reason) from error
        finally:
            await sender.close()
        return f"{entity} may be sent to"

    async def approvals(self, config: ApprovalsConfig, session: str | None) -> str:
        """Attach to where approvals come from, receive nothing, and let go."""
        source = ApprovalSource(
            queue=config.queue,
            topic=config.topic,
            subscription=config.subscription,
            session=None if session is None else self.identity.expand(session),
        )
        queue = ApprovalQueue(config, source, self.clock)
        try:
            await queue.reach()
        except ApprovalQueueError as error:
            return _excused(source, error)
        finally:
            await queue.close()
        return f"{source} may be received from"


def _excused(source: ApprovalSource, error: ApprovalQueueError) -> str:
    """Return why a failure to attach is none.

    Raises:
        ApprovalQueueError: it is one.
    """
    if type(error.__cause__).__name__ == "SessionCannotBeLockedError":
        return f"{source} is there, and held by a bridge that runs"
    if "amqp:not-allowed" in str(error):
        hint = _WITHOUT_SESSION if source.session is None else _WITH_SESSION
        raise ApprovalQueueError(f"{error}: {hint}") from error
    if isinstance(cause := error.__cause__, Exception):
        refusal = as_delivery_error(cause, str(source))
        text = f"{error}{remedy(refusal, 'Receiver', source.entity)}"
        raise ApprovalQueueError(text) from error
    raise error


def compared(date: datetime | None, before: datetime, after: datetime) -> Finding:
    """Return how far this machine's clock is off.

    Args:
        date: the Date of an answer, in whole seconds; None without one.
        before: by our clock, when it was asked for.
        after: by our clock, when it had come.
    """
    if date is None:
        return Finding(is_good=True, text="clock: IMDS does not say what time it is")
    early = before - (date + timedelta(seconds=1))
    late = date - after
    skew = max(early, late, timedelta(0))
    if skew < _SKEW_NOTED:
        return Finding(is_good=True, text="clock: agrees with that of IMDS")
    way = "ahead of" if early > late else "behind"
    return Finding(
        is_good=skew < _SKEW_WRONG,
        is_warning=skew < _SKEW_WRONG,
        text=f"clock: {skew.total_seconds():.0f} s {way} that of IMDS",
        advice=_WRONG_CLOCK,
    )


def _has_ephemeral_disk(compute: Mapping[str, object]) -> bool:
    """Whether the OS disk is local to the host, and begins anew where that changes."""
    found: object = compute
    for key in ("storageProfile", "osDisk", "diffDiskSettings", "option"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found == "Local"


def _bearer(token: str) -> str:
    """Return whom a token is for; nothing of it but ids that are no secret.

    Source: https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference
    """
    try:
        middle = token.split(".")[1]
        claims = orjson.loads(
            base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
        )
    except (IndexError, ValueError):
        claims = None
    if not isinstance(claims, dict):
        return "a token that does not say whose it is"
    application, principal = claims.get("appid") or claims.get("azp"), claims.get("oid")
    return f"application {application}, principal {principal}"
