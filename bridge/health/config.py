"""The section ``[http]``: the health port, which ``port`` opens."""

from collections.abc import Iterator

from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.net.addresses import (
    ListenAddress,
    is_loopback,
    listen_addresses,
    listen_faults,
)


class HttpConfig(Section, frozen=True, kw_only=True):
    """``[http]``: the health port.

    Attributes:
        listen: the address and port to listen on, or a list of them; "" opens no port.
            Example: ``"127.0.0.1:9465"``.
        token: the bearer token (in a browser: the password) for all paths except
            /livez and /readyz. Required if listen is not a loopback address.
    """

    listen: str | tuple[str, ...] = "127.0.0.1:9465"
    token: Secret | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address; require a token if it is not a loopback address."""
        if self.listen == "":
            return
        yield from listen_faults(self.listen, '"127.0.0.1:9465"')
        for one in self.addresses:
            if not is_loopback(one.host) and self.token is None:
                host = one.text.rpartition(":")[0]
                yield "token", f"is required, since {host} is not loopback"

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """The addresses; none if the port is off."""
        return listen_addresses(self.listen)
