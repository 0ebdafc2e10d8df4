"""The section ``[http]``: the health port, which ``port`` opens."""

import ipaddress
from collections.abc import Iterator

from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.net.addresses import is_listen_address, split_address


class HttpConfig(Section, frozen=True, kw_only=True):
    """``[http]``: the health port.

    Attributes:
        listen: the address and port to listen on; "" opens no port. Example:
            ``"127.0.0.1:9465"``.
        token: the bearer token (in a browser: the password) for all paths except
            /livez and /readyz. Required if listen is not a loopback address.
    """

    listen: str = "127.0.0.1:9465"
    token: Secret | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address; require a token if it is not a loopback address."""
        if not self.listen:
            return
        host = self.listen.rpartition(":")[0]
        if not is_listen_address(self.listen):
            yield "listen", 'must be host:port, such as "127.0.0.1:9465", or ""'
        elif not is_loopback(host) and self.token is None:
            yield "token", f"is required, since {host} is not loopback"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.listen)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
