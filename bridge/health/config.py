"""``[http]``: what is configured of the health port; ``port`` opens it."""

import ipaddress
from collections.abc import Iterator

from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.net.addresses import is_listen_address, split_address


class HttpConfig(Section, frozen=True, kw_only=True):
    """``[http]``: where the health port listens; "" = nowhere.

    Attributes:
        listen: the address and port; "" opens no port. Example: ``"127.0.0.1:9465"``.
        token: what is asked for by all paths but /livez and /readyz: a bearer token, or
            the password of a browser; required off loopback.
    """

    listen: str = "127.0.0.1:9465"
    token: Secret | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address, and ask for a token off loopback."""
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
    """Whether a host is this machine, and nobody else can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
