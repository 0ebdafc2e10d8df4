"""The server of the health port: /livez /readyz /metrics /status, and a page at /.

Beside it, the server of the socket on which the commands of this machine ask.

A foreign web page can make a browser on this machine send requests here, under a host
name that resolves to 127.0.0.1 (DNS rebinding). So without a token, the Host header
must be localhost or a loopback address. ``/readyz`` answers every request, because a
probe has neither token nor host name. But a client that may not read ``/status`` gets
only the kind of each cause, without names of entities, sessions or sinks. Any local
process can open many connections, so their number is limited.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import StrEnum

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bridge.events.cloudevent import rfc3339
from bridge.foundation.errors import OutboxClosedError, OutboxError
from bridge.health.config import HttpConfig
from bridge.health.report import (
    ClockReport,
    ReceiverReport,
    StatusReport,
    nothing_known,
    place_of,
    report,
    sink_of,
    stored,
)
from bridge.health.status import Receiver, StatusSource
from bridge.net.addresses import is_loopback
from bridge.net.connection_limit import Guard
from bridge.outbox.admin import NOT_NOW, NOT_OPEN, AnyQuestion, Discard, Retry
from bridge.outbox.questions import Page

log = logging.getLogger(__name__)

_OPEN_PATHS = {"/livez", "/readyz"}
_MOST_CONNECTIONS = 32
_QUESTION = msgspec.msgpack.Decoder(AnyQuestion)
_SHUTDOWN_SECONDS = 1.0  # for responses in progress; a client may never read one
_WRONG_HOST = "without http.token, only localhost and loopback addresses are answered\n"


class Missing(StrEnum):
    """The kinds of the texts in ``/readyz``: causes of unreadiness, and notes.

    Each text begins with its kind, followed by a colon or a dot.
    """

    STARTING = "starting"
    IMDS = "imds"
    APPROVALS = "approvals"
    STATE = "state"
    SINKS = "sinks"
    TRAFFIC = "traffic"
    CLOCK = "clock"
    HTTP = "http"
    OTHER = "other"


def loaded(
    app: web.Application,
) -> tuple[web.AppRunner, Callable[[], asyncio.Protocol]]:
    """Return the runner of an application, and its factory of protocols."""
    guard = Guard(most=_MOST_CONNECTIONS)
    runner = guard.runner(app, _SHUTDOWN_SECONDS)
    with suppress(StopIteration):  # it waits for nothing: the application has no hooks
        runner.setup().send(None)
    return runner, guard.maker(runner)


def application(config: HttpConfig, status_source: StatusSource) -> web.Application:
    """Return the web application of the health port, not listening yet."""

    @web.middleware
    async def authorize(
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            if not _is_meant(config, request):
                return web.Response(status=421, text=_WRONG_HOST)
            if not _is_allowed(config, request):
                return _refusal(request)
        return await handler(request)

    async def livez(_: web.Request) -> web.Response:
        return _liveness(status_source)

    async def readyz(request: web.Request) -> web.Response:
        names_all = _may_see_details(config, request)
        return await _readiness(status_source, names_all=names_all)

    async def status(_: web.Request) -> web.Response:
        return _json(await running_status(status_source))

    async def metrics(_: web.Request) -> web.Response:
        await status_source.measure()
        return web.Response(
            body=generate_latest(status_source.metrics.registry),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def page(request: web.Request) -> web.Response:
        # Only loaded if the page is requested: it costs memory.
        from bridge.health import status_page as view  # noqa: PLC0415 - see above

        refreshes = "refresh" in request.query
        text = view.page(
            await running_status(status_source),
            status_source.clock.now(),
            refreshes=refreshes,
        )
        return web.Response(
            text=text, content_type="text/html", charset="utf-8", headers=view.HEADERS
        )

    app = web.Application(middlewares=[authorize])
    app.router.add_get("/", page)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status", status)
    app.router.add_get("/metrics", metrics)
    return app


async def running_status(source: StatusSource) -> StatusReport:
    """Return the status of a running forwarder."""
    if source.outbox is None or source.poller is None or source.event_context is None:
        found = nothing_known("starting")
    else:
        kept, now = await stored(source.outbox), source.clock.now().timestamp()
        vm = {**source.event_context.reporter, "source": source.event_context.source}
        sinks = [
            sink_of(
                one.sink, one.state, kept.tallies.get(one.sink), now, one.last_error
            )
            for one in source.relays
        ]
        poller = source.poller
        found = report(vm, source.imds_state, poller.watch, sinks=sinks, found=kept)
        found.receivers = [_receiver(*item) for item in source.receivers.items()]
        if source.ahead is not None:
            found.clock = ClockReport(round(source.ahead))
        found.missing, found.notes = source.missing(), source.notes_of(kept.tallies)
        found.withheld = [*poller.rules.withheld.values()] if poller.rules else []
    if source.rotation is not None:
        found.traffic = source.rotation.shown()
    found.state_path = place_of(source.state_path)
    return found


def _receiver(name: str, receiver: Receiver) -> ReceiverReport:
    age, last = receiver.link_seconds, receiver.last_receive
    return ReceiverReport(
        entity=name,
        attached=receiver.attached,
        stands_by=receiver.stands_by,
        link_seconds=None if age is None else int(age),
        last_receive=None if last is None else rfc3339(last),
        last_error=receiver.last_error,
    )


def _liveness(status_source: StatusSource) -> web.Response:
    if status_source.is_alive():
        return web.Response(text="ok\n")
    return web.Response(
        status=503, text="the thread of the state file does not answer\n"
    )


async def _readiness(status_source: StatusSource, *, names_all: bool) -> web.Response:
    notes = await status_source.notes()
    missing = status_source.missing()
    found = [*missing, *notes]
    shown = found if names_all else kinds_of(found)
    return _json(shown, status=503 if missing else 200)


def kinds_of(found: Iterable[str]) -> list[str]:
    """Return the kind of each text, without repeats and without any names."""
    known = {kind.value for kind in Missing}
    words = (re.split(r"[:.]", text, maxsplit=1)[0] for text in found)
    kinds = (word if word in known else Missing.OTHER.value for word in words)
    return list(dict.fromkeys(kinds))


def _is_meant(config: HttpConfig, request: web.Request) -> bool:
    """Return whether the Host header names this machine.

    Clients that send no Host are let through: browsers always send it. With a token,
    the header is not checked.
    """
    host = request.headers.get("Host")
    if config.token is not None or host is None:
        return True
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name)


def _may_see_details(config: HttpConfig, request: web.Request) -> bool:
    """Return whether a client may read ``/status``.

    Most probes send no token. For a request without a token, the file of the token is
    not read, because a warning would be logged if the file is missing.
    """
    if config.token is not None and "Authorization" not in request.headers:
        return False
    return _is_meant(config, request) and _is_allowed(config, request)


def _refusal(request: web.Request) -> web.Response:
    """Ask for the token; a browser, on /, is asked for a password."""
    scheme = 'Basic realm="sebridge", charset="UTF-8"' if request.path == "/" else ""
    return web.Response(
        status=401,
        text="a bearer token is required\n",
        headers={"WWW-Authenticate": scheme or "Bearer"},
    )


def _is_allowed(config: HttpConfig, request: web.Request) -> bool:
    if config.token is None:
        return True
    try:
        wanted = config.token.reveal()
    except ValueError as error:  # its file is missing, perhaps during a rotation
        log.warning("the bearer token cannot be read", extra={"fault": str(error)})
        return False
    given = _given(request.headers.get("Authorization", ""))
    return given is not None and hmac.compare_digest(
        given.encode(errors="replace"), wanted.encode()
    )


def _given(authorization: str) -> str | None:
    """Return the token: a bearer token, or the password of any user."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token
    try:
        basic = aiohttp.BasicAuth.decode(authorization, encoding="utf-8")
    except ValueError:
        return None
    return str(basic.password)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


# -- what commands ask on their socket -------------------------------------------------

_AGAIN = "ask again in a moment"


def commands(source: StatusSource) -> web.Application:
    """Return the web application that commands of this machine ask.

    Only who may use its socket can reach it, so it asks for no token.
    """

    async def status(_: web.Request) -> web.Response:
        return _json(await running_status(source))

    async def ask(request: web.Request) -> web.Response:
        if (outbox := source.outbox) is None:
            return web.Response(status=NOT_OPEN, text=f"the forwarder starts: {_AGAIN}")
        try:
            question = _QUESTION.decode(await request.read())
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"no such question: {error}")
        now = source.clock.now().timestamp()
        answer: object = await question.answer(outbox, now)
        if isinstance(question, Retry):
            for relay in source.relays:
                if question.selection.sink in {None, relay.sink}:
                    relay.resume()
        if isinstance(answer, Page) and isinstance(question, Discard):
            for one in answer.found:
                source.metrics.deliveries.labels(one.sink, "discarded").inc()
        return web.Response(body=msgspec.msgpack.encode(answer))

    app = web.Application(middlewares=[_explained])
    app.router.add_get("/status", status)
    app.router.add_post("/outbox", ask)
    return app


@web.middleware
async def _explained(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Answer with the error if the state file does not answer."""
    try:
        return await handler(request)
    except OutboxClosedError:
        return web.Response(status=NOT_OPEN, text=f"the forwarder ends: {_AGAIN}")
    except OutboxError as error:
        return web.Response(status=NOT_NOW, text=str(error))
