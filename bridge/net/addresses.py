"""Checks URLs and hosts of the configuration before the start.

No fault repeats a part of a URL, because the URL may contain a secret.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

from msgspec import Struct

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.net.ssrf_guard import forbidden, forbidden_host

_HTTP = "an http:// or https:// URL"
_NO_PART_OF_HOST = frozenset('<>"{}|\\^`*')
_LONGEST_LABEL = 63
_HIGHEST_PORT = 65535
_ENDS = re.compile(r"[/?#]")  # the end of the part before the path


def url_fault(url: str, wanted: str = _HTTP) -> str | None:
    """Return why a URL is invalid; None = it is valid.

    Args:
        url: the URL; it must be absolute, with a host.
        wanted: what the URL must be, in words for the fault.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"must be {wanted}"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"must be {wanted}"
    if what := _shape_fault(_written_host(url)):
        return what
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    return None if is_port else "must have a port of 1 to 65535"


def _written_host(url: str) -> str:
    """Return host and port as written: urlsplit drops tabs and ends of lines."""
    authority = _ENDS.split(url.strip().partition("//")[2], maxsplit=1)[0]
    return authority.rpartition("@")[2]


def target_fault(url: str, wanted: str = _HTTP) -> str | None:
    """Return why nothing can be sent to a URL: it is invalid, or forbidden."""
    return url_fault(url, wanted) or _guarded(urlsplit(url).hostname or "")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_fault(host: str) -> str | None:
    """Return why nothing can be sent to a host; None = the host is allowed."""
    return _shape_fault(host) or _guarded(host)


def _shape_fault(host: str) -> str | None:
    if not host.isprintable() or any(sign.isspace() for sign in host):
        return "must have no blank in its host"
    if not _NO_PART_OF_HOST.isdisjoint(host):
        return "must have a host name or an IP address as its host"
    return None


def _guarded(host: str) -> str | None:
    if not all(0 < len(part) <= _LONGEST_LABEL for part in _labels(host)):
        return "must have a host name or an IP address as its host"
    if (why := forbidden_host(host)) is not None:
        return f"leads to a forbidden address: {why}"
    return None


def _labels(host: str) -> list[str]:
    return host.removesuffix(".").split(".")


def is_listen_address(text: str) -> bool:
    """Return whether a text is ``host:port`` with a host, to listen on."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT
    return bool(host) and is_port and not any(sign.isspace() for sign in host)


class ListenAddress(Struct, frozen=True):
    """An address to listen on.

    Attributes:
        text: as in the configuration, such as ``"[::]:9466"``.
        host: the host, without the brackets of IPv6.
        port: the port; 0 = a free one.
        is_dual: whether it takes IPv4 too. ``[::]`` does, unless an address of IPv4
            with the same port is listed beside it.
    """

    text: str
    host: str
    port: int
    is_dual: bool


def listen_addresses(listen: str | tuple[str, ...]) -> tuple[ListenAddress, ...]:
    """Return the valid addresses of a key ``listen``; "" is none."""
    listed = (listen,) if isinstance(listen, str) else listen
    found = [(text, *split_address(text)) for text in listed if is_listen_address(text)]
    return tuple(
        ListenAddress(text, host, port, host == "::" and port not in _of_ipv4(found))
        for text, host, port in found
    )


def _of_ipv4(found: list[tuple[str, str, int]]) -> set[int]:
    return {port for _, host, port in found if ":" not in host and port}


def listen_faults(
    listen: str | tuple[str, ...], example: str
) -> Iterator[tuple[str, str]]:
    """Yield ``(key, what is wrong)`` for each value of ``listen`` that is wrong."""
    if isinstance(listen, str):
        if not is_listen_address(listen):
            yield "listen", f"must be host:port, such as {example}, or a list of them"
        return
    if not listen:
        yield "listen", f"must name an address, such as {example}"
    for index, text in enumerate(listen):
        if not is_listen_address(text):
            yield f"listen[{index}]", f"must be host:port, such as {example}"
        elif text in listen[:index]:
            yield f"listen[{index}]", "is listed twice"


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen on, without the brackets of IPv6."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


# -- Look up a host and connect to it by TCP, but never to a forbidden address ---------


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
