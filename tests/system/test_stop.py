"""The stop: real processes that are asked to end while others do not answer."""

import asyncio
from asyncio import StreamWriter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.configurations import config_text, webhook
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    PATIENCE,
    ended,
    forwarder,
    settled,
    simulator_here,
)

pytestmark = pytest.mark.integration

GRACE = 2.0
MARGIN = 1.5  # the end of an interpreter, on a busy machine


class Silent:
    """A server that accepts connections and never answers.

    Attributes:
        asked: set once somebody has asked for something.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Silent"]:
        held: list[asyncio.StreamWriter] = []

        async def hold(reader: asyncio.StreamReader, writer: StreamWriter) -> None:
            held.append(writer)
            await reader.readline()
            self.asked.set()
            await asyncio.Event().wait()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            for writer in held:
                writer.transport.abort()


async def stopped(
    config: Path, hangs: Awaitable[object], environ: Mapping[str, str] | None = None
) -> float:
    """Ask a forwarder to stop once it ``hangs``; return how long it took."""
    process = await forwarder(config, environ)
    try:
        async with asyncio.timeout(PATIENCE):
            await hangs
        if "started" in config.name:
            await settled(config, 0)
        watch = Stopwatch()
        assert await ended(process) == 0
        return watch.seconds
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize("grace", [GRACE, 0])
async def test_sink_that_hangs_does_not_delay_the_stop(
    tmp_path: Path, grace: float
) -> None:
    async with Silent().serving() as silent, simulator_here() as at:
        config = tmp_path / "started.toml"
        config.write_text(
            config_text(
                webhook(silent.url),
                imds=at.imds,
                state=tmp_path / "state.db",
                shutdown_grace=f"{grace}s",
            )
        )

        assert await stopped(config, silent.asked.wait()) < grace + MARGIN


DEAF = """
import os, pathlib, socket, threading

def getaddrinfo(host, *others, known=socket.getaddrinfo, **more):
    if host == "deaf.example":
        pathlib.Path(os.environ["DEAF"]).touch()
        threading.Event().wait()
    return known(host, *others, **more)

socket.getaddrinfo = getaddrinfo
"""


async def test_name_server_that_hangs_does_not_delay_the_stop(tmp_path: Path) -> None:
    """Where there are three and none answers, a name takes half a minute."""
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    async with simulator_here() as at:
        config = tmp_path / "started.toml"
        config.write_text(
            config_text(
                webhook("http://deaf.example/"),
                imds=at.imds,
                state=tmp_path / "state.db",
                shutdown_grace="0s",
            )
        )

        environ = {"PYTHONPATH": str(tmp_path), "DEAF": str(tmp_path / "asked")}
        assert await stopped(config, there(tmp_path / "asked"), environ) < MARGIN


async def there(path: Path) -> None:
    """Wait until there is a file."""
    while not path.exists():
        await asyncio.sleep(0.02)


async def test_imds_that_hangs_does_not_delay_the_stop(tmp_path: Path) -> None:
    async with Silent().serving() as silent:
        config = tmp_path / "asking.toml"
        config.write_text(
            config_text(
                webhook(silent.url),
                imds=silent.url,
                state=tmp_path / "state.db",
                shutdown_grace=f"{GRACE}s",
            )
        )

        assert await stopped(config, silent.asked.wait()) < GRACE + MARGIN
