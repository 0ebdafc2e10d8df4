"""The picture of the hub's page: a fleet in the middle of its day."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bridge.foundation.values import Address
from bridge.hub.access import AccessConfig, AccessRule
from bridge.hub.store.store import open_store
from tests.support.browser import find
from tests.support.builders import not_before
from tests.support.devtools import opened_tab
from tests.support.fleet import annotation, azure, event, health, step, vm
from tests.support.hub import HubWorld, beat, config, grid, received

_FLEET = 12
_HOST = "Virtual machine is being paused because of a memory-preserving Live Migration"
_FIVE = [f"web-{n}" for n in range(1, 6)]


@asynccontextmanager
async def fleet() -> AsyncIterator[HubWorld]:
    """Open a hub with a fleet: some events wait, one runs, a bridge is silent."""
    rule = AccessRule(event_types=("Terminate",), persons=2)
    access = AccessConfig(
        mode="header",
        user_header="User",
        trusted_proxies=("127.0.0.0/8",),
        approvers=("ann@contoso.com", "bob@contoso.com"),
        rules=(rule,),
    )
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = Address(f"sqlite:{Path(folder) / 'hub.db'}", {})
        given = config(store=store, access=access)
        opened = await stack.enter_async_context(open_store(given))
        world = await stack.enter_async_context(HubWorld(opened, given).open())
        world.more = {"missing_after": 60.0}
        await _fill(world)
        yield world


async def _fill(world: HubWorld) -> None:
    await world.store.keep([beat(n, 0 if n == 7 else 280) for n in range(_FLEET)])
    rows = [
        ("Redeploy", ["web-0"], 520, "Platform", "Host hardware is degraded"),
        (
            "Freeze",
            _FIVE,
            900,
            "Platform",
            _HOST,
        ),
        ("Reboot", ["web-6"], 1100, "User", "Restart was asked for in the portal"),
        ("Terminate", ["web-8", "web-9"], 1900, "User", "The scale set shrinks"),
    ]
    for number, (kind, names, left, source, words) in enumerate(rows):
        raw = event(
            f"0000000{number}-2C6B-4C4D-9C1A-5B0D5C0A7E11",
            EventType=kind,
            Resources=names,
            EventSource=source,
            Description=words,
            NotBefore=not_before(left),
            DurationInSeconds=9 if kind == "Freeze" else -1,
        )
        who = vm(int(names[0].rpartition("-")[2]))
        await world.store.keep([received(step("scheduled", raw, who=who, seconds=10))])
    first, *_, last = (f"0000000{n}-2C6B-4C4D-9C1A-5B0D5C0A7E11" for n in range(4))
    alone = event(
        "00000009-2C6B-4C4D-9C1A-5B0D5C0A7E11",
        EventType="Reboot",
        Resources=["web-7"],
        NotBefore=not_before(1500),
    )
    begun = event(
        "00000008-2C6B-4C4D-9C1A-5B0D5C0A7E11",
        EventType="Freeze",
        Resources=["web-10", "web-11"],
        EventStatus="Started",
        NotBefore="",
    )
    await world.store.keep(
        [
            grid(azure("Scheduled", alone, seconds=20), 20),
            received(step("started", begun, who=vm(10), seconds=200)),
        ]
    )
    world.clock.pass_by(300)
    await world.post(who="ann@contoso.com", event_id=last, reason="drained")
    await world.post(who="ann@contoso.com", event_id=first, reason="drained at 09:40")


async def picture(
    path: str = "/", width: int = 1060, height: int = 900, *, dark: bool = False
) -> bytes:
    """Return a page of the hub as ann sees it, as PNG."""
    browser = find()
    assert browser is not None
    async with fleet() as world, opened_tab(browser.program) as tab:
        await tab.look_like(width, height, dark=dark, scale=2)
        await tab.call("Network.enable")
        headers = {"User": "ann@contoso.com"}
        await tab.call("Network.setExtraHTTPHeaders", headers=headers)
        await tab.open(f"{world.url}{path}")
        await tab.until("document.getElementById('live').textContent === 'live'")
        return await tab.picture()


async def why() -> bytes:
    """Return the page of a machine after a week, as PNG."""
    browser = find()
    assert browser is not None
    async with fleet() as world, opened_tab(browser.program) as tab:
        await _play_week(world)
        await tab.look_like(1060, 1000, scale=2)
        await tab.call("Network.enable")
        headers = {"User": "ann@contoso.com"}
        await tab.call("Network.setExtraHTTPHeaders", headers=headers)
        await tab.open(f"{world.url}/machines?name=web-3")
        return await tab.picture()


async def _play_week(world: HubWorld) -> None:
    """Freeze web-3, which is approved, and let its host crash two days later."""
    raw = event("0000000A-2C6B-4C4D-9C1A-5B0D5C0A7E11", EventType="Freeze")
    raw |= {"Resources": ["web-3"], "NotBefore": not_before(900)}
    begun = {**raw, "EventStatus": "Started"}
    over = step("completed", begun, who=vm(3), seconds=640)
    over = over.replace(b'"data":{', b'"data":{"pausedSeconds":31,', 1)
    await world.store.keep([received(step("scheduled", raw, who=vm(3)))])
    await world.post(who="ann@contoso.com", event_id=str(raw["EventId"]), reason="ok")
    day = 2 * 86_400
    web_3 = str(vm(3).resource_id)
    why = {"targetResourceId": web_3}
    said = annotation(day + 40, "VirtualMachineHostCrashed", "Unplanned", **why)
    more = [
        received(step("started", begun, who=vm(3), seconds=400), 400),
        received(over, 640),
        grid(said, day + 90),
        grid(health(day, name="web-3", availabilityState="Unavailable"), day),
        grid(health(day + 252, name="web-3", availabilityState="Available"), day + 252),
        beat(3, day + 290),
    ]
    world.clock.pass_by(day + 600)
    await world.store.keep(more)
