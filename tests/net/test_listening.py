"""Several addresses of one key: each is served by itself, and ``[::]`` takes IPv4."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from bridge.net.addresses import listen_addresses
from bridge.net.listening import Port, listen, listening
from tests.support.fakes import FakeClock
from tests.support.ports import free_port, has_ipv6

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")


@pytest.mark.parametrize(
    ("given", "dual"),
    [
        ("[::]:80", [True]),
        ("[::1]:80", [False]),
        ("0.0.0.0:80", [False]),
        (("[::]:80", "10.0.0.4:81"), [True, False]),
        (("10.0.0.4:80", "[::]:80"), [False, False]),
        (("[::]:0", "127.0.0.1:0"), [True, False]),
    ],
)
def test_every_address_of_ipv6_takes_ipv4_unless_that_is_listed(
    given: str | tuple[str, ...], dual: list[bool]
) -> None:
    assert [at.is_dual for at in listen_addresses(given)] == dual


@asynccontextmanager
async def served(*given: str) -> AsyncIterator[Port]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    def make() -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer)

    port = Port("x.listen")
    begins = {at.text: partial(listen, make, at) for at in listen_addresses(given)}
    async with listening(begins, port, FakeClock()):
        yield port


async def asked(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.closing(writer):
        return await reader.read()


@pytest.fixture
def port() -> int:
    return free_port()


@needs_ipv6
@pytest.mark.parametrize("given", [("[::]:{}",), ("127.0.0.1:{}", "[::]:{}")])
async def test_both_families_are_answered(given: tuple[str, ...], port: int) -> None:
    async with served(*(one.format(port) for one in given)) as found:
        answers = [await asked(host, port) for host in ("127.0.0.1", "::1")]

    assert answers == [b"here", b"here"]
    assert found.fault is None


@needs_ipv6
async def test_loopback_of_ipv6_stays_closed_to_ipv4(port: int) -> None:
    async with served(f"[::1]:{port}"):
        assert await asked("::1", port) == b"here"
        with pytest.raises(OSError, match=r"Connect call failed"):
            await asked("127.0.0.1", port)


async def test_address_that_is_taken_keeps_no_other_closed(port: int) -> None:
    with socket.create_server(("127.0.0.2", port)):
        async with served(f"127.0.0.2:{port}", f"127.0.0.1:{port}") as found:
            answer = await asked("127.0.0.1", port)
            fault = found.fault

    assert answer == b"here"
    assert fault is not None
    assert fault.startswith(f"x.listen: cannot listen on 127.0.0.2:{port}: ")
