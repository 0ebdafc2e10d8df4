"""Checks URLs and hosts of the configuration, and where connections lead.

No fault repeats a part of a URL, because the URL may contain a secret.
"""

import asyncio
import re
import socket
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from bridge.foundation.errors import Reason, RefusedDeliveryError

if TYPE_CHECKING:  # the configuration is checked without aiohttp
    from aiohttp import AddrInfoType

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
        return ip_address(host.strip("[]")).is_loopback
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


# -- Refuses link-local addresses and those of Azure itself ----------------------------
#
# The metadata service hands out the tokens of the VM. A person who may configure an
# address must not reach that service through the bridge. The check comes after the name
# was resolved, when the connection is made, so that DNS cannot bypass it. Loopback and
# private addresses are allowed, because receivers are there.
#
# Source: RFC 2765, RFC 3490, RFC 3927, RFC 4291, RFC 4380, RFC 5214, RFC 6052,
# RFC 8215; Azure's 168.63.129.16 is documented as "wire server".


_METADATA = IPv4Address("169.254.169.254")
_WIRE_SERVER = IPv4Address("168.63.129.16")
# IPv6 networks that lead to the IPv4 address in their last 32 bits.
_TRANSLATED = (
    IPv6Network("64:ff9b::/96"),
    IPv6Network("::ffff:0:0:0/96"),
    IPv6Network("::/96"),
)
# For translators of a site: their prefixes are in this network and have one of four
# lengths.
_LOCALLY_TRANSLATED = IPv6Network("64:ff9b:1::/48")
_TUNNEL_MARK = 0x5EFE  # ISATAP: before the last 32 bits, in any network

_IDEOGRAPHIC_STOP = "\u3002"  # counts as a dot; NFKC turns the other ones into dots
_ENDS_OF_HOST = re.compile(r"[\x00-\x20\x7f/\\?#@\[\]]+")
_PORT = re.compile(r"([^:]*):\d*")


class ForbiddenAddressError(OSError):
    """A connection to a forbidden address."""


def forbidden(address: str) -> str | None:
    """Return why an IP address is forbidden; None = allowed, or not an IP address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return None
    return next(filter(None, map(_rule, _destinations(ip))), None)


def _rule(ip: IPv4Address | IPv6Address) -> str | None:
    if ip == _METADATA:
        return f"{ip} is the metadata service"
    if ip == _WIRE_SERVER:
        return f"{ip} is the wire server of Azure"
    return f"{ip} is link-local" if ip.is_link_local else None


def forbidden_host(host: str) -> str | None:
    """Return why a host is forbidden, if it is an IP address in any spelling.

    For requests through a proxy, which resolves the host itself. An IPv4 address may
    be one number, octal, hexadecimal, or have fewer dots. Any address may contain
    percent-encoding, digits and dots that are not ASCII, invisible characters, and dots
    at its end. Proxies read such a host in different ways, so the host is forbidden if
    any reading of it is.
    """
    parts = [part for text in _readings(host) for part in _ENDS_OF_HOST.split(text)]
    return next(filter(None, map(_forbidden_spelling, parts)), None)


def _readings(host: str) -> Iterator[str]:
    """Yield a host, then the host decoded once, twice, …, while decoding changes it.

    With two proxies in a row, each may decode the host.
    """
    yield host
    while (decoded := _in_ascii(unquote(host))) != host:
        yield decoded
        host = decoded


def _in_ascii(text: str) -> str:
    seen = (
        str(unicodedata.decimal(char, char))
        for char in unicodedata.normalize("NFKC", text)
        if unicodedata.category(char) not in {"Cf", "Mn"}  # such as a soft hyphen
    )
    return "".join(seen).replace(_IDEOGRAPHIC_STOP, ".")


def _forbidden_spelling(host: str) -> str | None:
    port = _PORT.fullmatch(host)
    host = (port[1] if port else host).rstrip(".")
    try:
        return forbidden(socket.inet_ntoa(socket.inet_aton(host)))
    except (OSError, ValueError):
        return forbidden(host)


def guarded_socket(address: "AddrInfoType") -> socket.socket:
    """Make the socket of a connection: a socket factory for ``aiohttp.TCPConnector``.

    Raises:
        ForbiddenAddressError: the address is forbidden.
    """
    family, kind, protocol, _, place = address
    if (why := forbidden(str(place[0]))) is not None:
        raise ForbiddenAddressError(why)
    return socket.socket(family, kind, protocol)


def _destinations(
    ip: IPv4Address | IPv6Address,
) -> Iterator[IPv4Address | IPv6Address]:
    """Yield an address, and each IPv4 address that an IPv6 address may lead to.

    An IPv4 address that is written as an IPv6 one comes as IPv4: the versions of Python
    differ in what they call link-local, and in how they write it.
    """
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    yield ip
    if isinstance(ip, IPv4Address):
        return
    number = int(ip)
    last = IPv4Address(number & 0xFFFFFFFF)
    is_tunnel = number >> 32 & 0xFDFFFFFF == _TUNNEL_MARK  # bit "u" does not matter
    if is_tunnel or any(ip in network for network in _TRANSLATED):
        yield last
    if ip in _LOCALLY_TRANSLATED:
        yield from _locally_translated(number)
    yield from filter(None, (ip.sixtofour, *(ip.teredo or ())))


def _locally_translated(number: int) -> Iterator[IPv4Address]:
    """Yield the IPv4 address for each length of prefix (RFC 6052, section 2.2).

    The bits 64 to 71 are not part of the IPv4 address.
    """
    high, low = number >> 64, number & 0xFFFFFFFFFFFFFFFF
    without_gap = (high << 56) | (low & 0x00FFFFFFFFFFFFFF)
    for prefix in (48, 56, 64):
        yield IPv4Address(without_gap >> (120 - prefix - 32) & 0xFFFFFFFF)
    yield IPv4Address(low & 0xFFFFFFFF)


# -- Look up a host and connect to it by TCP, but never to a forbidden address ---------


Address = tuple[socket.AddressFamily, tuple[str, int]]


async def addresses(host: str, port: int, kind: socket.SocketKind) -> list[Address]:
    """Look up the addresses of a host, and check that none is forbidden.

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
