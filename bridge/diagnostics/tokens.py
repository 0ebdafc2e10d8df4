"""The Entra ID tokens that a configuration needs, and their principals."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from bridge.configuration.config import Config
from bridge.foundation.values import Address
from bridge.net.entra import CredentialKind, open_credential
from bridge.servicebus.namespace import NamespaceConfig
from bridge.sinks.base import SinkConfig
from bridge.sinks.webhook.sink import WebhookSinkConfig

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

SERVICE_BUS = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUse:
    """A credential of Entra ID, and the scope of its tokens."""

    credential: CredentialKind
    client_id: str
    scope: str
    proxy: Address | None = field(compare=False)

    def open(self) -> "AsyncTokenCredential":
        """Open the credential; see ``bridge.net.entra``."""
        proxy = self.proxy.reveal() if self.proxy is not None else None
        return open_credential(self.credential, client_id=self.client_id, proxy=proxy)


def uses(config: Config) -> Iterator[TokenUse]:
    """Yield each combination of credential and scope once."""
    every = (_use_of_sink(sink) for sink in config.sinks)
    entity = config.approval_entity
    approvals = None if entity is None else _use_of(entity)
    yield from dict.fromkeys(use for use in (*every, approvals) if use is not None)


def _use_of_sink(sink: SinkConfig) -> TokenUse | None:
    if isinstance(sink, WebhookSinkConfig):
        auth = sink.auth_meant
        if auth is None or auth.type != "entra":
            return None
        return TokenUse(
            credential=auth.credential,
            client_id=auth.client_id,
            scope=auth.scope,
            proxy=sink.proxy,
        )
    where = getattr(sink, "where", None)
    return _use_of(where) if isinstance(where, NamespaceConfig) else None


def _use_of(where: NamespaceConfig) -> TokenUse | None:
    if where.connection_string:
        return None
    return TokenUse(
        credential=where.credential,
        client_id=where.client_id,
        scope=SERVICE_BUS,
        proxy=where.http_proxy,
    )


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
