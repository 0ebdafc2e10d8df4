"""The page of the local Service Bus: over HTTP, and in a browser."""

from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from urllib.parse import urlsplit

import aiohttp
import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.http_control import broker_routes
from bridge.simulator.servicebus.page import PURGE, RESUBMIT
from bridge.simulator.servicebus.settings import QueueSettings
from tests.simulator.servicebus_fixtures import opened
from tests.support.browser import Browser, browser
from tests.support.raw_amqp import encoded, send_raw

__all__ = ["browser"]  # a fixture from elsewhere

EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def url(broker: Broker) -> AsyncIterator[str]:
    async with ImdsSimulator(control=broker_routes(broker)) as imds:
        yield imds.url


class Page(HTMLParser):
    """The cells, forms and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags = list[str]()
        self.rows = list[list[str]]()
        self.forms = list[tuple[str, dict[str, str]]]()
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = {name: value or "" for name, value in attrs}
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self._in_cell = True
        elif tag == "form":
            self.forms.append((given["action"], {}))
        elif tag == "input":
            self.forms[-1][1][given["name"]] = given["value"]

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data

    def row(self, first: str) -> dict[str, str]:
        """Return the row that begins with a text, by the heads of its table."""
        place = next(n for n, row in enumerate(self.rows) if row and row[0] == first)
        heads = next(
            row
            for row in self.rows[place::-1]
            if row and row[0] in {"Entity", "Number", "Session"}
        )
        return dict(zip(heads, self.rows[place], strict=True))


async def get(url: str, entity: str | None = None) -> Page:
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, params={} if entity is None else {"entity": entity}) as response,
    ):
        assert response.status == 200
        return Page(await response.text())


async def post(url: str, path: str, form: Mapping[str, str]) -> aiohttp.ClientResponse:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + path, data=form, allow_redirects=False) as response,
    ):
        await response.read()
        return response


async def dead_letters(client: ServiceBusClient, queue: str, count: int) -> None:
    """Let messages of a queue be dead-lettered."""
    async with client.get_queue_receiver(queue) as receiver:
        while count:
            for message in await receiver.receive_messages(count, max_wait_time=30):
                await receiver.dead_letter_message(message, "bad", "it is not good")
                count -= 1


async def test_page_counts_what_is_in_each_entity(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "plain", [encoded(str(n)) for n in range(3)])
    await dead_letters(broker_client, "plain", 1)
    page = await get(url)

    found = page.row("plain")
    assert (found["Kind"], found["Active"], found["Dead"]) == ("queue", "2", "1")
    assert page.row("news")["Kind"] == "topic"
    assert page.row("news/Subscriptions/all")["Kind"] == "subscription"
    assert "script" not in page.tags


async def test_queue_with_a_slash_in_its_name_is_a_queue(
    url: str, broker: Broker
) -> None:
    broker.changes.namespace.add_queue(QueueSettings(name="team/orders"))

    assert (await get(url)).row("team/orders")["Kind"] == "queue"


async def test_messages_are_shown_and_stay(url: str, broker: Broker) -> None:
    texts = [
        encoded(EVIL, subject=EVIL, id=EVIL),
        encoded({"a": 1}),
        b"\x00\x53\x75\xa0\x01\xff",
    ]
    assert await send_raw(broker, "plain", texts) == 3
    page = await get(url, "plain")

    first = page.row("1")
    assert (first["Message"], first["Subject"], first["Body"]) == (EVIL, EVIL, EVIL)
    assert (first["State"], first["Failed"]) == ("active", "0")
    assert page.row("2")["Body"] == "{'a': 1}"
    assert page.row("3")["Body"] == "ff"
    assert "script" not in page.tags
    assert broker.snapshot()["plain"] == Counts(active=3)


async def test_long_body_is_cut(url: str, broker: Broker) -> None:
    await send_raw(broker, "plain", [encoded("x" * 10_000)])

    assert (await get(url, "plain")).row("1")["Body"] == "x" * 500 + "…"


async def test_states_of_messages_are_reported(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "plain", [encoded("x") for _ in range(2)])
    async with broker_client.get_queue_receiver("plain") as receiver:
        (first,) = await receiver.receive_messages(1, max_wait_time=30)
        await receiver.defer_message(first)
        (second,) = await receiver.receive_messages(1, max_wait_time=30)
        page = await get(url, "plain")
        await receiver.complete_message(second)

    assert (page.row("1")["State"], page.row("2")["State"]) == ("deferred", "locked")


async def test_dead_letters_are_reported_with_their_reason(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "plain", [encoded("x")])
    await dead_letters(broker_client, "plain", 1)
    page = await get(url, "plain")

    assert page.row("1")["Reason"] == "bad: it is not good"


async def test_session_is_reported_with_its_holder(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(
        broker, "sessions", [encoded("x", group_id=each) for each in ("a", "a", "b")]
    )
    receiver = broker_client.get_queue_receiver(
        "sessions", session_id="a", client_identifier="tester"
    )
    async with opened(receiver):
        await receiver.session.set_state(b"x")
        page = await get(url, "sessions")

    held, free = page.row("a"), page.row("b")
    assert (held["Messages"], held["State"]) == ("2", "stored")
    assert held["Locked by"] != ""
    assert held["Until (UTC)"].startswith("20")
    assert (free["Messages"], free["Locked by"], free["Until (UTC)"]) == ("1", "", "")


async def test_dead_letter_is_resubmitted_by_its_button(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "plain", [encoded("x"), encoded("y")])
    await dead_letters(broker_client, "plain", 2)
    (action, fields) = next(
        form for form in (await get(url, "plain")).forms if "number" in form[1]
    )
    response = await post(url, action, fields)

    assert (response.status, response.headers["Location"]) == (303, "/?entity=plain")
    assert broker.snapshot()["plain"] == Counts(active=1, dead=1)
    async with broker_client.get_queue_receiver("plain") as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        assert message.delivery_count == 0
        assert message.dead_letter_reason is None


async def test_waiting_receiver_gets_what_is_resubmitted(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "unique", [encoded("x", id="same")])
    await dead_letters(broker_client, "unique", 1)
    async with broker_client.get_queue_receiver("unique", prefetch_count=1) as receiver:
        await post(url, RESUBMIT, {"entity": "unique"})
        (message,) = await receiver.receive_messages(1, max_wait_time=30)

    assert message.message_id == "same"


async def test_messages_and_dead_letters_are_purged_by_their_buttons(
    url: str, broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "plain", [encoded("x") for _ in range(3)])
    await dead_letters(broker_client, "plain", 1)
    purges = [form for form in (await get(url, "plain")).forms if form[0] == PURGE]
    assert [fields.get("dead", "") for _, fields in purges] == ["", "yes"]

    await post(url, *purges[1])
    assert broker.snapshot()["plain"] == Counts(active=2)
    await post(url, *purges[0])
    assert broker.snapshot()["plain"] == Counts()


@pytest.mark.parametrize(
    ("path", "form", "status", "words"),
    [
        (PURGE, {"entity": "nowhere"}, 404, "'nowhere' could not be found"),
        (PURGE, {"entity": "news"}, 400, "is a topic"),
        (PURGE, {}, 404, "could not be found"),
        (RESUBMIT, {"entity": "plain", "number": "7"}, 400, "no free dead letter 7"),
        (RESUBMIT, {"entity": "plain", "number": "x"}, 400, "in digits"),
        (RESUBMIT, {"entity": "plain", "number": "9" * 5000}, 400, "in digits"),
        (RESUBMIT, {"entity": "plain/$DeadLetterQueue"}, 400, "has no dead letters"),
    ],
)
async def test_what_cannot_be_done_is_reported(
    url: str, path: str, form: dict[str, str], status: int, words: str
) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + path, data=form) as response,
    ):
        assert response.status == status
        assert words in (await response.json())["error"]


@pytest.mark.parametrize("entity", ["nowhere", "", EVIL])
async def test_unknown_entity_shows_the_list_alone(url: str, entity: str) -> None:
    page = await get(url, entity)

    assert page.row("plain")
    assert page.forms == []
    assert "script" not in page.tags


async def test_page_of_another_site_purges_nothing(url: str, broker: Broker) -> None:
    await send_raw(broker, "plain", [encoded("x")])
    async with (
        aiohttp.ClientSession(headers={"Origin": "https://evil.example"}) as http,
        http.post(url + PURGE, data={"entity": "plain"}) as response,
    ):
        assert response.status == 403

    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_headers_forbid_scripts_and_everything_from_elsewhere(url: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        policy = response.headers["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert response.headers["Cache-Control"] == "no-store"


async def test_page_refreshes_when_it_is_asked_to(url: str) -> None:
    assert "refresh" not in await _text(url)
    assert 'http-equiv="refresh" content="5"' in await _text(f"{url}/?refresh")


async def _text(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return (await response.text()).partition("<footer>")[0]


@pytest.mark.slow
async def test_browser_shows_the_page_with_its_style(
    url: str, broker: Broker, browser: Browser
) -> None:
    await send_raw(broker, "plain", [encoded("hello", subject="greeting")])
    dom = await browser.dom(f"{url}/?entity=plain")
    picture = await browser.picture(f"{url}/?entity=plain", 900, 700)

    assert Page(dom).row("1")["Subject"] == "greeting"
    assert "max-width" in dom
    assert picture.startswith(b"\x89PNG")
    assert urlsplit(url).hostname == "127.0.0.1"
