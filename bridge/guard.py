"""Where nothing is sent, whatever a name resolves to: link-local, and Azure's own.

Whoever may choose an address must not reach the metadata service through the bridge,
which hands out the tokens of the VM. Addresses are looked at when a connection is
made, after names were resolved, so that no trick with DNS helps. Loopback and private
addresses are as good as any: that is where receivers are.

Source: RFC 2765, RFC 3490, RFC 3927, RFC 4291, RFC 6052; Azure's 168.63.129.16 is
documented as "wire server".
"""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from unicodedata import normalize

from aiohttp import AddrInfoType

_METADATA = IPv4Address("169.254.169.254")
_WIRE_SERVER = IPv4Address("168.63.129.16")
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0:0/96"))
_COMPATIBLE = IPv6Network("::/96")


class ForbiddenAddressError(OSError):
    """A connection to an address that nothing is sent to."""


def forbidden(address: str) -> str | None:
    """Return why nothing is sent to an IP address; None = it may be, or is none."""
    try:
        ip = _innermost(ip_address(address))
    except ValueError:
        return None
    if ip == _METADATA:
        return f"{ip} is the metadata service"
    if ip == _WIRE_SERVER:
        return f"{ip} is the wire server of Azure"
    return f"{ip} is link-local" if ip.is_link_local else None


def forbidden_host(host: str) -> str | None:
    """Return why nothing is sent to a host that is an address, however it is written.

    For what a proxy resolves: names are its own affair. An IPv4 address may also be
    written as one number, in hexadecimal or with fewer dots, with digits and dots
    that are not ASCII, and with the dot that ends a name.
    """
    host = normalize("NFKC", host).replace("\u3002", ".").removesuffix(".")
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


def _innermost(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address leads to, where it does."""
    if isinstance(ip, IPv4Address):
        return ip
    is_translated = any(ip in network for network in _TRANSLATED)
    if is_translated or (ip in _COMPATIBLE and int(ip) > 1):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip
