"""Keys: every form in which openssl, Key Vault and libraries write them."""

import json
from base64 import urlsafe_b64encode
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bridge.signing.keys import PrivateKey, private_keys, public_keys
from tests.signing.test_dsse import KEY, OTHER
from tests.signing.vectors import jwk

PEM, NONE = serialization.Encoding.PEM, serialization.NoEncryption()
PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo
PKCS8 = serialization.PrivateFormat.PKCS8
SEC1 = serialization.PrivateFormat.TraditionalOpenSSL


def pem(key: PrivateKey, form: serialization.PrivateFormat = PKCS8) -> str:
    return key.key.private_bytes(PEM, form, NONE).decode()


def public_pem(key: PrivateKey) -> str:
    return key.key.public_key().public_bytes(PEM, PUBLIC).decode()


def test_thumbprint_is_that_of_the_rfc() -> None:
    """RFC 7638: the members that make the key, sorted, without blanks."""
    text = '{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}'
    members = OTHER.public.jwk
    digest = sha256((text % (members["x"], members["y"])).encode()).digest()
    assert OTHER.key_id == urlsafe_b64encode(digest).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        pem(KEY),
        pem(KEY, SEC1),
        "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
        + pem(KEY, SEC1),
        json.dumps(jwk()),
        json.dumps({"keys": [jwk()]}),
    ],
)
def test_private_key_is_read(text: str) -> None:
    (found,) = private_keys(text)

    assert found.key_id == KEY.key_id
    assert found.public.verifies(found.sign(b"x"), b"x")


@pytest.mark.parametrize(
    "text",
    [
        public_pem(KEY),
        pem(KEY),
        json.dumps(KEY.public.jwk),
        json.dumps({"keys": [{"kty": "RSA", "n": "x"}, KEY.public.jwk]}),
        f"Public-Key: (256 bit)\n{public_pem(KEY)}",  # openssl ec -text
        f"# of the hub\n{public_pem(KEY)}# its end\n",
    ],
)
def test_public_key_is_read(text: str) -> None:
    assert [*public_keys(text)] == [KEY.key_id]


def test_two_keys_stand_in_one_file() -> None:
    assert [one.key_id for one in private_keys(pem(KEY) + pem(OTHER))] == [
        KEY.key_id,
        OTHER.key_id,
    ]
    both = {"keys": [KEY.public.jwk, OTHER.public.jwk]}
    assert [*public_keys(json.dumps(both))] == [KEY.key_id, OTHER.key_id]
    assert [*public_keys(public_pem(KEY) + public_pem(OTHER))] == [*map(_id, BOTH)]


BOTH = (KEY, OTHER)


def _id(key: PrivateKey) -> str:
    return key.key_id


RSA = rsa.generate_private_key(65537, 2048)
# Of secp112r1, a curve that the library does not know.
SMALL_PUBLIC = """-----BEGIN PUBLIC KEY-----
MDIwEAYHKoZIzj0CAQYFK4EEAAYDHgAENV/cObEM9PVsMcl57b09Nh8VoryKwivm
v0XHcQ==
-----END PUBLIC KEY-----"""
SMALL = """-----BEGIN EC PRIVATE KEY-----
MD4CAQEEDh2GV5GUVUwlsQn2EMLLoAcGBSuBBAAGoSADHgAENV/cObEM9PVsMcl5
7b09Nh8VoryKwivmv0XHcQ==
-----END EC PRIVATE KEY-----"""
P384 = PrivateKey(ec.generate_private_key(ec.SECP384R1()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "[]",
        "{}",
        '{"keys": 5}',
        '{"keys": []}',
        json.dumps({**jwk(), "x": "AA"}),
        json.dumps({**jwk(), "x": 5}),
        json.dumps({**jwk(), "y": KEY.public.jwk["x"]}),
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----",
        "-----BEGIN PUBLIC KEY-----\nc2VjcmV0\n-----END PUBLIC KEY-----",
        RSA.private_bytes(PEM, PKCS8, NONE).decode(),
        RSA.public_key().public_bytes(PEM, PUBLIC).decode(),
        P384.key.private_bytes(PEM, PKCS8, NONE).decode(),
        SMALL,
        SMALL_PUBLIC,
    ],
)
def test_what_is_no_key_is_an_error_that_repeats_nothing(text: str) -> None:
    for read in (private_keys, public_keys):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - of every kind
            read(text)
        assert "secret" not in str(caught.value)
        assert "c2VjcmV0" not in str(caught.value)


def test_public_key_is_no_private_one() -> None:
    with pytest.raises(ValueError, match="no private key"):
        private_keys(json.dumps(KEY.public.jwk))


def test_key_is_not_shown() -> None:
    assert repr(KEY) == f"PrivateKey({KEY.key_id})"


@pytest.mark.parametrize("signature", [b"", b"x" * 63, b"x" * 64, b"\0" * 64])
def test_what_is_no_signature_does_not_verify(signature: bytes) -> None:
    assert not KEY.public.verifies(signature, b"x")
