"""axe-core finds no barrier on any page of the hub.

Needs Chromium and the package that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.hub.config import AccessConfig, HubConfig
from bridge.hub.housekeeping import FleetMonitor
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.store import Store
from tests.support.browser import NO_BROWSER, find
from tests.support.builders import EVENT_ID
from tests.support.devtools import Tab, running, tab_of
from tests.support.fleet import at, event, step
from tests.support.hub import ARM_CONFIG, HubWorld, beat, config, offer, told

pytestmark = pytest.mark.slow

NODE = Path(__file__).parent / "node" / "node_modules"
SCRIPT = "axe-core/axe.min.js"
PAGES = [
    *("/", "/?open=false", "/?type=Freeze&q=web", f"/events/{EVENT_ID}"),
    *("/events/waits", "/events/running", "/events/nobody", "/bridges"),
    *("/bridges?state=silent", "/decisions", "/machines?name=web-1"),
]
VIOLATIONS = (
    "axe.run(document).then((found) => found.violations.map("
    "(one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]))"
)


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the script; skipped where the package is missing."""
    folders = [Path(one) for one in os.environ.get("NODE_PATH", "").split(os.pathsep)]
    for folder in (NODE, *folders):
        if (folder / SCRIPT).is_file():
            return (folder / SCRIPT).read_text(encoding="utf-8")
    pytest.skip("axe-core is missing: npm ci in tests/hub/node")


@pytest.fixture
def hub_config(sqlite_config: HubConfig) -> HubConfig:
    """Return one store alone: a browser sees no difference."""
    return sqlite_config


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    """A hub with something of everything, also of what is wrong."""
    given = config(access=AccessConfig(approvers=("local",)), arm=ARM_CONFIG)
    async with HubWorld(store, given).open() as opened:
        opened.more["listening"] = {"b": at(-600)}
        opened.more["not_connected"] = ("azure",)
        rules = offer({"name": "x", "action": "allow"})
        await store.keep(
            [beat(0, approvals=rules, pending=3, dead=1), beat(1, -500), beat(2)]
        )
        running_ = event("running", EventType="Reboot", EventStatus="Started")
        waits = event("waits", Resources=[f"web-{n}" for n in range(5)])
        steps = (step("scheduled"), step("scheduled", waits), step("started", running_))
        await store.keep([told(one) for one in steps])
        await FleetMonitor(
            store,
            opened.clock,
            HubMetrics(("b",), "1"),
            opened.situation,
            retention=given.retention,
        ).step()
        await opened.post(reason="drained")
        yield opened


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    if (found := find()) is None:
        pytest.skip(NO_BROWSER)
    with running(found.program) as opened:
        yield opened


@pytest.fixture
async def tab(port: int) -> AsyncIterator[Tab]:
    async with tab_of(port) as opened:
        yield opened


async def violations(tab: Tab, axe: str) -> Any:
    await tab.value(f"{axe};0")
    return await tab.value(VIOLATIONS)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
async def test_axe_finds_nothing(
    world: HubWorld, tab: Tab, axe: str, width: int, *, dark: bool
) -> None:
    await tab.look_like(width, 900, dark=dark)
    for path in PAGES:
        await tab.open(f"{world.url}{path}")
        await tab.until("document.getElementById('live').textContent === 'live'")
        assert (path, await violations(tab, axe)) == (path, [])
    stale = "document.documentElement.classList.add('stale');"
    await tab.value(f"{stale} document.getElementById('stale').hidden = false")
    assert await violations(tab, axe) == []


async def test_axe_finds_what_is_wrong(world: HubWorld, tab: Tab, axe: str) -> None:
    """The test above could not fail otherwise."""
    await tab.open(f"{world.url}/")
    await tab.value("document.querySelector('label').replaceWith('a field')")
    await tab.value("document.querySelector('main').append(new Image())")
    assert "image-alt" in [found[0] for found in await violations(tab, axe)]
