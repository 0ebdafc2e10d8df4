"""Authentication of a webhook: ``[sinks.auth]`` and the resulting headers."""

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
import orjson
from msgspec.structs import replace

from bridge.foundation.clock import Clock, own_time
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Secret
from bridge.net.addresses import is_loopback
from bridge.net.entra import CredentialKind, TokenUse, open_credential
from bridge.net.http_client import revealed, turn

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

AuthKind = Literal["bearer", "basic", "header", "body", "entra"]

_NEEDED = {
    "bearer": ("token",),
    "basic": ("username", "password"),
    "header": ("name", "value"),
    "body": ("name", "value"),
    "entra": ("scope",),
}
_OPTIONAL = {"bearer": ("scheme",), "entra": ("credential", "client_id")}
_SPARE_SECONDS = 300.0  # a token that expires sooner is renewed


class AuthDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of a preset for authentication; the configuration overrides them.

    Attributes:
        is_implied: whether ``[sinks.auth]`` may be left out.
    """

    type: AuthKind | None = None
    scheme: str = ""

    name: str = ""
    scope: str = ""
    is_implied: bool = False


class AuthConfig(Section, frozen=True, kw_only=True):
    """``[sinks.auth]``: one type of authentication, and its keys.

    Attributes:
        type: how requests are authenticated; it decides which other keys are needed.
        token: the token, with type "bearer".
        scheme: the word in front of the token. Example: ``"Bearer"``.
        username: the name of the user, with type "basic". Example: ``"sebridge"``.
        password: the password, with type "basic".
        name: the name of the header, with type "header", or of the member of the JSON
            object that is the body, with type "body". Example: ``"x-api-key"``.
        value: the value of the header or of the member.
        scope: the scope of the Entra ID token, with type "entra". Example:
            ``"https://monitor.azure.com/.default"``.
        credential: how the bridge proves its identity, with type "entra".
        client_id: the id of a user-assigned managed identity, with type "entra"; "" is
            the system-assigned one. Example:
            ``"00001111-aaaa-2222-bbbb-3333cccc4444"``.
    """

    type: AuthKind | None = None
    token: Secret | None = None
    scheme: str = ""
    username: str = ""
    password: Secret | None = None
    name: str = ""
    value: Secret | None = None
    scope: str = ""
    credential: CredentialKind = "managed-identity"
    client_id: str = ""

    @property
    def header(self) -> str:
        """The header that carries the credentials."""
        return self.name if self.type == "header" else "Authorization"

    @property
    def shown(self) -> str:
        """The value of that header, without its secret."""
        schemes = {"bearer": self.scheme, "basic": "Basic", "entra": "Bearer"}
        return f"{schemes.get(self.type or '', '')} <secret>".strip()


def settled(config: AuthConfig | None, defaults: AuthDefaults) -> AuthConfig | None:
    """Return the configuration merged with a preset's defaults; None = no auth."""
    if config is None:
        if not defaults.is_implied:
            return None
        config = AuthConfig()
    kind = config.type or defaults.type
    values: dict[str, object] = {"type": kind}
    if kind == "bearer":
        values["scheme"] = config.scheme or defaults.scheme or "Bearer"
    if kind in {"header", "body"}:
        values["name"] = config.name or defaults.name
    if kind == "entra":
        values["scope"] = config.scope or defaults.scope
    return replace(config, **values)


def auth_faults(config: AuthConfig) -> Iterator[tuple[str, str]]:
    """Yield the faults of a ``settled`` configuration, by key."""
    kind = config.type
    if kind is None:
        allowed = ", ".join(f'"{name}"' for name in _NEEDED)
        yield "type", f"is missing; allowed are {allowed}"
        return
    for key in _NEEDED[kind]:
        if not getattr(config, key):
            yield key, f'is missing: type = "{kind}" needs it'
    for other in _NEEDED:
        for key in _keys(other):
            is_foreign = key not in _keys(kind)
            if is_foreign and getattr(config, key) != getattr(AuthConfig(), key):
                yield key, f'is for type = "{other}", but type is "{kind}"'
    yield from _value_faults(config)


def _keys(kind: str) -> tuple[str, ...]:
    return _NEEDED[kind] + _OPTIONAL.get(kind, ())


def _value_faults(config: AuthConfig) -> Iterator[tuple[str, str]]:
    if config.name and config.type == "header":
        for what in name_faults(config.name):
            yield "name", what
    for what in value_faults(config.scheme):
        yield "scheme", what
    for key in ("token", "password", "value"):
        secret: Secret | None = getattr(config, key)
        for what in value_faults(secret.reveal()) if secret else ():
            yield key, what
    if ":" in config.username:
        yield "username", "must not hold a colon: a colon ends the name"
    for what in value_faults(config.username):
        yield "username", what


def token_use(config: AuthConfig | None, proxy: Address | None) -> TokenUse | None:
    """Return the Entra ID token of a ``settled`` authentication; None = no such."""
    if config is None or config.type != "entra":
        return None
    return TokenUse(
        credential=config.credential,
        client_id=config.client_id,
        scope=config.scope,
        proxy=proxy,
    )


def is_safe_for_token(url: str) -> bool:
    """Whether an Entra ID token may be sent to a URL: https, or this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def filled(config: AuthConfig | None, body: bytes, value: str | None = None) -> bytes:
    """Add the secret to a body, if ``auth.type`` is "body".

    Args:
        config: the ``settled`` authentication.
        body: a JSON object, or empty.
        value: shown in place of the secret; None = the secret itself, read again.

    Raises:
        PermanentDeliveryError: the body is not a JSON object.
        RefusedDeliveryError: the secret cannot be read.
    """
    if config is None or config.type != "body" or not body:
        return body
    members = orjson.loads(body)
    if not isinstance(members, dict):
        text = 'auth.type = "body" needs a body that is a JSON object'
        raise PermanentDeliveryError(text, Reason.REJECTED)
    return orjson.dumps({config.name: value or _value(config), **members})


class Auth(Protocol):
    """Authenticates requests."""

    async def headers(self, url: str) -> dict[str, str]:
        """Return the headers for a request to ``url``; secrets are read again.

        Raises:
            RefusedDeliveryError: the credentials cannot be read or fetched.
            TransientDeliveryError: the credentials cannot be fetched now.
        """
        ...

    def was_refused(self) -> None:
        """Note that the other side has refused the credentials."""
        ...


def auth_of(
    config: AuthConfig | None, *, clock: Clock, timeout: float, proxy: Address | None
) -> Auth:
    """Return a ``settled`` authentication; a token is fetched at its first use."""
    if config is None or config.type != "entra":
        return _Written(config)
    return _Token(config=config, clock=clock, timeout=timeout, proxy=proxy)


class _Written(msgspec.Struct, frozen=True):
    """Credentials in the configuration, or in the place it refers to."""

    config: AuthConfig | None

    async def headers(self, url: str) -> dict[str, str]:  # noqa: ARG002 - any URL may get it
        config = self.config
        if config is None or config.type == "body":
            return {}
        return {config.header: _value(config)}

    def was_refused(self) -> None:
        """Do nothing: the secret is read again each time."""


def _value(config: AuthConfig) -> str:
    if config.token is not None:
        return f"{config.scheme} {revealed_value(config.token, 'auth.token')}"
    if config.password is not None:
        password = revealed_value(config.password, "auth.password")
        pair = f"{config.username}:{password}".encode()
        return f"Basic {b64encode(pair).decode()}"
    if config.value is not None:
        return revealed_value(config.value, "auth.value")
    raise AssertionError  # excluded by auth_faults


class _Token:
    """An Entra ID token, fetched when needed, and again after a refusal."""

    def __init__(
        self, config: AuthConfig, clock: Clock, timeout: float, proxy: Address | None
    ) -> None:
        self.config = config
        self.clock = clock
        self.timeout = timeout
        self.proxy = proxy
        self._lock = asyncio.Lock()
        self._token: AccessToken | None = None

    async def headers(self, url: str) -> dict[str, str]:
        if not is_safe_for_token(url):
            text = "url is not https: an Entra ID token is not sent there"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        # One call fetches the token for all.
        async with turn(self._lock, seconds=self.timeout, what=self._target):
            token = self._token = await self._renewed()
            return {"Authorization": f"Bearer {token.token}"}

    def was_refused(self) -> None:
        self._token = None

    @property
    def _target(self) -> str:
        return f"Entra token for {self.config.scope}"

    async def _renewed(self) -> "AccessToken":
        """Return the token; renew it if it expires soon and that succeeds."""
        token = self._token
        now = own_time(self.clock).timestamp()  # azure-identity adds to this clock
        left = token.expires_on - now if token else 0.0
        if token is not None and left > _SPARE_SECONDS:
            return token
        try:
            return await self._fetch()
        except DeliveryError:
            if token is None or left <= 0:
                raise
            return token

    async def _fetch(self) -> "AccessToken":
        """Fetch a token with a new credential: an old credential has a cache."""
        # Imported here: the Azure SDK costs memory that few configurations need.
        from bridge.servicebus import errors  # noqa: PLC0415 - see above

        # Before the time runs: its first import takes seconds on a busy machine.
        made = self._credential()
        try:
            async with asyncio.timeout(self.timeout), made as credential:
                return await credential.get_token(self.config.scope)
        except TimeoutError:
            text = f"{self._target}: no answer in time"
            raise TransientDeliveryError(text, Reason.TIMEOUT) from None
        except errors.failures() as error:
            raise errors.as_delivery_error(error, self._target) from error

    def _credential(self) -> "AsyncTokenCredential":
        proxy = revealed(self.proxy, "proxy") if self.proxy else None
        config = self.config
        try:
            return open_credential(
                config.credential, client_id=config.client_id, proxy=proxy
            )
        except ValueError as error:
            text = f"{self._target}: {error}"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error


# -- The allowed names and values of headers -------------------------------------------


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The sink or HTTP itself sets these; a second one would be ambiguous.
_OWN = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def name_faults(name: str) -> Iterator[str]:
    """Yield the faults of a header's name."""
    if not _TOKEN.fullmatch(name):
        yield "is not a valid header name"
    elif name.lower() in _OWN or name.lower().startswith("ce-"):
        yield "is set by the sink itself"


def value_faults(value: str) -> Iterator[str]:
    """Yield the faults of a header's value, without showing the value."""
    if _CONTROL.search(value):
        yield "must not hold line breaks or other control characters"


def revealed_value(secret: Secret, what: str) -> str:
    """Return a secret for use in a header, read at this moment.

    Raises:
        RefusedDeliveryError: it can no longer be read, or would break the header.
    """
    value = revealed(secret, what)
    if _CONTROL.search(value):
        text = f"{what} holds line breaks or other control characters"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return value
