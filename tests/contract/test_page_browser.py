"""The page in a real browser: with scripts, without, and with its policy in force."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.page import HEADERS, page
from tests.browser import Browser
from tests.builders import imds_event
from tests.fakes import START
from tests.unit.test_overview import status_of

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title=1>"
PROBE = "<script>document.title = 'taken'</script></body>"

Show = Callable[[str], Awaitable[str]]


@pytest.fixture
async def shown() -> AsyncIterator[Show]:
    """Return what serves a page with its headers, and says where."""
    texts = list[str]()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=texts[-1], content_type="text/html", headers=HEADERS)

    app = web.Application()
    app.router.add_get("/", serve)
    async with TestServer(app) as server:

        async def show(text: str) -> str:
            texts.append(text)
            return str(server.make_url("/"))

        yield show


def text_of(*events: object) -> str:
    return page(status_of(*events), START, refreshes=False)


async def test_countdown_ticks_by_the_bridges_clock(
    browser: Browser, shown: Show
) -> None:
    """Whatever the browser's own clock says: here it is months off."""
    url = await shown(text_of(imds_event()))
    later = replace(browser, flags=("--virtual-time-budget=61500",))

    dom = await later.dom(url)

    assert (left := re.search(r"<time [^>]*>in (\d+) min \d\d s</time>", dom))
    assert int(left[1]) in {13, 14}  # of 15
    assert "<title>1 scheduled event on WestNO_0</title>" in dom


async def test_page_is_right_without_scripts(browser: Browser, shown: Show) -> None:
    text = text_of(imds_event())
    forbidden = replace(browser, flags=("--blink-settings=scriptEnabled=false",))
    with_script = await forbidden.picture(await shown(text), 900, 700)

    absent = re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)

    assert with_script == await browser.picture(await shown(absent), 900, 700)


async def test_nobody_elses_script_runs(browser: Browser, shown: Show) -> None:
    """Neither what a stranger wrote, nor what had got onto the page all the same."""
    text = text_of(imds_event(Description=HOSTILE, EventType=HOSTILE))
    url = await shown(text.replace("</body>", PROBE))

    dom = await browser.dom(url)

    assert PROBE.removesuffix("</body>") in dom
    assert "<title>1 scheduled event on WestNO_0</title>" in dom
    assert "<img" not in dom


async def test_style_is_applied(browser: Browser, shown: Show) -> None:
    """A page whose style its own policy forbids would look the same in every size."""
    url = await shown(text_of(imds_event()))
    without = await browser.picture(url, 420, 700)

    styled = text_of(imds_event()).replace("<style>", "<style> ")

    assert await browser.picture(await shown(styled), 420, 700) != without
