"""Who may stay connected to an HTTP server: the house's guard, and the simulator's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from bridge.net import connection_limit
from bridge.net.addresses import listen_addresses
from bridge.simulator import http_server as simulated
from tests.support.stopwatch import Stopwatch

pytestmark = pytest.mark.integration

Guard = connection_limit.Guard | simulated.Guard
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LONG = 50_000_000


@pytest.fixture(
    params=[connection_limit.Guard, simulated.Guard], ids=["house", "simulator"]
)
def guard(request: pytest.FixtureRequest) -> Guard:
    found: Guard = request.param(most=3, head_seconds=0.4, read_seconds=0.4)
    return found


@asynccontextmanager
async def served(guard: Guard) -> AsyncIterator[int]:
    """Serve a quick answer, a slow one and a long one; yields the port."""

    async def quick(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response(text="ok\n")

    async def long(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * LONG)

    app = web.Application(middlewares=[guard.middleware])
    app.add_routes([web.get(f"/{one.__name__}", one) for one in (quick, slow, long)])
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    (at,) = listen_addresses("127.0.0.1:0")
    if isinstance(guard, connection_limit.Guard):
        server = await guard.listen(runner, at)
    else:
        server = await guard.listen(runner, at.host, at.port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await runner.cleanup()


async def connected(port: int, say: bytes = b"") -> Pair:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(say)
    return reader, writer


def asked(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def is_closed(one: Pair, within: float) -> bool:
    """Whether the other side hangs up, once all that it said is read."""
    try:
        async with asyncio.timeout(within):
            while await one[0].read(1000):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def close(*pairs: Pair) -> None:
    for _, writer in pairs:
        writer.close()


async def test_one_too_many_closes_the_one_that_was_silent_longest(
    guard: Guard,
) -> None:
    guard.head_seconds = 30
    async with served(guard) as port:
        first, second, third = [await connected(port) for _ in range(3)]
        await asyncio.sleep(0.05)
        first[1].write(b"GET /quick")
        await asyncio.sleep(0.05)
        fourth = await connected(port, asked("/quick"))

        assert await is_closed(second, 60)
        found = [await is_closed(one, 0.05) for one in (first, third, fourth)]
        assert found == [False, False, False]
        close(first, second, third, fourth)


async def test_who_is_being_answered_goes_last(guard: Guard) -> None:
    async with served(guard) as port:
        slow = await connected(port, asked("/slow"))
        await asyncio.sleep(0.05)
        others = [await connected(port) for _ in range(5)]
        head = await slow[0].readline()
        close(slow, *others)

    assert head == b"HTTP/1.1 200 OK\r\n"


async def test_even_one_that_is_being_answered_goes_if_all_are(guard: Guard) -> None:
    async with served(guard) as port:
        every = [await connected(port, asked("/slow")) for _ in range(3)]
        await asyncio.sleep(0.1)
        quick = await connected(port, asked("/quick"))

        assert await quick[0].readline() == b"HTTP/1.1 200 OK\r\n"
        with suppress(ConnectionResetError):
            assert await every[0][0].read(1) == b""  # closed, and not answered
        close(*every, quick)


@pytest.mark.parametrize("before", [b"", asked("/quick")], ids=["first", "later"])
async def test_head_that_comes_byte_by_byte_is_not_waited_for(
    before: bytes, guard: Guard
) -> None:
    async with served(guard) as port:
        one = await connected(port, before)
        if before:
            await one[0].readuntil(b"ok\n")
        watch = Stopwatch()
        one[1].write(b"GET /quick HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        while watch.wall < 60:
            one[1].write(b"a")
            if await is_closed(one, 0.1):
                break
        took, least = watch.wall, watch.seconds
        close(one)

    assert took > 0.3
    assert least < 1.5


async def test_connection_is_kept_alive_between_requests(guard: Guard) -> None:
    async with served(guard) as port:
        one = await connected(port, asked("/quick"))
        await one[0].readuntil(b"ok\n")
        await asyncio.sleep(3 * guard.head_seconds)
        one[1].write(asked("/quick"))

        assert (await one[0].readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 OK")
        close(one)


async def test_answer_that_nobody_reads_is_given_up(guard: Guard) -> None:
    async with served(guard) as port:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", port))
            one.sendall(asked("/long"))
            async with asyncio.timeout(60):
                while not guard.count:
                    await asyncio.sleep(0.01)
                while guard.count:
                    await asyncio.sleep(0.01)


async def test_answer_that_is_read_is_read_to_its_end(guard: Guard) -> None:
    guard.read_seconds = 60  # of a pause between two readings
    async with served(guard) as port:
        one = await connected(port, asked("/long"))
        size = 0
        async with asyncio.timeout(60):
            while size < LONG and (part := await one[0].read(1_000_000)):
                size += len(part)
        close(one)

    assert size >= LONG
