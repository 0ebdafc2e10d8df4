"""Pages of other sites cannot control the simulator; scripts and its own pages can."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping

import pytest

from bridge.simulator.imds.control import control_routes
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.inbox import Inbox
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.http_control import broker_routes
from tests.simulator.imds_client import HttpClient, http_client

EVENT = {"type": "Reboot", "resources": ["vm-1"]}
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
IMDS_CONTROL = [
    ("GET", "/simulator/state"),
    ("PUT", "/simulator/document"),
    ("DELETE", "/simulator/document"),
    ("POST", "/simulator/events"),
    ("PATCH", f"/simulator/events/{ID}"),
    ("DELETE", f"/simulator/events/{ID}"),
    ("POST", f"/simulator/events/{ID}/start"),
    ("POST", f"/simulator/events/{ID}/approve"),
    ("POST", "/simulator/incarnation"),
    ("PUT", "/simulator/instance"),
    ("PATCH", "/simulator/instance"),
    ("DELETE", "/simulator/instance"),
    ("POST", "/simulator/faults"),
    ("DELETE", "/simulator/faults"),
    ("GET", "/simulator/requests"),
    ("DELETE", "/simulator/requests"),
    ("PUT", "/simulator/options"),
    ("GET", "/simulator/servicebus"),
    ("POST", "/simulator/servicebus/faults"),
    ("DELETE", "/simulator/servicebus/faults"),
    ("POST", "/simulator/servicebus/resubmit"),
    ("POST", "/simulator/servicebus/purge"),
    ("GET", "/"),
]
INBOX_CONTROL = [
    ("GET", "/messages"),
    ("DELETE", "/messages"),
    ("POST", "/faults"),
    ("DELETE", "/faults"),
    ("PUT", "/options"),
    ("GET", "/slack"),
    ("GET", "/slack/"),
    ("PUT", "/slack/workspace"),
    ("POST", "/slack/click"),
    ("DELETE", "/slack/messages"),
]
FOREIGN: list[tuple[dict[str, str], str]] = [
    ({"Host": "evil.example"}, "Host is 'evil.example'"),
    ({"Host": "evil.example:80"}, "Host is 'evil.example:80'"),
    ({"Host": "127.0.0.1.evil.example"}, "Host is '127.0.0.1.evil.example'"),
    ({"Host": "10.0.0.4:8080"}, "Host is '10.0.0.4:8080'"),
    ({"Host": ""}, "Host is ''"),
    ({"Origin": "https://evil.example"}, "Origin 'https://evil.example'"),
    ({"Origin": "http://127.0.0.1"}, "Origin 'http://127.0.0.1'"),  # another port
    ({"Origin": "null"}, "Origin 'null'"),
    ({"Sec-Fetch-Site": "cross-site"}, "Sec-Fetch-Site"),
    ({"Sec-Fetch-Site": "same-site"}, "Sec-Fetch-Site"),
    (
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"},
        "Sec-Fetch-Site",
    ),
]


@pytest.fixture
async def imds() -> AsyncIterator[HttpClient]:
    """A client of an IMDS; its broker does not listen, because no test needs it."""
    async with (
        ImdsSimulator(control=broker_routes(Broker())) as simulator,
        http_client(simulator.url) as http,
    ):
        yield http


@pytest.fixture
async def inbox() -> AsyncIterator[HttpClient]:
    async with Inbox() as receiver, http_client(receiver.url) as http:
        yield http


async def is_refused(
    http: HttpClient, call: tuple[str, str], headers: Mapping[str, str], words: str
) -> None:
    reply = await http.send(*call, b"{}", headers)

    assert reply.status == 403, call
    assert words in reply.json["error"]
    assert reply.json["error"].endswith("control the simulator")


@pytest.mark.parametrize(("headers", "words"), FOREIGN)
async def test_page_of_another_site_cannot_control_the_imds(
    headers: dict[str, str], words: str, imds: HttpClient
) -> None:
    for call in IMDS_CONTROL:
        await is_refused(imds, call, headers, words)


@pytest.mark.parametrize(("headers", "words"), FOREIGN)
async def test_page_of_another_site_cannot_control_the_inbox(
    headers: dict[str, str], words: str, inbox: HttpClient
) -> None:
    for call in INBOX_CONTROL:
        await is_refused(inbox, call, headers, words)


def test_no_control_path_is_left_out() -> None:
    imds = [*control_routes(ImdsSimulator()), *broker_routes(Broker())]
    served = {(each.method, re.sub(r"\{id\}", ID, each.path)) for each in imds}
    slack = {(each.method, each.path) for each in Inbox().slack.routes()}

    assert served == set(IMDS_CONTROL)
    assert slack <= set(INBOX_CONTROL)


async def test_refused_event_is_not_scheduled(imds: HttpClient) -> None:
    headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    reply = await imds.send("POST", "/simulator/events", EVENT, headers)

    assert reply.status == 403
    assert (await imds.send("GET", "/simulator/state")).json["document"]["Events"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Host": "LOCALHOST:8080"},
        {"Host": "imds.localhost:80"},
        {"Host": "localhost.:80"},
        {"Host": "127.8.9.10:80"},
        {"Host": "[::1]"},
        {"Host": "[::1]:8080"},
        {"Host": "localhost:8080", "Origin": "http://localhost:8080"},
        {"Host": "localhost:80", "Origin": "HTTP://LOCALHOST:80"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "null"},  # hides its referrer
    ],
)
async def test_scripts_and_its_own_pages_control_it(
    headers: dict[str, str], imds: HttpClient, inbox: HttpClient
) -> None:
    scheduled = await imds.send("POST", "/simulator/events", EVENT, headers)
    listed = await inbox.send("GET", "/messages", headers=headers)

    assert (scheduled.status, listed.status) == (200, 200)


async def test_script_need_not_say_host(imds: HttpClient) -> None:
    """A request of HTTP/1.0 may have no Host."""
    _, _, place = imds.url.partition("//")
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /simulator/state HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.0 200 ")


async def test_link_from_another_site_opens_the_page_in_a_tab(
    inbox: HttpClient,
) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}

    assert (await inbox.send("GET", "/slack", headers=headers)).status == 200
    assert (await inbox.send("DELETE", "/messages", headers=headers)).status == 403


async def test_webhooks_come_from_anywhere(inbox: HttpClient) -> None:
    headers = {
        "Host": "hook.example",
        "Origin": "https://sender.example",
        "Content-Type": "application/json",
    }
    for path in ("/siem", "/messages", "/slack/T/B/x"):
        body = {"text": "hello"}
        assert (await inbox.send("POST", path, body, headers)).status < 300


async def test_what_vms_ask_for_is_answered_under_any_name(imds: HttpClient) -> None:
    headers = {"Host": "imds.example", "Metadata": "true"}
    path = "/metadata/scheduledevents?api-version=2020-07-01"

    assert (await imds.send("GET", path, headers=headers)).status == 200


async def test_simulator_that_is_open_to_other_machines_has_any_name() -> None:
    async with (
        ImdsSimulator(host="0.0.0.0") as simulator,  # noqa: S104  what is tested
        http_client(simulator.url.replace("0.0.0.0", "127.0.0.1")) as http,  # noqa: S104 - see above
    ):
        named = {"Host": "simulator:8080"}
        foreign = named | {"Origin": "https://evil.example"}
        own = named | {"Origin": "http://simulator:8080"}
        get = ("GET", "/simulator/state", None)

        assert (await http.send(*get, named)).status == 200
        assert (await http.send(*get, own)).status == 200
        assert (await http.send(*get, foreign)).status == 403
