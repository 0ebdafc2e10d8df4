"""Listens on a port; while another program has it, tries again every few seconds.

taken ──5 s──▶ tried again ──free──▶ open
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from bridge.foundation.background import in_background
from bridge.foundation.clock import Clock

log = logging.getLogger(__name__)

_AGAIN = 5.0


class Port(Struct):
    """A port on which a server listens as soon as it is free.

    Attributes:
        key: the key of the configuration that names it, such as ``"http.listen"``.
        address: host and port, for texts.
        fault: why nothing listens on it; None = the server does.
    """

    key: str
    address: str
    fault: str | None = None


@asynccontextmanager
async def listening(
    begin: Callable[[], Awaitable[asyncio.Server]], port: Port, clock: Clock
) -> AsyncIterator[None]:
    """Listen on a port while the context is open, from the moment that it is free.

    Args:
        begin: begins to listen; raises OSError, or UnicodeError for an invalid name.
        port: is told whether it is open.
        clock: measures the time between two tries.
    """
    server = await _tried(begin, port)
    servers = [] if server is None else [server]

    async def try_again() -> None:
        never = asyncio.Event()
        while not servers:
            await clock.wait(never, _AGAIN)
            if (found := await _tried(begin, port)) is not None:
                servers.append(found)

    try:
        async with in_background(
            try_again, name=port.key, clock=clock, pause=_AGAIN, may_end=True
        ):
            yield
    finally:
        for one in servers:
            one.close()


async def _tried(
    begin: Callable[[], Awaitable[asyncio.Server]], port: Port
) -> asyncio.Server | None:
    """Try to listen; say once why that fails."""
    try:
        server = await begin()
    except (OSError, UnicodeError) as error:
        fault = f"{port.key}: cannot listen on {port.address}: {_cause(error)}"
        if port.fault != fault:
            log.error(  # noqa: TRY400 - no traceback
                "port cannot be listened on: tried again every 5 s",
                extra={"fault": fault},
            )
        port.fault = fault
        return None
    port.fault = None
    return server


def _cause(error: OSError | UnicodeError) -> str:
    """Return the cause; asyncio wraps the text of the system in its own."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno) if error.errno else str(error)
    return getattr(error, "strerror", None) or "it is no address"


def addresses(server: asyncio.Server) -> list[str]:
    """Return the addresses on which a server listens."""
    return [":".join(map(str, one.getsockname()[:2])) for one in server.sockets]
