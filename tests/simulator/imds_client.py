"""A simulated IMDS with a clock that tests move, and a client of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from bridge.simulator.imds.document import NEWEST
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.scenario import Scenario
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsOptions, ImdsSettings

START = 1_649_715_118.0  # Mon, 11 Apr 2022 22:11:58 GMT
METADATA = {"Metadata": "true"}
EVENTS = "/metadata/scheduledevents"


@dataclass
class FakeClock:
    """A clock that moves when a test moves it, or when somebody waits."""

    at: float = START
    waits: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds
        await asyncio.sleep(0)


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class HttpClient:
    """Sends requests to a server."""

    url: str
    session: aiohttp.ClientSession

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        data = body if isinstance(body, bytes | None) else orjson.dumps(body)
        async with self.session.request(
            method, self.url + path, data=data, headers=headers, allow_redirects=False
        ) as response:
            return Reply(
                status=response.status,
                headers=response.headers.copy(),
                body=await response.read(),
            )


@asynccontextmanager
async def http_client(url: str) -> AsyncIterator[HttpClient]:
    async with aiohttp.ClientSession() as session:
        yield HttpClient(url, session)


@dataclass
class Vm:
    """A VM: its IMDS, its clock, and its requests."""

    imds: ImdsSimulator
    clock: FakeClock
    http: HttpClient

    async def get(self, version: str = NEWEST, **headers: str) -> Reply:
        path = f"{EVENTS}?api-version={version}"
        return await self.http.send("GET", path, headers={**METADATA, **headers})

    async def document(self, version: str = NEWEST) -> Any:
        return (await self.get(version)).json

    async def event(self, version: str = NEWEST) -> Any:
        (event,) = (await self.document(version))["Events"]
        return event

    async def post(self, body: object, version: str = NEWEST) -> Reply:
        path = f"{EVENTS}?api-version={version}"
        return await self.http.send("POST", path, body, METADATA)

    async def approve(self, *event_ids: str, version: str = NEWEST) -> Reply:
        wanted = [{"EventId": event_id} for event_id in event_ids]
        return await self.post({"StartRequests": wanted}, version)

    async def control(self, method: str, path: str, body: object = None) -> Reply:
        return await self.http.send(method, "/simulator/" + path, body)


@asynccontextmanager
async def vm(
    scenario: Scenario | None = None,
    options: ImdsOptions | None = None,
    **settings: Any,
) -> AsyncIterator[Vm]:
    clock = FakeClock()
    chosen = ImdsSettings(
        scenario=scenario, options=options or ImdsOptions(), **settings
    )
    async with (
        ImdsSimulator(chosen, clock=clock) as imds,
        http_client(imds.url) as http,
    ):
        yield Vm(imds, clock, http)


def life(event_type: str = "Reboot", *resources: str, **rest: Any) -> EventLife:
    return EventLife(
        event_type=event_type, resources=resources or ("WestNO_0",), **rest
    )
