"""Serve the administration API, and the health of the broker, over HTTP.

The paths are those of a namespace in Service Bus; ``/health`` is from Microsoft's
emulator. Errors are XML, as clients expect.

Source: Azure Service Bus, REST. The emulator: GET /health on its port 5300.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Self
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from bridge.simulator.errors import ForeignCallerError
from bridge.simulator.http_server import as_json, for_callers_here, listening
from bridge.simulator.servicebus.administration.atom import (
    AdministrationError,
    Entry,
    Page,
    bad,
    description,
    element,
    entry_document,
    error_document,
    feed_document,
    missing,
    moment,
)
from bridge.simulator.servicebus.administration.operations import Operations, Place
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.values import Condition, RefusedError
from bridge.simulator.tls import TlsFiles, server_context

HEALTH = "/health"
NAMESPACE = "sbemulatorns"

_MOST_BODY = 1024 * 1024
_MOST_ON_A_PAGE = 100
_ENTRY = "application/atom+xml;type=entry;charset=utf-8"
_FEED = "application/atom+xml;type=feed;charset=utf-8"
_XML = "application/xml; charset=utf-8"
# The title of the empty list that the service returns for an unknown entity.
_NOTHING = "Publicly Listed Services"
_SUBSCRIPTION = re.compile(
    r"(?P<entity>.+)/subscriptions/(?P<subscription>[^/]+)(?:/rules/(?P<rule>[^/]+))?",
    re.IGNORECASE,
)
_RULES = re.compile(
    r"(?P<entity>.+)/subscriptions/(?P<subscription>[^/]+)/rules", re.IGNORECASE
)
_SUBSCRIPTIONS = re.compile(r"(?P<entity>.+)/subscriptions", re.IGNORECASE)


def administration(
    operations: Operations,
    *,
    host: str,
    clock: Callable[[], float],
    is_manager: Callable[[str, str], bool],
) -> web.Application:
    """Return the application.

    Args:
        operations: the operations on the broker.
        host: the listening address.
        clock: returns seconds since the epoch.
        is_manager: takes a token and a path; returns whether the token gives the right
            Manage on the path, and raises RefusedError if the token is invalid.
    """
    api = _Api(operations, clock())

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        token, path = request.headers.get("Authorization", ""), request.path.strip("/")
        is_free = request.path == HEALTH
        if not is_free and not is_manager(token, path) and not api.is_absent(request):
            raise RefusedError(Condition.UNAUTHORIZED, _lacking(request.method, path))
        return await handler(request)

    app = web.Application(
        middlewares=[_with_errors, checked], client_max_size=_MOST_BODY
    )
    routes = [
        web.get(HEALTH, _health),
        web.get("/$namespaceinfo", api.namespace),
        web.get("/$Resources/{kind}", api.list_entities),
        web.get("/{path:.+}", api.get, allow_head=False),
        web.put("/{path:.+}", api.put),
        web.delete("/{path:.+}", api.delete),
    ]
    app.add_routes(for_callers_here(routes, host=host))
    return app


async def _health(_request: web.Request) -> web.Response:
    return as_json({"status": "healthy", "message": "Service healthy."})


class _Api:
    """Answers requests.

    Args:
        operations: the operations on the broker.
        started_at: seconds since the epoch.
    """

    def __init__(self, operations: Operations, started_at: float) -> None:
        self._operations = operations
        self._started_at = started_at

    async def namespace(self, request: web.Request) -> web.Response:
        """Return the description of the namespace."""
        parts = [
            element("CreatedTime", moment(self._started_at)),
            element("MessagingSKU", "Standard"),
            element("ModifiedTime", moment(self._started_at)),
            element("Name", NAMESPACE),
            element("NamespaceType", "Messaging"),
        ]
        entry = Entry(
            path="$namespaceinfo",
            title=NAMESPACE,
            content=description("NamespaceInfo", parts),
            created_at=self._started_at,
            updated_at=self._started_at,
        )
        return _answer(request, entry)

    async def list_entities(self, request: web.Request) -> web.Response:
        """List queues or topics."""
        kind = request.match_info["kind"].lower()
        lists = {"queues": self._operations.queues, "topics": self._operations.topics}
        if kind not in lists:
            raise bad(f"There are no {kind!r}; allowed: {', '.join(lists)}.")
        return _listed(request, lists[kind]())

    async def get(self, request: web.Request) -> web.Response:
        """Return an entity or a rule, or list subscriptions or rules."""
        path = request.match_info["path"].rstrip("/")
        if match := _SUBSCRIPTIONS.fullmatch(path):
            return _listed(request, self._operations.subscriptions(match["entity"]))
        if match := _RULES.fullmatch(path):
            return _listed(request, self._operations.rules(Place(**match.groupdict())))
        place = _place(path)
        entry = self._operations.show(place)
        if entry is not None:
            return _answer(request, entry)
        if place.subscription is not None:
            raise missing(f"There is no {path!r}.")
        return _listed(request, [])

    def is_absent(self, request: web.Request) -> bool:
        """Return whether a GET names no queue or topic: anybody may learn that."""
        path = request.path.strip("/")
        is_read = request.method == "GET" and not path.startswith("$")
        if not is_read or _inner_operation("GET", path) is not None:
            return False
        return self._operations.show(_place(path)) is None

    async def put(self, request: web.Request) -> web.Response:
        """Create an entity or a rule, or change it (with If-Match: *)."""
        is_change = "If-Match" in request.headers
        place = _place(request.match_info["path"])
        entry = self._operations.put(place, await request.read(), is_change=is_change)
        status = HTTPStatus.OK if is_change else HTTPStatus.CREATED
        return _answer(request, entry, status)

    async def delete(self, request: web.Request) -> web.Response:
        """Delete an entity or a rule."""
        self._operations.delete(_place(request.match_info["path"]))
        return web.Response()


@web.middleware
async def _with_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except AdministrationError as error:
        return _refusal(error.status, error.detail)
    except RefusedError as error:
        return _refusal(HTTPStatus.UNAUTHORIZED, error.description)
    except ForeignCallerError as error:
        return _refusal(HTTPStatus.FORBIDDEN, f"{error}.")
    except web.HTTPException as error:
        return _refusal(HTTPStatus(error.status), f"{error.reason}.")


def _inner_operation(method: str, path: str) -> str | None:
    """Return the cloud's name of an operation on subscriptions or rules."""
    if _SUBSCRIPTIONS.fullmatch(path):
        return "EnumerateSubscriptions"
    if _RULES.fullmatch(path):
        return "EnumerateRules"
    match = _SUBSCRIPTION.fullmatch(path)
    if match is None:
        return None
    verb = {"PUT": "CreateOrUpdate", "DELETE": "Delete"}.get(method, "Get")
    return verb + ("Subscription" if match["rule"] is None else "Rule")


def _lacking(method: str, path: str) -> str:
    """Return what a token lacks, in words of the cloud that clients look for."""
    if (operation := _inner_operation(method, path)) is not None:
        return (
            f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' "
            f"operation on {path!r}: it needs the right 'Manage'."
        )
    action = {"PUT": "Manage,EntityWrite", "DELETE": "Manage,EntityDelete"}.get(method)
    if action is None:
        return "Manage,EntityRead claims required for this operation."
    return f"Authorization failed for specified action: {action}."


def _refusal(status: HTTPStatus, detail: str) -> web.Response:
    return web.Response(
        status=status,
        body=error_document(status, detail).encode(),
        headers={"Content-Type": _XML},
    )


def _place(path: str) -> Place:
    if match := _SUBSCRIPTION.fullmatch(path):
        return Place(**match.groupdict())
    return Place(entity=path)


def _answer(
    request: web.Request, entry: Entry, status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    text = entry_document(_base(request), entry)
    return web.Response(
        status=status, body=text.encode(), headers={"Content-Type": _ENTRY}
    )


def _listed(request: web.Request, entries: Sequence[Entry]) -> web.Response:
    skip = _number(request, "$skip", 0)
    top = _number(request, "$top", _MOST_ON_A_PAGE)
    following = skip + top
    query = {**request.query, "$skip": following, "$top": top}
    page = Page(
        path=request.match_info.get("path", request.path.strip("/")),
        entries=entries[skip:following],
        next_query=urlencode(query, safe="$") if following < len(entries) else None,
    )
    text = feed_document(_base(request), page, _NOTHING if not entries else page.path)
    return web.Response(body=text.encode(), headers={"Content-Type": _FEED})


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not re.fullmatch(r"\d{1,9}", text):
        raise bad(f"{name} is a whole number from 0, not {text[:100]!r}.")
    return int(text)


def _base(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}/"


# -- The ports of the administration API: plain HTTP, and HTTPS if there is TLS --------
#
# The clients for Python and JavaScript use only HTTPS. The client for .NET uses HTTP if
# the connection string is that of an emulator. Health checks also use HTTP.


class AdministrationPorts(Struct, frozen=True, kw_only=True):
    """The ports to listen on; 0: a free port.

    Attributes:
        port: the port for HTTP.
        tls_port: the port for HTTPS.
        tls: the certificate; None: no HTTPS.
    """

    port: int = 0
    tls_port: int = 0
    tls: TlsFiles | None = None


class Administration:
    """The administration API of a broker, used as an async context manager.

    Args:
        broker: the broker.
        host: the address to listen on.
        ports: the ports to listen on.

    Attributes:
        url: the URL for HTTP, without a slash at the end; "" before it listens.
        secure_url: the URL for HTTPS; "" without TLS.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        host: str = "127.0.0.1",
        ports: AdministrationPorts | None = None,
    ) -> None:
        self.url = self.secure_url = ""
        self._broker = broker
        self._host = host
        self._ports = ports or AdministrationPorts()
        self._operations = Operations(broker.changes, broker.clock)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ListenError: a port is in use.
            SimulatorError: the certificate cannot be used.
        """
        async with AsyncExitStack() as opening:
            self.url = await self._listen(opening, self._ports.port, None)
            if self._ports.tls is not None:
                self.secure_url = await self._listen(
                    opening, self._ports.tls_port, self._ports.tls
                )
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def addresses(self) -> Mapping[str, str]:
        """Return the addresses that `sebridge simulate` prints."""
        found = {
            "administration": self.url,
            "administrationConnectionString": self._string(self.url),
        }
        if self.secure_url:
            secure = self._string(self.secure_url)
            found["administrationTlsConnectionString"] = secure.replace(
                "UseDevelopmentEmulator=true;", ""
            )
        return found

    def _string(self, url: str) -> str:
        keys = self._broker.connection_string.partition(";")[2]
        return f"Endpoint=sb://{url.partition('://')[2]};{keys}"

    async def _listen(
        self, opening: AsyncExitStack, port: int, tls: TlsFiles | None
    ) -> str:
        app = administration(
            self._operations,
            host=self._host,
            clock=self._broker.clock,
            is_manager=self._broker.is_manager,
        )
        return await opening.enter_async_context(
            listening(
                app,
                name="the broker's administration",
                host=self._host,
                port=port,
                tls=None if tls is None else server_context(tls),
            )
        )
