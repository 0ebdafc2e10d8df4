"""Refuses connections to link-local addresses and to those of Azure itself.

The metadata service hands out the tokens of the VM. A person who may configure an
address must not reach that service through the bridge. The check comes after the name
was resolved, when the connection is made, so that DNS cannot bypass it. Loopback and
private addresses are allowed, because receivers are there.

Source: RFC 2765, RFC 3490, RFC 3927, RFC 4291, RFC 4380, RFC 5214, RFC 6052, RFC 8215;
Azure's 168.63.129.16 is documented as "wire server".
"""

import re
import socket
import unicodedata
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:  # the configuration is checked without aiohttp
    from aiohttp import AddrInfoType

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
