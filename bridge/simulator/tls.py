"""TLS of the simulator's servers: the files, and what a server makes of them."""

import ssl
from pathlib import Path

from msgspec import Struct

from bridge.simulator.errors import SimulatorError


class TlsFiles(Struct, frozen=True, kw_only=True):
    """PEM files.

    Attributes:
        certificate: of the server, with the intermediate ones after it.
        key: its private key, without a password.
        authority: what a client has to trust; None: whoever gave the certificate knows.
    """

    certificate: Path
    key: Path
    authority: Path | None = None


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a server needs to answer with the certificate.

    Raises:
        SimulatorError: a file is missing or is not what it should be.
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


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror}") from error
