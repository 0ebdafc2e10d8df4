"""The pages of machines, and forgetting a bridge that is gone."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from bridge.hub.store.store import Store
from tests.hub.test_pages import EVIL, Browser
from tests.support.fleet import GROUP, SUBSCRIPTION, event, step, vm
from tests.support.hub import HubWorld, beat, config, received

PATH = f"/machines/{SUBSCRIPTION}/{GROUP}/web-0"


@pytest.fixture
async def browser(store: Store) -> AsyncIterator[Browser]:
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.scheduled(Description="Host maintenance")
        yield Browser(world, http)


async def press(browser: Browser, who: str = "ann", **more: str) -> int:
    """Press the button that forgets the bridge that is shown."""
    form = {}
    for name in ("token", "vm_id"):
        mark = f'name="{name}" value="'
        form[name] = browser.text.partition(mark)[2].partition('"')[0]
    origin = more.pop("origin", browser.world.url)
    headers = {"User": who, "Origin": origin}
    headers |= {"Content-Type": more.pop("kind")} if "kind" in more else {}
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{browser.world.url}{PATH}",
            data={**form, **more},
            headers=headers,
            allow_redirects=False,
        ) as found,
    ):
        browser.text = await found.text()
        return found.status


async def test_machine_shows_its_bridge_and_its_history(browser: Browser) -> None:
    text = await browser.open(PATH)
    assert browser.status == 200
    for words in ("web-0", "alive", "Host maintenance", vm(0).vm_id or "", GROUP):
        assert words in text
    assert "Forget this bridge" not in text, "it is alive"


async def test_name_leads_to_its_one_machine(browser: Browser) -> None:
    text = await browser.open("/machines?name=WEB-0")
    assert '<h1 id="title">web-0</h1>' in text
    assert "Nothing is known of a machine" in await browser.open("/machines?name=x")
    assert browser.status == 404
    assert "Nothing is known of this" in await browser.open("/machines/a/b/c")
    assert browser.status == 404


async def test_name_that_several_have_is_a_list(browser: Browser) -> None:
    body = step("scheduled", event("E-2", Resources=["web-0"]))
    other = body.replace(SUBSCRIPTION.encode(), b"0" * 8 + SUBSCRIPTION[8:].encode())
    await browser.world.store.keep([received(other)])
    text = await browser.open("/machines?name=web-0")
    assert "2 machines are named web-0" in text
    assert f'href="{PATH}"' in text


async def test_pages_link_to_machines(browser: Browser) -> None:
    assert f'href="{PATH}"' in await browser.open("/bridges")
    link = 'href="/machines?name=web-0"'
    assert link in await browser.open(f"/events/{event()['EventId']}")


async def test_machine_without_a_place_has_a_page(store: Store) -> None:
    body = beat(0).body.replace(b"/subscriptions/", b"/x/")
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.store.keep([received(body)])
        browser = Browser(world, http)
        assert 'href="/machines/-/-/web-0"' in await browser.open("/bridges")
        assert "group is not known" in await browser.open("/machines/-/-/web-0")


async def test_bridge_that_is_forgotten_is_gone_until_it_is_heard(
    browser: Browser,
) -> None:
    browser.world.clock.pass_by(300)
    assert "Forget this bridge" in await browser.open(PATH)

    assert await press(browser) == 303

    assert "gone</span>" in await browser.open(PATH)
    assert "Forget this bridge" not in browser.text
    await browser.world.store.keep([beat(0, 301)])
    assert "alive</span>" in await browser.open(PATH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "more", "status"),
    [
        ("ann", {"origin": "https://evil.example"}, 403),
        ("ann", {"vm_id": "another"}, 403),
        ("ann", {"token": "0"}, 403),
        ("bob", {}, 403),  # the form was shown to ann
        ("ann", {"kind": "text/plain"}, 415),
    ],
)
async def test_form_of_somebody_else_forgets_nothing(
    browser: Browser, who: str, more: dict[str, str], status: int
) -> None:
    browser.world.clock.pass_by(300)
    await browser.open(PATH)
    assert await press(browser, who, **more) == status
    assert "gone</span>" not in await browser.open(PATH)


async def test_who_may_only_look_cannot_forget(browser: Browser) -> None:
    browser.world.clock.pass_by(300)
    text = await browser.open(PATH, who="eve")
    assert "Forget this bridge" not in text


async def test_text_of_a_machine_is_never_markup(store: Store) -> None:
    body = step("scheduled", event(Resources=[EVIL], Description=EVIL))
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.store.keep([received(body), beat(0, version=EVIL)])
        browser = Browser(world, http)
        text = await browser.open(f"/events/{event()['EventId']}")
        link = text.partition('href="/machines?name=')[2].partition('"')[0]
        text = await browser.open(f"/machines?name={link}")
    assert browser.status == 200
    assert "<script>alert" not in text
