"""TLS with certificates from files, which are read again when they change."""

import os
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.values import FilePath

_TLS_KEYS = ("ca_file", "client_certificate", "client_key")
_Stamp = tuple[int, int, int]


class TlsFiles(Struct, frozen=True, kw_only=True):
    """The files that TLS uses, all in PEM.

    Attributes:
        certificate: the client's certificate, with its intermediate certificates.
        key: the private key of the certificate; None = it is in the same file.
        authorities: the certificate authorities that may sign the server's certificate,
            in place of the system's.
    """

    certificate: FilePath | None = None
    key: FilePath | None = None
    authorities: FilePath | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The configured files.

        Raises:
            ValueError: a variable in a path is not set.
        """
        files = (self.certificate, self.key, self.authorities)
        return tuple(file.path for file in files if file is not None)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield ``(configuration key, what is wrong)`` for files that are unusable."""
        if self.key is not None and self.certificate is None:
            yield "client_key", "needs client_certificate"
            return
        parts = {
            "ca_file": TlsFiles(authorities=self.authorities),
            "client_certificate": TlsFiles(certificate=self.certificate, key=self.key),
        }
        for key, part in parts.items():
            try:
                if part.paths:
                    _load(part)
            except ValueError as error:
                yield key, str(error)


class TlsKeys:
    """The keys of a sink that may use TLS; the section of the sink has the fields.

    Attributes:
        ca_file: the authorities that may sign the receiver's certificate, in place of
            those of the system. Example: ``"/etc/sebridge/ca.pem"``.
        client_certificate: the certificate of this side, for mutual TLS; a replaced
            file is read again. Example: ``"/etc/sebridge/client.pem"``.
        client_key: the key of the certificate. Left out: it is in client_certificate.
            Example: ``"/etc/sebridge/client.key"``.
    """

    __slots__ = ()
    ca_file: FilePath | None
    client_certificate: FilePath | None
    client_key: FilePath | None

    @property
    def tls_files(self) -> TlsFiles:
        """The certificates of this sink."""
        return TlsFiles(
            certificate=self.client_certificate,
            key=self.client_key,
            authorities=self.ca_file,
        )

    def tls_faults(self, unused: str, about: str) -> Iterator[tuple[str, ...]]:
        """Check that the certificates exist, and are used.

        Args:
            unused: what is wrong with a certificate here; "" = TLS is used.
            about: the key that decides whether TLS is used.
        """
        if not unused:
            yield from self.tls_files.faults()
            return
        for key in _TLS_KEYS:
            if getattr(self, key) is not None:
                yield key, unused, about


_NO_FILES = TlsFiles()


class Tls(Struct):
    """The TLS of one sink."""

    files: TlsFiles
    _context: ssl.SSLContext | None = None
    _stamps: tuple[_Stamp, ...] = field(default=())

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections; None = the system's default.

        Files that changed are read again. If the new files are unusable, as in the
        middle of a rotation, the last good ones stay in use.

        Raises:
            RefusedDeliveryError: the files are unusable, and never were usable before.
        """
        if self.files == _NO_FILES:
            return None
        try:
            if (paths := self.files.paths) and (
                (stamps := _stamps(paths)) != self._stamps or self._context is None
            ):
                self._context, self._stamps = _load(self.files), stamps
        except (OSError, ValueError) as error:
            if self._context is None:
                text = f"TLS cannot be used: {error}"
                raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error
        return self._context


def _stamps(paths: tuple[Path, ...]) -> tuple[_Stamp, ...]:
    found = (path.stat() for path in paths)
    return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)


def _load(files: TlsFiles) -> ssl.SSLContext:
    """Return a context that verifies the server.

    Raises:
        ValueError: a file cannot be used; the text says why.
    """
    ca = files.authorities
    try:
        context = ssl.create_default_context(cafile=ca.path if ca else None)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"no certificates in PEM can be read ({_why(error)})"
        ) from error
    if files.certificate is not None:
        key = files.key.path if files.key is not None else None
        try:
            context.load_cert_chain(files.certificate.path, key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            text = f"no certificate and key in PEM can be read ({_why(error)})"
            raise ValueError(text) from error
    return context


def context_with_roots(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for an SDK that by itself trusts only the CAs of certifi.

    Without ``files.authorities`` it trusts the CAs of the system, in which companies
    install their own. If the system has none it trusts those of certifi, and on Windows
    always: Windows fetches a CA when one of its own programs needs it, but not for
    Python.

    Raises:
        ValueError: the file cannot be used; the text says why.
    """
    context = _load(files)
    if files.authorities is None and not _has_authorities():
        import certifi  # noqa: PLC0415  only the SDKs bring it

        context.load_verify_locations(certifi.where())
    return context


def _has_authorities() -> bool:
    """Whether the system has CAs that OpenSSL finds."""
    if sys.platform == "win32":
        return False
    where = ssl.get_default_verify_paths()  # None = not there
    if where.cafile and Path(where.cafile).stat().st_size:
        return True
    return bool(where.capath and os.listdir(where.capath))  # noqa: PTH208  no objects


def certificate_fault(error: BaseException) -> str | None:
    """Return what is wrong with the certificate of the other side; None = nothing.

    The error that says it is looked for inside those of the libraries above it.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, ssl.SSLCertVerificationError) and (
            words := getattr(found, "verify_message", "")  # aiohttp's kind has none
        ):
            return str(words)
        seen.add(id(found))
        found = _inside(found)
    return None


def _inside(error: BaseException) -> BaseException | None:
    """Return the error that an error was made of, also by a library's own means."""
    for name in ("certificate_error", "inner_exception", "__cause__", "__context__"):
        inner = getattr(error, name, None)
        if isinstance(inner, BaseException):
            return inner
    return None


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask for a password at the terminal."""
    raise OSError(0, "the key is encrypted")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "they do not fit"
    return error.strerror or type(error).__name__
