"""Whether Teams sent a request: the token of the Bot Framework in its header.

    signature   by a key of the published set, 2048 bits or more, RS256 and no other
    iss, aud    the Bot Framework, and this bot's app id
    exp, nbf    now, give or take five minutes
    serviceurl  the one in the activity
    the key     is endorsed for the channel of the activity, which is Teams

The keys are read again after a day, and when a token names one that is not known:
then at most once a minute, as anybody may invent the name of a key.

Source: learn.microsoft.com/azure/bot-service/rest-api/
        bot-framework-rest-connector-authentication (connector to bot)
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import jwt

from approver.teams.config import TeamsConfig
from approver.teams.errors import StrangerError, TeamsError
from approver.teams.web import Ask, Web

CHANNEL: Final = "msteams"
_ALGORITHM: Final = "RS256"
_SKEW: Final = 300.0
_OLDEST: Final = 24 * 3600.0
_YOUNGEST: Final = 60.0


class Callers:
    """Checks who calls.

    Args:
        config: who the bot is, and where the keys are.
        web: for the keys.
        tick: a clock that only goes forward, in seconds.
    """

    def __init__(
        self, config: TeamsConfig, web: Web, tick: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._web = web
        self._tick = tick
        self._keys: dict[str, Mapping[str, object]] = {}
        self._read_at = float("-inf")

    async def check(self, authorization: str, activity: Mapping[str, object]) -> None:
        """Return if Teams sent this activity to this bot.

        Args:
            authorization: the header's value; "" if there is none.
            activity: the body of the request.

        Raises:
            StrangerError: it did not.
            TeamsError: the keys cannot be read now.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise StrangerError("there is no token")
        claims = await self._claims(token.strip())
        if activity.get("channelId") != CHANNEL:
            raise StrangerError("the activity is not of Teams")
        url = activity.get("serviceUrl")
        if not isinstance(url, str) or claims.get("serviceurl") != url:
            raise StrangerError("the token is for another serviceUrl")

    async def _claims(self, token: str) -> dict[str, object]:
        """Return what the token says, if it holds.

        Raises:
            StrangerError: it does not.
        """
        try:
            name = jwt.get_unverified_header(token).get("kid")
            key = await self._key(name)
            claims: dict[str, object] = jwt.decode(
                token,
                key,
                algorithms=[_ALGORITHM],
                audience=self._config.app_id,
                issuer=self._config.issuer,
                leeway=_SKEW,
                options={
                    "require": ["aud", "exp", "iss"],
                    "enforce_minimum_key_length": True,
                },
            )
        except jwt.PyJWTError as error:
            raise StrangerError(f"the token: {type(error).__name__}") from error
        return claims

    async def _key(self, name: object) -> jwt.PyJWK:
        """Return a published key that vouches for Teams.

        Raises:
            StrangerError: there is none of this name.
            TeamsError: the keys cannot be read now.
        """
        if not isinstance(name, str):
            raise StrangerError("the token names no key")
        age = self._tick() - self._read_at
        if age > _OLDEST or (name not in self._keys and age > _YOUNGEST):
            await self._read_keys()
        if (key := self._keys.get(name)) is None:
            raise StrangerError("the token names a key that is not published")
        endorsed = key.get("endorsements")
        if not isinstance(endorsed, list) or CHANNEL not in endorsed:
            raise StrangerError("the key does not vouch for Teams")
        return jwt.PyJWK(dict(key), algorithm=_ALGORITHM)

    async def _read_keys(self) -> None:
        """Read the keys; old ones stay in use if that fails.

        Raises:
            TeamsError: it failed, and there are none.
        """
        self._read_at = self._tick()
        whom, start = "the Bot Framework", self._config.keys
        try:
            url = f"{start}.well-known/openidconfiguration"
            found = await self._web.ask(Ask(whom=whom, method="GET", url=url))
            keys_url = found.get("jwks_uri")
            found = await self._web.ask(
                Ask(whom=whom, method="GET", url=_below(start, keys_url))
            )
            self._keys = _keys_of(found)
        except TeamsError:
            if not self._keys:
                self._read_at = float("-inf")
                raise


def _below(start: str, url: object) -> str:
    """Return the address of the keys, which is beside the metadata.

    Raises:
        TeamsError: it is elsewhere.
    """
    if not isinstance(url, str) or not url.startswith(start):
        raise TeamsError("the OpenID metadata names keys at another place")
    return url


def _keys_of(found: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return the published keys by their names.

    Raises:
        TeamsError: there are none.
    """
    keys = found.get("keys")
    read: dict[str, Mapping[str, object]] = {
        str(each.get("kid")): each
        for each in (keys if isinstance(keys, list) else [])
        if isinstance(each, dict) and each.get("kty") == "RSA"
    }
    if not read:
        raise TeamsError("the Bot Framework published no keys")
    return read
