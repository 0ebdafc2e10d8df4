"""Accept control requests only from local scripts and from the simulator's own pages.

A web page of any site can make a browser on this machine send requests here, for
example to schedule events. The browser names the site in Origin and Sec-Fetch-Site. If
a site lets its own name point to this machine (DNS rebinding), Host has that name. A
script sends neither Origin nor Sec-Fetch-Site, and its Host is a loopback address.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from aiohttp import web

from bridge.simulator.errors import ForeignCallerError

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OWN_SITES: Final = frozenset(
    {"same-origin", "none"}
)  # none: address typed by a person
_READING: Final = frozenset({"GET", "HEAD"})


def for_callers_here(
    routes: Iterable[web.RouteDef], *, host: str
) -> Sequence[web.RouteDef]:
    """Return routes that refuse pages of other sites and foreign host names.

    Args:
        routes: the routes that control the simulator.
        host: the listening address; if other machines can reach it, any Host is valid.
    """
    is_here = _is_loopback(host)
    return [
        web.RouteDef(
            each.method,
            each.path,
            _guarded(each.handler, is_here=is_here),
            each.kwargs,
        )
        for each in routes
    ]


def _guarded(handler: _Handler, *, is_here: bool) -> _Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        _check(request, is_here=is_here)
        return await handler(request)

    return guarded


def _check(request: web.Request, *, is_here: bool) -> None:
    """Check that no page of another site has sent the request.

    Raises:
        ForeignCallerError: such a page has sent it, or may have sent it.
    """
    names = request.headers.getall("Host", [])
    if is_here and not all(_is_loopback(_without_port(name)) for name in names):
        raise ForeignCallerError(
            f"Host is {_shown(names)}, and only localhost and loopback addresses, "
            "such as 127.0.0.1, may control the simulator"
        )
    site = request.headers.get("Sec-Fetch-Site")
    if site not in {None, *_OWN_SITES} and not _is_opened_in_a_tab(request):
        raise ForeignCallerError(
            "a page of another site (Sec-Fetch-Site) may not control the simulator"
        )
    # Qpid JMS names http:// as the origin of a WebSocket over TLS. No page can come
    # from there: at this port, everything is TLS.
    schemes = {request.scheme, "http"}
    own = [f"{each}://{name}".lower() for name in names for each in schemes]
    for origin in request.headers.getall("Origin", []):
        is_own = origin.lower() in own
        if not is_own and not (origin == "null" and site == "same-origin"):
            raise ForeignCallerError(
                f"a page of another site (Origin {_shown([origin])}) may not control "
                "the simulator"
            )


def _is_opened_in_a_tab(request: web.Request) -> bool:
    """Return whether a person opens a page by a link; this changes nothing."""
    is_page = request.headers.get("Sec-Fetch-Dest") == "document"
    return is_page and request.method in _READING


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:100]) for name in names)


def _without_port(host: str) -> str:
    is_bare = host.endswith("]") or ":" not in host
    return (host if is_bare else host.rpartition(":")[0]).strip("[]")


def _is_loopback(name: str) -> bool:
    name = name.lower().removesuffix(".")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
