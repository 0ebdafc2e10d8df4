"""What a page of the hub shows, or does, the API has as well.

Each text that a bridge, Azure or a person gives has a mark of its own here.
"""

import re
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest

from bridge.events.identity import Identity
from bridge.hub.api import document
from bridge.hub.store.store import Store
from tests.hub.test_pages import PAGE, Browser
from tests.support.builders import EVENT_ID
from tests.support.fleet import annotation, azure, event, life, outcome, step
from tests.support.hub import HubWorld, config, grid, offer, received

WHO = Identity(
    vm_name="zz-machine",
    vm_id="zz-vm-id",
    resource_id="/subscriptions/zz-subscription/resourceGroups/zz-group/providers"
    "/Microsoft.Compute/virtualMachines/zz-machine",
    location="zz-location",
)
RAW = event(
    EventType="zz-type",
    EventSource="zz-source",
    Description="zz-description",
    Resources=["zz-machine", "zz-other"],
)
MACHINE = "/machines/zz-subscription/zz-group/zz-machine"
PAGES = ["/", PAGE, "/bridges", "/decisions", MACHINE, "/report"]
_MARK = re.compile(r"zz-[a-z-]*[a-z]")
_API = [
    path.replace("{id}", EVENT_ID)
    for path, item in document()["paths"].items()
    if "get" in item and path.rpartition("/")[2] != "openapi.json"
]


@pytest.fixture
async def browser(store: Store) -> AsyncIterator[Browser]:
    """A browser at a hub that knows an event, a bridge, votes and outcomes."""
    async with (
        HubWorld(store, config(2)).open() as world,
        aiohttp.ClientSession() as http,
    ):
        approvals = offer(entity="vm-approvals-zz-entity")
        numbers = {"intervalSeconds": 60, "pending": 7101, "dead": 7102}
        began = life("started", who=WHO, approvals=approvals, **numbers)
        failed = outcome("denied", "m-9", RAW, seconds=3, reason="zz-outcome")
        given = {"reason": "zz-reason", "targetResourceId": WHO.resource_id or ""}
        await world.store.keep(
            [
                *map(received, (began, step("scheduled", RAW, who=WHO), failed)),
                grid(azure("zz-status", RAW, seconds=1)),
                grid(annotation(2, "zz-annotation", "Unplanned", **given)),
            ]
        )
        world.clock.pass_by(5)
        await world.post("ann", reason="zz-vote")
        await world.post("bob", reason="zz-second")
        yield Browser(world, http)


async def test_api_has_what_the_pages_show(browser: Browser) -> None:
    shown = set[str]()
    for path in PAGES:
        text = await browser.open(path)
        assert browser.status == 200, path
        shown |= {*_MARK.findall(text), *re.findall(r"\b710\d\b", text), path}
    had = {*PAGES}
    query = "?name=zz-machine&resourceGroup=zz-group&subscription=zz-subscription"
    for path in _API:
        found = await browser.world.get(path + (query if "timeline" in path else ""))
        text = orjson.dumps(found).decode()
        had |= {*_MARK.findall(text), *re.findall(r"\b710\d\b", text)}

    assert shown - had == set()
    assert {"7101", "zz-location", "zz-reason", "zz-entity", "zz-outcome"} <= shown


async def test_api_does_what_the_forms_do(browser: Browser) -> None:
    """Each form asks for a decision; to forget a bridge is the only thing one does."""
    browser.world.clock.pass_by(300)
    schemas = document()["components"]["schemas"]
    forms = {"Approval": PAGE, "KeysAsked": "/bridges", "BridgeAsked": MACHINE}
    for name, path in forms.items():
        text = await browser.open(path)
        asked = {*re.findall(r'name="decision" value="([a-z-]+)"', text)}
        assert asked <= {*schemas[name]["properties"]["decision"]["enum"]}, path
    assert "Forget this bridge" in await browser.open(MACHINE)
    assert schemas["BridgeAsked"]["properties"]["decision"]["enum"] == ["forget"]


@pytest.mark.parametrize(
    ("who", "vm_id", "status"),
    [
        ("ann", WHO.vm_id, 200),
        ("ann", "nobody", 404),
        ("ann", "\0", 404),
        ("eve", WHO.vm_id, 403),
    ],
)
async def test_bridge_is_forgotten_by_the_api(
    browser: Browser, who: str, vm_id: str, status: int
) -> None:
    body = orjson.dumps({"decision": "forget", "vmId": vm_id})
    headers = {"User": who, "X-Sebridge": "1", "Content-Type": "application/json"}

    found, _ = await browser.world.ask("POST", "/api/v1/bridges", headers, body)

    bridges = await browser.world.get("/api/v1/bridges?state=gone&q=zz")
    assert found == status
    assert len(bridges["bridges"]) == (status == 200)
    assert bridges["total"] == 1


async def test_bridges_are_found_by_state_and_name(browser: Browser) -> None:
    async def names(query: str) -> list[str]:
        found = await browser.world.get(f"/api/v1/bridges?{query}")
        return [one["vmName"] for one in found["bridges"]]

    assert await names("state=alive") == ["zz-machine"]
    assert await names("q=ZZ-") == ["zz-machine"]
    assert await names("q=x") == []
    found, _ = await browser.world.ask(
        "GET", "/api/v1/bridges?state=x", {"User": "ann"}
    )
    assert found == 400


async def test_bridge_is_not_forgotten_for_another_site(browser: Browser) -> None:
    body = orjson.dumps({"decision": "forget", "vmId": WHO.vm_id})
    headers = {"User": "ann", "Content-Type": "application/json"}

    found, _ = await browser.world.ask("POST", "/api/v1/bridges", headers, body)

    assert found == 403
