"""A hub without its sources: a store, a server, and whoever asks it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from bridge.foundation.clock import SystemClock
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.access import AccessConfig, AccessRule
from bridge.hub.api import Api, document
from bridge.hub.config import ApprovalTargets, ArmConfig, BridgesSource, HubConfig
from bridge.hub.decisions import Claimed, End, Result
from bridge.hub.metrics import HubMetrics
from bridge.hub.pages.routes import Pages
from bridge.hub.sending import Dispatcher
from bridge.hub.server import Hub, serve
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Situation
from tests.support.builders import EVENT_ID
from tests.support.described import Described
from tests.support.fakes import FakeClock
from tests.support.fleet import at, event, life, step, vm

BUS = BridgesSource(
    name="b",
    type="bridges",
    namespace="n.servicebus.windows.net",
    queue="q",
    approvals=ApprovalTargets(entities=("vm-approvals*",)),
)
ENTITY = "vm-approvals"
DESCRIBED = Described(document())  # what a hub serves: a test compares it


def access(persons: int = 1, *more: AccessRule) -> AccessConfig:
    return AccessConfig(
        mode="header",
        user_header="User",
        trusted_proxies=("127.0.0.0/8",),
        approvers=("ann", "bob", "cat"),
        rules=(*more, AccessRule(persons=persons)),
    )


def config(persons: int = 1, **more: Any) -> HubConfig:
    given = {"access": access(persons), "sources": (BUS,), **more}
    return HubConfig(listen="127.0.0.1:0", **given)


ARM_CONFIG = ArmConfig(endpoint="http://127.0.0.1:1", credential="none")


def received(
    body: bytes,
    heard: float = 0.0,
    reply_to: str | None = ENTITY,
    session: str | None = None,
) -> Incoming:
    """Return a message of a bridge, as the hub has read it."""
    found = bridge_messages.read(
        body, heard=at(heard), source="b", reply_to=reply_to, session=session
    )
    return Incoming(
        origin="b",
        body=body,
        heard=at(heard),
        reply_to=reply_to,
        session=session,
        fact=found.fact,
        report=found.report,
        notes=(found.note,) if found.note else (),
    )


def grid(body: bytes, heard: float = 0.0) -> Incoming:
    """Return a message of Azure's, as the hub has read it."""
    fact = azure_messages.read(body, heard=at(heard))
    notes = azure_messages.notes_in(body, heard=at(heard))
    return Incoming(origin="azure", body=body, heard=at(heard), fact=fact, notes=notes)


def offer(*rules: Mapping[str, object], **more: object) -> dict[str, object]:
    """Return what a bridge says of its approvals."""
    given = {"entity": ENTITY, "session": None, "rules": list(rules)}
    return {**given, "allowEventTypes": [], "digest": "d", **more}


def beat(
    number: int = 0, seconds: float = 0.0, approvals: object = None, **more: object
) -> Incoming:
    """Return what a bridge says that is heard each minute."""
    given = {"intervalSeconds": 60, "approvals": approvals, **more}
    return received(life("started", who=vm(number), seconds=seconds, **given), seconds)


@dataclass
class Carried:
    """A transport that records the decisions it gets.

    Attributes:
        results: of the next attempts; then everything is taken.
    """

    results: list[Result] = field(default_factory=list)
    taken: list[Claimed] = field(default_factory=list)

    async def send(self, claimed: Claimed) -> Result:
        self.taken.append(claimed)
        return self.results.pop(0) if self.results else Result(is_accepted=True)


def ended(state: Any, outcome: str, reason: str = "") -> Result:
    return Result(end=End(state=state, outcome=outcome, reason=reason))


class HubWorld:
    """A hub without its sources, at which people decide."""

    def __init__(self, store: Store, config: HubConfig) -> None:
        self.store = store
        self.config = config
        self.clock = FakeClock()
        self.transport = Carried()
        self.arm = Carried()
        self.more: dict[str, Any] = {}
        self.missing: list[str] = []
        self.url = ""
        self._http: aiohttp.ClientSession

    def situation(self) -> Situation:
        given: dict[str, Any] = {"listening": {"b": at(-60)}, **self.more}
        given.setdefault("access", self.config.access)
        return Situation(now=self.clock.now(), **given)

    @property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            store=self.store,
            config=self.config,
            clock=self.clock,
            metrics=HubMetrics(("b",), "1"),
            situation=self.situation,
            transports={"bridge": self.transport, "arm": self.arm},
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator["HubWorld"]:
        api = Api(self.store, self.config, self.situation)
        pages = Pages(api, SystemClock())
        hub = Hub(
            config=self.config,
            metrics=HubMetrics(("b",), "1"),
            missing=lambda: list(self.missing),
            routes=[*api.routes(), *pages.routes()],
            fault_page=pages.fault,
        )
        async with AsyncExitStack() as stack:
            host, port = await stack.enter_async_context(serve(hub))
            self.url = f"http://{host}:{port}"
            self._http = await stack.enter_async_context(aiohttp.ClientSession())
            yield self

    async def get(self, path: str, who: str = "ann") -> Any:
        _, found = await self.ask("GET", path, {"User": who})
        return found

    async def ask(
        self, method: str, path: str, headers: dict[str, str], data: bytes | None = None
    ) -> tuple[int, Any]:
        """Send a request; the answer must be as the hub's description says."""
        url = URL(f"{self.url}{path}", encoded=True)
        asked = self._http.request(method, url, headers=headers, data=data)
        async with asked as found:
            body, kind = await found.read(), found.content_type
        DESCRIBED.check(method, path, found.status, kind, body)
        is_json = kind == "application/json"
        return found.status, msgspec.json.decode(body) if is_json else body.decode()

    async def post(
        self, who: str = "ann", *, event_id: str = EVENT_ID, **given: Any
    ) -> tuple[int, Any]:
        """Decide on an event as it is, unless told otherwise."""
        headers = {"User": who, "X-Sebridge": "1", **given.pop("headers", {})}
        body = {"decision": "approve", "reason": f"{who} says so", **given}
        if "content" not in body:
            shown = await self.get(f"/api/v1/events/{event_id}")
            body["content"] = shown.get("content", "x")
        return await self.send(body, headers, event_id)

    async def send(
        self, body: Any, headers: dict[str, str], event_id: str = EVENT_ID
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **headers}
        path = f"/api/v1/events/{event_id}/approval"
        return await self.ask("POST", path, headers, data)

    async def page(self, event_id: str = EVENT_ID) -> Any:
        return await self.get(f"/api/v1/events/{event_id}")

    async def decision(self) -> Any:
        """Return the newest decision."""
        return (await self.get("/api/v1/decisions"))["decisions"][0]

    async def scheduled(self, **fields: Any) -> None:
        """Let a bridge that is alive report an event."""
        body = step("scheduled", event(**fields))
        await self.store.keep([beat(), received(body)])


def forms(page: str) -> list[dict[str, str]]:
    """Return the hidden fields of each form of a page, and its ``action``."""
    found: list[dict[str, str]] = []

    class Reader(HTMLParser):
        def handle_starttag(
            self, tag: str, attrs: list[tuple[str, str | None]]
        ) -> None:
            given = dict(attrs)
            if tag == "form":
                found.append({"action": str(given.get("action"))})
            elif tag == "input" and given.get("type") == "hidden":
                found[-1][str(given["name"])] = str(given["value"])

    Reader().feed(page)
    return found
