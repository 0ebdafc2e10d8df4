"""No spelling of Azure's own addresses gets through, and all others do."""

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.abc import ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import Reason, RefusedDeliveryError
from bridge.guard import forbidden, forbidden_host
from bridge.transport import Request, exchange, open_session

METADATA = "169.254.169.254"
WIRE_SERVER = "168.63.129.16"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (METADATA, "the metadata service"),
        (f"::ffff:{METADATA}", "the metadata service"),
        (f"::{METADATA}", "the metadata service"),
        (f"64:ff9b::{METADATA}", "the metadata service"),
        (f"::ffff:0:{METADATA}", "the metadata service"),
        ("2002:a9fe:a9fe::1", "the metadata service"),
        (WIRE_SERVER, "the wire server"),
        (f"::ffff:{WIRE_SERVER}", "the wire server"),
        ("169.254.0.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("febf::1", "link-local"),
    ],
)
def test_what_nothing_is_sent_to_is_said_with_its_rule(address: str, why: str) -> None:
    assert why in (forbidden(address) or "")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.0.0.4", "192.168.1.1", "fd00::1", "168.63.129.17", "::"],
)
def test_loopback_private_and_public_addresses_are_allowed(address: str) -> None:
    assert forbidden(address) is None


@pytest.mark.parametrize(
    "host",
    [
        METADATA,
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.254.169.254.",
        "①⑥⑨.254.169.254",
        "169。254。169。254",
    ],
)
def test_address_is_known_however_it_is_written(host: str) -> None:
    assert forbidden_host(host)


@given(st.text(), st.ip_addresses())
def test_no_host_makes_the_guard_fail(text: str, address: object) -> None:
    forbidden_host(text)
    forbidden_host(str(address))


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
    with pytest.raises(RefusedDeliveryError, match="where nothing is sent") as caught:
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
    for url in (f"http://{METADATA}/", "http://0xa9fea9fe/", f"https://{WIRE_SERVER}/"):
        with pytest.raises(RefusedDeliveryError, match="where nothing is sent"):
            await post(http, url, proxy="http://127.0.0.1:9")


async def test_what_is_no_url_is_told_as_that_behind_a_proxy(
    http: aiohttp.ClientSession,
) -> None:
    with pytest.raises(RefusedDeliveryError, match="not a URL that can be called"):
        await post(http, "http://[bad", proxy="http://127.0.0.1:9")


async def test_proxy_at_such_an_address_is_refused(http: aiohttp.ClientSession) -> None:
    with pytest.raises(RefusedDeliveryError, match="is the wire server"):
        await post(http, "http://hook.example/", proxy=f"http://{WIRE_SERVER}:3128")
