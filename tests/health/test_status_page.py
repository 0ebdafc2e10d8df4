"""The HTML of the page: complete without scripts, with all foreign text escaped."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from hypothesis import given, settings

from bridge.health.report import StatusReport
from bridge.health.status_page import HEADERS, page
from tests.health.test_status_view import anything, status_of
from tests.support.builders import imds_event
from tests.support.fakes import START

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&lt;"


class Reader(HTMLParser):
    """Collects the elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags = list[str]()
        self.attributes = list[tuple[str, str | None]]()
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def read(status: StatusReport, *, refreshes: bool = False) -> Reader:
    return Reader(page(status, START, refreshes=refreshes))


def test_page_is_complete_without_scripts() -> None:
    words = read(status_of(imds_event())).words

    for word in ("1 scheduled event on WestNO_0", "in 15 min 00 s", "Freeze", "Ready."):
        assert word in words


def test_foreign_text_is_no_markup() -> None:
    plain, hostile = (
        read(status_of(imds_event(Description=text, EventType=text, Resources=[text])))
        for text in ("harmless", HOSTILE)
    )

    assert hostile.tags == plain.tags
    assert HOSTILE in hostile.words


@settings(max_examples=50)
@given(anything())
def test_page_has_only_expected_elements(status: StatusReport) -> None:
    found = read(status)

    assert set(found.tags) <= OURS
    assert found.tags.count("script") == 1
    assert {name for name, _ in found.attributes} <= OUR_ATTRIBUTES


OURS = {
    *("html", "head", "meta", "link", "title", "style", "script", "body", "header"),
    *("h1", "h2", "div", "p", "main", "section", "dl", "dt", "dd", "footer", "a"),
    *("table", "thead", "tbody", "tr", "th", "td", "span", "time", "small"),
}
OUR_ATTRIBUTES = {
    *("lang", "data-now", "charset", "name", "content", "rel", "href", "class"),
    *("role", "scope", "data-head", "datetime"),
}


def test_policy_allows_what_is_on_the_page_and_nothing_else() -> None:
    text = page(status_of(), START, refreshes=False)
    policy = HEADERS["Content-Security-Policy"]

    for element in ("style", "script"):
        (inline,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_nothing_is_loaded_from_anywhere() -> None:
    text = page(status_of(imds_event()), START, refreshes=False)

    assert not re.search(r"https?:|\bsrc=|@import|url\(", text)


def test_page_reloads_itself_only_on_request() -> None:
    assert not any(value == "refresh" for _, value in read(status_of()).attributes)
    assert ("http-equiv", "refresh") in read(status_of(), refreshes=True).attributes


def test_table_says_what_its_columns_are() -> None:
    found = read(status_of(imds_event()))

    assert found.attributes.count(("scope", "col")) == 8
    assert ("lang", "en") in found.attributes
