"""The configuration of a webhook sink, and its checks."""

import binascii
import hashlib
import hmac
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Literal

import msgspec
from msgspec.structs import replace

from bridge.events.cloudevent import hash32
from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.sections import Section
from bridge.foundation.values import (
    PLACEHOLDERS,
    Address,
    Duration,
    FilePath,
    Secret,
    Size,
    placeholder_faults,
    unknown_placeholders,
)
from bridge.net.addresses import target_fault
from bridge.net.entra import TokenUse
from bridge.net.http_client import (
    Answer,
    has_credentials,
    revealed,
)
from bridge.net.tls import TlsKeys
from bridge.sinks.batch import BatchKeys
from bridge.sinks.webhook.auth import (
    AuthConfig,
    AuthDefaults,
    auth_faults,
    is_safe_for_token,
    name_faults,
    settled,
    token_use,
    value_faults,
)
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.presets.preset import ContentMode, SuccessConfig
from bridge.sinks.webhook.presets.registry import PresetName

# -- Abuse protection of CloudEvents webhooks: may we send, and at which rate? ---------
#
# The bridge waits for the answer. It does not offer a WebHook-Request-Callback, which
# the receiver would call later: a forwarder accepts no connections from outside its VM.
#
# Source: https://github.com/cloudevents/spec/blob/ce@v1.0.2/cloudevents/http-webhook.md
#         (section 4)


HandshakeKind = Literal["off", "attempt", "required"]

ORIGIN = "WebHook-Request-Origin"
SECRET = "<secret>"  # noqa: S105 - shown in place of one  # nosec B105
_RATE = "WebHook-Request-Rate"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ORIGIN = rf"{_LABEL}(\.{_LABEL})*"  # compiled at its first use, which is rare
_NOBODY = "scheduled-events-bridge"
_MOST_SLOTS = 32  # deliveries under way at a slow receiver


def is_origin(text: str) -> bool:
    """Whether a text is a DNS name; a placeholder counts as a part of one."""
    for name in PLACEHOLDERS:
        text = text.replace(f"{{{name}}}", "x")
    return bool(re.fullmatch(_ORIGIN, text, re.IGNORECASE))


def origin_of(configured: str, expand: Callable[[str], str]) -> str:
    """Return the origin: as configured, else the VM's name as a DNS name.

    Raises:
        ValueError: a placeholder has no value here, or the result is no DNS name.
    """
    if configured:
        origin = expand(configured)
        if not is_origin(origin):
            raise ValueError("is not a DNS name after placeholders are filled in")
        return origin
    try:
        name = expand("{vm_name}")
    except ValueError:
        return _NOBODY
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:63].strip("-")
    return plain or _NOBODY


def question(origin: str, rate: float | None) -> dict[str, str]:
    """Return the headers of the request for permission.

    Args:
        origin: the origin that asks.
        rate: the wanted deliveries per second; None = as many as there are.
    """
    wish = {} if rate is None else {_RATE: str(max(1, math.ceil(rate * 60)))}
    return {ORIGIN: origin} | wish


def granted_rate(answer: Answer, origin: str) -> float | None:
    """Return the allowed deliveries per second; None = any number.

    Args:
        answer: its headers count, not its status.
        origin: the origin that asked.

    Raises:
        RefusedDeliveryError: nothing is allowed.
    """
    said = answer.summary
    allowed = answer.headers.get("WebHook-Allowed-Origin", "").strip()
    if allowed != "*" and allowed.lower() != origin.lower():
        what = "another origin" if allowed else "no origin"
        text = f"{said} and allows {what}: this is {origin} (handshake)"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    rate = answer.headers.get("WebHook-Allowed-Rate", "*").strip()
    if rate == "*":
        return None
    if not re.fullmatch(r"[0-9]{1,9}", rate) or not int(rate):
        text = f"{said} and allows a rate that is not a number (handshake)"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return int(rate) / 60


# -- Standard Webhooks: the receiver can verify the origin and the age of a request ----
#
# Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/
#         standard-webhooks.md


SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NO_SECRET = f"must be {_PREFIX} and {_LEAST} to {_MOST} bytes in base64"


class SignatureConfig(Section, frozen=True, kw_only=True):
    """``[sinks.signature]``: one secret, or several while a secret is replaced.

    Attributes:
        secrets: the keys that sign requests, each whsec_ and 24 to 64 bytes in base64;
            several while a secret is replaced. Example:
            ``["env:SIEM_SIGNING_SECRET"]``.
    """

    secrets: tuple[Secret, ...]

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check each secret, without showing it."""
        if not self.secrets:
            yield "secrets", "must hold at least one secret"
        for index, secret in enumerate(self.secrets):
            try:
                _key(secret.reveal())
            except ValueError as error:
                yield f"secrets[{index}]", str(error)


def signed(
    config: SignatureConfig, event_id: str, body: bytes, now: datetime
) -> dict[str, str]:
    """Return the headers of one attempt; the id is the same in all attempts.

    Args:
        config: the secrets; each is read again, and makes its own signature.
        event_id: the id of the CloudEvent; if it has characters that the standard does
            not allow, its hash is used.
        body: as it is sent.
        now: the time of this attempt.

    Raises:
        RefusedDeliveryError: a secret can no longer be read.
    """
    message_id = event_id if _PLAIN_ID.fullmatch(event_id) else hash32(event_id)
    moment = str(int(now.timestamp()))
    content = f"{message_id}.{moment}.".encode() + body
    signatures = []
    for index, secret in enumerate(config.secrets):
        what = f"signature.secrets[{index}]"
        try:
            key = _key(revealed(secret, what))
        except ValueError as error:
            text = f"{what} {error}"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error
        digest = hmac.new(key, content, hashlib.sha256).digest()
        signatures.append(f"v1,{b64encode(digest).decode()}")
    values = (message_id, moment, " ".join(signatures))
    return dict(zip(SIGNATURE_HEADERS, values, strict=True))


def _key(secret: str) -> bytes:
    """Return the bytes of a secret.

    Raises:
        ValueError: the secret has another form; the text repeats no part of it.
    """
    try:
        text = secret.removeprefix(_PREFIX).rstrip("=")
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_NO_SECRET) from None
    if not _LEAST <= len(key) <= _MOST:
        raise ValueError(_NO_SECRET)
    return key


# -- The configuration of a webhook sink, and its checks -------------------------------


class WebhookKeys(BatchKeys, TlsKeys, frozen=True, kw_only=True):
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
    def most_slots(self) -> int:
        """How many deliveries a slow receiver gets at the same time."""
        return self.slots if self.batch > 1 else _MOST_SLOTS

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
        is_plain = self.url.reveal().startswith("http://")
        unused = "has no effect: url is not https" if is_plain else ""
        yield from self.tls_faults(unused, "url")
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

    def shown_headers(self, expanded: Mapping[str, str]) -> dict[str, str]:
        """Return the headers for display.

        Args:
            expanded: the literal headers, with placeholders filled in.
        """
        headers = {
            name: expanded[name]
            if value.is_literal and not value.holds_secret(name)
            else SECRET
            for name, value in self.headers.items()
        }
        if (auth := self.auth_meant) is not None and auth.type != "body":
            headers[auth.header] = auth.shown
        return headers

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
