"""``sebridge check --connect``: reaches what is configured, and publishes nothing."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from bridge import __version__
from bridge.approvals.listener import ApprovalsConfig
from bridge.approvals.queue import ApprovalQueue, ApprovalSource
from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import ApprovalQueueError, BridgeError, ConfigError, MetadataError
from bridge.identity import Identity
from bridge.imds.client import MetadataClient, open_client
from bridge.imds.document import parse
from bridge.namespace_errors import as_delivery_error, remedy
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry import Metrics
from bridge.transport import open_session

_PATIENCE = 20.0  # seconds, for each thing; all but IMDS are tried side by side

_SLOW = "; the first call may take two minutes: try again"
_WITHOUT_SESSION = "it may want sessions: name them in approvals.sessions"
_WITH_SESSION = "it may have no sessions: leave approvals.sessions out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried, and whether it went well."""

    is_good: bool
    text: str


async def examine(config: Config, clock: Clock) -> list[Finding]:
    """Try everything once; what fails does not keep the rest from being tried."""
    visit = _Visit(config, clock, Identity().overridden(config.identity))
    async with open_client(config.imds, clock, Metrics((), __version__)) as client:
        imds = [
            await _tried("imds: instance metadata", visit.instance(client)),
            await _tried("imds: scheduledevents", visit.document(client), _SLOW),
        ]
    try:
        config = config.filled_in(visit.identity.expand)
    except ConfigError as error:
        return [*imds, Finding(is_good=False, text=str(error))]
    tries = [_tried(f"sinks.{one.name}", visit.sink(one)) for one in config.sinks]
    if (approvals := config.approvals) is not None:
        tries += [
            _tried("approvals", visit.approvals(approvals, session))
            for session in approvals.sessions or (None,)
        ]
    return [*imds, *await asyncio.gather(*tries)]


async def _tried(what: str, attempt: Awaitable[str], hint: str = "") -> Finding:
    """Return what came of an attempt, or that it took too long, with a hint."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return Finding(is_good=True, text=f"{what}: {await attempt}")
    except TimeoutError:
        text = f"no answer within {_PATIENCE:g} s{hint}"
    except (BridgeError, ValueError) as error:
        text = str(error)
    return Finding(is_good=False, text=f"{what}: {text}")


@dataclass(slots=True)
class _Visit:
    """One examination; each method tries one thing, and says what was found.

    Attributes:
        identity: what is known of this VM; ``instance`` learns more.
    """

    config: Config
    clock: Clock
    identity: Identity

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
        return f"this VM is {self.identity.vm_name or 'unnamed'}"

    async def document(self, client: MetadataClient) -> str:
        """Read the document; the first time, this enables the service for the VM."""
        patience = self.config.imds.first_request_timeout
        answer = await client.fetch(etag=None, timeout=patience)
        return f"answers; events now: {len(parse(answer.body or b'').events)}"

    async def sink(self, config: SinkConfig) -> str:
        """Reach the other side of a sink."""
        async with open_session(
            user_agent=f"scheduled-events-bridge/{__version__}"
        ) as http:
            return await config.reach(Resources(http=http, expand=self.identity.expand))

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
