"""``/api/v1``: the real server, over TCP, on either store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import orjson
import pytest

from bridge.foundation.errors import BridgeError
from bridge.foundation.values import Secret
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.answers import Filters
from bridge.hub.api import Api, document
from bridge.hub.config import HubConfig
from bridge.hub.metrics import HubMetrics
from bridge.hub.server import Hub, serve
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.lists import forget_bridge
from bridge.hub.store.rows import mark_changed
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Situation
from bridge.hub.views import overview
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, event, life, outcome, step, vm
from tests.support.hub import DESCRIBED
from tests.support.ports import free_port

BEAT = life("heartbeat", intervalSeconds=60, pending=2, dead=True)


def received(body: bytes, heard: float = 0.0) -> Incoming:
    found = bridge_messages.read(body, heard=at(heard), source="b", reply_to="q")
    return Incoming(
        origin="b",
        body=body,
        heard=at(heard),
        reply_to="q",
        fact=found.fact,
        report=found.report,
    )


def grid(body: bytes, heard: float = 0.0) -> Incoming:
    fact = azure_messages.read(body, heard=at(heard))
    return Incoming(origin="azure", body=body, heard=at(heard), fact=fact)


class Window:
    """The API, and whoever asks it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = at(30)
        self.more: dict[str, Any] = {}
        self.missing: list[str] = []
        self.url = ""
        self._http: aiohttp.ClientSession

    def situation(self) -> Situation:
        given = {"listening": {"b": at(0)}, "missing_after": 60.0, **self.more}
        return Situation(now=self.now, **given)

    @asynccontextmanager
    async def open(self, config: HubConfig) -> AsyncIterator["Window"]:
        hub = Hub(
            config=config,
            metrics=HubMetrics(("b",), "1"),
            missing=lambda: self.missing,
            routes=Api(self.store, config, self.situation).routes(),
        )
        async with AsyncExitStack() as stack:
            host, port = await stack.enter_async_context(serve(hub))
            self.url = f"http://{host}:{port}"
            self._http = await stack.enter_async_context(aiohttp.ClientSession())
            yield self

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        asked = self._http.get(f"{self.url}{path}", headers=headers)
        async with asked as found:
            body, kind = await found.read(), found.content_type
        DESCRIBED.check("GET", path, found.status, kind, body)
        is_json = kind == "application/json" and body
        shown = orjson.loads(body) if is_json else body.decode()
        return found.status, shown, found.headers

    async def events(self, query: str = "") -> list[Any]:
        _, body, _ = await self.get(f"/api/v1/events?{query}")
        found: list[Any] = body["events"]
        return found


CONFIG = HubConfig(listen="127.0.0.1:0")


@pytest.fixture
async def window(store: Store) -> AsyncIterator[Window]:
    async with Window(store).open(CONFIG) as opened:
        yield opened


async def test_event_is_shown_with_all_that_is_known(window: Window) -> None:
    await window.store.keep(
        [received(step("scheduled")), received(outcome("denied", "m-1", seconds=9))]
    )

    (listed,) = await window.events()
    status, shown, headers = await window.get(f"/api/v1/events/{EVENT_ID.lower()}")

    assert (status, listed["eventId"], listed["status"]) == (200, EVENT_ID, "scheduled")
    assert listed["firstReportedBy"]["vmName"] == "web-0"
    assert listed["notBefore"] == "2026-03-02T12:15:00Z"
    assert listed["machines"] == ["web-0", "web-1"]
    assert listed["event"] == event()
    assert [one["kind"] for one in shown["messages"]] == ["scheduled", "outcome"]
    assert shown["messages"][0]["body"]["data"]["event"] == event()
    assert [one["messageId"] for one in shown["outcomes"]] == ["m-1"]
    assert len(shown["occurrences"]) == 1
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert (await window.get("/api/v1/events/nobody"))[0] == 404


async def test_whoever_has_an_answer_is_told_that_it_holds(window: Window) -> None:
    await window.store.keep([received(step("scheduled"))])
    etag = ""
    for path in ("/api/v1/events", f"/api/v1/events/{EVENT_ID}", "/api/v1/bridges"):
        _, _, headers = await window.get(path)
        etag = headers["ETag"]
        assert (await window.get(path, **{"If-None-Match": f'"x", {etag}'}))[0] == 304
    await window.store.keep([received(step("started", seconds=5))])
    path = f"/api/v1/events/{EVENT_ID}"
    assert (await window.get(path, **{"If-None-Match": etag}))[0] == 200


async def test_cursor_goes_on_where_it_was_and_tells_of_changes(
    window: Window,
) -> None:
    five = [received(step("scheduled", event(f"E-{n}"))) for n in range(5)]
    await window.store.keep(five)
    seen, last, cursor = list[str](), list[int](), ""
    while cursor is not None:
        _, body, _ = await window.get(f"/api/v1/events?limit=2&cursor={cursor}")
        seen += [one["eventId"] for one in body["events"]]
        last = [one["version"] for one in body["events"]][-1:] or last
        cursor = body["next"]
    await window.store.keep([received(step("started", event("E-2"), seconds=9))])

    assert seen == [f"E-{n}" for n in range(5)]
    changed = await window.events(f"cursor={last[0]}")
    assert [one["eventId"] for one in changed] == ["E-2"]


async def test_cursor_stops_below_what_may_still_be_committed_before_it(
    window: Window,
) -> None:
    """Another hub's change has an earlier version, and comes later."""
    store = window.store
    if not store.is_shared:
        pytest.skip("SQLite has one writer")
    await store.keep([received(step("scheduled", event("SLOW")))])
    (slow,) = await window.events()

    with store.writer.connect() as other, other.begin():
        await asyncio.to_thread(mark_changed, other, "SLOW")
        await store.keep([received(step("scheduled", event("FAST")))])
        assert await window.events(f"cursor={slow['version']}") == []
    found = await window.events(f"cursor={slow['version']}")
    assert [one["eventId"] for one in found] == ["SLOW", "FAST"]


async def test_filters_leave_out_the_rest(window: Window) -> None:
    wanted = {
        "open=true": ["A", "B"],
        "open=false": ["C"],
        "type=Redeploy": ["B"],
        "source=User": ["B"],
        "status=completed": ["C"],
        "resourceGroup=WEB": ["A", "B", "C"],
        "q=b": ["B"],
        "q=DB-": ["B"],
        "q=web": ["A", "C"],
        "q=%25": [],
    }
    other = event("B", EventType="Redeploy", EventSource="User", Resources=["_db-1"])
    await window.store.keep(
        [
            received(step("scheduled", event("A"))),
            received(step("scheduled", other)),
            received(step("completed", event("C"))),
        ]
    )

    found = {
        query: sorted(one["eventId"] for one in await window.events(query))
        for query in wanted
    }
    assert found == wanted


async def test_query_that_cannot_be_is_reported(window: Window) -> None:
    for query in (
        *("open=maybe", "limit=0", "limit=201", "limit=x", "cursor=-1"),
        *("q=%00", "cursor=²"),
    ):
        status, body, _ = await window.get(f"/api/v1/events?{query}")

        assert (status, bool(body["error"])) == (400, True), query


@pytest.mark.parametrize(
    ("path", "name", "known"),
    [
        ("events?limt=5", "limt", "limit, cursor, open, status, type, source, "),
        ("events?vmID=", "vmID", "limit, cursor, open, "),
        ("events/E-1?after=1", "after", "before"),
        ("bridges?State=gone", "State", "limit, cursor, state, q"),
        ("timeline?vm=web-0", "vm", "name, resourceGroup, subscription, "),
        ("report?since=2026-03-01", "since", "from, to"),
        ("report.csv?since=2026-03-01", "since", "from, to"),
        ("keys?keys=*", "keys", "limit, cursor, state, match"),
        ("decisions?before=x", "before", "limit, cursor"),
        ("decisions.csv?from=x", "from", "limit, cursor"),
        ("events/E-1/approval?x", "x", "none"),
        ("hub?x=1", "x", "none"),
        ("openapi.json?x=1", "x", "none"),
    ],
)
async def test_parameter_that_is_not_known_is_refused_and_the_known_ones_are_named(
    path: str, name: str, known: str, window: Window
) -> None:
    status, body, _ = await window.get(f"/api/v1/{path}")

    text = f"no parameter is called '{name}'; there are: {known}"
    assert (status, body["error"][: len(text)]) == (400, text)


async def test_what_azure_alone_reported_is_unreported_in_time(window: Window) -> None:
    await window.store.keep([grid(azure("Scheduled"), 10), received(BEAT)])

    async def is_unreported() -> bool:
        return bool((await window.events())[0]["unreported"])

    window.now = at(70)
    assert not await is_unreported()
    window.now = at(71)
    assert await is_unreported()
    window.more = {"expect": ("/subscriptions/*/virtualmachines/db-*",)}
    assert not await is_unreported()
    window.more = {"expect": ("/SUBSCRIPTIONS/*/virtualmachines/web-*",)}
    assert await is_unreported()
    window.more = {"listening": {"b": at(0), "c": None}}
    assert not await is_unreported()
    window.more = {"missing_after": None}
    assert not await is_unreported()
    window.more = {}
    await window.store.keep([received(step("scheduled"))])
    assert not await is_unreported()


async def test_what_nobody_expects_is_not_unreported(window: Window) -> None:
    await window.store.keep([grid(azure("Scheduled"))])
    window.now = at(999)

    assert not (await window.events())[0]["unreported"]


async def test_event_of_before_a_long_absence_is_unknown(window: Window) -> None:
    await window.store.keep(
        [received(step("scheduled")), received(step("ended", event("Z")))]
    )
    window.more = {"absent_until": at(10)}

    assert [one["status"] for one in await window.events()] == ["unknown", "ended"]
    await window.store.keep([received(step("updated", seconds=20), 20)])
    assert [one["status"] for one in await window.events("open=true")] == ["scheduled"]


async def test_overview_has_first_what_needs_somebody_first(window: Window) -> None:
    late = event("LATE", NotBefore="Mon, 02 Mar 2026 14:00:00 GMT")
    await window.store.keep(
        [
            received(step("completed", event("OVER"))),
            received(step("scheduled", late)),
            received(
                step("started", event("RUNS", NotBefore="", EventStatus="Started"))
            ),
            received(step("scheduled", event("SOON"))),
            grid(azure("Scheduled", event("UNTOLD", NotBefore=late["NotBefore"]))),
        ]
    )
    window.now = at(999)

    found = await window.store.read(
        lambda c: overview(c, Filters(), window.situation())
    )
    assert [row.key for row in found] == ["UNTOLD", "SOON", "LATE", "RUNS", "OVER"]


async def test_bridges_are_shown_as_they_fare(window: Window) -> None:
    await window.store.keep(
        [received(BEAT), *(received(life("started", who=vm(n))) for n in (1, 2))]
    )

    async def states() -> list[str]:
        _, body, _ = await window.get("/api/v1/bridges")
        return [one["state"] for one in body["bridges"]]

    assert await states() == ["alive", "unknown", "unknown"]
    _, body, _ = await window.get("/api/v1/bridges?limit=2")
    assert [one["vmName"] for one in body["bridges"]] == ["web-0", "web-1"]
    assert (body["bridges"][0]["pending"], body["bridges"][0]["dead"]) == (2, None)
    _, body, _ = await window.get(f"/api/v1/bridges?cursor={body['next']}")
    assert [one["vmName"] for one in body["bridges"]] == ["web-2"]
    name = str(vm(2).vm_id)
    assert await window.store.write(lambda c: forget_bridge(c, name, at(9)))
    ended = event("T", EventType="Terminate", Resources=["web-1"])
    await window.store.keep([received(step("completed", ended, seconds=5, who=vm(1)))])
    window.now += timedelta(hours=1)
    assert await states() == ["silent", "gone", "gone"]


async def test_description_is_served(window: Window) -> None:
    _, body, _ = await window.get("/api/v1/openapi.json")

    assert body == document() == DESCRIBED.document


async def test_faults_of_http_are_reported_in_json(window: Window) -> None:
    status, body, _ = await window.get("/nowhere")
    assert (status, body) == (404, {"error": "Not Found"})
    async with aiohttp.request("DELETE", f"{window.url}/api/v1/events") as found:
        assert (found.status, found.headers["Allow"]) == (405, "GET,HEAD")


async def test_identity_is_asked_for_everywhere_but_of_probes(window: Window) -> None:
    evil = {"Host": "evil.example"}
    window.missing = ["source b is not connected"]

    assert (await window.get("/api/v1/events", **evil))[0] == 421
    assert (await window.get("/nowhere", **evil))[0] == 421
    assert (await window.get("/metrics", **evil))[0] == 403
    assert (await window.get("/livez", **evil))[0] == 200
    assert (await window.get("/readyz", **evil))[:2] == (503, window.missing)
    status, text, _ = await window.get("/metrics")
    assert (status, 'sebridge_hub_build_info{version="1"}' in text) == (200, True)


async def test_metrics_ask_for_the_token(store: Store) -> None:
    config = HubConfig(listen="127.0.0.1:0", token=Secret("t0ken", {}))
    async with Window(store).open(config) as window:
        for given, status in (("", 401), ("Bearer x", 401), ("Bearer t0ken", 200)):
            assert (await window.get("/metrics", Authorization=given))[0] == status


async def test_store_that_is_away_is_reported(window: Window) -> None:
    window.store.writer.dispose()
    broken = Api(window.store, HubConfig(), lambda: Situation(now=at(0), listening={}))
    hub = Hub(
        config=CONFIG,
        metrics=HubMetrics((), "1"),
        missing=list,
        routes=broken.routes(),
    )
    await window.store.write(lambda c: c.exec_driver_sql("DROP TABLE bridges"))
    async with serve(hub) as (host, port):
        asked = aiohttp.request("GET", f"http://{host}:{port}/api/v1/bridges")
        async with asked as found:
            assert found.status == 503
            assert "the store " in (await found.json())["error"]


async def test_each_listed_address_is_answered(window: Window) -> None:
    number = free_port()
    listed = (f"127.0.0.1:{number}", f"127.0.0.2:{number}")
    async with Window(window.store).open(HubConfig(listen=listed)):
        for address in listed:
            asked = aiohttp.request("GET", f"http://{address}/api/v1/bridges")
            async with asked as found:
                assert found.status == 200


async def test_address_that_is_taken_is_reported(window: Window) -> None:
    taken = HubConfig(listen=window.url.removeprefix("http://"))
    with pytest.raises(BridgeError, match="cannot listen"):
        async with Window(window.store).open(taken):
            pass


async def test_malformed_request_is_one_quiet_line(
    window: Window, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    host, port = window.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/x.y\r\n\r\n")

    assert b"400 Bad Request" in await reader.read()

    writer.close()
    found = [(one.message, one.exc_info) for one in caplog.records]
    assert ("malformed request", None) in found
    assert not [one for one in caplog.records if one.exc_info]


async def test_crowd_that_sends_nothing_keeps_nobody_out(window: Window) -> None:
    host, port = window.url.removeprefix("http://").split(":")
    crowd = [await asyncio.open_connection(host, int(port)) for _ in range(1100)]

    assert (await window.get("/livez"))[0] == 200
    for _, writer in crowd:
        writer.close()
