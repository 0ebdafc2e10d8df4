"""The bot's own tokens: for Teams, and for Microsoft Graph.

A bot that is a managed identity has no secret. One with an app registration has a
client secret, and asks Entra ID for the tokens of its own tenant.

Source: learn.microsoft.com/azure/bot-service/rest-api/
        bot-framework-rest-connector-authentication (bot to connector)
"""

import time
from collections.abc import Callable
from typing import Final

from azure.core.exceptions import AzureError
from azure.identity.aio import ManagedIdentityCredential

from approver.teams.config import TeamsConfig
from approver.teams.errors import TeamsError
from approver.teams.web import Ask, Web

_EARLY: Final = 300.0  # a token is renewed that long before its end
_SHORTEST: Final = 60.0
_LONGEST: Final = 24 * 3600  # whatever is answered


class Credential:
    """Who the bot is.

    Args:
        config: the app id, and the secret if there is one.
        web: for Entra ID.
        tick: a clock that only goes forward, in seconds.
    """

    def __init__(
        self, config: TeamsConfig, web: Web, tick: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._web = web
        self._tick = tick
        self._kept: dict[str, tuple[str, float]] = {}
        self._identity: ManagedIdentityCredential | None = None

    async def close(self) -> None:
        """Close the connections of the identity."""
        if self._identity is not None:
            await self._identity.close()

    async def token(self, scope: str) -> str:
        """Return a token for a scope such as ``https://graph.microsoft.com/.default``.

        Raises:
            TeamsError: there is none.
        """
        if not self._config.secret:
            return await self._of_identity(scope)
        token, until = self._kept.get(scope, ("", 0.0))
        if not token or self._tick() >= until:
            token, until = await self._of_secret(scope)
            self._kept[scope] = (token, until)
        return token

    async def _of_identity(self, scope: str) -> str:
        if self._identity is None:
            self._identity = ManagedIdentityCredential(client_id=self._config.app_id)
        try:
            found: str = (await self._identity.get_token(scope)).token
        except AzureError as error:
            raise TeamsError(
                f"the managed identity has no token for Teams: {type(error).__name__}"
            ) from error
        return found

    async def _of_secret(self, scope: str) -> tuple[str, float]:
        config = self._config
        found = await self._web.ask(
            Ask(
                whom="Entra ID",
                method="POST",
                url=f"{config.login}{config.tenant}/oauth2/v2.0/token",
                form={
                    "grant_type": "client_credentials",
                    "client_id": config.app_id,
                    "client_secret": config.secret,
                    "scope": scope,
                },
            )
        )
        token, seconds = found.get("access_token"), found.get("expires_in")
        if not isinstance(token, str) or not isinstance(seconds, int):
            raise TeamsError("Entra ID answered without a token")
        kept = max(min(seconds, _LONGEST) - _EARLY, _SHORTEST)
        return token, self._tick() + kept
