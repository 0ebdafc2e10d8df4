"""axe-core finds no barrier on any page of the hub.

Needs Chromium and the package that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.hub.access import AccessConfig, AccessRule
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import FleetMonitor
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.store import Store
from tests.hub.test_accepting import THIRD, decide, keys
from tests.hub.test_told_keys import tells
from tests.hub.test_trust import ALLOW, DENY, HOUR, of_group, signed
from tests.signing.test_dsse import KEY, OTHER
from tests.support.browser import NO_BROWSER, find
from tests.support.builders import EVENT_ID
from tests.support.devtools import Tab, running, tab_of
from tests.support.fleet import at, azure, event, step, vm
from tests.support.hub import (
    ARM_CONFIG,
    HubWorld,
    access,
    beat,
    config,
    grid,
    offer,
    received,
)

pytestmark = pytest.mark.slow

NODE = Path(__file__).parent / "node" / "node_modules"
SCRIPT = "axe-core/axe.min.js"
PAGES = [
    *("/", "/?open=false", "/?type=Freeze&q=web", f"/events/{EVENT_ID}"),
    *("/events/waits", "/events/running", "/events/nobody", "/bridges"),
    *("/bridges?state=silent", "/decisions", "/machines?name=web-1"),
    *("/machines?name=web", "/report", "/events/gone", "/events/gone?before=1"),
]
RARE = ["Set evil aside", "Drop it", "contested", "Send it to"]
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
        opened.more["not_connected"] = {"azure": "no such name"}
        rules = offer({"name": "x", "action": "allow"})
        await store.keep(
            [beat(0, approvals=rules, pending=3, dead=1), beat(1, -500), beat(2)]
        )
        running_ = event("running", EventType="Reboot", EventStatus="Started")
        waits = event("waits", Resources=[f"web-{n}" for n in range(5)])
        gone = step("completed", event("gone"), seconds=30)
        steps = (
            *(step("scheduled"), step("scheduled", waits), step("started", running_)),
            *(step("scheduled", event("gone")), gone),
        )
        await store.keep([received(one) for one in steps])
        await FleetMonitor(
            store,
            opened.clock,
            HubMetrics(("b",), "1"),
            opened.situation,
            retention=given.retention,
        ).step()
        await opened.post(reason="drained")
        reports = [
            tells(vm(number), key) for number, key in enumerate((KEY, OTHER, THIRD))
        ]
        await store.keep(reports)
        await decide(opened, (await keys(opened))[:1])
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
        mark = "document.getElementById('live')"  # a report is of the moment
        await tab.until(f"({mark} || {{textContent: 'live'}}).textContent === 'live'")
        assert (path, await violations(tab, axe)) == (path, [])
    stale = "document.documentElement.classList.add('stale');"
    await tab.value(f"{stale} document.getElementById('stale').hidden = false")
    assert await violations(tab, axe) == []


@pytest.fixture
async def forms(store: Store) -> AsyncIterator[HubWorld]:
    """A hub whose event has an offer to drop, a word to set aside, two addresses."""
    rule = AccessRule(resource_groups=("prod",), persons=2)
    given = config(access=access(1, rule), arm=ARM_CONFIG)
    async with HubWorld(store, given).open() as opened:
        allow, deny = signed(ALLOW), signed(DENY)
        evil = of_group(step("updated", seconds=5), "prod")
        await store.keep([beat(n, -HOUR, approvals=allow) for n in (0, 1)])
        await store.keep([beat(1, -HOUR / 2, approvals=deny)])
        await store.keep([beat(1, -HOUR / 4, approvals=allow)])
        opened.clock.pass_by(600)
        opened.more["listening"] = {"b": at(100)}
        await store.keep([received(step("scheduled", seconds=5)), received(evil, 5)])
        other = signed(session="another")
        await store.keep([grid(azure("Scheduled"), 590), beat(0, 590, approvals=allow)])
        await store.keep([beat(0, 595, approvals=other)])
        yield opened


@pytest.mark.parametrize("width", [1280, 360])
async def test_rare_forms_have_no_barrier_and_fit_a_phone(
    forms: HubWorld, tab: Tab, axe: str, width: int
) -> None:
    await tab.look_like(width, 900)
    await tab.call("Network.enable")
    await tab.call("Network.setExtraHTTPHeaders", headers={"User": "ann"})
    await tab.open(f"{forms.url}/events/{EVENT_ID}")
    text = await tab.value("document.body.innerText")
    assert [words for words in RARE if words not in text] == []
    assert await violations(tab, axe) == []
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert await tab.value(wide) <= 0


async def test_axe_finds_what_is_wrong(world: HubWorld, tab: Tab, axe: str) -> None:
    """The test above could not fail otherwise."""
    await tab.open(f"{world.url}/")
    await tab.value("document.querySelector('label').replaceWith('a field')")
    await tab.value("document.querySelector('main').append(new Image())")
    assert "image-alt" in [found[0] for found in await violations(tab, axe)]
