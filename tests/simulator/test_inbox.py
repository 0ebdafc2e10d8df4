"""The inbox stores messages, wakes those who wait for one, and fails on demand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from bridge.simulator.errors import SimulatorError
from bridge.simulator.inbox import KEPT, Inbox, Mailbox, Message
from tests.simulator.imds_client import FakeClock, HttpClient, Reply, http_client

EVENT = {"specversion": "1.0", "id": "1"}


@dataclass
class Receiver:
    inbox: Inbox
    clock: FakeClock
    http: HttpClient

    async def post(
        self, path: str, body: object = EVENT, content_type: str = "application/json"
    ) -> Reply:
        headers = {"Content-Type": content_type}
        return await self.http.send("POST", path, body, headers)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    clock = FakeClock()
    async with Inbox(clock=clock) as inbox, http_client(inbox.url) as http:
        yield Receiver(inbox, clock, http)


async def test_message_is_listed_as_it_came() -> None:
    async with receiver() as it:
        headers = {"Content-Type": "application/json", "X-Team": "infra"}
        await it.http.send("POST", "/siem/ingest?key=1", EVENT, headers)

        (message,) = (await it.http.send("GET", "/messages")).json

        assert set(message) == {"receivedAt", "path", "headers", "body"}
        assert message["receivedAt"] == "2022-04-11T22:11:58.000000Z"
        assert message["path"] == "/siem/ingest"
        assert message["headers"]["x-team"] == "infra"
        assert message["body"] == EVENT


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("path", ["/", "/siem", "/a/b%20c", "/messages"])
async def test_any_path_takes_messages(method: str, path: str) -> None:
    async with receiver() as it:
        reply = await it.http.send(method, path, b"text")

        assert (reply.status, reply.body) == (204, b"")
        assert [message.body for message in it.inbox.messages] == ["text"]


@pytest.mark.parametrize(
    ("content_type", "body", "kept"),
    [
        ("application/json", b"[1]", [1]),
        ("application/cloudevents+json; charset=utf-8", b"{}", {}),
        ("application/cloudevents-batch+json", b"[]", []),
        ("application/json", b"{", "{"),
        ("text/plain", b"{}", "{}"),
        ("application/jsonlines", b"{}", "{}"),
        ("application/octet-stream", b"\xff", "\N{REPLACEMENT CHARACTER}"),
        ("application/json", b"", ""),
    ],
)
async def test_body_is_json_where_the_type_says_so(
    content_type: str, body: bytes, kept: object
) -> None:
    async with receiver() as it:
        await it.post("/siem", body, content_type)

        assert it.inbox.messages[0].body == kept


async def test_repeated_header_is_joined() -> None:
    async with receiver() as it, aiohttp.ClientSession() as session:
        headers = [("X-Tag", "a"), ("X-Tag", "b")]
        async with session.post(it.inbox.url + "/siem", headers=headers):
            pass

        assert it.inbox.messages[0].headers["x-tag"] == "a, b"


async def test_messages_are_listed_by_a_prefix_of_their_path() -> None:
    async with receiver() as it:
        for path in ("/siem/a", "/slacker", "/siem"):
            await it.post(path)

        found = (await it.http.send("GET", "/messages?path=/siem")).json

        assert [message["path"] for message in found] == ["/siem/a", "/siem"]


async def test_messages_are_forgotten() -> None:
    async with receiver() as it:
        await it.post("/siem")
        await it.http.send("DELETE", "/messages")

        assert (await it.http.send("GET", "/messages")).json == []


def test_oldest_messages_make_room() -> None:
    box = Mailbox()
    for number in range(KEPT + 2):
        box.put(message(body=number))

    assert len(box.messages) == KEPT
    assert box.messages[0].body == 2


async def test_handshake_of_cloudevents_is_consented() -> None:
    async with receiver() as it:
        headers = {
            "WebHook-Request-Origin": "bridge.example",
            "WebHook-Request-Rate": "120",
        }
        reply = await it.http.send("OPTIONS", "/siem", headers=headers)

        assert reply.status == 200
        assert reply.headers["WebHook-Allowed-Origin"] == "*"
        assert reply.headers["WebHook-Allowed-Rate"] == "120"
        assert "POST" in reply.headers["Allow"]


async def test_fault_strikes_its_path_and_keeps_nothing() -> None:
    async with receiver() as it:
        fault = {"path": "/siem", "status": 503, "retryAfter": 2, "times": 3}
        assert (await it.post("/faults", fault)).status == 204

        assert (await it.post("/other")).status == 204
        replies = [await it.post("/siem") for _ in range(4)]

        assert [reply.status for reply in replies] == [503, 503, 503, 204]
        assert replies[0].headers["Retry-After"] == "2"
        assert [each.path for each in it.inbox.messages] == ["/other", "/siem"]


async def test_faults_are_cleared() -> None:
    async with receiver() as it:
        await it.post("/faults", {"status": 500, "untilCleared": True})
        assert (await it.post("/siem")).status == 500

        await it.http.send("DELETE", "/faults")

        assert (await it.post("/siem")).status == 204


async def test_faulty_fault_is_refused() -> None:
    async with receiver() as it:
        reply = await it.post("/faults", {"path": "/siem"})

        assert reply.status == 400
        assert "exactly one of" in reply.json["error"]


async def test_hang_delays_the_answer() -> None:
    async with receiver() as it:
        await it.post("/faults", {"hang": 20})
        await it.post("/siem")

        assert it.clock.waits == [20]
        assert len(it.inbox.messages) == 1


async def test_reset_keeps_the_message_only_if_it_takes_effect() -> None:
    async with receiver() as it:
        for takes_effect in (False, True):
            fault = {"reset": True, "takesEffect": takes_effect}
            await it.post("/faults", fault)
            with pytest.raises(
                (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
            ):
                await it.post("/siem", {"kept": takes_effect})

        assert [each.body for each in it.inbox.messages] == [{"kept": True}]


async def test_stream_yields_the_messages_after_its_call() -> None:
    async with receiver() as it:
        await it.post("/siem", 1)
        stream = it.inbox.stream()
        await it.post("/siem", 2)
        await it.post("/siem", 3)

        assert [(await anext(stream)).body for _ in range(2)] == [2, 3]


async def test_wait_finds_what_is_here_already() -> None:
    async with receiver() as it:
        await it.post("/siem")

        found = await it.inbox.wait_for(lambda each: each.path == "/siem", 0)

        assert found.body == EVENT


async def test_wait_finds_what_comes_later() -> None:
    box = Mailbox()
    waiting = asyncio.ensure_future(box.wait_for(lambda each: each.body == 2, 30))
    await asyncio.sleep(0)
    for number in range(3):
        box.put(message(body=number))

    assert (await waiting).body == 2


async def test_wait_ends_when_nothing_comes() -> None:
    with pytest.raises(TimeoutError):
        await Mailbox().wait_for(lambda each: True, 0.01)


async def test_other_methods_are_not_allowed() -> None:
    async with receiver() as it:
        assert (await it.http.send("GET", "/siem")).status == 405


async def test_port_in_use_is_reported_in_one_sentence() -> None:
    async with receiver() as it:
        port = int(it.inbox.url.rpartition(":")[2])

        with pytest.raises(SimulatorError, match=f"^the inbox cannot .*:{port}: Addr"):
            async with Inbox(port=port):
                pass


def message(body: object) -> Message:
    return Message(received_at="", path="/", headers={}, body=body)
