"""Run a loopback HTTP server, and answer in JSON."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import orjson
from aiohttp import web

from bridge.simulator.errors import (
    BadInputError,
    ForeignCallerError,
    ListenError,
    NoSuchEntityError,
    NoSuchEventError,
    NotLiveError,
)
from bridge.simulator.http_guard import Guard

Answering = Callable[[], Awaitable[web.StreamResponse]]

JSON_TYPE = "application/json; charset=utf-8"
MAX_BODY = 16 * 1024 * 1024
_MOST_CONNECTIONS = 256
# When the simulator stops, it does not wait for requests that a fault delays.
_SHUTDOWN_SECONDS = 0.2
_STATUSES = {
    BadInputError: 400,
    ForeignCallerError: 403,
    NoSuchEntityError: 404,
    NoSuchEventError: 404,
    NotLiveError: 409,
}


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    name: str,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve ``app``; yield its URL, without a slash at the end.

    Args:
        app: the application to serve.
        name: the name of the server in errors.
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        tls: serve HTTPS with it; None: serve HTTP.

    Raises:
        ListenError: the server cannot listen at the address.
    """
    guard = Guard(most=_MOST_CONNECTIONS)
    app.middlewares.insert(0, guard.middleware)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        with _as_listen_error(name, host, port):
            server = await guard.listen(runner, host, port, tls=tls)
        try:
            scheme = "http" if tls is None else "https"
            place = f"{_bracketed(host)}:{server.sockets[0].getsockname()[1]}"
            yield f"{scheme}://{place}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


@contextmanager
def _as_listen_error(name: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError) as error:
        raise ListenError(name, host, port, error) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def as_json(value: object, *, status: int = 200) -> web.Response:
    """Return a JSON response that holds ``value``."""
    return web.Response(
        status=status,
        body=orjson.dumps(value),
        headers={"Content-Type": JSON_TYPE},
    )


async def with_json_errors(answer: Answering) -> web.StreamResponse:
    """Return the answer, or an error response in JSON."""
    try:
        return await answer()
    except tuple(_STATUSES) as error:
        return as_json({"error": str(error)}, status=_STATUSES[type(error)])
    except web.HTTPException as error:
        refused = as_json({"error": error.reason}, status=error.status)
        if "Allow" in error.headers:
            refused.headers["Allow"] = error.headers["Allow"]
        return refused
