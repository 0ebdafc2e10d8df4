"""``sebridge check --connect``: test every configured connection; send nothing."""

import asyncio
import base64
import errno
from collections.abc import Awaitable, Iterator, Mapping
from datetime import datetime, timedelta

import orjson
from msgspec import Struct, field

from bridge import __version__
from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Config
from bridge.diagnostics.finding import Finding
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
from bridge.net.entra import TokenUse
from bridge.net.http_client import open_session
from bridge.net.tls import certificate_fault
from bridge.servicebus.errors import (
    as_delivery_error,
    delivery_errors,
    is_held_elsewhere,
    is_not_allowed,
    remedy,
)
from bridge.servicebus.namespace import SERVICE_BUS_SCOPE, ApprovalSource
from bridge.servicebus.receiver import ApprovalQueue
from bridge.servicebus.sender import Sender
from bridge.sinks.base import Resources, SinkConfig
from bridge.telemetry.metrics import Metrics

_PATIENCE = 20.0  # seconds

_SLOW = "the first call may take two minutes: try again"
_NO_IMDS = (
    "is this an Azure VM, and does a firewall block 169.254.169.254? The bridge uses "
    "no proxy for it"
)
_REFUSING_IMDS = (
    "does a proxy on this machine intercept requests to 169.254.169.254, or does this "
    "cloud not support imds.api_version?"
)
_GUARDED_IMDS = (
    "Azure's Metadata Security Protocol guards IMDS on this VM, or a proxy intercepts "
    "it: allow the account of the service, see infra/guarded-imds.md"
)
_OTHER_THAN_IMDS = (
    "something else answers at imds.endpoint, such as a proxy or a sign-in page of the "
    "network: let 169.254.169.254 go past it"
)
# Source: https://man7.org/linux/man-pages/man8/systemd-imdsd@.service.8.html
_LOCKED_IMDS = (
    "this machine forbids direct access to IMDS: systemd-imdsd (kernel command line "
    "systemd.imds.network=unlocked) or a firewall, see infra/guarded-imds.md"
)
_PROHIBITED = {errno.EACCES, errno.EPERM}
_IS_NO = " answered "  # of a service that was reached; others name the cure themselves
_NO_LONGER_VALID = "is its secret expired, or without the right to do this? Replace it"
_UNREACHABLE = "check name resolution, routes and firewalls of this VM"
_NOT_TOLD = " is not known here"  # of a placeholder
_IDENTITY = "instance metadata of IMDS tells it; without it, set it in [identity]"
_NO_SUCH_NAME = "does not exist (ServiceBusConnectionError"
_NAME = (
    "compare it with the host name of the namespace in the portal; a private endpoint "
    "needs the DNS zone privatelink.servicebus.windows.net"
)
_CERTIFICATE = (
    "a proxy that inspects TLS, or a private CA? Install the company's CA in the "
    "system's store, or name its file in ca_file"
)
_BUS_UNREACHABLE = (
    f'{_UNREACHABLE} (Service Bus: port 5671, or transport = "amqp-websocket" for 443)'
)
_UNPROVEN = "many services accept only POST"
_NO_IDENTITY = (
    "give the VM an identity (az vm identity assign), or set client_id if it has "
    "several identities"
)
_WRONG_CLOCK = (
    "let chrony (Linux: the host's clock at /dev/ptp_hyperv) or w32time (Windows) "
    "set the clock: a running bridge goes by IMDS's time, everything else by this clock"
)
_WITHOUT_SESSION = "it may require sessions: set approvals.sessions"
_WITH_SESSION = "it may not support sessions: remove approvals.sessions"
_SKEW_NOTED, _SKEW_WRONG = timedelta(seconds=5), timedelta(seconds=60)


async def examine(
    config: Config, clock: Clock, patience: float = _PATIENCE
) -> list[Finding]:
    """Test everything once; a failed test does not stop the others.

    Args:
        config: the configuration of the forwarder.
        clock: the source of time.
        patience: seconds for each test; all tests but IMDS run at the same time.
    """
    daemon_threads.lend()
    me = Identity().overridden(config.identity)
    checks = _Checks(config, clock, me, patience)
    async with open_client(config.imds, clock, Metrics((), __version__)) as client:
        imds = [
            await checks.run("imds: instance metadata", checks.instance(client)),
            await checks.run(
                "imds: scheduledevents", checks.document(client), if_slow=_SLOW
            ),
            *checks.more_findings,
        ]
    try:
        config = config.filled_in(checks.identity.expand)
    except ConfigError as error:
        return [*imds, Finding("fault", str(error))]
    tries = [checks.run("token", checks.token(one)) for one in uses(config)]
    tries += [_check_sink(checks, one) for one in config.sinks]
    if (approvals := config.approval_entity) is not None:
        tries += [
            checks.run(
                "approvals",
                checks.approvals(approvals, session),
                if_unreachable=_BUS_UNREACHABLE,
            )
            for session in approvals.sessions or (None,)
        ]
        tries += [
            checks.run(
                "approvals.reply_to",
                checks.replies(approvals, entity),
                if_unreachable=_BUS_UNREACHABLE,
            )
            for entity in approvals.reply_to
            if not set("*?[").intersection(entity)
        ]
    return [*imds, *await asyncio.gather(*tries)]


async def _check_sink(checks: "_Checks", sink: SinkConfig) -> Finding:
    """Return the result of connecting to a sink, with advice."""
    what, attempt = f"sinks.{sink.name}", checks.sink(sink)
    if_unreachable = _UNREACHABLE if sink.target is None else _BUS_UNREACHABLE
    try:
        return await checks.run(what, attempt, if_unreachable=if_unreachable)
    except UnprovenError as doubt:
        advice = (
            f"{doubt.advice or _UNPROVEN}{'' if doubt.advice else ':'} "
            f"`sebridge send-test --sink {sink.name}` tests it"
        )
        return Finding("warning", f"{what}: {doubt}", advice)


def _advice(error: Exception, if_unreachable: str) -> str:
    """Return advice that the error itself does not give; "" = none."""
    if isinstance(error, MetadataError):
        return _imds_advice(error)
    if _NOT_TOLD in str(error):
        return _IDENTITY
    if _NO_SUCH_NAME in str(error):
        return _NAME
    if certificate_fault(error) is not None:
        return _CERTIFICATE
    reason = error.reason if isinstance(error, DeliveryError) else None
    if reason is Reason.UNAUTHORIZED and _IS_NO in str(error):
        return _NO_LONGER_VALID
    return if_unreachable if reason in {Reason.CONNECTION, Reason.TIMEOUT} else ""


def _imds_advice(error: MetadataError) -> str:
    """Return advice for an answer of IMDS, or for none."""
    if error.outcome == "403":
        return _GUARDED_IMDS
    if isinstance(error, MetadataRefusedError):
        return _REFUSING_IMDS
    if error.outcome == "malformed" or error.outcome.startswith("3"):
        return _OTHER_THAN_IMDS
    return _LOCKED_IMDS if _is_prohibited(error) else _NO_IMDS


def _is_prohibited(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a connection that is forbidden."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PROHIBITED:
            return True
        error = error.__cause__
    return False


class _Checks(Struct):
    """The tests of one examination; each method is one test and returns its result.

    Attributes:
        identity: the identity of this VM, as far as known; ``instance`` completes it.
        patience: seconds for each test.
        more_findings: findings that tests made besides their own result.
    """

    config: Config
    clock: Clock
    identity: Identity
    patience: float
    more_findings: list[Finding] = field(default_factory=list)

    async def run(
        self,
        what: str,
        attempt: Awaitable[str],
        *,
        if_slow: str = "",
        if_unreachable: str = _UNREACHABLE,
    ) -> Finding:
        """Run a test; return its result with advice. A timeout is a failed test.

        Args:
            what: the name of the test.
            attempt: the test; returns the text of its result.
            if_slow: the advice after a timeout; "" = ``if_unreachable``.
            if_unreachable: the advice if there is no connection.

        Raises:
            UnprovenError: the sink can be reached, but nothing more was proved.
        """
        try:
            with waiting_for(what):
                async with asyncio.timeout(self.patience):
                    return Finding("ok", f"{what}: {await attempt}")
        except UnprovenError:
            raise
        except TimeoutError:
            text, advice = (
                f"no answer within {self.patience:g} s",
                if_slow or if_unreachable,
            )
        except (BridgeError, ValueError) as error:
            text, advice = str(error), _advice(error, if_unreachable)
        return Finding("fault", f"{what}: {text}", advice)

    async def instance(self, client: MetadataClient) -> str:
        """Ask IMDS for the identity of this VM; optional if [identity] is complete."""
        given = self.config.identity
        try:
            compute = await client.instance()
        except MetadataError as error:
            if not given.is_complete:
                raise
            return f"{error}; [identity] says {given.vm_name}"
        self.identity = Identity.from_metadata(compute).overridden(given)
        if _has_ephemeral_disk(compute):
            self.more_findings.append(
                Finding(
                    "warning",
                    "state: the OS disk of this VM is ephemeral",
                    "put state.path on a data disk: a redeploy loses this one",
                )
            )
        if self.config.traffic is not None and (name := _scale_set(compute)):
            self.more_findings.append(_repairs(name))
        return f"this VM is {self.identity.vm_name or 'unnamed'}"

    async def document(self, client: MetadataClient) -> str:
        """Read the document; the first read enables Scheduled Events for the VM."""
        patience = self.config.imds.first_request_timeout
        before = self.clock.now()
        answer = await client.fetch(etag=None, timeout=patience)
        self.more_findings.append(compared(answer.date, before, self.clock.now()))
        return f"answers; events now: {len(parse(answer.body or b'').events)}"

    async def sink(self, config: SinkConfig) -> str:
        """Test the connection to a sink."""
        async with open_session(
            user_agent=f"scheduled-events-bridge/{__version__}"
        ) as http:
            return await config.reach(Resources(http=http, expand=self.identity.expand))

    async def token(self, use: TokenUse) -> str:
        """Get a token; return its principal, to which roles must be assigned."""
        what = "" if use.scope == SERVICE_BUS_SCOPE else f" for {use.scope}"
        target = f"credential {use.credential}{what}"
        try:
            with delivery_errors(target):
                async with use.open() as credential:
                    token = await credential.get_token(use.scope)
        except RefusedDeliveryError as error:
            text = f"{error}; {_NO_IDENTITY}"
            raise RefusedDeliveryError(text, error.reason) from error
        minutes = int((token.expires_on - self.clock.now().timestamp()) / 60)
        return f"{target}: {principal_of(token.token)}; valid for {minutes} min"

    async def replies(self, config: ApprovalsConfig, entity: str) -> str:
        """Open a link to a reply entity, and send nothing."""
        sender = Sender(config, entity)
        try:
            await sender.reach()
        except DeliveryError as error:
            help_ = remedy(error, "Sender", entity)
            raise type(error)(f"{error}{help_}", error.reason) from error
        finally:
            await sender.close()
        return f"{entity} can be sent to"

    async def approvals(self, config: ApprovalsConfig, session: str | None) -> str:
        """Attach to the approval entity, receive nothing, and detach."""
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
        return f"{source} can be received from"


def excused(source: ApprovalSource, error: ApprovalQueueError) -> str:
    """Return the text of a good result, if another bridge holds the entity.

    The SDK wraps errors, so the cause is examined by the same rules as in the bridge.

    Raises:
        ApprovalQueueError: the failure to attach is a fault.
        DeliveryError: the failure is a fault of a known kind.
    """
    if not isinstance(cause := error.__cause__, Exception):
        raise error
    if is_held_elsewhere(cause):
        return f"{source} exists; a running bridge holds it"
    refusal = as_delivery_error(cause, str(source))
    help_ = remedy(refusal, "Receiver", source.entity)
    if is_not_allowed(cause):
        help_ = f": {_WITHOUT_SESSION if source.session is None else _WITH_SESSION}"
    raise type(refusal)(f"{error}{help_}", refusal.reason) from error


def compared(date: datetime | None, before: datetime, after: datetime) -> Finding:
    """Compare the clock of this machine with IMDS.

    Args:
        date: the Date header of an answer, in whole seconds; None without one.
        before: the local time when the request was sent.
        after: the local time when the answer arrived.
    """
    if date is None:
        return Finding("ok", "clock: not checked: IMDS sent no Date")
    early = before - (date + timedelta(seconds=1))
    late = date - after
    skew = max(early, late, timedelta(0))
    if skew < _SKEW_NOTED:
        return Finding("ok", "clock: agrees with IMDS")
    way = "ahead of" if early > late else "behind"
    return Finding(
        "warning" if skew < _SKEW_WRONG else "fault",
        f"clock: {skew.total_seconds():.0f} s {way} IMDS",
        _WRONG_CLOCK,
    )


def _scale_set(compute: Mapping[str, object]) -> str | None:
    """Return the name of the scale set of this VM, in either orchestration mode."""
    flexible = compute.get("virtualMachineScaleSet")
    path = flexible.get("id") if isinstance(flexible, Mapping) else None
    name = compute.get("vmScaleSetName") or str(path or "").rpartition("/")[2]
    return str(name) if name else None


def _repairs(scale_set: str) -> Finding:
    """Warn of a scale set that repairs what the probe calls out of rotation."""
    return Finding(
        "warning",
        f"traffic: this VM is in the scale set {scale_set}: if the set repairs "
        "instances by the probe of [traffic], it deletes a VM that is out for long",
        "take the set's health from the Application Health extension at the "
        "application's own path (or /alive of the probe), see infra/traffic.md",
    )


def _has_ephemeral_disk(compute: Mapping[str, object]) -> bool:
    """Whether the OS disk is ephemeral: it is lost if the VM moves to another host."""
    found: object = compute
    for key in ("storageProfile", "osDisk", "diffDiskSettings", "option"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found == "Local"


# -- The Entra ID tokens that a configuration needs, and their principals --------------


def uses(config: Config) -> Iterator[TokenUse]:
    """Yield each combination of credential and scope once."""
    entity, seen = config.approval_entity, set[tuple[str, str, str]]()
    approvals = None if entity is None else entity.token_use
    for use in (*(sink.token_use for sink in config.sinks), approvals):
        if use is None or (key := (use.credential, use.client_id, use.scope)) in seen:
            continue
        seen.add(key)
        yield use


def principal_of(token: str) -> str:
    """Return the principal of a token: only ids, which are no secrets.

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
        return "a token without a readable principal"
    application, principal = claims.get("appid") or claims.get("azp"), claims.get("oid")
    return f"application {application}, principal {principal}"
