"""CloudEvents to any HTTP endpoint, and how it learns to trust them.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3, http-webhook.md sections 2 and 4)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import aiohttp
import msgspec

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ConfigError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.foundation.rate_limit import Pace
from bridge.foundation.values import (
    Address,
    Duration,
    FilePath,
    Size,
    placeholder_faults,
    unknown_placeholders,
)
from bridge.net.addresses import target_fault
from bridge.net.http_client import (
    Request,
    exchange,
    failure,
    has_credentials,
    redact,
    revealed,
    turn,
)
from bridge.net.reachability import reach
from bridge.net.tls import Tls, TlsFiles
from bridge.sinks.base import Preview, Resources, SinkConfig
from bridge.sinks.webhook.auth import (
    Auth,
    AuthConfig,
    AuthDefaults,
    auth_faults,
    auth_of,
    is_safe_for_token,
    settled,
)
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.content_mode import ContentMode, Rendered
from bridge.sinks.webhook.handshake import (
    ORIGIN,
    HandshakeKind,
    granted_rate,
    is_origin,
    origin_of,
    question,
)
from bridge.sinks.webhook.headers import name_faults, revealed_value, value_faults
from bridge.sinks.webhook.presets.preset import PresetName
from bridge.sinks.webhook.response import SuccessConfig
from bridge.sinks.webhook.signing import HEADERS as SIGNATURE_HEADERS
from bridge.sinks.webhook.signing import SignatureConfig, signed
from bridge.sinks.webhook.template import TemplateFaultError

_SECRET = "<secret>"  # noqa: S105 - what stands for one  # nosec B105


class WebhookSinkConfig(SinkConfig, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "webhook"``.

    Attributes:
        url: where events are posted. Example: ``"https://siem.example/ingest"``,
            ``"env:SIEM_URL"``.
        preset: the service behind the URL: it says what bodies, answers and
            authorisation are like.
        content_mode: how an event is put into a request; left out: as the preset has
            it, else "structured".
        template: what makes the body: Jinja2, or the path of a file with it; with
            content_mode "template" only. Example: ``"file:/etc/sebridge/body.j2"``.
        content_type: the media type of what the template makes. Example:
            ``"application/json"``.
        gzip: bodies from this size on are compressed. Left out: none is.
        success: which answers count as a delivery, in place of what the preset knows.
            Example: ``{"status": [200, 202]}``.
        headers: more headers of every request; {vm_id}, {vm_name} and {group} are
            filled in. Example: ``{"x-team": "infra", "x-tenant": "env:SIEM_TENANT"}``.
        auth: how requests are authorised. Example: ``{"type": "bearer", "token":
            "env:SIEM_TOKEN"}``.
        signature: signs requests as Standard Webhooks says. Example: ``{"secrets":
            ["env:SIEM_SIGNING_SECRET"]}``.
        timeout: how long one attempt may take.
        connect_timeout: how long of an attempt it may take until the connection stands.
        proxy: the proxy to go through; those of the environment are never used.
            Example: ``"http://proxy.example:3128"``.
        client_certificate: the certificate of this side, for mutual TLS; a file that
            was replaced is read again. Example: ``"/etc/sebridge/client.pem"``.
        client_key: the key of the certificate. Left out: it is in client_certificate.
            Example: ``"/etc/sebridge/client.key"``.
        ca_file: who vouches for the other side, in place of the authorities of the
            system. Example: ``"/etc/sebridge/ca.pem"``.
        handshake: whether the receiver is asked for permission before the first
            delivery, as CloudEvents has it.
        handshake_origin: who asks for permission, as a DNS name; "" is the name of the
            VM. Example: ``"sebridge.example"``.
    """

    repeats: ClassVar[bool] = True

    url: Address
    preset: PresetName | None = None
    content_mode: ContentMode | None = None
    template: str | None = None
    content_type: str | None = None
    gzip: Size | None = None
    success: SuccessConfig | None = None
    headers: dict[str, Address] = msgspec.field(default_factory=dict)
    auth: AuthConfig | None = None
    signature: SignatureConfig | None = None
    timeout: Duration = Duration(10)
    connect_timeout: Duration = Duration(5)
    proxy: Address | None = None
    client_certificate: FilePath | None = None
    client_key: FilePath | None = None
    ca_file: FilePath | None = None
    handshake: HandshakeKind = "off"
    handshake_origin: str = ""

    @property
    def auth_defaults(self) -> AuthDefaults:
        """What is known of auth although it does not stand in ``[sinks.auth]``."""
        known = self.shape.auth
        return replace(known, is_implied=known.is_implied and not self._has_key)

    @property
    def auth_meant(self) -> AuthConfig | None:
        """Auth with all that is known of it; None = none."""
        return settled(self.auth, self.auth_defaults)

    @property
    def shape(self) -> Shape:
        """What is posted, and what counts as a success."""
        return Shape(
            preset=self.preset,
            mode=self.content_mode,
            template=self.template,
            content_type=self.content_type,
            gzip=self.gzip,
            success=self.success,
        )

    @property
    def _has_key(self) -> bool:
        """Whether a header of the user's own says who speaks."""
        keys = {"authorization", self.shape.auth.name.lower()}
        return any(name.lower() in keys for name in self.headers)

    @property
    def tls_files(self) -> TlsFiles:
        """Certificates of its own."""
        return TlsFiles(
            certificate=self.client_certificate,
            key=self.client_key,
            authorities=self.ca_file,
        )

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check addresses, headers, auth and files, without showing a secret."""
        for key, address in (("url", self.url), ("proxy", self.proxy)):
            what = None if address is None else target_fault(address.reveal())
            if what is not None:
                yield key, what
        for key in ("timeout", "connect_timeout"):
            if not getattr(self, key):
                yield key, "must be more than 0s"
        yield from _headers_faults(self.headers)
        for name in self.headers:
            if by := self._set_by().get(name.lower()):
                yield f"headers.{name}", f"is set by {by}: leave out one of them"
        names = {name.lower() for name in self.headers} | self._set_by().keys()
        if "authorization" in names and has_credentials(self.url.reveal()):
            yield "url", "holds a name or password, and Authorization is set as well"
        yield from self._auth_faults()
        yield from self.shape.faults(
            lifecycle=self.route.lifecycle,
            is_signed=self.signature is not None,
            has_auth=self.auth_meant is not None or self._has_key,
        )
        yield from self._tls_faults()
        yield from self._handshake_faults()

    def _set_by(self) -> dict[str, str]:
        """Return the headers that are set, in lower case, and the key that does it."""
        found = {}
        if (auth := self.auth_meant) is not None and auth.type is not None:
            found[auth.header.lower()] = "auth"
        if self.signature is not None:
            found |= dict.fromkeys(SIGNATURE_HEADERS, "signature")
        if self.handshake != "off":
            found[ORIGIN.lower()] = "handshake"
        return found

    def _auth_faults(self) -> Iterator[tuple[str, ...]]:
        auth = self.auth_meant
        if auth is None:
            return
        for key, what in auth_faults(auth):
            yield f"auth.{key}", what
        if auth.type == "entra" and not is_safe_for_token(self.url.reveal()):
            yield "url", "must be https: a token of Entra goes there", "auth"

    def _tls_faults(self) -> Iterator[tuple[str, ...]]:
        for key in ("client_certificate", "ca_file"):
            if getattr(self, key) and self.url.reveal().startswith("http://"):
                yield key, "is of no use: url is not https", "url"
        yield from self.tls_files.faults()

    def _handshake_faults(self) -> Iterator[tuple[str, ...]]:
        given = self.handshake_origin
        unknown = list(placeholder_faults(given))
        for what in unknown:
            yield "handshake_origin", what
        if given and not unknown and not is_origin(given):
            yield "handshake_origin", 'must be a DNS name such as "vms.example.com"'

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["WebhookSink"]:
        """Fill in placeholders; nothing is connected before the first delivery.

        Raises:
            ConfigError: a placeholder has no value on this machine, or the template
                cannot be read any more.
            MissingExtraError: Jinja2 is wanted and not installed.
        """
        yield WebhookSink(
            config=self,
            shape=self.shape,
            render=self._renderer(),
            expanded=self._expanded(resources),
            origin=self._origin(resources),
            auth=auth_of(
                self.auth_meant,
                clock=resources.clock,
                timeout=self.timeout,
                proxy=self.proxy,
            ),
            tls=Tls(self.tls_files),
            http=resources.http,
            pace=resources.pace,
            clock=resources.clock,
        )

    def _renderer(self) -> Callable[[CloudEvent], Rendered]:
        try:
            return self.shape.renderer()
        except TemplateFaultError as error:
            raise ConfigError([f"sinks.{self.name}.template: {error}"]) from error

    def _expanded(self, resources: Resources) -> dict[str, str]:
        try:
            return {
                name: resources.expand(value.reference)
                for name, value in self.headers.items()
                if value.is_literal
            }
        except ValueError as error:
            raise ConfigError([f"sinks.{self.name}.headers: {error}"]) from error

    def _origin(self, resources: Resources) -> str | None:
        if self.handshake == "off":
            return None
        try:
            return origin_of(self.handshake_origin, resources.expand)
        except ValueError as error:
            place = f"sinks.{self.name}.handshake_origin"
            raise ConfigError([f"{place}: {error}"]) from error

    async def reach(self, resources: Resources) -> str:
        """Ask whether the endpoint is there; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.reach()

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be posted; see ``SinkConfig.preview``."""
        async with self.open(resources) as sink:
            return sink.preview(event)


def _headers_faults(headers: Mapping[str, Address]) -> Iterator[tuple[str, str]]:
    names = [name.lower() for name in headers]
    for name, value in headers.items():
        for what in (*name_faults(name), *value_faults(value.reveal())):
            yield f"headers.{name}", what
        # What a variable or file holds may well have braces of its own; and what
        # stands here openly may be a secret all the same, so it is not repeated.
        if value.is_literal and unknown_placeholders(value.reference):
            what = "unknown placeholder; allowed are {vm_id}, {vm_name} and {group}"
            yield f"headers.{name}", what
        if names.count(name.lower()) > 1:
            yield f"headers.{name}", "is given twice: case makes no difference"


@dataclass(slots=True, kw_only=True)
class WebhookSink:
    """POSTs each event to one URL.

    Attributes:
        render: makes headers and body of an event.
        expanded: the headers that stand in the configuration, filled in.
        origin: who asks for permission; None = nobody is asked.
    """

    config: WebhookSinkConfig
    shape: Shape
    render: Callable[[CloudEvent], Rendered]
    expanded: Mapping[str, str] = field(repr=False)
    origin: str | None
    auth: Auth
    tls: Tls
    http: aiohttp.ClientSession
    pace: Pace
    clock: Clock
    _is_settled: bool = False  # whether the question of permission is
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, event: CloudEvent) -> None:
        """POST the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.net.http_client`` maps it.
        """
        try:
            await self._ask()
            await self._post(event)
        except RefusedDeliveryError:
            self._is_settled = False
            self.auth.was_refused()
            raise
        if self.config.handshake == "attempt":
            self._is_settled = True  # who takes events and answers nothing never will

    async def reach(self) -> str:
        """Ask whether the endpoint is there; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: it is not, or does not allow what it has to.
            UnprovenError: it is, and its answer says no more.
        """
        request = await self._request({})
        target = redact(request.url)
        doubt: UnprovenError | None = None
        try:
            found = await reach(self.http, request, target)
        except UnprovenError as error:
            doubt, found = error, f"{target} is there"
        said = "" if self.origin is None else await self._asked(self.origin, doubt)
        if doubt is not None and not said:
            raise doubt
        return f"{found}{said}"

    async def _asked(self, origin: str, doubt: UnprovenError | None) -> str:
        """Say what came of the question for permission; "" = nothing was proven.

        Raises:
            DeliveryError: it does not allow what it has to.
        """
        try:
            await self._permission(origin)
        except RefusedDeliveryError as error:
            if self.config.handshake == "required":
                raise
            return "" if doubt is not None else f"; {error}"
        return f"; it allows {origin} to send"

    def preview(self, event: CloudEvent) -> Preview:
        """Return what would be posted; see ``SinkConfig.preview``."""
        content, body = self._rendered(event)
        packed, _ = self.shape.packed(content, body)
        headers = self._shown() | self._origin_header() | packed
        if self.config.signature is not None:
            headers |= self._signature(event, body) | {"webhook-signature": _SECRET}
        target = redact(revealed(self.config.url, "url"))
        lines = (f"{name}: {value}" for name, value in headers.items())
        return Preview(head=(f"POST {target}", *lines), body=body)

    def _shown(self) -> dict[str, str]:
        """Return the headers of the configuration as anybody may see them."""
        shown = {
            name: self.expanded[name]
            if value.is_literal and not value.holds_secret(name)
            else _SECRET
            for name, value in self.config.headers.items()
        }
        if (auth := self.config.auth_meant) is not None:
            shown[auth.header] = auth.shown
        return shown

    async def _ask(self) -> None:
        """Ask for permission: once, and again after a refusal."""
        if self.origin is None or self._is_settled:
            return
        name, seconds = self.config.name, self.config.timeout
        async with turn(self._asking, seconds=seconds, what=f"{name}: handshake"):
            if not self._is_settled:
                await self._settle(self.origin)
            elif (rate := self.pace.granted) is not None:  # another one has asked
                text = f"{name} waits for its turn"
                wait = 1 / rate
                raise TransientDeliveryError(text, Reason.THROTTLED, retry_after=wait)

    async def _settle(self, origin: str) -> None:
        try:
            rate = await self._permission(origin)
        except RefusedDeliveryError:
            if self.config.handshake == "required":
                raise
            rate = None
        except TransientDeliveryError:
            if self.config.handshake == "required":
                raise
            return  # the delivery will show whether anybody is there
        self.pace.grant(rate, self.clock.monotonic())
        self._is_settled = True

    async def _permission(self, origin: str) -> float | None:
        """Return how many deliveries a second are allowed; None = any number.

        Raises:
            RefusedDeliveryError: none is.
            TransientDeliveryError: it is not known now.
        """
        asked = question(origin, self.pace.most)
        request = replace(await self._request(asked), method="OPTIONS")
        target = redact(request.url)
        answer = await exchange(self.http, request, target)
        error = failure(answer.status, target=target, retry_after=answer.retry_after)
        is_busy = isinstance(error, TransientDeliveryError) and answer.status != 501
        if error and is_busy and self.config.handshake == "required":
            raise error
        return granted_rate(answer, origin=origin, target=target)

    async def _post(self, event: CloudEvent) -> None:
        content, body = self._rendered(event)
        headers = content | self._signature(event, body)
        request = await self._request(*self.shape.packed(headers, body))
        target = redact(request.url)
        answer = await exchange(self.http, request, target)
        if error := self.shape.judge(answer, target):
            raise error

    def _rendered(self, event: CloudEvent) -> Rendered:
        headers, body = self.render(event)
        known = self.shape.known
        return headers | dict(known.headers(event)) if known else headers, body

    def _signature(self, event: CloudEvent, body: bytes) -> dict[str, str]:
        if self.config.signature is None:
            return {}
        return signed(self.config.signature, event.id, body, self.clock.now())

    async def _request(self, headers: dict[str, str], body: bytes = b"") -> Request:
        config, url = self.config, revealed(self.config.url, "url")
        auth = await self.auth.headers(url)
        return Request(
            url=url,
            headers=self._configured() | self._origin_header() | auth | headers,
            body=body,
            timeout=config.timeout,
            connect_timeout=config.connect_timeout,
            proxy=revealed(config.proxy, "proxy") if config.proxy else None,
            tls=self.tls.context(),
        )

    def _configured(self) -> dict[str, str]:
        """Return the headers of the configuration; secrets are read anew."""
        return {
            name: self.expanded.get(name) or revealed_value(value, f"headers.{name}")
            for name, value in self.config.headers.items()
        }

    def _origin_header(self) -> dict[str, str]:
        return {} if self.origin is None else {ORIGIN: self.origin}
