"""The page in a real browser, with and without scripts, under its own policy."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.foundation.values import Secret
from bridge.health.config import HttpConfig
from bridge.health.server import application
from bridge.health.status import StatusSource
from bridge.health.status_page import HEADERS, page
from bridge.telemetry.metrics import Metrics
from tests.health.test_status_view import status_of
from tests.support.browser import Browser
from tests.support.builders import EVENT_ID, imds_event
from tests.support.fakes import START, FakeClock

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title=1>"
PROBE = "<script>document.title = 'taken'</script></body>"


class Show(Protocol):
    """Serves a page with its headers and one more policy; returns the URL."""

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


@pytest.mark.integration
async def test_countdown_ticks_by_the_bridges_clock(
    browser: Browser, shown: Show
) -> None:
    """The browser's own clock does not matter: here it is wrong by months."""
    url = await shown(text_of(imds_event()))
    later = replace(browser, flags=("--virtual-time-budget=61500",))

    dom = await later.dom(url)

    assert (left := re.search(r"<time [^>]*>in (\d+) min \d\d s</time>", dom))
    assert int(left[1]) in {13, 14}  # of 15
    assert "<title>1 scheduled event on WestNO_0</title>" in dom


@pytest.mark.integration
async def test_page_is_right_without_scripts(browser: Browser, shown: Show) -> None:
    """A sandbox policy disables scripts, as a setting of the user would."""
    later = replace(browser, flags=("--virtual-time-budget=61500",))

    dom = await later.dom(await shown(text_of(imds_event()), "sandbox"))

    assert ">in 15 min 00 s</time>" in dom


@pytest.mark.integration
async def test_no_foreign_script_runs(browser: Browser, shown: Show) -> None:
    """Neither a script in foreign text, nor one that was injected into the page."""
    text = text_of(imds_event(Description=HOSTILE, EventType=HOSTILE))
    url = await shown(text.replace("</body>", PROBE))

    dom = await browser.dom(url)

    assert PROBE.removesuffix("</body>") in dom
    assert "<title>1 scheduled event on WestNO_0</title>" in dom
    assert "<img" not in dom


MEASURE = """<script>
let least = Infinity;
for (const td of document.querySelectorAll("td:not(.none)")) {
  const label = document.createElement("span");
  label.textContent = td.dataset.head;
  label.style.whiteSpace = "nowrap";
  document.body.append(label);
  const column = parseFloat(getComputedStyle(td).gridTemplateColumns);
  const width = Math.min(label.getBoundingClientRect().width, column);
  label.remove();
  const value = td.firstElementChild.getBoundingClientRect();
  least = Math.min(least, value.left - td.getBoundingClientRect().left - width);
}
document.title = `${innerWidth} wide, ${least} apart`;
</script></body>"""


@pytest.mark.integration
async def test_on_a_phone_no_value_touches_its_label(
    browser: Browser, tmp_path: Path
) -> None:
    """Served without the policy, so that a script can measure the page."""
    outcome = {
        "outcome": "denied",
        "eventId": EVENT_ID,
        "event": imds_event(),
        "observedAt": "2026-03-02T11:58:00Z",
        "reason": "EventChanged",
        "request": {"approvedBy": "alice", "reason": "UX test"},
    }
    text = page(status_of(imds_event(), approvals=[outcome]), START, refreshes=False)
    (tmp_path / "page.html").write_text(text.replace("</body>", MEASURE))
    phone = replace(browser, flags=("--window-size=360,800",))

    dom = await phone.dom((tmp_path / "page.html").as_uri())

    assert (found := re.search(r"<title>(\d+) wide, ([\d.-]+) apart</title>", dom))
    assert int(found[1]) < 832  # at this width, tables are laid out as lists
    assert float(found[2]) >= 8


@pytest.mark.integration
async def test_browser_logs_in_with_the_token(
    browser: Browser, clock: FakeClock, metrics: Metrics
) -> None:
    config = HttpConfig(token=Secret("S3CR3T", {}))
    status_source = StatusSource(clock=clock, metrics=metrics)

    async with TestServer(application(config, status_source)) as server:
        inside = server.make_url("/").with_user("me").with_password("S3CR3T")

        assert "The bridge is starting" in await browser.dom(str(inside))
