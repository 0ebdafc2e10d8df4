"""The stop: real processes that are asked to end while others do not answer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.processes import ended, forwarder, settled, simulator
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.integration

GRACE = 2.0
MARGIN = 1.5  # the end of an interpreter, on a busy machine

CONFIG = """
shutdown_grace = "{grace}s"
[imds]
endpoint = "{imds}"
[state]
path = "{state}"
[http]
listen = ""
[[sinks]]
name = "siem"
type = "webhook"
url = "{sink}"
"""


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A server that accepts connections and never answers."""
    held: list[asyncio.StreamWriter] = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await asyncio.Event().wait()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


async def stopped(config: Path, environ: Mapping[str, str] | None = None) -> float:
    """Ask a forwarder to stop; return how long it took."""
    process = await forwarder(config, environ)
    try:
        if "started" in config.name:
            await settled(config, 0)
        await asyncio.sleep(1.5)
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
    async with silent_server() as silent, simulator("--imds-port", "0") as at:
        config = tmp_path / "started.toml"
        config.write_text(
            CONFIG.format(
                grace=grace,
                imds=at.imds,
                sink=silent,
                state=(tmp_path / "state.db").as_posix(),
            )
        )

        assert await stopped(config) < grace + MARGIN


DEAF = """
import socket, threading

def getaddrinfo(host, *others, known=socket.getaddrinfo, **more):
    if host == "deaf.example":
        threading.Event().wait()
    return known(host, *others, **more)

socket.getaddrinfo = getaddrinfo
"""


async def test_name_server_that_hangs_does_not_delay_the_stop(tmp_path: Path) -> None:
    """Where there are three and none answers, a name takes half a minute."""
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    async with simulator("--imds-port", "0") as at:
        config = tmp_path / "started.toml"
        config.write_text(
            CONFIG.format(
                grace=0,
                imds=at.imds,
                sink="http://deaf.example/",
                state=(tmp_path / "state.db").as_posix(),
            )
        )

        assert await stopped(config, {"PYTHONPATH": str(tmp_path)}) < MARGIN


async def test_imds_that_hangs_does_not_delay_the_stop(tmp_path: Path) -> None:
    async with silent_server() as silent:
        config = tmp_path / "asking.toml"
        config.write_text(
            CONFIG.format(
                grace=GRACE,
                imds=silent,
                sink=silent,
                state=(tmp_path / "state.db").as_posix(),
            )
        )

        assert await stopped(config) < GRACE + MARGIN
