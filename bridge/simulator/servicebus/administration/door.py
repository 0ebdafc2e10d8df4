"""The ports of the administration API: plain HTTP, and HTTPS if there is TLS.

The clients for Python and JavaScript use only HTTPS. The client for .NET uses HTTP if
the connection string is that of an emulator. Health checks also use HTTP.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from msgspec import Struct

from bridge.simulator.http_server import listening
from bridge.simulator.servicebus.administration.operations import Operations
from bridge.simulator.servicebus.administration.server import administration
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.tls import TlsFiles, server_context


class AdministrationPorts(Struct, frozen=True, kw_only=True):
    """The ports to listen on; 0: a free port.

    Attributes:
        port: the port for HTTP.
        tls_port: the port for HTTPS.
        tls: the certificate; None: no HTTPS.
    """

    port: int = 0
    tls_port: int = 0
    tls: TlsFiles | None = None


class Administration:
    """The administration API of a broker, used as an async context manager.

    Args:
        broker: the broker.
        host: the address to listen on.
        ports: the ports to listen on.

    Attributes:
        url: the URL for HTTP, without a slash at the end; "" before it listens.
        secure_url: the URL for HTTPS; "" without TLS.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        host: str = "127.0.0.1",
        ports: AdministrationPorts | None = None,
    ) -> None:
        self.url = self.secure_url = ""
        self._broker = broker
        self._host = host
        self._ports = ports or AdministrationPorts()
        self._operations = Operations(broker.changes, broker.clock)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ListenError: a port is in use.
            SimulatorError: the certificate cannot be used.
        """
        async with AsyncExitStack() as opening:
            self.url = await self._listen(opening, self._ports.port, None)
            if self._ports.tls is not None:
                self.secure_url = await self._listen(
                    opening, self._ports.tls_port, self._ports.tls
                )
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    def addresses(self) -> Mapping[str, str]:
        """Return the addresses that `sebridge simulate` prints."""
        found = {
            "administration": self.url,
            "administrationConnectionString": self._string(self.url),
        }
        if self.secure_url:
            secure = self._string(self.secure_url)
            found["administrationTlsConnectionString"] = secure.replace(
                "UseDevelopmentEmulator=true;", ""
            )
        return found

    def _string(self, url: str) -> str:
        keys = self._broker.connection_string.partition(";")[2]
        return f"Endpoint=sb://{url.partition('://')[2]};{keys}"

    async def _listen(
        self, opening: AsyncExitStack, port: int, tls: TlsFiles | None
    ) -> str:
        app = administration(
            self._operations,
            host=self._host,
            clock=self._broker.clock,
            is_manager=self._broker.is_manager,
        )
        return await opening.enter_async_context(
            listening(
                app,
                name="the broker's administration",
                host=self._host,
                port=port,
                tls=None if tls is None else server_context(tls),
            )
        )
