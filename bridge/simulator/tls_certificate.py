"""Make a certificate for this machine, and a CA certificate that clients can trust.

The private key of the CA is not stored: it stays in the memory of this process. So
nobody can later sign a certificate for another name, which those clients would accept.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.simulator.tls import TlsFiles

_VALID = timedelta(days=365)
# Clients whose clock is a little behind accept the certificate, too.
_BACKDATED = timedelta(hours=1)
_NAMES: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ip_address("127.0.0.1")),
    x509.IPAddress(ip_address("::1")),
)
_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def make_certificate(folder: Path) -> TlsFiles:
    """Make a certificate for localhost, 127.0.0.1 and ::1, valid for a year.

    Args:
        folder: an existing folder, for the three files.

    Raises:
        OSError: a file cannot be written.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _authority(authority_key)

    def certify(more: Sequence[str]) -> None:
        names = [*_NAMES, *map(x509.DNSName, more)]
        signed = _certificate(key, names, authority, authority_key)
        files.certificate.write_bytes(signed.public_bytes(Encoding.PEM))

    files = TlsFiles(
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        authority=folder / "authority.pem",
        certify=certify,
    )
    (folder / "authority.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    certify([])
    _write_key(files.key, key)
    return files


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("The local simulator's authority")
    return (
        _builder(name, key, issuer=name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, SHA256())
    )


def _certificate(
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
        authority_key.public_key()
    )
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        _builder(_name("localhost"), key, issuer=authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(purpose, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, SHA256())
    )


def _builder(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, *, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALID)
        .add_extension(identifier, critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in _USES})


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.unlink(missing_ok=True)
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
    ) as file:
        file.write(encoded)
