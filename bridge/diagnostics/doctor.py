"""``sebridge check --connect``: reaches what is configured, and publishes nothing."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bridge import __version__
from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Config
from bridge.diagnostics import tokens
from bridge.diagnostics.host_checks import Finding
from bridge.diagnostics.tokens import TokenUse
from bridge.events.document import parse
from bridge.events.identity import Identity
from bridge.foundation import daemon_threads
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    BridgeError,
    ConfigError,
    DeliveryError,
    MetadataError,
    MetadataRefusedError,
    Reason,
    RefusedDeliveryError,
    UnprovenError,
)
from bridge.foundation.waiting import waiting_for
from bridge.imds.client import MetadataClient, open_client
from bridge.net.http_client import open_session
from bridge.servicebus.errors import (
    as_delivery_error,
    delivery_errors,
    is_held_elsewhere,
    is_not_allowed,
    remedy,
)
from bridge.servicebus.receiver import ApprovalQueue
from bridge.servicebus.sender import Sender
from bridge.servicebus.source import ApprovalSource
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

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
_NO_WAY = "look at name resolution, routes and firewalls from this VM"
_NO_WAY_TO_BUS = (
    f'{_NO_WAY} (Service Bus: port 5671, or transport = "amqp-websocket" for 443)'
)
_UNPROVEN = "many services understand POST alone"
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
_SKEW_NOTED, _SKEW_WRONG = timedelta(seconds=5), timedelta(seconds=60)


async def examine(config: Config, clock: Clock) -> list[Finding]:
    """Try everything once; what fails does not keep the rest from being tried."""
    daemon_threads.lend()
    visit = _Visit(config, clock, Identity().overridden(config.identity))
    async with open_client(config.imds, clock, Metrics((), __version__)) as client:
        imds = [
            await _tried("imds: instance metadata", visit.instance(client)),
            await _tried("imds: scheduledevents", visit.document(client), slow=_SLOW),
            *visit.noticed,
        ]
    try:
        config = config.filled_in(visit.identity.expand)
    except ConfigError as error:
        return [*imds, Finding(is_good=False, text=str(error))]
    tries = [_tried("token", visit.token(one)) for one in tokens.uses(config)]
    tries += [_tried_sink(visit, one) for one in config.sinks]
    if (approvals := config.approval_entity) is not None:
        tries += [
            _tried(
                "approvals",
                visit.approvals(approvals, session),
                no_way=_NO_WAY_TO_BUS,
            )
            for session in approvals.sessions or (None,)
        ]
        tries += [
            _tried(
                "approvals.reply_to",
                visit.replies(approvals, entity),
                no_way=_NO_WAY_TO_BUS,
            )
            for entity in approvals.reply_to
            if not set("*?[").intersection(entity)
        ]
    return [*imds, *await asyncio.gather(*tries)]


async def _tried_sink(visit: "_Visit", sink: SinkConfig) -> Finding:
    """Return what came of reaching a sink, and what helps or would show more."""
    what, attempt = f"sinks.{sink.name}", visit.sink(sink)
    no_way = _NO_WAY if sink.target is None else _NO_WAY_TO_BUS
    try:
        return await _tried(what, attempt, no_way=no_way)
    except UnprovenError as doubt:
        advice = (
            f"{doubt.advice or _UNPROVEN}{'' if doubt.advice else ':'} "
            f"`sebridge send-test --sink {sink.name}` shows it"
        )
        return Finding(
            is_good=True, is_warning=True, text=f"{what}: {doubt}", advice=advice
        )


async def _tried(
    what: str, attempt: Awaitable[str], *, slow: str = "", no_way: str = _NO_WAY
) -> Finding:
    """Return what came of an attempt, or that it took too long, and what helps.

    Args:
        what: is tried.
        attempt: returns what was found.
        slow: what helps where nothing answers in time; "" = ``no_way``.
        no_way: what helps where nothing is reached.

    Raises:
        UnprovenError: a sink is there, and shows no more.
    """
    try:
        with waiting_for(what):
            async with asyncio.timeout(_PATIENCE):
                return Finding(is_good=True, text=f"{what}: {await attempt}")
    except UnprovenError:
        raise
    except TimeoutError:
        text, advice = f"no answer within {_PATIENCE:g} s", slow or no_way
    except (BridgeError, ValueError) as error:
        text, advice = str(error), _advice(error, no_way)
    return Finding(is_good=False, text=f"{what}: {text}", advice=advice)


def _advice(error: Exception, no_way: str) -> str:
    """Return what helps, where the error does not say it itself; "" = not known."""
    if isinstance(error, MetadataRefusedError):
        return _REFUSING_IMDS
    if isinstance(error, MetadataError):
        return _NO_IMDS
    reason = error.reason if isinstance(error, DeliveryError) else None
    return no_way if reason in {Reason.CONNECTION, Reason.TIMEOUT} else ""


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

    async def token(self, use: TokenUse) -> str:
        """Get a token, and say whose it is: roles are assigned to him."""
        what = "" if use.scope == tokens.SERVICE_BUS else f" for {use.scope}"
        target = f"credential {use.credential}{what}"
        try:
            with delivery_errors(target):
                async with use.open() as credential:
                    token = await credential.get_token(use.scope)
        except RefusedDeliveryError as error:
            text = f"{error}; {_NO_IDENTITY}"
            raise RefusedDeliveryError(text, error.reason) from error
        minutes = int((token.expires_on - self.clock.now().timestamp()) / 60)
        return f"{target}: {tokens.bearer(token.token)}; good for {minutes} min"

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
            return excused(source, error)
        finally:
            await queue.close()
        return f"{source} may be received from"


def excused(source: ApprovalSource, error: ApprovalQueueError) -> str:
    """Return why a failure to attach is none.

    What the SDK raised is read as the bridge does, which looks into its wrapping.

    Raises:
        ApprovalQueueError: it is one.
        DeliveryError: it is one, and it is known of which kind.
    """
    if not isinstance(cause := error.__cause__, Exception):
        raise error
    if is_held_elsewhere(cause):
        return f"{source} is there, and held by a bridge that runs"
    refusal = as_delivery_error(cause, str(source))
    help_ = remedy(refusal, "Receiver", source.entity)
    if is_not_allowed(cause):
        help_ = f": {_WITHOUT_SESSION if source.session is None else _WITH_SESSION}"
    raise type(refusal)(f"{error}{help_}", refusal.reason) from error


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
