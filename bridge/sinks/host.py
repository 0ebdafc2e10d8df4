"""The keys of a sink that connects to a host and a port, perhaps with TLS."""

from collections.abc import Iterator, Mapping

from bridge.foundation.values import Duration, FilePath
from bridge.net.addresses import host_fault
from bridge.net.tls import TlsFiles
from bridge.sinks.base import SinkConfig

_TLS_KEYS = ("ca_file", "client_certificate", "client_key")


class HostKeys(SinkConfig, frozen=True, kw_only=True):
    """The keys of a sink that connects to a host and a port, perhaps with TLS.

    Attributes:
        timeout: how long one attempt may take.
        ca_file: the authorities that may sign the receiver's certificate, in place of
            those of the system. Example: ``"/etc/sebridge/ca.pem"``.
        client_certificate: the certificate of this side, for mutual TLS; a replaced
            file is read again. Example: ``"/etc/sebridge/client.pem"``.
        client_key: the key of the certificate. Left out: it is in client_certificate.
            Example: ``"/etc/sebridge/client.key"``.
    """

    host: str
    port: int = 0
    timeout: Duration = Duration(10)
    ca_file: FilePath | None = None
    client_certificate: FilePath | None = None
    client_key: FilePath | None = None

    @property
    def tls_files(self) -> TlsFiles:
        """The certificates of this sink."""
        return TlsFiles(
            certificate=self.client_certificate,
            key=self.client_key,
            authorities=self.ca_file,
        )

    def host_faults(self, ports: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
        """Check host, port and timeout.

        Args:
            ports: the port of each kind of connection, which 0 stands for.
        """
        if not self.host or not self.host.isprintable() or set(self.host) & set("/ @"):
            yield "host", "must be a host name or an IP address"
        elif what := host_fault(self.host):
            yield "host", what
        if not 0 <= self.port <= 65535:
            known = ", ".join(f"{port} {kind}" for kind, port in ports.items())
            yield "port", f"must be 1 to 65535, or 0: {known}"
        if not self.timeout:
            yield "timeout", "must be more than 0s"

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
