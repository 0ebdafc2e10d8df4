"""A client of the hub's API; it signs in as the user who runs the command.

The fields that commands use are checked: the address may be that of another service.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
import orjson

from bridge import __version__
from bridge.foundation.errors import BridgeError
from bridge.health.config import is_loopback
from bridge.net.addresses import url_fault
from bridge.net.http_client import Answer, Request, exchange, open_session

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_SECONDS = 30.0
_MOST_BYTES = 32 * 2**20
_MOST_PAGES = 1000
_SIGN_IN = {301, 302, 303, 307, 308, 401}


class HubDecision(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a decision that commands use."""

    id: str
    decision: str
    state: str
    outcome: str | None
    outcome_reason: str | None


class HubVote(msgspec.Struct, frozen=True):
    """The fields of a vote that commands use."""

    via: str


class HubApproval(msgspec.Struct, frozen=True):
    """The progress of an approval."""

    votes: list[HubVote]
    decision: HubDecision | None


class HubEvent(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an event that commands use.

    Attributes:
        decisions: all its decisions, the newest first; None = a row of a list.
    """

    event_id: str
    content: str
    machines: list[str]
    not_before: str | None
    event_type: str | None
    status: str
    unreported: bool
    approval: HubApproval
    decisions: list[HubDecision] | None = None


class HubBridge(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a bridge that commands use."""

    vm_id: str
    vm_name: str
    state: str


class HubVoteResult(msgspec.Struct, frozen=True):
    """The result of a vote: decided, or counted while more are missing."""

    state: Literal["decided", "counted"]
    id: str | None
    missing: int


class _Page(msgspec.Struct, frozen=True):
    next: str | None


T = TypeVar("T")


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

    async def pages(
        self, path: str, name: str, shape: type[T], **query: str
    ) -> list[Any]:
        """Read all pages of a list; return all rows, which have the given shape.

        Raises:
            BridgeError: as ``get``; or the hub does not answer with HTTP 200, or not
                with such a list.
        """
        rows, cursor = list[Any](), ""
        for _ in range(_MOST_PAGES):
            given = {**query, **({"cursor": cursor} if cursor else {})}
            status, body = await self.get(path, **given)
            if status != 200:
                raise BridgeError(self.refusal(status, body))
            cursor = checked(body, _Page).next or ""
            checked(body.get(name), list[shape])  # type: ignore[valid-type]  # an argument
            rows += body[name]
            if not cursor:
                break
        return rows

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
