"""Look up a host and connect to it by TCP, but never to a forbidden address."""

import asyncio
import socket
from contextlib import ExitStack

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.net.ssrf_guard import forbidden

Address = tuple[socket.AddressFamily, tuple[str, int]]


async def addresses(host: str, port: int, kind: socket.SocketKind) -> list[Address]:
    """Look up the addresses of a host, and check them with ``ssrf_guard``.

    Raises:
        RefusedDeliveryError: the name resolves to a forbidden address, or is not a
            valid host name.
        OSError: the name cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=kind)
    except UnicodeError:
        text = f"{host}:{port} has no valid host name"
        raise RefusedDeliveryError(text, Reason.NOT_FOUND) from None
    for _, _, _, _, address in found:
        if (why := forbidden(str(address[0]))) is not None:
            text = f"nothing may be sent to {host}: {why}"
            raise RefusedDeliveryError(text, Reason.REJECTED)
    return [(family, (str(to[0]), int(to[1]))) for family, _, _, _, to in found]


async def dialed(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that accepts it.

    Raises:
        RefusedDeliveryError: as ``addresses``.
        OSError: the host has no address that accepts a connection.
    """
    loop, last = asyncio.get_running_loop(), OSError(f"{host} has no address")
    for family, address in await addresses(host, port, socket.SOCK_STREAM):
        with ExitStack() as unless_connected:
            connection = socket.socket(family, socket.SOCK_STREAM)
            unless_connected.callback(connection.close)
            connection.settimeout(0)
            try:
                await loop.sock_connect(connection, address)
            except OSError as error:
                last = error
                continue
            unless_connected.pop_all()
            return connection
    raise last
