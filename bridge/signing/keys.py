"""Keys for ECDSA on P-256: read from JWK, JWKS or PEM, and named by their thumbprint.

This module is loaded only when a key is configured: its library needs 10 MiB.

Source: RFC 7517 and 7518 (JWK), RFC 7638 (thumbprint), RFC 6979 (signatures that need
        no random number)
"""

import base64
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from msgspec import Struct

_SIZE = 32  # bytes of a coordinate, of r and of s
_BEGIN = "-----BEGIN "


class _Deterministic(ec.ECDSA):
    """ECDSA with SHA-256, without random numbers (RFC 6979).

    ``ECDSA`` of the library loads all its ciphers when it is made, only to ask whether
    its OpenSSL can sign so: 0.9 MiB.
    """

    algorithm = hashes.SHA256()
    deterministic_signing = True

    def __init__(self) -> None:
        """Load nothing."""


_ECDSA = _Deterministic()  # verifying asks for the algorithm alone


class PublicKey(Struct, frozen=True):
    """A public key."""

    key: ec.EllipticCurvePublicKey

    @property
    def jwk(self) -> dict[str, str]:
        """The key as JWK, with its thumbprint as ``kid``."""
        return {**self._members, "kid": self.key_id, "use": "sig", "alg": "ES256"}

    @property
    def key_id(self) -> str:
        """The thumbprint: SHA-256 over the members that make the key."""
        return _base64url(sha256(orjson.dumps(self._members)).digest())

    @property
    def _members(self) -> dict[str, str]:
        """The members of the thumbprint, sorted by name."""
        numbers = self.key.public_numbers()
        x, y = (n.to_bytes(_SIZE, "big") for n in (numbers.x, numbers.y))
        return {"crv": "P-256", "kty": "EC", "x": _base64url(x), "y": _base64url(y)}

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the key has made a signature: r and s, 32 bytes each."""
        if len(signature) != 2 * _SIZE:
            return False
        r, s = (int.from_bytes(part) for part in (signature[:_SIZE], signature[_SIZE:]))
        try:
            self.key.verify(utils.encode_dss_signature(r, s), message, _ECDSA)
        except InvalidSignature:
            return False
        return True


class PrivateKey(Struct, frozen=True):
    """A private key; its text shows nothing of it."""

    key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"PrivateKey({self.key_id})"

    @property
    def public(self) -> PublicKey:
        """Its public key."""
        return PublicKey(self.key.public_key())

    @property
    def key_id(self) -> str:
        """The thumbprint of its public key."""
        return self.public.key_id

    @property
    def jwk(self) -> dict[str, str]:
        """Its public key as JWK."""
        return self.public.jwk

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message: r and s, 32 bytes each.

        Raises:
            ValueError: this OpenSSL cannot sign without random numbers.
        """
        try:
            made = self.key.sign(message, _ECDSA)
        except UnsupportedAlgorithm as error:
            raise ValueError("OpenSSL is too old to sign events") from error
        r, s = utils.decode_dss_signature(made)
        return r.to_bytes(_SIZE, "big") + s.to_bytes(_SIZE, "big")


def public_keys(text: str) -> dict[str, PublicKey]:
    """Return the public keys in a text, by their thumbprints.

    Args:
        text: a JWKS, a JWK, or PEM. Of a JWKS, keys of other kinds are left out.

    Raises:
        ValueError: the text has no such key; it is not repeated.
    """
    if _is_pem(text):
        loaded = [_pem_public(part) for part in _pem_parts(text)]
    else:
        loaded = [_point(one).public_key() for one in _jwks(text)]
    found = [PublicKey(key) for key in loaded]
    return {key.key_id: key for key in found}


def private_keys(text: str) -> list[PrivateKey]:
    """Return the private keys in a text, in its order.

    Args:
        text: PEM without a password, or a JWK or JWKS with the member ``d``.

    Raises:
        ValueError: the text has no such key; it is not repeated.
    """
    if _is_pem(text):
        found = [_pem_private(part) for part in _pem_parts(text)]
    else:
        found = [_secret(one) for one in _jwks(text) if "d" in one]
    if not found:
        raise ValueError("has no private key for ECDSA on P-256")
    return [PrivateKey(key) for key in found]


def new_key() -> dict[str, str]:
    """Return a new private key as JWK."""
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_numbers().private_value.to_bytes(_SIZE, "big")
    return {**PublicKey(key.public_key()).jwk, "d": _base64url(secret)}


def _jwks(text: str) -> list[dict[str, Any]]:
    try:
        root: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError("is neither PEM nor JSON") from error
    given = root.get("keys", [root]) if isinstance(root, dict) else []
    keys = given if isinstance(given, list) else []
    found = [one for one in keys if isinstance(one, dict) and one.get("crv") == "P-256"]
    if not found:
        raise ValueError('has no key with "kty": "EC" and "crv": "P-256"')
    return found


def _point(jwk: dict[str, Any]) -> ec.EllipticCurvePublicNumbers:
    return ec.EllipticCurvePublicNumbers(
        _number(jwk.get("x")), _number(jwk.get("y")), ec.SECP256R1()
    )


def _secret(jwk: dict[str, Any]) -> ec.EllipticCurvePrivateKey:
    numbers = ec.EllipticCurvePrivateNumbers(_number(jwk["d"]), _point(jwk))
    return numbers.private_key()


def _number(value: object) -> int:
    text = value if isinstance(value, str) else ""
    found = base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")
    if len(found) != _SIZE:
        raise ValueError(f"x, y and d of a key must be {_SIZE} bytes in base64url")
    return int.from_bytes(found)


def _is_pem(text: str) -> bool:
    """Whether a text is PEM; before each part there may be other text."""
    return _BEGIN in text and not text.lstrip().startswith("{")


def _pem_parts(text: str) -> list[bytes]:
    return [
        f"{_BEGIN}{part}".encode()
        for part in text.split(_BEGIN)[1:]
        if not part.startswith("EC PARAMETERS")  # openssl ecparam writes them first
    ]


def _pem_public(part: bytes) -> ec.EllipticCurvePublicKey:
    if b"PRIVATE KEY" in part:
        return _pem_private(part).public_key()
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - 1 MiB
        load_pem_public_key,
    )

    key = _loaded(load_pem_public_key, part, "public key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key):
        raise ValueError("is no key for ECDSA on P-256")
    return key


def _pem_private(part: bytes) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - 1 MiB
        load_pem_private_key,
    )

    key = _loaded(partial(load_pem_private_key, password=None), part, "private key")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key):
        raise ValueError("is no private key for ECDSA on P-256")
    return key


def _loaded(load: Callable[[bytes], object], part: bytes, what: str) -> object:
    try:
        return load(part)
    except UnsupportedAlgorithm:
        return None
    except (TypeError, ValueError) as error:
        raise ValueError(f"is no readable PEM of a {what}") from error


def _is_p256(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> bool:
    return isinstance(key.curve, ec.SECP256R1)


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
