"""The tokens between a bot and Teams, one kind for each direction.

Access tokens: a bot gets them from Entra ID, and sends them to Teams and Graph. One
here is a plain name and no JWT: only the class that issues it checks it.

Source:  learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
"""

import itertools
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import orjson
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


# -- Sign the requests of Teams to a bot, and publish the keys -------------------------
#
# This code builds the tokens itself, without the library with which the app checks
# them, so that both cannot make the same mistake.
#
# Source: learn.microsoft.com/azure/bot-service/rest-api/
#         bot-framework-rest-connector-authentication (connector to bot); RFC 7515, 7517


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

ISSUER: Final = "https://api.botframework.com"
_SIZE: Final = 2048
_LIFETIME: Final = 3600


class Keys:
    """The keys; the newest signs, and the one before it stays published.

    Attributes:
        endorsements: the channels for which the published keys may sign.
        size: the size of the next keys, in bits.
    """

    def __init__(self) -> None:
        self.endorsements = ["msteams"]
        self.size = _SIZE
        self._keys: dict[str, RSAPrivateKey] = {}
        self._count = 0

    def rotate(self) -> None:
        """Sign with a new key from now on."""
        from cryptography.hazmat.primitives.asymmetric import (  # noqa: PLC0415 - only for Teams
            rsa,
        )

        self._count += 1
        key = rsa.generate_private_key(public_exponent=65537, key_size=self.size)
        self._keys = {**dict([*self._keys.items()][-1:]), f"key-{self._count}": key}

    def published(self) -> dict[str, object]:
        """Return the public keys, as a JSON Web Key Set."""
        self._make()
        return {"keys": [self._public(name) for name in self._keys]}

    def token(self, audience: str, service_url: str, now: float) -> str:
        """Return a token of the Bot Framework for a bot.

        Args:
            audience: the app id.
            service_url: the ``serviceUrl`` of the activity that goes with it.
            now: seconds since the epoch.
        """
        return self.signed(
            {
                "iss": ISSUER,
                "aud": audience,
                "serviceurl": service_url,
                "nbf": int(now),
                "exp": int(now) + _LIFETIME,
            }
        )

    def signed(self, claims: Mapping[str, object]) -> str:
        """Return a token with these claims."""
        from cryptography.hazmat.primitives.asymmetric.padding import (  # noqa: PLC0415 - only for Teams
            PKCS1v15,
        )
        from cryptography.hazmat.primitives.hashes import (  # noqa: PLC0415 - likewise
            SHA256,
        )

        self._make()
        name, key = [*self._keys.items()][-1]
        head = {"typ": "JWT", "alg": "RS256", "kid": name, "x5t": name}
        text = f"{_coded(orjson.dumps(head))}.{_coded(orjson.dumps(claims))}"
        return f"{text}.{_coded(key.sign(text.encode(), PKCS1v15(), SHA256()))}"

    def _make(self) -> None:
        if not self._keys:
            self.rotate()

    def _public(self, name: str) -> dict[str, object]:
        numbers = self._keys[name].public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "kid": name,
            "x5t": name,
            "n": _number(numbers.n),
            "e": _number(numbers.e),
            "endorsements": self.endorsements,
        }


def _number(value: int) -> str:
    return _coded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _coded(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()
