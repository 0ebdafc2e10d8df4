"""Listening on loopback, with one sentence when the port is taken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.simulator.errors import SimulatorError


@asynccontextmanager
async def listen(
    app: web.Application, host: str, port: int, what: str
) -> AsyncIterator[int]:
    """Serve ``app`` as long as the context is open; yields the port.

    Raises:
        SimulatorError: the port cannot be listened on.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            text = f"{what} cannot listen on {host}:{port}: {error.strerror}"
            raise SimulatorError(text) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
