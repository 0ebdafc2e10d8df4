"""The pages in a real browser: live, by keyboard alone, without scripts, on a phone."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from bridge.hub.access import AccessConfig
from bridge.hub.config import HubConfig
from bridge.hub.store.store import Store
from tests.support.browser import NO_BROWSER, find
from tests.support.builders import EVENT_ID
from tests.support.devtools import Tab, running, tab_of
from tests.support.fleet import azure, event, outcome, step
from tests.support.hub import ARM_CONFIG, HubWorld, beat, config, grid, offer, received

pytestmark = pytest.mark.slow

STYLE = (
    Path(__file__).parents[2] / "bridge" / "hub" / "pages" / "style.css"
).read_text()
PAGE = f"/events/{EVENT_ID}"
ME = AccessConfig(approvers=("local",))
LIVE = "document.getElementById('live').textContent === 'live'"
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
    await tab.until(LIVE)
    await tab.value("window.isTheSame = true")

    await world.store.keep([received(step("scheduled", event()))])
    await tab.until("document.querySelector('#rows tr[id]')")
    assert await tab.value("window.isTheSame") is True
    await tab_to(tab, "Freeze of web-0, web-1")
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

    await tab.value("window.isTheSame = true")
    assert await way(tab) == "done counted, done decided, now sent"
    assert not await tab.value("document.getElementById('approve')")
    since = await act(world.dispatcher.step())
    assert await shows(tab, "sent, no outcome yet", since=since) < 5
    (sent,) = world.transport.taken
    given = received(outcome("relayed", sent.id, seconds=1))
    since = await act(world.store.keep([given]))
    assert await shows(tab, "approved by local: relayed", since=since) < 5
    since = await act(world.store.keep([received(step("started", seconds=2))]))
    assert await shows(tab, "Started", since=since, where="#head") < 5
    assert (await way(tab)).endswith("done relayed, done started")
    assert "Started" in await tab.value("document.title")
    assert "drained" in await tab.value("document.body.textContent")
    since = await act(world.store.keep([received(step("completed", seconds=60))]))
    assert await shows(tab, "Completed", since=since, where="#head") < 5
    assert await tab.value("window.isTheSame") is True, "it was never loaded again"


async def act(what: Awaitable[object]) -> float:
    """Let something happen, and return when it had happened."""
    await what
    return time.monotonic()


async def shows(tab: Tab, words: str, *, since: float, where: str = "body") -> float:
    """Return how many seconds it took until the page showed some words."""
    await tab.until(
        f"document.querySelector('{where}').textContent.includes('{words}')"
    )
    return time.monotonic() - since


async def way(tab: Tab) -> str:
    """Return the steps of an approval that are done, under way, or have failed."""
    return str(
        await tab.value(
            "[...document.querySelectorAll('#way li')].filter((one) => one.className)"
            ".map((one) => `${one.className} ${one.textContent}`).join(', ')"
        )
    )


async def test_overview_is_wholly_live(world: HubWorld, tab: Tab) -> None:
    """The heading, the figures, the title and the rows."""
    await world.store.keep([beat()])
    await tab.open(f"{world.url}/")
    await tab.until(LIVE)
    await tab.value("window.isTheSame = true")
    assert "Nothing needs you now" in await tab.value("document.body.textContent")

    since = await act(world.store.keep([received(step("scheduled", event()))]))

    assert await shows(tab, "1 event waits", since=since, where="h1") < 5
    assert await tab.value("document.title") == "(1) Maintenance"
    assert "1wait for a decision" in await tab.value(
        "document.getElementById('tiles').textContent"
    )
    await world.store.keep([received(step("completed", seconds=9))])
    await tab.until("document.title === 'Maintenance'")
    assert await tab.value("window.isTheSame") is True


async def test_what_a_person_does_is_kept_while_the_page_moves(
    world: HubWorld, tab: Tab
) -> None:
    """A half-written reason with its focus and cursor, and a fold that is open."""
    await world.scheduled()
    await tab.open(f"{world.url}{PAGE}")
    await tab.until(LIVE)
    await tab.value("document.querySelector('#messages details').open = true")
    await tab.value("document.getElementById('reason').focus()")
    await tab.type("half a reason")
    await tab.value("document.getElementById('reason').setSelectionRange(4, 6)")

    await world.store.keep([received(step("scheduled", seconds=1, repeats=1))])
    await tab.until("document.querySelectorAll('#messages details').length === 2")

    assert await tab.value("document.activeElement.id") == "reason"
    assert await tab.value("document.activeElement.value") == "half a reason"
    assert await tab.value("document.activeElement.selectionStart") == 4
    opened = "[...document.querySelectorAll('#messages details')].map((d) => d.open)"
    assert sorted(await tab.value(opened)) == [False, True]
    assert await tab.value("document.getElementById('changed').hidden") is True


async def test_event_that_changes_under_the_hand_is_not_approved_by_a_click(
    world: HubWorld, tab: Tab
) -> None:
    """The form is brought up to date, so its click would approve what nobody read."""
    await world.scheduled()
    await tab.open(f"{world.url}{PAGE}")
    await tab.until(LIVE)
    longer = step("updated", event(DurationInSeconds=90), previous=event(), seconds=5)
    await world.store.keep([received(longer)])
    await tab.until("!document.getElementById('changed').hidden")
    await tab.value("document.getElementById('approve').click()")
    assert "for 1 min 30 s" in await tab.value("document.body.textContent")
    assert (await world.get("/api/v1/decisions"))["decisions"] == []
    await tab.until("Date.now() - changedAt > 2000")
    await tab.value("document.getElementById('approve').click()")
    await tab.until("document.body.textContent.includes('decided, not sent yet')")


async def test_page_says_when_nothing_arrives(world: HubWorld, tab: Tab) -> None:
    """A hub that is frozen, a network that is gone. A page waits 35 s; this one, 2."""
    await world.scheduled()
    await tab.open(f"{world.url}/")
    await tab.until(LIVE)
    assert await tab.value("document.documentElement.dataset.staleAfter") == "35"
    await tab.call("Network.enable")
    gone = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    await tab.call("Network.emulateNetworkConditions", offline=True, **gone)
    await tab.value("document.documentElement.dataset.staleAfter = '2'")

    words = "document.getElementById('live').textContent"
    await tab.until(f"/^not live since [0-9]{{2}}:[0-9]{{2}}$/.test({words})")
    assert await tab.value("document.getElementById('stale').hidden") is False
    main = "getComputedStyle(document.getElementById('main')).filter"
    assert await tab.value(main) == "grayscale(1)"

    back = dict.fromkeys(("downloadThroughput", "uploadThroughput"), -1)
    await tab.call("Network.emulateNetworkConditions", offline=False, latency=0, **back)
    await tab.until(LIVE)
    assert await tab.value("document.getElementById('stale').hidden") is True


async def test_page_without_a_stream_is_loaded_again_every_ten_seconds(
    world: HubWorld, tab: Tab
) -> None:
    """There are fifty live pages already."""
    headers = {"Accept": "text/event-stream"}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for n in range(50):
            url = f"{world.url}/?q={n}"
            await stack.enter_async_context(http.get(url, headers=headers))
        await tab.open(f"{world.url}/")
        words = "document.getElementById('live').textContent"
        await tab.until(f"{words} === 'updated every 10 s'")
        since = await act(world.scheduled())
        assert await shows(tab, "1 event waits", since=since, where="h1") < 15


async def test_way_through_azure_is_taken_where_the_bridge_is_dead(
    world: HubWorld, tab: Tab
) -> None:
    raw = event(Resources=["web-0"])
    azures = grid(azure("Scheduled", raw, seconds=290), heard=290)
    await world.store.keep(
        [beat(0, approvals=offer()), received(step("scheduled", raw))]
    )
    world.clock.pass_by(300)
    await world.store.keep([azures])
    await tab.open(f"{world.url}{PAGE}")
    await tab.value("document.getElementById('arm').open = true")
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
    await world.store.keep([beat(0, approvals=deny), received(step("scheduled", raw))])
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
    await tab.until(LIVE)
    await tab_to(tab, "Freeze of web-0, web-1")
    before = await tab.value("scrollY")
    more = [received(step("scheduled", event(f"E-{n}"))) for n in range(5)]
    await world.store.keep(more)
    await tab.until("document.querySelectorAll('#rows tr[id]').length === 6")
    assert await focused(tab) == "Freeze of web-0, web-1"
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
    assert "as it was when it was loaded" in names


@pytest.mark.parametrize("path", ["/", PAGE, "/bridges", "/decisions", "machine"])
@pytest.mark.parametrize("dark", [False, True])
async def test_phone_needs_no_sideways_scrolling(
    world: HubWorld, tab: Tab, path: str, *, dark: bool
) -> None:
    raw = event(Resources=[LONG, "web-0"], Description="x" * 300)
    await world.store.keep([beat(), received(step("scheduled", raw))])
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
