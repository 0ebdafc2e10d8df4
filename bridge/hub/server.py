"""The web server of the hub: it identifies the person before it handles a request.

Handlers find the person in ``request[PERSON]``. ``/livez`` and ``/readyz`` need no
identity, ``/metrics`` needs a bearer token.
"""

import asyncio
import csv
import hashlib
import hmac
import io
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from bridge.events.cloudevent import clean
from bridge.foundation.errors import BridgeError, HubStoreError
from bridge.hub.access import Person, Refusal, RequestInfo, identify, is_this_machine
from bridge.hub.answers import Error
from bridge.hub.config import HubConfig
from bridge.hub.metrics import HubMetrics
from bridge.hub.view_rows import Row
from bridge.net.addresses import ListenAddress
from bridge.net.connection_limit import Guard
from bridge.net.listening import addresses

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 1000  # enough for 200 browsers and other clients
_SHUTDOWN_SECONDS = 1.0
_MOST_BYTES = 64 * 1024
_WITHOUT_IDENTITY = {"/livez", "/readyz"}
_METRICS = "/metrics"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


_ENDS = {"until", "to"}  # parameters that are the end of a period
_MOMENTS = {"since", "from", *_ENDS}
_DAY = timedelta(days=1)
T = TypeVar("T", bound=Struct)
ANY_ID = "{id:[^/]+}"  # of a path, percent-encoded: with braces, too
PERSON = web.RequestKey("person", Person)
WORDS = web.ResponseKey("words", str)  # the reason of an error
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FaultPage = Callable[[web.Request, web.StreamResponse, str], web.StreamResponse]


class Hub(Struct, frozen=True, kw_only=True):
    """The parts of the hub that the server needs.

    Attributes:
        missing: returns why the hub is not ready; empty = it is ready.
        routes: the routes of the API and of the pages.
        fault_page: makes the page that a browser gets for an error in JSON, from the
            request, the error and its reason; None = it gets the JSON.
    """

    config: HubConfig
    metrics: HubMetrics
    missing: Callable[[], list[str]]
    routes: Sequence[web.RouteDef]
    fault_page: FaultPage | None = None

    def application(self) -> web.Application:
        """Return the web application, not listening yet."""
        layers = [self._finished, faults_as_json, self._authenticated]
        app = web.Application(middlewares=layers, client_max_size=_MOST_BYTES)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get(_METRICS, self._metrics)
        app.router.add_routes(self.routes)
        return app

    @web.middleware
    async def _finished(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Add the headers of all answers; an error becomes a page for a browser."""
        found = await handler(request)
        words = found.get(WORDS)
        if words is not None and self.fault_page is not None and _is_browser(request):
            found = self.fault_page(request, found, words)
        for name, value in _HEADERS.items():
            found.headers.setdefault(name, value)
        return found

    @web.middleware
    async def _authenticated(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        if request.path in _WITHOUT_IDENTITY:
            return await handler(request)
        if request.path == _METRICS:
            refused = _metrics_fault(self.config, request)
            return await handler(request) if refused is None else refused
        person = identify(self.config.access, request_info(request))
        if isinstance(person, Refusal):
            return fault(person.status, person.words)
        request[PERSON] = person
        return await handler(request)

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self.missing()
        return web.json_response(missing, status=503 if missing else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        from prometheus_client import exposition as form  # noqa: PLC0415 - at first use

        body = form.generate_latest(self.metrics.registry)
        if self.metrics.alarms is not None:
            body += form.generate_latest(self.metrics.alarms)
        return web.Response(
            body=body, headers={"Content-Type": form.CONTENT_TYPE_LATEST}
        )


def request_info(request: web.Request) -> RequestInfo:
    """Return the parts of a request that identify its sender."""
    name = request.transport and request.transport.get_extra_info("peername")
    return RequestInfo(
        peer=str(name[0]) if name else "",
        host=request.headers.get("Host"),
        headers=[
            (key.decode("latin-1"), value.decode("utf-8", "replace"))
            for key, value in request.raw_headers
        ],
    )


def _is_browser(request: web.Request) -> bool:
    """Whether a browser sent the request for a page, and not a program."""
    is_page = not request.path.startswith("/api/")
    return is_page and "text/html" in request.headers.get("Accept", "")


def _metrics_fault(config: HubConfig, request: web.Request) -> web.Response | None:
    """Return the refusal of a request for /metrics, by its bearer token; None = none.

    Without a configured token, only loopback mode answers, and only this machine.
    """
    if config.token is None:
        is_near = config.access.mode == "loopback" and is_this_machine(
            request.headers.get("Host")
        )
        return None if is_near else fault(403, "needs hub.token")
    given = request.headers.get("Authorization", "").partition(" ")
    wanted = config.token.reveal().encode()
    is_known = hmac.compare_digest(given[2].encode(errors="replace"), wanted)
    if given[0].lower() == "bearer" and is_known:
        return None
    found = fault(401, "a bearer token is required")
    found.headers["WWW-Authenticate"] = "Bearer"
    return found


@asynccontextmanager
async def serve(hub: Hub) -> AsyncIterator[tuple[str, int]]:
    """Serve as long as the context is open; yields host and port.

    Raises:
        BridgeError: the hub cannot listen on the address.
    """
    guard = Guard(most=_MOST_CONNECTIONS)
    runner = guard.runner(hub.application(), _SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            servers = [
                await _listen(at, guard, runner, stack) for at in hub.config.addresses
            ]
            host, port = servers[0].sockets[0].getsockname()[:2]
            yield host, port
    finally:
        await runner.cleanup()


async def _listen(
    at: ListenAddress, guard: Guard, runner: web.AppRunner, stack: AsyncExitStack
) -> asyncio.Server:
    try:
        server = await guard.listen(runner, at)
    except (OSError, UnicodeError) as error:
        cause = getattr(error, "strerror", None) or "it is no address"
        text = f"hub.listen: cannot listen on {at.text}: {cause}"
        raise BridgeError(text) from error
    stack.callback(server.close)
    for one in addresses(server):
        log.info("hub listens", extra={"address": one})
    return server


# -- what handlers ask and answer ------------------------------------------------------


class RefusedError(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, words: str, status: int = 403) -> None:
        super().__init__(words)
        self.status = status


class BadQueryError(RefusedError):
    """A request has an invalid parameter or body."""

    def __init__(self, words: str) -> None:
        super().__init__(words, 400)


def asked_in(kind: type[T], given: bytes | Mapping[str, object]) -> T:
    """Parse what a request asks: its JSON body, or the fields of its form.

    Raises:
        BadQueryError: a value is missing or invalid.
    """
    try:
        if isinstance(given, bytes):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadQueryError(f"it is not as described: {error}") from error


def query_in(kind: type[T], query: Mapping[str, str]) -> T:
    """Parse the parameters of a request; an empty one counts as left out.

    Raises:
        BadQueryError: one is invalid, or not known: a misspelt filter would show all.
    """
    known = kind.__struct_encode_fields__
    if unknown := sorted({*query} - {*known}):
        there = ", ".join(known) or "none"
        words = f"no parameter is called {unknown[0]!r}; there are: {there}"
        raise BadQueryError(words)
    given: dict[str, object] = {name: one for name in query if (one := query[name])}
    for name in _MOMENTS & given.keys():
        given[name] = _moment(query[name], name, is_end=name in _ENDS)
    return asked_in(kind, given)


def _moment(given: str, name: str, *, is_end: bool) -> datetime:
    """Parse a time, or a day of UTC; of a day, a period ends with its end.

    Raises:
        BadQueryError: it is neither.
    """
    try:
        plain = given.strip().replace(" ", "+")  # "+" of an offset, decoded
        found = datetime.fromisoformat(plain)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        is_day = len(plain) == len("2026-11-27")
        return found.astimezone(UTC) + (_DAY if is_end and is_day else timedelta())
    except (ValueError, OverflowError):
        words = f"{name} must be a time of RFC 3339, or a day such as 2026-11-27"
        raise BadQueryError(words) from None


def answer(request: web.Request, value: object, status: int = 200) -> web.Response:
    """Return a value as JSON, or 304 if the client already has it."""
    body = msgspec.json.encode(value)
    mark = hashlib.sha256(body).hexdigest()[:32]
    etag = f'"{mark}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    given = request.headers.get("If-None-Match", "")
    if status == 200 and etag in {part.strip() for part in given.split(",")}:
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=body, status=status, content_type="application/json", headers=headers
    )


def fault(status: int, words: str, **more: Any) -> web.Response:
    """Return an error as JSON, with the reason; ``more`` are members of ``Error``."""
    body = msgspec.json.encode(Error(error=words, **more))
    headers = {"Cache-Control": "no-store"}
    found = web.Response(
        body=body, status=status, content_type="application/json", headers=headers
    )
    found[WORDS] = words
    return found


@web.middleware
async def faults_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions of a handler into errors as JSON."""
    try:
        return await handler(request)
    except RefusedError as error:
        return fault(error.status, str(error))
    except HubStoreError as error:
        return fault(503, str(error))
    except web.HTTPException as error:
        found = fault(error.status, error.reason)
        if "Allow" in error.headers:
            found.headers["Allow"] = error.headers["Allow"]
        return found


# -- tables ----------------------------------------------------------------------------


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # noqa: RUF001 - so a spreadsheet of Japan
# Unicode's categories Cc (but for tab and line feed), Cf, Zl, Zp, and fillers: they
# change the order of what is read, or cannot be seen
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890"
    "\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def table_of(name: str, rows: Sequence[Row], columns: Sequence[str]) -> web.Response:
    """Return rows as CSV, every cell in quotes.

    Cells that a spreadsheet would run get a leading ', and characters that cannot be
    seen are marked as on the pages; the JSON has them as they came.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for one in map(msgspec.to_builtins, rows):
        writer.writerow([_cell(one[column]) for column in columns])
    return web.Response(
        text=out.getvalue(),
        content_type="text/csv",
        charset="utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}.csv"',
            "Cache-Control": "no-store",
        },
    )


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return str(round(value, 3))
    text = ", ".join(value) if isinstance(value, list | tuple) else str(value or "")
    plain = visible(clean(" ".join(text.split())))
    is_formula = plain.lstrip().startswith(_FORMULA)
    return f"'{plain}" if is_formula else plain


def visible(text: str) -> str:
    """Replace characters that cannot be seen by marks: U+202E becomes "[U+202E]".

    Otherwise a name could be read backwards, or look the same as another one.
    Source: unicode.org/reports/tr36, section 3 (bidirectional and invisible text)
    """
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
