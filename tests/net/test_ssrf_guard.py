"""No spelling of Azure's own addresses gets through, and all others do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp.abc import ResolveResult
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.net.addresses import forbidden, forbidden_host
from bridge.net.http_client import Request, exchange, open_session

METADATA = "169.254.169.254"
WIRE_SERVER = "168.63.129.16"


LINK_LOCAL = IPv4Network("169.254.0.0/16")
any_ipv4 = st.one_of(
    st.sampled_from([int(IPv4Address(METADATA)), int(IPv4Address(WIRE_SERVER))]),
    st.integers(int(LINK_LOCAL[0]), int(LINK_LOCAL[-1])),
    st.integers(0, 2**32 - 1),
).map(IPv4Address)


def is_forbidden(ip: IPv4Address) -> bool:
    """The rule for IPv4, which all else follows from."""
    return ip in LINK_LOCAL or ip == IPv4Address(WIRE_SERVER)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (METADATA, f"{METADATA} is the metadata service"),
        (WIRE_SERVER, f"{WIRE_SERVER} is the wire server of Azure"),
        (f"::ffff:{WIRE_SERVER}", f"{WIRE_SERVER} is the wire server of Azure"),
        ("169.254.0.0", "169.254.0.0 is link-local"),
        ("169.254.255.255", "169.254.255.255 is link-local"),
        ("::ffff:169.254.0.1", "169.254.0.1 is link-local"),
        ("fe80::", "fe80:: is link-local"),
        ("fe80::1%eth0", "fe80::1%eth0 is link-local"),
        ("febf:ffff::1", "febf:ffff::1 is link-local"),
    ],
)
def test_what_nothing_is_sent_to_is_said_with_its_rule(address: str, why: str) -> None:
    assert forbidden(address) == why


@pytest.mark.parametrize(
    "address",
    [
        f"::ffff:{METADATA}",
        f"::{METADATA}",
        f"::ffff:0:{METADATA}",
        f"64:ff9b::{METADATA}",
        f"64:ff9b:1::{METADATA}",
        f"64:ff9b:1:2:3:4:{METADATA}",
        "64:ff9b:1:a9fe:a9:fe00::",  # by a prefix of 48 bits, of 56, of 64
        "64:ff9b:1:2a9:fe:a9fe::",
        "64:ff9b:1:2:a9:fea9:fe00:0",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe:8000:1234:f5ff:fffe",  # Teredo: the server, the client
        "2001:0:4136:e378:8000:63bf:5601:5601",
        f"2001:db8::5efe:{METADATA}",
        f"2001:db8::200:5efe:{METADATA}",
    ],
)
def test_ipv6_that_leads_to_the_metadata_service_is_known(address: str) -> None:
    assert forbidden(address) == f"{METADATA} is the metadata service"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::",
        "::1",
        "10.0.0.4",
        "192.168.1.1",
        "169.253.255.255",
        "169.255.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "fd00::1",
        "fec0::1",
        "fe7f:ffff::1",
        # What looks like one of those that lead to IPv4, and is none.
        f"64:ff9a::{METADATA}",
        f"64:ff9b:0:0:1::{METADATA}",
        f"64:ff9b:2::{METADATA}",
        f"::fffe:0:{METADATA}",
        f"::1:0:{METADATA}",
        f"2001:db8::{METADATA}",
        f"2001:db8::100:5efe:{METADATA}",
        "2003:a9fe:a9fe::1",
        "2001:1:a9fe:a9fe::1",
        "vm.example",
    ],
)
def test_loopback_private_and_public_addresses_are_allowed(address: str) -> None:
    assert forbidden(address) is None


LOW = (1 << 64) - 1
EMBEDDED: dict[str, Callable[[int, int], int]] = {
    "mapped": lambda ip, _: 0xFFFF << 32 | ip,
    "compatible": lambda ip, _: ip,
    "translated": lambda ip, _: 0xFFFF << 48 | ip,
    "well-known translator": lambda ip, _: 0x64FF9B << 96 | ip,
    "translator of a site": lambda ip, free: (
        0x64FF9B0001 << 80 | (free & (1 << 48) - 1) << 32 | ip
    ),
    "6to4": lambda ip, free: 0x2002 << 112 | ip << 80 | free & (1 << 80) - 1,
    "Teredo server": lambda ip, free: 0x20010000 << 96 | ip << 64 | free & LOW,
    "Teredo client": lambda ip, free: (
        0x20010000 << 96 | (free & LOW) << 32 | ip ^ 0xFFFFFFFF
    ),
    "ISATAP": lambda ip, free: free >> 64 << 64 | 0x5EFE << 32 | ip,
}


@pytest.mark.parametrize("form", EMBEDDED)
@given(ip=any_ipv4, free=st.integers(0, 2**128 - 1))
def test_no_form_of_ipv6_leads_to_a_forbidden_address(
    form: str, ip: IPv4Address, free: int
) -> None:
    address = IPv6Address(EMBEDDED[form](int(ip), free))

    if is_forbidden(ip):
        assert forbidden(str(address))
        assert forbidden_host(str(address))
        assert forbidden_host(f"{address.exploded.upper()}%25eth0")


@given(ip=any_ipv4, free=st.integers(0, 2**40 - 1))
@pytest.mark.parametrize("prefix", [48, 56, 64])
def test_translator_of_a_site_may_have_a_prefix_of_any_length(
    prefix: int, ip: IPv4Address, free: int
) -> None:
    """RFC 6052, section 2.2, written with text: the ninth byte is left out."""
    site = f"0064ff9b0001{free & 0xFFFF:04x}"[: prefix // 4]
    digits = f"{site}{int(ip):08x}"
    text = f"{digits[:16]}00{digits[16:]}".ljust(32, "0")
    address = IPv6Address(int(text, 16))

    if is_forbidden(ip):
        assert forbidden(str(address))


@given(any_ipv4)
def test_ipv4_follows_its_rule(ip: IPv4Address) -> None:
    assert bool(forbidden(str(ip))) == is_forbidden(ip)


LEADING = [
    IPv6Network(text)
    for text in (
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "fe80::/10",
    )
]


@given(st.ip_addresses(v=6))
def test_other_ipv6_is_allowed(ip: IPv6Address) -> None:
    is_tunnel = int(ip) >> 32 & 0xFFFFFFFF in {0x5EFE, 0x2005EFE}

    if not is_tunnel and not any(ip in network for network in LEADING):
        assert forbidden(str(ip)) is None


# -- what a proxy is asked for -------------------------------------------------

SPELLINGS = [
    METADATA,
    "2852039166",
    "0xa9fea9fe",
    "0XA9.0xFE.0xa9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "169.254.169.254.",
    "169.254.169.254..",
    "169.254.169.254%2e",
    "169.254.169.254%2E%2e",
    "169%2e254%2e169%2e254",
    "%31%36%39.254.169.254",
    "%2531%36%39.254.169.254",
    "%252531%36%39.254.169.254",
    "\u2460\u2465\u2468.254.169.254",
    "\uff11\uff16\uff19\uff0e254\uff0e169\uff61254",
    "169\u3002254\u3002169\u3002254",
    "%EF%BC%91%EF%BC%96%EF%BC%99.254.169.254",
    "\uff05\uff13\uff1169.254.169.254",
    "\u0661\u0666\u0669.254.169.254",
    "169.254.169\u00ad.254",
    "169.254.169.254\ufe0f",
    "169.254.169.254%00.example",
    "169.254.169.254%20",
    "169.254.169.254%3a80",
    "169.254.169.254%2f.example",
    "user%40169.254.169.254",
    "%5bfe80::1%5d",
    "fe80::1%25ab",
    f"64:ff9b:1::{METADATA}",
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_address_is_known_however_it_is_written(host: str) -> None:
    assert forbidden_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "hook.example",
        "hook.example.",
        "169.254.169.254.example",
        "xn--bcher-kva.example",
        "b\u00fccher.example",
        "a%20b.example",
        "10.0.0.4",
        "0x0a000004",
        "%31%30.0.0.4",
        "fd00::1",
        "",
        ".",
    ],
)
def test_other_hosts_are_the_proxys_affair(host: str) -> None:
    assert forbidden_host(host) is None


@given(st.text(), st.ip_addresses())
def test_no_host_makes_the_guard_fail(text: str, address: object) -> None:
    forbidden_host(text)
    forbidden_host(str(address))


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Return an IPv4 address that is forbidden, in one of its many spellings."""
    number = int(draw(any_ipv4.filter(is_forbidden)))
    count = draw(st.integers(1, 4))
    parts = [number >> 24, number >> 16 & 255, number >> 8 & 255, number & 255]
    last = number & (1 << 8 * (5 - count)) - 1
    forms = st.sampled_from(["{}", "0x{:x}", "0{:o}", "0X00{:X}"])
    text = ".".join(draw(forms).format(p) for p in [*parts[: count - 1], last])
    text += "." * draw(st.integers(0, 3))
    digits = st.sampled_from("0\uff10\U0001d7d8")  # ASCII, full width, double-struck
    dots = st.sampled_from(".\u3002\uff0e\uff61")
    written = (
        chr(ord(draw(digits)) + int(char))
        if char.isdigit()
        else draw(dots)
        if char == "."
        else char
        for char in text
    )
    rounds = st.integers(0, 3)
    return "".join(_encoded(char, draw(rounds)) for char in written)


def _encoded(char: str, rounds: int) -> str:
    if not rounds:
        return char
    text = "".join(f"%{byte:02x}" for byte in char.encode())
    for _ in range(rounds - 1):
        text = quote(text)
    return text


@given(spellings())
def test_no_spelling_of_a_forbidden_address_gets_through(host: str) -> None:
    assert forbidden_host(host)


@given(
    st.text("0123456789.%xefaA\uff11\u3002[]:@/\\?#\t \u00ad", max_size=30),
    spellings(),
    st.text("0123456789.%xefaA\uff11\u3002[]:@/\\?#\t \u00ad", max_size=30),
)
async def test_whatever_would_be_asked_for_is_looked_at(
    before: str, host: str, after: str
) -> None:
    """The client's own reading of a URL is the one that counts."""
    url = f"http://{before}{host}{after}"
    try:
        read = URL(url).host or ""
    except (ValueError, IndexError):  # IndexError: `http://[]@`, a fault of yarl
        return  # the client refuses it, too
    if forbidden_host(read):
        async with open_session(user_agent="sebridge/test") as session:
            with pytest.raises(RefusedDeliveryError):
                await post(session, url, proxy="http://127.0.0.1:9")


class Rebinding(aiohttp.abc.AbstractResolver):
    """A name server that answers otherwise each time."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host, host=a, port=port, family=family, proto=0, flags=0
            )
            for a in addresses
        ]

    async def close(self) -> None:
        pass


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(user_agent="sebridge/test") as session:
        yield session


def resolved_by(session: aiohttp.ClientSession, resolver: Rebinding) -> None:
    connector = session.connector
    assert isinstance(connector, aiohttp.TCPConnector)
    connector._resolver = resolver  # no public way to change it afterwards
    connector._use_dns_cache = False


async def post(
    session: aiohttp.ClientSession, url: str, proxy: str | None = None
) -> None:
    request = Request(url=url, headers={}, body=b"", timeout=5, proxy=proxy)
    await exchange(session, request, "https://hook.example")


@pytest.mark.parametrize(
    "url",
    [
        f"http://{METADATA}/metadata/identity/oauth2/token",
        f"https://{METADATA}",
        f"http://{WIRE_SERVER}/machine",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[fe80::1]/",
        "http://0xa9fea9fe/",
    ],
)
async def test_literal_address_is_refused(
    http: aiohttp.ClientSession, url: str
) -> None:
    with pytest.raises(RefusedDeliveryError, match="forbidden address") as caught:
        await post(http, url)

    assert caught.value.reason is Reason.NOT_FOUND


async def test_name_that_changes_after_the_first_look_is_refused_all_the_same(
    http: aiohttp.ClientSession,
) -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    resolved_by(http, Rebinding(("127.0.0.1",), (METADATA, "169.254.169.254")))
    await post(http, f"http://hook.example:{port}/")

    with pytest.raises(RefusedDeliveryError, match="is the metadata service"):
        await post(http, f"http://hook.example:{port}/")
    server.close()


async def test_proxy_is_not_asked_for_it_either(http: aiohttp.ClientSession) -> None:
    hosts = [host for host in SPELLINGS if "::" not in host]
    urls = (f"http://{METADATA}/", "http://0xa9fea9fe/", f"https://{WIRE_SERVER}/")
    for url in (*urls, *(f"http://{host}/" for host in hosts)):
        with pytest.raises(RefusedDeliveryError, match="forbidden address"):
            await post(http, url, proxy="http://127.0.0.1:9")


async def test_what_is_no_url_is_reported_as_that_behind_a_proxy(
    http: aiohttp.ClientSession,
) -> None:
    with pytest.raises(RefusedDeliveryError, match="not a URL that can be called"):
        await post(http, "http://[bad", proxy="http://127.0.0.1:9")


async def test_proxy_at_such_an_address_is_refused(http: aiohttp.ClientSession) -> None:
    with pytest.raises(RefusedDeliveryError, match="is the wire server"):
        await post(http, "http://hook.example/", proxy=f"http://{WIRE_SERVER}:3128")
