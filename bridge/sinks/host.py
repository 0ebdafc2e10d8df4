"""The keys of a sink that connects to a host and a port, perhaps with TLS."""

from collections.abc import Iterator, Mapping

from bridge.foundation.values import Duration, FilePath
from bridge.net.addresses import host_fault
from bridge.net.tls import TlsKeys
from bridge.sinks.base import SinkConfig


class HostKeys(SinkConfig, TlsKeys, frozen=True, kw_only=True):
    """The keys of a sink that connects to a host and a port, perhaps with TLS.

    Attributes:
        timeout: how long one attempt may take.
    """

    host: str
    port: int = 0
    timeout: Duration = Duration(10)
    ca_file: FilePath | None = None
    client_certificate: FilePath | None = None
    client_key: FilePath | None = None

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
