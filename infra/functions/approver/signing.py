"""Sign StartRequests with a key in Key Vault, which never leaves it.

The bridges check it: ``approvals.signed_by``. The format is *Verifiable CloudEvents
with DSSE*: a digest of the attributes and of the data's bytes, in an envelope.

Source: cloudevents/spec, extensions/verifiability.md at commit d54e6bb; RFC 7638;
        learn.microsoft.com/rest/api/keyvault/keys (get key, sign with ES256)
"""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from azure.core.exceptions import AzureError
from azure.identity.aio import ManagedIdentityCredential

_VERSION: Final = "api-version=7.4"
_SECONDS: Final = 5.0
_KIND: Final = "https://cloudevents.io/verifiability/dsse/v0.1"
_ATTRIBUTES: Final = (
    *("id", "source", "specversion", "type"),
    *("datacontenttype", "dataschema", "subject", "time"),
)
Token = Callable[[str], Awaitable[str]]


class UnsignedError(AzureError):
    """Key Vault did not sign now: it must be tried again."""


class Vault:
    """The keys that sign.

    Args:
        keys: ids of keys with their versions; two while one is replaced.
        token: returns a token for a scope; None: the managed identity.
        client_id: of a user-assigned identity; "" = the system-assigned one.
    """

    def __init__(
        self, keys: tuple[str, ...], token: Token | None = None, client_id: str = ""
    ) -> None:
        self._keys = keys
        self._token = token or self._of_identity
        self._client_id = client_id
        self._names: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._identity: ManagedIdentityCredential | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        if self._identity is not None:
            await self._identity.close()

    async def material(self, event: Mapping[str, str], data: bytes) -> str:
        """Return ``dssematerial`` of an event without extension attributes.

        Args:
            event: the attributes; ``time`` in UTC, in whole seconds, with Z.
            data: the data as it stands in the message.

        Raises:
            UnsignedError: Key Vault did not sign.
        """
        values = [event.get(name, "").encode() for name in _ATTRIBUTES]
        digests = b"".join(sha256(value).digest() for value in (*values, data))
        core = _base64(sha256(digests).digest())
        payload = json.dumps({"core": core}, separators=(",", ":")).encode()
        head = f"DSSEv1 {len(_KIND)} {_KIND} {len(payload)} ".encode()
        digest = sha256(head + payload).digest()
        signatures = [
            {"keyid": await self._name(key), "sig": await self._signature(key, digest)}
            for key in self._keys
        ]
        envelope = {
            "payloadType": _KIND,
            "payload": _base64(payload),
            "signatures": signatures,
        }
        return _base64(json.dumps(envelope, separators=(",", ":")).encode())

    async def _name(self, key: str) -> str:
        """Return the thumbprint of a key, by which the bridges name it."""
        if key not in self._names:
            found = (await self._ask(key, "GET", key)).get("key")
            jwk = found if isinstance(found, dict) else {}
            members = {name: jwk.get(name) for name in ("crv", "x", "y")}
            if members["crv"] != "P-256":
                raise UnsignedError("the key in SIGN_KEY is not of the curve P-256")
            text = json.dumps(
                {"crv": "P-256", "kty": "EC", "x": members["x"], "y": members["y"]},
                separators=(",", ":"),
            )
            self._names[key] = _base64url(sha256(text.encode()).digest())
        return self._names[key]

    async def _signature(self, key: str, digest: bytes) -> str:
        body = {"alg": "ES256", "value": _base64url(digest)}
        value = (await self._ask(key, "POST", f"{key}/sign", body)).get("value")
        if not isinstance(value, str):
            raise UnsignedError("Key Vault answered without a signature")
        padded = f"{value}{'=' * (-len(value) % 4)}"
        try:
            return _base64(base64.urlsafe_b64decode(padded))
        except ValueError as error:
            raise UnsignedError("Key Vault answered with no base64") from error

    async def _ask(
        self, key: str, method: str, url: str, body: object = None
    ) -> dict[str, object]:
        host = urlsplit(key).hostname or ""
        token = await self._token(f"https://{host.partition('.')[2]}/.default")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.request(
                method,
                f"{url}?{_VERSION}",
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise UnsignedError(f"Key Vault answered {response.status}")
                found = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UnsignedError(f"Key Vault: {type(error).__name__}") from error
        return found if isinstance(found, dict) else {}

    async def _of_identity(self, scope: str) -> str:
        if self._identity is None:
            self._identity = ManagedIdentityCredential(
                client_id=self._client_id or None
            )
        found: str = (await self._identity.get_token(scope)).token
        return found


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
