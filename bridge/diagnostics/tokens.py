"""The Entra ID tokens that a configuration needs, and their principals."""

import base64
from collections.abc import Iterator

import orjson

from bridge.configuration.config import Config
from bridge.net.entra import TokenUse


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
