"""JSON that is nested very deep: the hub refuses a request, and shows each message."""

import base64
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
import pytest

from bridge.hub.access import Refusal
from bridge.hub.config import AzureSource
from bridge.hub.sources import read
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from bridge.servicebus.decode import ReceivedMessage
from tests.hub.test_access import EASY, PRINCIPAL, ask
from tests.support.fleet import at, azure, event, life, outcome, step
from tests.support.hub import BUS, HubWorld, config
from tests.support.nested import HERE, Nest, each_depth, holding, lists

AZURE = AzureSource(name="azure", type="azure", namespace="n", queue="q")
DEPTHS = (40, 60, 70, 76, 90, 130, 260, 500, 960, 985, 1000, 1020, 5000, 60_000)
pytestmark = pytest.mark.parametrize(  # no difference between the stores
    "hub_config", ["sqlite"], indirect=True
)


@each_depth
async def test_request_with_a_nested_member_is_refused(
    depth: int, nest: Nest, store: Store
) -> None:
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        content = (await world.page())["content"]
        headers = {"User": "ann", "X-Sebridge": "1"}
        for member in ("decision", "via", "content", "reason"):
            given = {"decision": "approve", "content": content, member: HERE}
            status, found = await world.send(holding(given, nest(depth)), headers)
            assert status in {400, 413}
            assert found["error"]


@each_depth
def test_identity_that_is_nested_is_none(
    depth: int, nest: Nest, hub_config: object
) -> None:
    for shape in (HERE, {"claims": HERE}, {"claims": [{"typ": HERE, "val": HERE}]}):
        value = base64.b64encode(holding(shape, nest(depth))).decode()
        found = ask(EASY, (PRINCIPAL, value))
        assert isinstance(found, Refusal)
        assert found.status in {400, 401}


def received(source: Any, body: bytes) -> Incoming:
    message = ReceivedMessage(
        lock_token="t", message_id="m", sequence_number=1, enqueued_at=at(1), body=body
    )
    return read(source, message, at(1))[0]


def changed(body: bytes, *path: str) -> list[bytes]:
    """Return a message with a nested value at a place, in each depth."""
    found = orjson.loads(body)
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = HERE
    return [holding({**found, "id": f"n{depth}"}, lists(depth)) for depth in DEPTHS]


_GRID = ("data", "resourceInfo", "properties")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "body", "path"),
    [
        (BUS, step("scheduled", event("a")), ("unknown",)),
        (BUS, step("scheduled", event("a")), ("data", "unknown")),
        (BUS, step("scheduled", event("a")), ("data", "event", "Unknown")),
        (BUS, step("scheduled", event("a")), ("data", "event", "Resources")),
        (BUS, step("updated", event("a")), ("data", "changes")),
        (BUS, step("updated", event("a")), ("data", "previous")),
        (BUS, step("scheduled", event("a")), ("data", "reporter")),
        (BUS, step("scheduled", event("a")), ("time",)),
        (BUS, outcome("denied", "m1"), ("data", "reason")),
        (BUS, outcome("denied", "m1"), ("data", "outcome")),
        (BUS, outcome("denied", "m1"), ("data", "request")),
        (BUS, life("started"), ("data", "approvals")),
        (BUS, life("heartbeat"), ("data", "pending")),
        (BUS, life("imds-unreachable"), ("data", "reason")),
        (AZURE, azure("Scheduled", event("a")), (*_GRID, "Unknown")),
        (AZURE, azure("Scheduled", event("a")), (*_GRID, "EventStatus")),
        (AZURE, azure("Scheduled", event("a")), (*_GRID, "Resources")),
        (AZURE, azure("Scheduled", event("a")), ("data", "operationalInfo")),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
async def test_nested_message_is_kept_and_shown(
    source: Any, body: bytes, path: tuple[str, ...], store: Store
) -> None:
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        await store.keep([received(source, one) for one in changed(body, *path)])
        paths = ["/api/v1/events", "/api/v1/bridges", "/api/v1/decisions"]
        rows = (await world.get("/api/v1/events"))["events"]
        assert rows
        names = [quote(row["eventId"], safe="") for row in rows]
        paths += [f"/api/v1/events/{name}" for name in names]
        paths += ["/", "/bridges", "/decisions", *(f"/events/{name}" for name in names)]
        async with aiohttp.ClientSession(headers={"User": "ann"}) as http:
            for one in paths:
                async with http.get(f"{world.url}{one}") as shown:
                    assert shown.status == 200, one
