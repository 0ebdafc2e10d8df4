"""Access tokens: a bot gets them from Entra ID, and sends them to Teams and Graph.

A token here is a plain name and no JWT: only this class, which issues it, checks it.

Source:  learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
"""

import itertools
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from msgspec import Struct

from bridge.simulator.teams.refusals import TeamsRefusalError

_SECONDS: Final = 3600
_KEPT: Final = 1000


class _Token(Struct, frozen=True):
    app_id: str
    scope: str
    until: float


class Tokens:
    """The issued tokens.

    Attributes:
        secrets: the secrets of the bots, by app id; None: any bot and secret is valid.
    """

    def __init__(self) -> None:
        self.secrets: Mapping[str, str] | None = None
        self._issued: dict[str, _Token] = {}
        self._count = itertools.count(1)

    def issue(self, form: Mapping[str, str], now: float) -> dict[str, object]:
        """Answer a request for a token.

        Raises:
            TeamsRefusalError: the grant type or scope is wrong, or the bot or its
                secret is unknown.
        """
        app_id, scope = form.get("client_id", ""), form.get("scope", "")
        if form.get("grant_type") != "client_credentials":
            raise TeamsRefusalError(400, "unsupported_grant_type", "AADSTS70003")
        if not scope.endswith("/.default"):
            raise TeamsRefusalError(400, "invalid_scope", "AADSTS1002012")
        given, known = form.get("client_secret", ""), self.secrets
        if (
            not app_id
            or not given
            or (known is not None and known.get(app_id) != given)
        ):
            raise TeamsRefusalError(401, "invalid_client", "AADSTS7000215")
        name = f"local-token-{next(self._count)}"
        self._issued[name] = _Token(app_id, scope, now + _SECONDS)
        while len(self._issued) > _KEPT:
            del self._issued[next(iter(self._issued))]
        kind = "Bearer"  # a kind, and no secret  # nosec B105
        return {"token_type": kind, "expires_in": _SECONDS, "access_token": name}

    def check(self, request: web.Request, scope: str, now: float) -> str:
        """Return the app id of the bot that has sent the request.

        Raises:
            TeamsRefusalError: there is no valid token for this scope.
        """
        scheme, _, name = request.headers.get("Authorization", "").partition(" ")
        token = self._issued.get(name) if scheme.lower() == "bearer" else None
        if token is None or token.scope != scope or now >= token.until:
            raise TeamsRefusalError(
                401, "Unauthorized", "Authorization has been denied for this request."
            )
        return token.app_id
