"""TLS of the simulator's servers: the certificate files and the SSL context."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from bridge.simulator.errors import SimulatorError


class TlsFiles(Struct, frozen=True, kw_only=True):
    """PEM files.

    Attributes:
        certificate: the server's certificate, then any intermediate certificates.
        key: the private key of the certificate, without a password.
        authority: the CA certificate that a client has to trust; None: not known here,
            because the user gave the certificate.
        certify: writes the certificate once more, for further names; None: the user
            gave the certificate.
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    certify: Callable[[Sequence[str]], None] | None = None


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the SSL context of a server with this certificate.

    Raises:
        SimulatorError: a file cannot be read, or is not a certificate or its key.
    """
    for path in (files.certificate, files.key):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password here, OpenSSL would ask the terminal for one.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except ssl.SSLError as error:
        raise SimulatorError(
            f"{files.certificate} and {files.key} are not a certificate and its "
            "private key, both in PEM, the key without a password"
        ) from error
    return context


def name_port(
    files: TlsFiles, context: ssl.SSLContext, names: Sequence[str], port: int
) -> None:
    """Add names with a port, such as localhost:5671, to a certificate made here.

    The client of Go takes the whole endpoint of its connection string for a host name.
    """
    if files.certify is None:
        return
    files.certify([f"{name}:{port}" for name in names])
    context.load_cert_chain(files.certificate, files.key)


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror}") from error
