"""The page in a real browser: with scripts, without, and with its policy in force."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.health import HttpConfig, application
from bridge.page import HEADERS, page
from bridge.status import Board
from bridge.telemetry import Metrics
from bridge.values import Secret
from tests.browser import Browser
from tests.builders import imds_event
from tests.fakes import START, FakeClock
from tests.unit.test_overview import status_of

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title=1>"
PROBE = "<script>document.title = 'taken'</script></body>"


class Show(Protocol):
    """Serves a page with its headers and one more policy, and says where."""

    async def __call__(self, text: str, policy: str = "") -> str: ...


@pytest.fixture
async def shown() -> AsyncIterator[Show]:
    served = web.Response()

    async def serve(_: web.Request) -> web.Response:
        return served

    async def show(text: str, policy: str = "") -> str:
        nonlocal served
        served = web.Response(text=text, content_type="text/html", headers=HEADERS)
        if policy:
            served.headers.add("Content-Security-Policy", policy)
        return str(server.make_url("/"))

    app = web.Application()
    app.router.add_get("/", serve)
    async with TestServer(app) as server:
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
    """The policy of a sandbox switches them off, as a visitor's setting would."""
    later = replace(browser, flags=("--virtual-time-budget=61500",))

    dom = await later.dom(await shown(text_of(imds_event()), "sandbox"))

    assert ">in 15 min 00 s</time>" in dom


async def test_nobody_elses_script_runs(browser: Browser, shown: Show) -> None:
    """Neither what a stranger wrote, nor what had got onto the page all the same."""
    text = text_of(imds_event(Description=HOSTILE, EventType=HOSTILE))
    url = await shown(text.replace("</body>", PROBE))

    dom = await browser.dom(url)

    assert PROBE.removesuffix("</body>") in dom
    assert "<title>1 scheduled event on WestNO_0</title>" in dom
    assert "<img" not in dom


async def test_browser_logs_in_with_the_token(
    browser: Browser, clock: FakeClock, metrics: Metrics
) -> None:
    config = HttpConfig(token=Secret("S3CR3T", {}))
    board = Board(clock=clock, metrics=metrics)

    async with TestServer(application(config, board)) as server:
        inside = server.make_url("/").with_user("me").with_password("S3CR3T")

        assert "The bridge is starting" in await browser.dom(str(inside))
