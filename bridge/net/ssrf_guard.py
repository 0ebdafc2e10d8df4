"""Where nothing is sent, whatever a name resolves to: link-local, and Azure's own.

Whoever may choose an address must not reach the metadata service through the bridge,
which hands out the tokens of the VM. Addresses are looked at when a connection is
made, after names were resolved, so that no trick with DNS helps. Loopback and private
addresses are as good as any: that is where receivers are.

Source: RFC 2765, RFC 3490, RFC 3927, RFC 4291, RFC 4380, RFC 5214, RFC 6052, RFC 8215;
Azure's 168.63.129.16 is documented as "wire server".
"""

import re
import socket
import unicodedata
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from aiohttp import AddrInfoType

_METADATA = IPv4Address("169.254.169.254")
_WIRE_SERVER = IPv4Address("168.63.129.16")
# IPv6 networks that lead to the IPv4 address in their last 32 bits.
_TRANSLATED = (
    IPv6Network("64:ff9b::/96"),
    IPv6Network("::ffff:0:0:0/96"),
    IPv6Network("::/96"),
)
# A site's own translators: each has a prefix of one of four lengths in this network.
_LOCALLY_TRANSLATED = IPv6Network("64:ff9b:1::/48")
_TUNNEL_MARK = 0x5EFE  # ISATAP: in front of the last 32 bits, in any network

_IDEOGRAPHIC_STOP = "\u3002"  # a dot too; others become one by NFKC
_ENDS_OF_HOST = re.compile(r"[\x00-\x20\x7f/\\?#@\[\]]+")
_PORT = re.compile(r"([^:]*):\d*")


class ForbiddenAddressError(OSError):
    """A connection to an address that nothing is sent to."""


def forbidden(address: str) -> str | None:
    """Return why nothing is sent to an IP address; None = it may be, or is none."""
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
    """Return why nothing is sent to a host that is an address, however it is written.

    For what a proxy resolves: names are its own affair. An IPv4 address may also be
    written as one number, in octal, in hexadecimal or with fewer dots, and an address
    of any kind with percent-encoding, with digits and dots that are not ASCII, with
    characters that are not seen, and with dots at its end. What a proxy makes of such
    a host differs from one to the next, so that the strictest reading counts.
    """
    parts = [part for text in _readings(host) for part in _ENDS_OF_HOST.split(text)]
    return next(filter(None, map(_forbidden_spelling, parts)), None)


def _readings(host: str) -> Iterator[str]:
    """Yield what a host may be read as, until nothing is left to be decoded.

    A proxy may decode what another one has decoded already.
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


def guarded_socket(address: AddrInfoType) -> socket.socket:
    """Make the socket of a connection, as ``aiohttp.TCPConnector`` wants it.

    Raises:
        ForbiddenAddressError: nothing is sent there.
    """
    family, kind, protocol, _, place = address
    if (why := forbidden(str(place[0]))) is not None:
        raise ForbiddenAddressError(why)
    return socket.socket(family, kind, protocol)


def _destinations(
    ip: IPv4Address | IPv6Address,
) -> Iterator[IPv4Address | IPv6Address]:
    """Yield an address, and each IPv4 address that an IPv6 address may lead to."""
    yield ip
    if isinstance(ip, IPv4Address):
        return
    number = int(ip)
    last = IPv4Address(number & 0xFFFFFFFF)
    is_tunnel = number >> 32 & 0xFDFFFFFF == _TUNNEL_MARK  # whatever its bit "u" says
    if is_tunnel or any(ip in network for network in _TRANSLATED):
        yield last
    if ip in _LOCALLY_TRANSLATED:
        yield from _locally_translated(number)
    yield from filter(None, (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())))


def _locally_translated(number: int) -> Iterator[IPv4Address]:
    """Yield what an address leads to by each length of prefix (RFC 6052, section 2.2).

    The bits 64 to 71 are no part of the IPv4 address.
    """
    high, low = number >> 64, number & 0xFFFFFFFFFFFFFFFF
    without_gap = (high << 56) | (low & 0x00FFFFFFFFFFFFFF)
    for prefix in (48, 56, 64):
        yield IPv4Address(without_gap >> (120 - prefix - 32) & 0xFFFFFFFF)
    yield IPv4Address(low & 0xFFFFFFFF)
