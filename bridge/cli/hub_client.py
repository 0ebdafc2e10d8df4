"""A client of the hub's API; it signs in as the user who runs the command.

Answers are checked against their types: the address may be that of another service.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
import orjson

from bridge import __version__
from bridge.events.cloudevent import rfc3339
from bridge.foundation.errors import BridgeError
from bridge.foundation.printable import printable
from bridge.hub.answers import BridgeList, EventList, EventRow, HubState, List
from bridge.hub.bridges import Liveness
from bridge.hub.pages import words
from bridge.hub.view_rows import PAGE, Bridge
from bridge.net.addresses import is_loopback, url_fault
from bridge.net.http_client import Answer, Request, exchange, open_session

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_SECONDS = 30.0
_MOST_BYTES = 32 * 2**20
_MOST_PAGES = 1000
_SIGN_IN = {301, 302, 303, 307, 308, 401}


T = TypeVar("T")
L = TypeVar("L", bound=List)


def checked(body: object, shape: type[T]) -> T:
    """Return the fields of a response.

    Raises:
        BridgeError: the response is not that of a hub.
    """
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise BridgeError(f"this is no hub, or not of this version: {error}") from None


def url_of(given: str, scope: str | None) -> str:
    """Validate the address of a hub, and return it without a slash at the end.

    Raises:
        ValueError: the address is invalid, or a token would be sent unencrypted.
    """
    if what := url_fault(given):
        raise ValueError(f"--hub {what}")
    parts = urlsplit(given)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("--hub must be an address such as https://hub.contoso.com")
    is_here = is_loopback(parts.hostname or "")
    if parts.scheme != "https" and not is_here:
        raise ValueError("--hub must begin with https:// unless it is on loopback")
    if parts.scheme != "https" and scope:
        raise ValueError("--hub-scope is for an https:// address: a token is secret")
    return given.rstrip("/")


@dataclass(frozen=True, slots=True)
class HubClient:
    """The API of one hub; see ``open_hub``."""

    url: str
    session: aiohttp.ClientSession
    scope: str | None = None
    credential: "AsyncTokenCredential | None" = field(default=None, repr=False)

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        """Send a GET request; return the status and the JSON of the response.

        Raises:
            BridgeError: no hub answers, or it requires another sign-in.
        """
        more = f"?{urlencode(query)}" if query else ""
        return await self._ask("GET", f"{path}{more}", b"", {})

    async def pages(self, path: str, kind: type[L], **query: str) -> list[L]:
        """Read all pages of a list.

        Raises:
            BridgeError: as ``get``; or the hub does not answer with HTTP 200, or not
                with such a list.
        """
        found, cursor = list[L](), ""
        for _ in range(_MOST_PAGES):
            given = {**query, **({"cursor": cursor} if cursor else {})}
            status, body = await self.get(path, **given)
            if status != 200:
                raise BridgeError(self.refusal(status, body))
            found.append(checked(body, kind))
            cursor = found[-1].next or ""
            if not cursor:
                break
        return found

    async def open_events(self, **query: str) -> list[EventRow]:
        """Read all open events.

        Raises:
            BridgeError: as ``pages``.
        """
        found = await self.pages("/api/v1/events", EventList, open="true", **query)
        return [row for page in found for row in page.events]

    async def decide(
        self, event_id: str, decision: Mapping[str, str]
    ) -> tuple[int, Any]:
        """Post a decision on an event; return the status and the JSON of the response.

        Raises:
            BridgeError: as ``get``.
        """
        headers = {"Content-Type": "application/json", "X-Sebridge": "1"}
        path = f"/api/v1/events/{quote(event_id, safe='')}/approval"
        return await self._ask("POST", path, orjson.dumps(decision), headers)

    def refusal(self, status: int, body: Any) -> str:
        """Return the text of an error response."""
        why = body.get("error") if isinstance(body, dict) else None
        return f"the hub says: {why}" if why else f"the hub answers HTTP {status}"

    async def _ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Any]:
        request = Request(
            url=f"{self.url}{path}",
            headers={"Accept": "application/json", **headers, **await self._token()},
            body=body,
            timeout=_SECONDS,
            method=method,
            most=_MOST_BYTES,
        )
        found = await exchange(self.session, request, f"the hub at {self.url}")
        if found.status in _SIGN_IN:
            advice = "you must sign in: --hub-scope names the scope of a token"
            raise BridgeError(f"the hub answers HTTP {found.status}: {advice}")
        return found.status, _json(found)

    async def _token(self) -> Mapping[str, str]:
        if self.credential is None or self.scope is None:
            return {}
        from azure.core.exceptions import AzureError  # noqa: PLC0415 - costs memory

        try:
            token = await self.credential.get_token(self.scope)
        except AzureError as error:
            fault = f"no token for {self.scope}: {type(error).__name__}"
            raise BridgeError(f"{fault}; `az login` signs in") from None
        return {"Authorization": f"Bearer {token.token}"}


def _json(found: Answer) -> Any:
    try:
        return orjson.loads(found.body)
    except orjson.JSONDecodeError:
        if found.status == 200:
            raise BridgeError("this is no hub: the response is not JSON") from None
        return {}


@asynccontextmanager
async def open_hub(url: str, scope: str | None) -> AsyncIterator[HubClient]:
    """Open a client of a hub; it is closed when the context ends.

    Args:
        url: the address, from ``url_of``.
        scope: the scope of the token that the hub's proxy requires; None = no token.
    """
    agent = f"scheduled-events-bridge/{__version__}"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(user_agent=agent))
        credential = None
        if scope:
            from bridge.net.entra import open_credential  # noqa: PLC0415 - costs memory

            credential = open_credential("default", client_id="", proxy=None)
            await stack.enter_async_context(credential)
        yield HubClient(url, session, scope, credential)


# -- ``sebridge status --hub``: print the open events and the bridges of a fleet -------


_MOST_NAMES = 20
_HEADS = ("NOT BEFORE", "TYPE", "STATUS", "MACHINES", "APPROVAL", "EVENTID")

_UNKNOWN = datetime.min.replace(tzinfo=UTC)  # comes first

Paint = Callable[[str, str], str]


class Fleet(msgspec.Struct, frozen=True):
    """What ``status --hub`` shows; its JSON is its encoding.

    Attributes:
        hub: the address.
        events: those that are open, by NotBefore.
        missing: why the hub is not ready.
        unread: how many messages of the last day it could not read.
        unwatched: how many bridges send no heartbeats.
        is_read: whether all messages that waited in its sources are read.
    """

    hub: str
    events: list[EventRow]
    bridges: "FleetBridges"
    missing: list[str]
    unread: int
    unwatched: int = 0
    is_read: bool = True


class FleetBridges(msgspec.Struct, frozen=True):
    """How many bridges are in each state, and those that are silent."""

    count: int
    states: dict[str, int]
    silent: list[Bridge]


async def fetch(url: str, scope: str | None) -> Fleet:
    """Read the open events and the states of the bridges from a hub.

    Raises:
        BridgeError: the hub does not answer, or refuses the request.
    """
    async with open_hub(url, scope) as hub:
        events = await hub.open_events()
        pages = await hub.pages("/api/v1/bridges", BridgeList)
        status, body = await hub.get("/api/v1/hub")
        if status != 200:
            raise BridgeError(hub.refusal(status, body))
        state = checked(body, HubState)
        missing = await _missing(hub, state)
    bridges = [one for page in pages for one in page.bridges]
    return Fleet(
        url,
        sorted(events, key=lambda one: one.not_before or _UNKNOWN),
        FleetBridges(
            len(bridges),
            dict(Counter(one.liveness.value for one in bridges)),
            [one for one in bridges if one.liveness is Liveness.SILENT],
        ),
        missing,
        state.unread,
        state.without_heartbeat,
        is_read=state.drained is not None,
    )


async def _missing(hub: HubClient, state: HubState) -> list[str]:
    """Return why the hub is not ready; a proxy may not let one ask ``/readyz``."""
    with suppress(BridgeError):
        if found := checked((await hub.get("/readyz"))[1], list[str]):
            return found
    faults = [state.store_fault] if state.store_fault else []
    return [*faults, *(f"source {one} is not connected" for one in state.not_connected)]


def lines(found: Fleet, paint: Paint) -> Iterator[str]:
    """Yield the lines of the status."""
    events, bridges = found.events, found.bridges
    yield f"Hub {found.hub}"
    states = ", ".join(f"{n} {state}" for state, n in sorted(bridges.states.items()))
    for why in found.missing:
        yield paint(printable(f"Not ready: {why}"), "bad")
    yield f"Bridges: {states or 'none has been heard yet'}"
    if silent := bridges.silent:
        names = ", ".join(one.name or one.vm_id for one in silent[:_MOST_NAMES])
        rest = len(silent) - _MOST_NAMES
        more = f" and {rest} more" if rest > 0 else ""
        yield paint(printable(f"Silent: {names}{more}"), "bad")
    if found.unwatched:
        more = " or more" if found.unwatched == PAGE else ""
        yield paint(f"Without a heartbeat: {found.unwatched}{more}", "bad")
    if found.unread:
        unread = f"Messages of the last day that could not be read: {found.unread}"
        yield paint(unread, "bad")
    if late := sum(one.unreported for one in events):
        yield paint(f"Not reported by a bridge: {late}", "bad")
    yield ""
    if not events:
        yield _nothing(found)
        return
    yield from _table([_HEADS, *map(_cells, events)])


def _nothing(found: Fleet) -> str:
    """Return what an empty list of events means."""
    if found.missing or found.unread:
        where = "Not ready" if found.missing else "Messages"
        return f"No event is known, but the hub may have missed some: see {where}"
    if not found.bridges.states:
        return "No event can be shown until a bridge has been heard"
    if not found.is_read:
        return "No event is known, but the hub has not read all its messages yet"
    if found.bridges.silent or found.unwatched:
        where = "Silent" if found.bridges.silent else "Without a heartbeat"
        return f"No event is known, but the hub may have missed some: see {where}"
    if not found.bridges.states.keys() - {"stopped", "gone"}:
        return "No event is known, and no bridge runs that could report one"
    return "Azure has announced no maintenance for the machines of this hub"


def _cells(event: EventRow) -> tuple[str, ...]:
    more = f" +{event.machine_count - 2}" if event.machine_count > 2 else ""
    return (
        rfc3339(event.not_before) if event.not_before else "-",
        event.event_type or "-",
        words.status(event.status),
        ", ".join(event.machines[:2]) + more or "-",
        words.approval(event)[0] or "-",
        event.event_id,
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    plain = [[printable(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        cells = (cell.ljust(size) for cell, size in zip(row, sizes, strict=True))
        yield "  ".join(cells).rstrip()
