"""Listens on addresses; while another program has one, tries again every few seconds.

taken ──5 s──▶ tried again ──free──▶ open
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing

from msgspec import Struct, field

from bridge.foundation.background import in_background
from bridge.foundation.clock import Clock
from bridge.net.addresses import ListenAddress

log = logging.getLogger(__name__)

_AGAIN = 5.0


Begin = Callable[[], Awaitable[asyncio.Server]]


class Port(Struct):
    """A key of the configuration on whose addresses a server listens.

    Attributes:
        key: the key, such as ``"http.listen"``.
        faults: why nothing listens on an address, by the address.
    """

    key: str
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def fault(self) -> str | None:
        """What is wrong with any of the addresses; None = all are listened on."""
        return "; ".join(self.faults.values()) or None


@asynccontextmanager
async def listening(
    begins: Mapping[str, Begin], port: Port, clock: Clock
) -> AsyncIterator[None]:
    """Listen on addresses while the context is open, on each once it is free.

    Args:
        begins: by the address, what begins to listen on it; it raises OSError, or
            UnicodeError for an invalid name.
        port: is told which addresses are open.
        clock: measures the time between two tries.
    """
    servers: dict[str, asyncio.Server] = {}

    async def begin() -> None:
        for address in begins.keys() - servers.keys():
            if (found := await _tried(begins[address], port, address)) is not None:
                servers[address] = found

    async def try_again() -> None:
        never = asyncio.Event()
        while len(servers) < len(begins):
            await clock.wait(never, _AGAIN)
            await begin()

    await begin()
    try:
        async with in_background(
            try_again, name=port.key, clock=clock, pause=_AGAIN, may_end=True
        ):
            yield
    finally:
        for one in servers.values():
            one.close()


async def _tried(begin: Begin, port: Port, address: str) -> asyncio.Server | None:
    """Try to listen; say once why that fails."""
    try:
        server = await begin()
    except (OSError, UnicodeError) as error:
        fault = f"{port.key}: cannot listen on {address}: {_cause(error)}"
        if port.faults.get(address) != fault:
            log.error(  # noqa: TRY400 - no traceback
                "port cannot be listened on: tried again every 5 s",
                extra={"fault": fault},
            )
        port.faults[address] = fault
        return None
    port.faults.pop(address, None)
    return server


async def listen(
    make: Callable[[], asyncio.Protocol], at: ListenAddress, backlog: int = 100
) -> asyncio.Server:
    """Serve connections to an address.

    asyncio by itself closes ``[::]`` to IPv4.

    Raises:
        OSError: the address is taken, or not one of this machine.
    """
    loop = asyncio.get_running_loop()
    if not (at.is_dual and socket.has_dualstack_ipv6()):
        return await loop.create_server(make, at.host, at.port, backlog=backlog)
    both = socket.create_server(
        (at.host, at.port),
        family=socket.AF_INET6,
        backlog=backlog,
        dualstack_ipv6=True,
    )
    return await loop.create_server(make, sock=both, backlog=backlog)


def listening_fault(at: ListenAddress) -> str | None:
    """Return why this process cannot listen on an address; None = it is free."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    is_dual = at.is_dual and socket.has_dualstack_ipv6()
    try:
        with closing(
            socket.create_server(
                (at.host, at.port), family=family, dualstack_ipv6=is_dual
            )
        ):
            return None
    except (OSError, UnicodeError) as error:
        return _cause(error)


def _cause(error: OSError | UnicodeError) -> str:
    """Return the cause; asyncio wraps the text of the system in its own."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno) if error.errno else str(error)
    return getattr(error, "strerror", None) or "it is no address"


def addresses(server: asyncio.Server) -> list[str]:
    """Return the addresses on which a server listens."""
    return [":".join(map(str, one.getsockname()[:2])) for one in server.sockets]
