"""The configuration of a webhook sink, and its checks."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from bridge.foundation.values import (
    Address,
    Duration,
    FilePath,
    Size,
    placeholder_faults,
    unknown_placeholders,
)
from bridge.net.addresses import target_fault
from bridge.net.entra import TokenUse
from bridge.net.http_client import (
    has_credentials,
)
from bridge.net.tls import TlsFiles
from bridge.sinks.batch import BatchKeys
from bridge.sinks.webhook.auth import (
    AuthConfig,
    AuthDefaults,
    auth_faults,
    is_safe_for_token,
    settled,
    token_use,
)
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.content_mode import ContentMode
from bridge.sinks.webhook.handshake import (
    ORIGIN,
    HandshakeKind,
    is_origin,
)
from bridge.sinks.webhook.headers import name_faults, value_faults
from bridge.sinks.webhook.presets.registry import PresetName
from bridge.sinks.webhook.response import SuccessConfig
from bridge.sinks.webhook.signing import HEADERS as SIGNATURE_HEADERS
from bridge.sinks.webhook.signing import SignatureConfig


class WebhookKeys(BatchKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "webhook"``.

    Attributes:
        url: where events are posted. Example: ``"https://siem.example/ingest"``,
            ``"env:SIEM_URL"``.
        preset: the service behind the URL; it decides about bodies, answers and
            authentication.
        content_mode: the form of a request; left out: the form of the preset, or else
            "structured".
        template: Jinja2 that makes the body, or the path of a file with it; with
            content_mode "template" only. Example: ``"file:/etc/sebridge/body.j2"``.
        content_type: the media type of the template's result. Example:
            ``"application/json"``.
        gzip: bodies of at least this size are compressed. Left out: none is.
        success: which answers count as a delivery, in place of the preset's rule.
            Example: ``{"status": [200, 202]}``.
        headers: more headers of every request; {vm_id}, {vm_name} and {group} are
            filled in. Example: ``{"x-team": "infra", "x-tenant": "env:SIEM_TENANT"}``.
        auth: how requests are authenticated. Example: ``{"type": "bearer", "token":
            "env:SIEM_TOKEN"}``.
        signature: signs requests as Standard Webhooks requires. Example: ``{"secrets":
            ["env:SIEM_SIGNING_SECRET"]}``.
        timeout: how long one attempt may take.
        connect_timeout: how long the connection of an attempt may take.
        proxy: the proxy to use; those of the environment are never used.
            Example: ``"http://proxy.example:3128"``.
        client_certificate: the certificate of this side, for mutual TLS; a replaced
            file is read again. Example: ``"/etc/sebridge/client.pem"``.
        client_key: the key of the certificate. Left out: it is in client_certificate.
            Example: ``"/etc/sebridge/client.key"``.
        ca_file: the authorities that may sign the receiver's certificate, in place of
            those of the system. Example: ``"/etc/sebridge/ca.pem"``.
        handshake: whether to ask the receiver for permission before the first delivery,
            as the CloudEvents webhook specification describes.
        handshake_origin: the DNS name that asks for permission; "" is the name of the
            VM. Example: ``"sebridge.example"``.
    """

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
        """The preset's defaults for authentication."""
        known = self.shape.auth
        return replace(known, is_implied=known.is_implied and not self._has_key)

    @property
    def auth_meant(self) -> AuthConfig | None:
        """The authentication with all defaults; None = none."""
        return settled(self.auth, self.auth_defaults)

    @property
    def token_use(self) -> TokenUse | None:
        """The Entra ID token of the authentication; see ``SinkConfig.token_use``."""
        return token_use(self.auth_meant, self.proxy)

    @property
    def shape(self) -> Shape:
        """What is posted, and what counts as success."""
        return Shape(
            preset=self.preset,
            mode=self.content_mode,
            template=self.template,
            content_type=self.content_type,
            gzip=self.gzip,
            success=self.success,
            is_many=self.batch != 1,
        )

    @property
    def repeats(self) -> bool:
        """Whether the service recognises a repeat; see ``SinkConfig.repeats``."""
        known = self.shape.known
        return known is None or known.repeats

    @property
    def _has_key(self) -> bool:
        """Whether a configured header already authenticates."""
        keys = {"authorization", self.shape.auth.name.lower()}
        return any(name.lower() in keys for name in self.headers)

    @property
    def tls_files(self) -> TlsFiles:
        """The certificates of this sink."""
        return TlsFiles(
            certificate=self.client_certificate,
            key=self.client_key,
            authorities=self.ca_file,
        )

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check addresses, headers, auth and files, without showing a secret."""
        yield from BatchKeys.faults(self)
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
                yield f"headers.{name}", f"is set by {by}: remove one of them"
        names = {name.lower() for name in self.headers} | self._set_by().keys()
        if "authorization" in names and has_credentials(self.url.reveal()):
            yield "url", "holds a name or password, and Authorization is set as well"
        yield from self._auth_faults()
        yield from self.shape.faults(
            lifecycle=self.route.lifecycle,
            is_signed=self.signature is not None,
            has_auth=self.auth_meant is not None or self._has_key,
            scope=self.route.scope,
        )
        yield from self._tls_faults()
        yield from self._handshake_faults()

    def _set_by(self) -> dict[str, str]:
        """Return the headers that other keys set, in lower case, with the key."""
        found = {}
        if (auth := self.auth_meant) is not None and auth.type not in {None, "body"}:
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
            yield "url", "must be https: an Entra ID token is sent there", "auth"
        if auth.type == "body" and not self.shape.has_object:
            what = '"body" needs content_mode = "template", or a preset that has it'
            yield "auth.type", what

    def _tls_faults(self) -> Iterator[tuple[str, ...]]:
        for key in ("client_certificate", "ca_file"):
            if getattr(self, key) and self.url.reveal().startswith("http://"):
                yield key, "has no effect: url is not https", "url"
        yield from self.tls_files.faults()

    def _handshake_faults(self) -> Iterator[tuple[str, ...]]:
        given = self.handshake_origin
        unknown = list(placeholder_faults(given))
        for what in unknown:
            yield "handshake_origin", what
        if given and not unknown and not is_origin(given):
            yield "handshake_origin", 'must be a DNS name such as "vms.example.com"'


def _headers_faults(headers: Mapping[str, Address]) -> Iterator[tuple[str, str]]:
    names = [name.lower() for name in headers]
    for name, value in headers.items():
        for what in (*name_faults(name), *value_faults(value.reveal())):
            yield f"headers.{name}", what
        # The value of a variable or file may contain braces. The value in the
        # configuration may be a secret, so it is not repeated.
        if value.is_literal and unknown_placeholders(value.reference):
            what = "unknown placeholder; allowed are {vm_id}, {vm_name} and {group}"
            yield f"headers.{name}", what
        if names.count(name.lower()) > 1:
            yield f"headers.{name}", "is given twice: case makes no difference"
