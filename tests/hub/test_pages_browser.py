"""The pages in a real browser: live, by keyboard alone, without scripts, on a phone."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bridge.hub.access_config import AccessConfig
from bridge.hub.config import HubConfig
from bridge.hub.store.store import Store
from tests.support.browser import NO_BROWSER, find
from tests.support.builders import EVENT_ID
from tests.support.devtools import Tab, running, tab_of
from tests.support.fleet import azure, event, outcome, step
from tests.support.hub import ARM_CONFIG, HubWorld, beat, config, grid, offer, told

STYLE = (
    Path(__file__).parents[2] / "bridge" / "hub" / "pages" / "style.css"
).read_text()
PAGE = f"/events/{EVENT_ID}"
ME = AccessConfig(approvers=("local",))
LONG = "a-machine-with-a-name-that-is-as-long-as-azure-lets-it-be-64-signs"


@pytest.fixture
def hub_config(sqlite_config: HubConfig) -> HubConfig:
    """Return one store alone: a browser sees no difference."""
    return sqlite_config


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    given = config(access=ME, arm=ARM_CONFIG)
    async with HubWorld(store, given).open() as opened:
        yield opened


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Start a browser for all tests here: each has a tab with a memory of its own."""
    if (found := find()) is None:
        pytest.skip(NO_BROWSER)
    with running(found.program) as opened:
        yield opened


@pytest.fixture
async def tab(port: int) -> AsyncIterator[Tab]:
    async with tab_of(port) as opened:
        await opened.look_like(1280, 900)
        yield opened


async def focused(tab: Tab) -> str:
    """Return what the keyboard is on."""
    return str(await tab.value("(document.activeElement.textContent||'').trim()"))


async def tab_to(tab: Tab, words: str) -> None:
    """Go to something with the Tab key alone."""
    for _ in range(60):
        await tab.press("Tab")
        if await focused(tab) == words:
            return
    raise AssertionError(f"the keyboard does not reach {words!r}")


async def test_whole_way_by_keyboard_without_a_reload(
    world: HubWorld, tab: Tab
) -> None:
    """An event comes, is approved with a reason, and its outcome and end appear."""
    await world.store.keep([beat()])
    await tab.open(f"{world.url}/")
    await tab.until("document.getElementById('live').textContent === 'live'")
    await tab.value("window.isTheSame = true")

    await world.store.keep([told(step("scheduled", event()))])
    await tab.until("document.querySelector('#rows tr[id]')")
    assert await tab.value("window.isTheSame") is True
    await tab_to(tab, "Freeze")
    await tab.press("Enter")
    await tab.until(f"location.pathname === '{PAGE}' && document.forms.length")

    await tab.until("document.readyState === 'complete'")
    for _ in range(60):
        await tab.press("Tab")
        if await tab.value("document.activeElement.id") == "reason":
            break
    await tab.type("drained")
    await tab_to(tab, "Approve now")
    await tab.press("Enter")
    await tab.until("document.body.textContent.includes('decided, not sent yet')")

    await world.dispatcher.step()
    (sent,) = world.transport.taken
    await world.store.keep([told(outcome("relayed", sent.id, seconds=1))])
    await tab.open(f"{world.url}{PAGE}")
    assert "approved by local: relayed" in await tab.value("document.body.textContent")
    assert "drained" in await tab.value("document.body.textContent")
    await world.store.keep([told(step("completed", seconds=60))])
    await tab.open(f"{world.url}{PAGE}")
    assert "Completed" in await tab.value("document.querySelector('.head').textContent")


async def test_way_through_azure_is_taken_where_the_bridge_is_dead(
    world: HubWorld, tab: Tab
) -> None:
    raw = event(Resources=["web-0"])
    azures = grid(azure("Scheduled", raw, seconds=290), heard=290)
    await world.store.keep([beat(0, approvals=offer()), told(step("scheduled", raw))])
    world.clock.pass_by(300)
    await world.store.keep([azures])
    await tab.open(f"{world.url}{PAGE}")
    await tab.value("document.querySelector('.act details').open = true")
    await tab.value("document.querySelector('input[name=confirmed]').click()")
    await tab.value(
        "[...document.querySelectorAll('button')]"
        ".find((b) => b.textContent === 'Approve through Azure').click()"
    )
    await tab.until("document.body.textContent.includes('decided, not sent yet')")
    assert (await world.decision())["via"] == "arm"


async def test_way_through_azure_is_not_there_where_the_dead_bridge_denies(
    world: HubWorld, tab: Tab
) -> None:
    raw = event(Resources=["web-0"])
    deny = offer({"name": "no", "action": "deny"})
    await world.store.keep([beat(0, approvals=deny), told(step("scheduled", raw))])
    world.clock.pass_by(300)
    await world.store.keep([grid(azure("Scheduled", raw, seconds=290), heard=290)])
    await tab.open(f"{world.url}{PAGE}")
    text = await tab.value("document.body.textContent")
    assert "Approve through Azure" not in text
    assert "Refuse" in text


async def test_focus_stays_where_it_was_when_rows_come(
    world: HubWorld, tab: Tab
) -> None:
    await world.scheduled()
    await tab.open(f"{world.url}/")
    await tab.until("document.getElementById('live').textContent === 'live'")
    await tab_to(tab, "Freeze")
    before = await tab.value("scrollY")
    more = [told(step("scheduled", event(f"E-{n}"))) for n in range(5)]
    await world.store.keep(more)
    await tab.until("document.querySelectorAll('#rows tr[id]').length === 6")
    assert await focused(tab) == "Freeze"
    assert await tab.value(
        f"document.activeElement.getAttribute('href').endsWith('{EVENT_ID}')"
    )
    assert await tab.value("scrollY") == before


async def test_without_scripts_the_page_is_whole(world: HubWorld, tab: Tab) -> None:
    await world.scheduled()
    await tab.look_like(1280, 900, scripts=False)
    await tab.call("Page.navigate", url=f"{world.url}/")
    async with asyncio.timeout(30):
        while True:
            tree = await tab.call("Accessibility.getFullAXTree")
            names = [one.get("name", {}).get("value", "") for one in tree["nodes"]]
            if "1 event waits for a decision" in names:
                break
            await asyncio.sleep(0.1)
    assert "as of the load of this page" in names


@pytest.mark.parametrize("path", ["/", PAGE, "/bridges", "/decisions", "machine"])
@pytest.mark.parametrize("dark", [False, True])
async def test_phone_needs_no_sideways_scrolling(
    world: HubWorld, tab: Tab, path: str, *, dark: bool
) -> None:
    raw = event(Resources=[LONG, "web-0"], Description="x" * 300)
    await world.store.keep([beat(), told(step("scheduled", raw))])
    await world.post(reason="y" * 200, decision="refuse")
    path = "/machines?name=web-0" if path == "machine" else path
    await tab.look_like(360, 800, dark=dark)
    await tab.call("Page.navigate", url=f"{world.url}{path}")
    await tab.until(
        "document.readyState === 'complete' && document.querySelector('h1')"
    )
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert await tab.value(wide) <= 0


@pytest.mark.parametrize("path", ["/", PAGE, "/bridges", "/decisions"])
async def test_everything_to_press_has_a_name(
    world: HubWorld, tab: Tab, path: str
) -> None:
    await world.scheduled()
    await tab.open(f"{world.url}{path}")
    tree = await tab.call("Accessibility.getFullAXTree")
    roles = {"button", "link", "textbox", "searchbox", "combobox", "checkbox"}
    found = [one for one in tree["nodes"] if one["role"]["value"] in roles]
    nameless = [one for one in found if not one["name"].get("value", "").strip()]
    assert found
    assert nameless == []


# -- contrast ----------------------------------------------------------------------


def colours(*, dark: bool) -> dict[str, str]:
    """Return the colours of the style, by their names."""
    light, _, rest = STYLE.partition("@media (prefers-color-scheme:dark)")
    found = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", light))
    if dark:
        night = rest.partition("}}")[0]
        found |= dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", night))
    return found


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    parts = [c * 2 for c in digits] if len(digits) == 3 else re.findall("..", digits)
    values = [int(part, 16) / 255 for part in parts]
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values
    ]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


PAIRS = [
    *((text, on) for text in ("ink", "soft") for on in ("paper", "card", "quiet")),
    *(
        (text, on)
        for text in ("wait", "bad", "good", "run")
        for on in ("card", "paper")
    ),
    *((name, f"{name}-bg") for name in ("good", "bad", "wait", "run")),
    ("on", "accent"),
]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(text: str, ground: str, *, dark: bool) -> None:
    """WCAG 2.2, 1.4.3 (AA)."""
    found = colours(dark=dark)
    one, other = sorted(luminance(found[name]) for name in (text, ground))
    assert (other + 0.05) / (one + 0.05) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_focus_stands_out(*, dark: bool) -> None:
    """WCAG 2.2, 1.4.11."""
    found = colours(dark=dark)
    for ground in ("paper", "card"):
        one, other = sorted(luminance(found[name]) for name in ("accent", ground))
        assert (other + 0.05) / (one + 0.05) >= 3
