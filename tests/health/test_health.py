"""The health port: its answers from the start on, and who may read them."""

import asyncio
import base64
import contextlib
import json
import re
import socket
import sqlite3
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient
from aiohttp.web import Application, Request
from msgspec.structs import replace

from bridge.events.build import EventContext
from bridge.events.identity import Identity
from bridge.events.look import Withheld
from bridge.foundation.errors import (
    DeliveryError,
    MetadataUnavailableError,
    OutboxThreadDiedError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.pace import RetryPolicy
from bridge.foundation.values import Secret
from bridge.health import port as health_port
from bridge.health import server as health
from bridge.health.config import HttpConfig
from bridge.health.server import kinds_of
from bridge.health.status import StatusSource
from bridge.imds.poller import Poller
from bridge.outbox.records import Decision
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.storage.journal import Timings
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.support.builders import (
    EVENT_ID,
    ME,
    SINK,
    body_of,
    imds_event,
    observed,
    outgoing,
)
from tests.support.fakes import START, FakeClock, FakeMetadata, RecordingSink
from tests.support.hanging import Hanging
from tests.support.ports import free_port

Client = TestClient[Request, Application]
Serve = Callable[[Application], Awaitable[Client]]
TOKEN = "S3CR3T"
PATIENCE = 30
METRICS = {
    "sebridge_imds_requests_total",
    "sebridge_imds_last_success_timestamp_seconds",
    "sebridge_clock_offset_seconds",
    "sebridge_paused_seconds",
    "sebridge_document_incarnation",
    "sebridge_scheduled_events",
    "sebridge_transitions_total",
    "sebridge_events_unsigned_total",
    "sebridge_deliveries_total",
    "sebridge_delivery_failures_total",
    "sebridge_deliveries_late_total",
    "sebridge_outbox_pending",
    "sebridge_outbox_dead",
    "sebridge_outbox_oldest_seconds",
    "sebridge_sink_parked",
    "sebridge_delivery_seconds",
    "sebridge_batch_events",
    "sebridge_start_requests_total",
    "sebridge_commands_total",
    "sebridge_command_seconds",
    "sebridge_state_degraded",
    "sebridge_ready",
    "sebridge_build_info",
}


@dataclass
class FakeReceiver:
    attached: bool = True
    last_error: str | None = None
    stands_by: bool = False
    link_seconds: float | None = None
    last_receive: datetime | None = None


@dataclass
class Bridge:
    """A bridge whose steps the test runs, and a client of its health port."""

    status_source: StatusSource
    poller: Poller
    metadata: FakeMetadata
    clock: FakeClock
    outbox: Outbox
    sink: RecordingSink
    client: Client

    async def fail(self, error: DeliveryError, attempts: int) -> None:
        """Let so many attempts fail, each when it is due."""
        (relay,) = self.status_source.relays
        self.sink.faults.extend([error] * attempts)
        await self.outbox.state.write({})  # what was observed is on the disk
        while self.sink.faults:
            async with asyncio.TaskGroup() as tasks:
                wait = await relay.step(tasks)
            self.clock.pass_by(wait if self.sink.faults else 0)

    async def get(self, path: str, token: str = "") -> tuple[int, str]:
        headers = {"Authorization": token} if token else {}
        async with self.client.get(path, headers=headers) as response:
            return response.status, await response.text()

    async def json(self, path: str) -> Any:
        return json.loads((await self.get(path))[1])

    async def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics by series."""
        _, text = await self.get("/metrics")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(v) for name, v in (line.rsplit(" ", 1) for line in lines)}


@pytest.fixture
async def status_source(clock: FakeClock, metrics: Metrics) -> StatusSource:
    return StatusSource(clock, metrics, Path("/disk/state.db"))


@pytest.fixture
async def bridge(  # noqa: PLR0913 - one fixture a room
    *,
    aiohttp_client: Serve,
    status_source: StatusSource,
    outbox: Outbox,
    metadata: FakeMetadata,
    event_context: EventContext,
    clock: FakeClock,
    metrics: Metrics,
) -> Bridge:
    """Return a bridge that has seen its first document."""
    poller, _ = observed(metadata, outbox, event_context, clock, metrics)
    policy = RelayPolicy(backoff=RetryPolicy(max_backoff=60), max_age=86400, slots=8)
    sink = RecordingSink()
    relay = Relay(SINK, sink, outbox, clock, metrics, policy, lambda: 0.5)
    status_source.outbox, status_source.poller, status_source.event_context = (
        outbox,
        poller,
        event_context,
    )
    status_source.relays = [relay]
    status_source.receivers = {"vm-approvals": FakeReceiver()}
    metadata.says(body_of(imds_event()))
    await poller.step()
    client = await aiohttp_client(health.application(HttpConfig(), status_source))
    return Bridge(status_source, poller, metadata, clock, outbox, sink, client)


@pytest.fixture
async def newborn(aiohttp_client: Serve, status_source: StatusSource) -> Client:
    """Return the health port of a starting bridge, which does not know its VM yet."""
    return await aiohttp_client(health.application(HttpConfig(), status_source))


# -- while starting ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("/livez", 200), ("/readyz", 503), ("/status", 200), ("/metrics", 200)],
)
async def test_every_path_answers_while_the_bridge_is_starting(
    path: str, status: int, newborn: Client
) -> None:
    async with newborn.get(path) as response:
        assert response.status == status


async def test_starting_bridge_reports_what_it_waits_for(newborn: Client) -> None:
    async with newborn.get("/readyz") as response:
        assert response.content_type == "application/json"
        assert await response.json() == ["starting: asking IMDS who this VM is"]


async def test_status_has_its_shape_while_starting(newborn: Client) -> None:
    """A script that reads ``.imds.state`` must not fail."""
    async with newborn.get("/status") as response:
        status = await response.json()

    assert status["imds"] == {"lastSuccess": None, "state": "starting"}
    assert status["document"] == {"incarnation": None, "events": []}
    assert status["sinks"] == status["approvals"] == []
    assert status["vm"]["vmName"] is None


async def test_metrics_have_every_name_from_the_start(newborn: Client) -> None:
    async with newborn.get("/metrics") as response:
        text = await response.text()

    families = {line.split()[2] for line in text.splitlines() if line[:6] == "# TYPE"}
    assert families == METRICS


async def test_metrics_are_of_the_kind_prometheus_reads(newborn: Client) -> None:
    async with newborn.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")


# -- readiness ---------------------------------------------------------------------


async def test_healthy_bridge_is_ready(bridge: Bridge) -> None:
    assert await bridge.get("/readyz") == (200, "[]")


@pytest.mark.parametrize(("seconds", "is_ready"), [(30, True), (31, False)])
async def test_bridge_is_unready_once_imds_is_overdue(
    seconds: float, *, is_ready: bool, bridge: Bridge
) -> None:
    bridge.clock.pass_by(seconds)

    status, text = await bridge.get("/readyz")

    assert status == (200 if is_ready else 503)
    assert is_ready or json.loads(text) == ["imds: no good document (overdue)"]
    state = (await bridge.json("/status"))["imds"]["state"]
    assert state == ("ok" if is_ready else "overdue")
    assert (await bridge.metrics())["sebridge_ready"] == is_ready


async def test_readiness_notes_that_nobody_knows_who_this_vm_is(
    bridge: Bridge, event_context: EventContext
) -> None:
    nameless = replace(event_context, identity=Identity())
    bridge.status_source.event_context = nameless

    status, text = await bridge.get("/readyz")

    (note,) = json.loads(text)
    assert (status, note.split(",")[0]) == (200, "imds: this VM's name is not known")


async def test_readiness_reports_the_failure_of_imds(bridge: Bridge) -> None:
    bridge.metadata.answers.clear()
    bridge.metadata.fails(MetadataUnavailableError("x", outcome="429"))
    await bridge.poller.step()
    bridge.clock.pass_by(31)

    assert await bridge.json("/readyz") == ["imds: no good document (429)"]


@pytest.mark.parametrize(
    ("error", "why"), [(None, "not yet"), ("answered 401", "answered 401")]
)
async def test_bridge_is_unready_while_a_receiver_is_not_attached(
    error: str | None, why: str, bridge: Bridge
) -> None:
    bridge.status_source.receivers = {
        "q": FakeReceiver(attached=False, last_error=error)
    }

    assert await bridge.get("/readyz") == (
        503,
        f'["approvals: q is not attached ({why})"]',
    )


@dataclass
class FakeListener:
    source: str
    is_full: bool
    fault: str | None = None


async def test_bridge_is_unready_while_the_keys_of_approvers_cannot_be_read(
    bridge: Bridge,
) -> None:
    fault = "approvals.signed_by[0]: the file a.jwks cannot be read"
    bridge.status_source.listeners = [
        FakeListener(name, is_full=False, fault=fault) for name in ("q", "p")
    ]

    assert f"{fault}: approvals wait" in bridge.status_source.missing()
    assert len([one for one in bridge.status_source.missing() if fault in one]) == 1


async def test_bridge_is_unready_while_too_many_approvals_wait(bridge: Bridge) -> None:
    full, other = FakeListener("q", is_full=True), FakeListener("p", is_full=False)
    bridge.status_source.listeners = [full, other]

    assert await bridge.get("/readyz") == (
        503,
        '["approvals: no messages are received from q (too many wait)"]',
    )


async def test_bridge_on_standby_for_a_session_is_ready(bridge: Bridge) -> None:
    """Of the bridges that share a session only one is attached, but all are ready."""
    held = FakeReceiver(attached=False, stands_by=True, last_error="held elsewhere")
    bridge.status_source.receivers = {
        "q session group": held,
        "q session me": FakeReceiver(),
    }

    assert await bridge.get("/readyz") == (200, "[]")


async def test_bridge_is_unready_while_the_state_file_cannot_be_written(
    bridge: Bridge,
) -> None:
    await fill_disk(bridge.outbox)

    status, text = await bridge.get("/readyz")

    assert status == 503
    assert json.loads(text) == [
        "state: cannot be written (database or disk is full)",
    ]
    assert (await bridge.metrics())["sebridge_state_degraded"] == 1


async def fill_disk(outbox: Outbox) -> None:
    def full(size: int) -> Callable[[Any], Any]:
        return lambda db: db.execute(f"PRAGMA max_page_count = {size}").fetchone()

    await outbox.database.run(full(1))
    assert not await outbox.commit([], now=1.8e9, named={"x": bytes(100_000)})


async def test_parked_sink_is_a_note_of_a_ready_bridge(
    bridge: Bridge,
) -> None:
    error = RefusedDeliveryError("siem answered 401", Reason.UNAUTHORIZED)
    await bridge.fail(error, attempts=3)

    status, text = await bridge.get("/readyz")

    assert status == 200
    cure = "once that is mended, sebridge outbox retry --sink siem"
    assert json.loads(text) == [f"sinks.siem: parked (siem answered 401): {cure}"]


async def test_sink_that_fails_is_a_note_at_once(bridge: Bridge) -> None:
    error = TransientDeliveryError("siem cannot be reached", Reason.CONNECTION)
    await bridge.fail(error, attempts=1)

    assert await bridge.get("/readyz") == (
        200,
        '["sinks.siem: nothing delivered since the start (siem cannot be reached)"]',
    )


async def test_dead_letters_are_a_note_at_once(bridge: Bridge) -> None:
    error = PermanentDeliveryError("siem answered 400", Reason.REJECTED)
    await bridge.fail(error, attempts=1)

    status, text = await bridge.get("/readyz")

    assert status == 200
    (note,) = json.loads(text)
    command = "sebridge outbox list --state dead"
    assert note == f"sinks.siem: 1 dead letter (siem answered 400): {command}"
    assert (await bridge.json("/status"))["notes"] == [note]


async def test_dead_letter_is_not_said_to_have_died_of_a_later_failure(
    bridge: Bridge,
) -> None:
    refused = PermanentDeliveryError("siem answered 302", Reason.REDIRECTED)
    await bridge.fail(refused, attempts=1)
    await bridge.outbox.commit([outgoing("2")], now=bridge.clock.now().timestamp())
    await bridge.fail(TransientDeliveryError("no answer", Reason.TIMEOUT), attempts=1)

    failing, dead = json.loads((await bridge.get("/readyz"))[1])

    assert failing.startswith("sinks.siem: ")
    assert dead == "sinks.siem: 1 dead letter: sebridge outbox list --state dead"


async def test_what_waits_for_a_sink_that_is_not_configured_any_more_is_a_note(
    bridge: Bridge,
) -> None:
    await bridge.outbox.commit([outgoing("1")], now=0)
    bridge.status_source.relays = []

    (note,) = json.loads((await bridge.get("/readyz"))[1])
    kept = "not configured any more, but 2 deliveries are kept for it"
    assert note == f"sinks.siem: {kept}: sebridge outbox list --sink siem"


async def test_all_causes_are_reported_at_once(bridge: Bridge) -> None:
    bridge.status_source.receivers = {
        "a": FakeReceiver(attached=False),
        "b": FakeReceiver(attached=False),
        "c": FakeReceiver(),
    }
    bridge.clock.pass_by(60)

    missing = await bridge.json("/readyz")

    assert [what.split()[0] for what in missing] == [
        "imds:",
        "approvals:",
        "approvals:",
    ]


async def test_liveness_needs_only_the_event_loop(bridge: Bridge) -> None:
    bridge.clock.pass_by(3600)
    bridge.status_source.receivers = {"q": FakeReceiver(attached=False)}

    assert await bridge.get("/livez") == (200, "ok\n")


async def test_liveness_needs_the_thread_of_the_state_file(bridge: Bridge) -> None:
    def without_memory(_: sqlite3.Connection) -> None:
        raise MemoryError

    assert (await bridge.get("/livez"))[0] == 200
    with pytest.raises(OutboxThreadDiedError):
        await bridge.outbox.database.read(without_memory)

    assert (await bridge.get("/livez"))[0] == 503


async def test_bridge_with_a_hanging_disk_is_alive_but_not_ready(
    state_path: Path, status_source: StatusSource, bridge: Bridge
) -> None:
    disk = Hanging()
    async with Database.open(
        File(state_path.with_name("other.db"), may_degrade=True, connect=disk.open),
        timings=Timings(patience=0.5),
    ) as database:
        status_source.outbox = await Outbox.of(database, bridge.outbox.router)
        disk.freeze()
        await status_source.outbox.commit([], now=1.8e9, named={"x": b"y"})

        status, missing = await bridge.get("/readyz")
        assert status == 503
        assert "the disk has not answered" in missing
        assert (await bridge.get("/livez"))[0] == 200
        assert (await bridge.metrics())["sebridge_state_degraded"] == 1
        disk.thaw()


# -- status and metrics ------------------------------------------------------------


async def test_status_has_the_shape_of_the_contract(bridge: Bridge) -> None:
    status = await bridge.json("/status")

    assert set(status) >= {"vm", "document", "imds", "sinks", "approvals"}
    assert status["vm"]["vmName"] == "WestNO_0"
    assert status["document"] == {"incarnation": 2, "events": [imds_event()]}
    assert status["imds"] == {"lastSuccess": "2026-03-02T12:00:00Z", "state": "ok"}
    assert status["sinks"] == [
        {
            "name": SINK,
            "state": "untried",
            "pending": 1,
            "dead": 0,
            "oldestSeconds": 0,
            "lastError": None,
        }
    ]


async def test_status_keeps_its_bytes(bridge: Bridge) -> None:
    """Programs of others may compare the text: the order of the members counts too."""
    source = bridge.status_source
    error = TransientDeliveryError("siem answered 503", Reason.SERVER)
    await bridge.fail(error, attempts=1)
    held = Withheld(EVENT_ID, "r", "Delay")
    assert source.poller is not None
    source.poller.rules = Approver({EVENT_ID: held})
    source.rotation = Rotation({"traffic": "in"})

    _, text = await bridge.get("/status")

    event = json.dumps(imds_event(), separators=(",", ":"))
    assert text == (
        f'{{"vm":{{"vmName":"WestNO_0","vmId":"{ME.vm_id}",'
        f'"resourceId":"{ME.resource_id}","location":"westnorway",'
        f'"vmScaleSetName":"WestNO","version":"1.2.3","source":"{ME.source}"}},'
        f'"document":{{"incarnation":2,"events":[{event}]}},'
        '"imds":{"lastSuccess":"2026-03-02T12:00:00Z","state":"ok"},'
        '"sinks":[{"name":"siem","state":"retrying","pending":1,"dead":0,'
        '"oldestSeconds":0,"lastError":"siem answered 503"}],'
        '"approvals":[],"commands":[],'
        '"replies":{"pending":0,"dead":0,"lastError":null},'
        '"receivers":[{"entity":"vm-approvals","attached":true,"standsBy":false,'
        '"linkSeconds":null,"lastReceive":null,"lastError":null}],'
        '"missing":[],'
        '"notes":["sinks.siem: nothing delivered since the start (siem answered 503)"],'
        f'"withheld":[{{"eventId":"{EVENT_ID}","rule":"r","reason":"Delay"}}],'
        '"traffic":{"traffic":"in"},"statePath":"/disk/state.db"}'
    )


async def test_status_of_a_starting_bridge_keeps_its_bytes(
    newborn: Client, status_source: StatusSource
) -> None:
    status_source.rotation = Rotation({"traffic": "in"})

    async with newborn.get("/status") as response:
        text = await response.text()

    assert text == (
        '{"vm":{"vmName":null,"vmId":null,"resourceId":null,"location":null,'
        '"vmScaleSetName":null},"document":{"incarnation":null,"events":[]},'
        '"imds":{"lastSuccess":null,"state":"starting"},"sinks":[],"approvals":[],'
        '"commands":[],"replies":{"pending":0,"dead":0,"lastError":null},'
        '"traffic":{"traffic":"in"},"statePath":"/disk/state.db"}'
    )


@dataclass
class Approver:
    """A fake of what approves by rules."""

    withheld: Mapping[str, Withheld]

    def turn(self, flows: asyncio.TaskGroup) -> float:
        raise AssertionError(flows)


async def test_status_shows_the_error_of_the_last_attempt(bridge: Bridge) -> None:
    error = TransientDeliveryError("siem answered 503", Reason.SERVER)
    await bridge.fail(error, attempts=1)

    (sink,) = (await bridge.json("/status"))["sinks"]

    assert (sink["state"], sink["lastError"]) == ("retrying", "siem answered 503")


async def test_status_shows_recent_outcomes_of_approvals(bridge: Bridge) -> None:
    decision = Decision(
        message="m",
        key=EVENT_ID,
        event_id=EVENT_ID,
        sequence=1,
        state="relayed",
        data=b'{"outcome": "relayed"}',
    )
    await bridge.outbox.commit([], now=0, decisions=[decision])

    status = await bridge.json("/status")

    assert status["approvals"] == [{"outcome": "relayed"}]


async def test_vm_out_of_rotation_is_a_note_of_a_ready_bridge(bridge: Bridge) -> None:
    bridge.status_source.rotation = Rotation({"traffic": "in"})
    before = await bridge.get("/readyz")

    bridge.status_source.rotation = Rotation(
        {"traffic": "out", "reason": "scheduled", "eventId": EVENT_ID}
    )

    assert before == (200, "[]")
    assert await bridge.get("/readyz") == (
        200,
        f'["traffic: out of rotation (scheduled {EVENT_ID})"]',
    )


@dataclass(frozen=True)
class Rotation:
    """A fake of the part that knows whether this VM is in rotation."""

    stands: dict[str, object]

    def shown(self) -> dict[str, object]:
        return self.stands


async def test_status_shows_the_receivers(bridge: Bridge) -> None:
    bridge.status_source.receivers = {
        "q": FakeReceiver(attached=False, last_error="no"),
        "q session me": FakeReceiver(link_seconds=61.7, last_receive=START),
    }

    assert (await bridge.json("/status"))["receivers"] == [
        {
            "entity": "q",
            "attached": False,
            "standsBy": False,
            "linkSeconds": None,
            "lastReceive": None,
            "lastError": "no",
        },
        {
            "entity": "q session me",
            "attached": True,
            "standsBy": False,
            "linkSeconds": 61,
            "lastReceive": "2026-03-02T12:00:00Z",
            "lastError": None,
        },
    ]


async def test_gauges_of_the_outbox_are_measured_at_each_scrape(
    bridge: Bridge,
) -> None:
    bridge.clock.pass_by(90)
    await bridge.outbox.commit([outgoing("a")], now=bridge.clock.now().timestamp())

    samples = await bridge.metrics()

    assert samples['sebridge_outbox_pending{sink="siem"}'] == 2
    assert samples['sebridge_outbox_oldest_seconds{sink="siem"}'] == 90


async def test_events_in_the_document_are_counted_by_type_and_status(
    bridge: Bridge,
) -> None:
    samples = await bridge.metrics()

    series = 'sebridge_scheduled_events{event_status="Scheduled",event_type="Freeze"}'
    assert samples[series] == 1
    assert samples["sebridge_document_incarnation"] == 2


async def test_no_label_contains_an_event_id(bridge: Bridge) -> None:
    _, text = await bridge.get("/metrics")

    assert "sebridge_transitions_total" in text
    assert not re.search(EVENT_ID, text, re.IGNORECASE)


# -- the page ----------------------------------------------------------------------


async def test_page_shows_what_is_scheduled(bridge: Bridge) -> None:
    async with bridge.client.get("/") as response:
        text = await response.text()
        assert (response.status, response.content_type) == (200, "text/html")
        assert "script-src 'sha256-" in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["X-Content-Type-Options"] == "nosniff"

    assert "<title>1 scheduled event on WestNO_0</title>" in text
    assert "in 15 min 00 s" in text
    assert '<meta http-equiv="refresh"' not in text


async def test_page_reloads_itself_with_refresh(bridge: Bridge) -> None:
    assert '<meta http-equiv="refresh"' in (await bridge.get("/?refresh"))[1]


async def test_page_of_a_starting_bridge_says_so(newborn: Client) -> None:
    async with newborn.get("/") as response:
        assert "The bridge is starting" in await response.text()


async def test_page_is_only_read(bridge: Bridge) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        async with bridge.client.request(method, "/") as response:
            assert response.status == 405


# -- access ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8:1", "localhost", "LOCALHOST:8080", "[::1]:9465"]
)
@pytest.mark.parametrize("path", ["/", "/status", "/metrics"])
async def test_loopback_names_are_accepted(
    host: str, path: str, bridge: Bridge
) -> None:
    """Also through a tunnel with another local port."""
    async with bridge.client.get(path, headers={"Host": host}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9465", "10.0.0.4", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/x"])
async def test_foreign_host_name_is_refused(
    host: str, path: str, bridge: Bridge
) -> None:
    """Otherwise a foreign page in a browser on this machine could read the status."""
    async with bridge.client.get(path, headers={"Host": host}) as response:
        assert response.status == 421
        assert "loopback" in await response.text()


async def test_probes_may_use_any_name(bridge: Bridge) -> None:
    for path in ("/livez", "/readyz"):
        async with bridge.client.get(path, headers={"Host": "a.example"}) as response:
            assert response.status == 200


async def test_client_without_a_host_header_is_accepted(bridge: Bridge) -> None:
    """HTTP/1.0 has no Host header, and browsers do not use HTTP/1.0."""
    host, port = bridge.client.host, bridge.client.port
    assert port is not None
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /status HTTP/1.0\r\n\r\n")

    assert b" 200 OK" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.fixture
async def guarded(bridge: Bridge, aiohttp_client: Serve) -> Bridge:
    config = HttpConfig(token=Secret(TOKEN, {}))
    bridge.client = await aiohttp_client(
        health.application(config, bridge.status_source)
    )
    return bridge


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_need_no_token(path: str, guarded: Bridge) -> None:
    assert (await guarded.get(path))[0] == 200


async def break_everything(bridge: Bridge) -> None:
    """Cause every kind of unreadiness, with names that must stay secret."""
    error = RefusedDeliveryError("siem answered 401", Reason.UNAUTHORIZED)
    await bridge.fail(error, attempts=3)
    lost = FakeReceiver(attached=False, last_error="contoso refuses")
    bridge.status_source.receivers = {"vm-approvals session web-7": lost}
    bridge.status_source.listeners = [FakeListener("vm-approvals", is_full=True)]
    bridge.clock.pass_by(60)


KINDS = ["imds", "approvals", "sinks"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9465", "10.0.0.4"])
async def test_readiness_gives_only_kinds_to_a_foreign_host(
    host: str, bridge: Bridge
) -> None:
    await break_everything(bridge)

    async with bridge.client.get("/readyz", headers={"Host": host}) as response:
        assert (response.status, await response.json()) == (503, KINDS)


async def test_readiness_gives_details_on_this_machine(bridge: Bridge) -> None:
    await break_everything(bridge)

    found = await bridge.json("/readyz")

    assert (
        "approvals: vm-approvals session web-7 is not attached (contoso refuses)"
        in (found)
    )
    assert [text.split(":")[0] for text in found] == [
        *("imds", "approvals", "approvals", "sinks.siem"),
    ]


@pytest.mark.parametrize("header", ["", "Bearer wrong", TOKEN])
async def test_readiness_names_nothing_without_the_token(
    header: str, guarded: Bridge
) -> None:
    await break_everything(guarded)

    status, text = await guarded.get("/readyz", header)

    assert (status, json.loads(text)) == (503, KINDS)


async def test_readiness_gives_details_with_the_token(guarded: Bridge) -> None:
    await break_everything(guarded)
    headers = {"Host": "vm.example", "Authorization": f"Bearer {TOKEN}"}

    async with guarded.client.get("/readyz", headers=headers) as response:
        assert "web-7" in await response.text()


async def test_starting_is_a_kind_of_its_own(newborn: Client) -> None:
    async with newborn.get("/readyz", headers={"Host": "evil.example"}) as response:
        assert await response.json() == ["starting"]


async def test_full_disk_is_a_kind_of_its_own(bridge: Bridge) -> None:
    await fill_disk(bridge.outbox)
    headers = {"Host": "evil.example"}

    async with bridge.client.get("/readyz", headers=headers) as response:
        assert await response.json() == ["state"]


def test_unknown_kind_is_called_other() -> None:
    found = [
        "contoso: x",
        "imds web-7: x",
        "imds.contoso: x",
        "",
        "sinks.a: x",
        "imds: y",
    ]

    assert kinds_of(found) == ["other", "imds", "sinks"]


async def test_probe_without_a_token_does_not_read_its_file(
    bridge: Bridge,
    aiohttp_client: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = Secret(f"file:{tmp_path / 'gone'}", {})
    app = health.application(HttpConfig(token=gone), bridge.status_source)
    client = await aiohttp_client(app)

    async with client.get("/readyz") as response:
        assert response.status == 200

    assert caplog.records == []


@pytest.mark.parametrize("path", ["/status", "/metrics", "/livez/", "/x", "/"])
async def test_anything_else_is_kept_from_who_has_no_token(
    path: str, guarded: Bridge
) -> None:
    for header in (
        *("", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {TOKEN}x", TOKEN),
        *(f"Basic {TOKEN}", f"Bearer  {TOKEN} x", "Bearer \udcff"),
    ):
        found = await guarded.get(path, header)

        assert found == (401, "a bearer token is required\n"), header


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_token_gives_access_to_all_paths(scheme: str, guarded: Bridge) -> None:
    """The scheme is compared case-insensitively (RFC 9110, section 11.1)."""
    for path in ("/status", "/metrics"):
        assert (await guarded.get(path, f"{scheme} {TOKEN}"))[0] == 200


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


async def test_browser_gives_the_token_as_a_password(guarded: Bridge) -> None:
    async with guarded.client.get("/", headers={"Host": "vm.example"}) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Basic realm=")

    for user in ("", "anybody", "jürgen"):
        assert (await guarded.get("/", basic(user, TOKEN)))[0] == 200
    for wrong in ("", "x", f"{TOKEN}:", f" {TOKEN}"):
        assert (await guarded.get("/", basic("anybody", wrong)))[0] == 401


async def test_refusal_asks_for_a_bearer_token(guarded: Bridge) -> None:
    async with guarded.client.get("/status") as response:
        assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_unreadable_token_gives_no_access(
    bridge: Bridge,
    aiohttp_client: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a secret is rotated, its file may be missing for a moment."""
    config = HttpConfig(token=Secret(f"file:{tmp_path / 'token'}", {}))
    bridge.client = await aiohttp_client(
        health.application(config, bridge.status_source)
    )

    assert (await bridge.get("/status", "Bearer "))[0] == 401
    assert "the bearer token cannot be read" in caplog.messages


# -- listening ---------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    return free_port()


async def test_port_is_open_as_long_as_the_context(
    port: int, status_source: StatusSource
) -> None:
    url = f"http://127.0.0.1:{port}/livez"

    config = HttpConfig(listen=f"127.0.0.1:{port}")

    async with health_port.serve(config, status_source):
        assert await status_of(url) == 200
    with pytest.raises(aiohttp.ClientConnectionError):
        await status_of(url)


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def test_port_of_an_ipv6_address_is_served(status_source: StatusSource) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")

    async with health_port.serve(HttpConfig(listen="[::1]:0"), status_source):
        pass


async def test_empty_address_serves_nothing(
    status_source: StatusSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async with health_port.serve(HttpConfig(listen=""), status_source):
        assert caplog.messages == []


@pytest.mark.parametrize(
    "listen", ["{taken}", "no.such.host.invalid:80", "a..b:80", "x" * 70 + ":80"]
)
async def test_address_that_cannot_be_listened_on_is_one_clear_error(
    listen: str, status_source: StatusSource, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = listen.replace("{taken}", f"127.0.0.1:{other.getsockname()[1]}")

        async with health_port.serve(HttpConfig(listen=taken), status_source):
            (fault,) = status_source.missing()[1:]

    assert fault.startswith(f"http.listen: cannot listen on {taken}: ")
    assert [vars(record)["fault"] for record in caplog.records] == [fault]


async def test_taken_port_is_served_when_it_is_free(
    status_source: StatusSource, clock: FakeClock
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        listen = HttpConfig(listen=f"127.0.0.1:{port}")
        serving = health_port.serve(listen, status_source)
        await serving.__aenter__()
        await clock.advance(12)
    await clock.advance(5)

    assert await status_of(f"http://127.0.0.1:{port}/livez") == 200
    await serving.__aexit__(None, None, None)


async def test_listener_of_systemd_is_used_in_place_of_the_address(
    status_source: StatusSource,
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = HttpConfig(listen="no.such.host.invalid:80")

    async with health_port.serve(config, status_source, listener):
        assert await status_of(f"http://127.0.0.1:{port}/livez") == 200


async def test_error_inside_the_context_is_not_an_error_of_the_port(
    status_source: StatusSource,
) -> None:
    with pytest.raises(FileNotFoundError):
        async with health_port.serve(HttpConfig(listen="127.0.0.1:0"), status_source):
            raise FileNotFoundError("state.db")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nAuthorization: Bearer s3cret\r\nContent-Length: z\r\n\r\n",
        b"GET / HTTP/9.9 s3cret\r\n\r\n",
        b"GET /" + b"s3cret" * 2000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\ns3cret\r\n",
        b"GET /livez HTTP/1.1\r\n\r\nno request s3cret\r\n\r\n",
    ],
)
async def test_malformed_request_is_one_quiet_line(
    request_: bytes, opened: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    answer = await call(opened, request_)

    assert b"400 Bad Request" in answer
    (line,) = caplog.records
    assert (line.message, line.levelname) == ("malformed request", "INFO")
    assert vars(line)["client"] == "127.0.0.1"
    assert line.exc_info is None
    assert "s3cret" not in str(vars(line))


# -- the first connection ----------------------------------------------------------


@pytest.fixture
async def opened(status_source: StatusSource, port: int) -> AsyncIterator[int]:
    """Open a health port that has had no connection yet."""
    async with health_port.serve(HttpConfig(listen=f"127.0.0.1:{port}"), status_source):
        yield port


async def call(port: int, say: bytes) -> bytes:
    """Send bytes on a new connection, and return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(say)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


ASKED = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def test_all_connections_during_loading_are_answered(opened: int) -> None:
    answers = await asyncio.gather(*(call(opened, ASKED) for _ in range(20)))

    assert all(one.startswith(b"HTTP/1.1 200 ") for one in answers)


async def test_connection_closed_during_loading_is_harmless(
    opened: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", opened)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert (await call(opened, ASKED)).startswith(b"HTTP/1.1 200 ")
    assert caplog.messages == []


async def test_limit_of_connections_includes_early_ones(
    opened: int,
) -> None:
    """Connections from before the server was loaded count, too."""
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", opened)))

        assert (await call(opened, ASKED)).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(PATIENCE):
            while held_on(opened) > 32:
                await asyncio.sleep(0.01)


def held_on(port: int) -> int:
    """Return how many accepted connections of a port are open."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


@pytest.mark.parametrize("turns", range(8))
async def test_closing_the_port_closes_unanswered_connections(
    turns: int, status_source: StatusSource, port: int
) -> None:
    """The connection may be accepted, waiting for the server, or passed to it."""
    async with health_port.serve(HttpConfig(listen=f"127.0.0.1:{port}"), status_source):
        waiting = socket.create_connection(("127.0.0.1", port))
        for _ in range(turns):
            await asyncio.sleep(0)

    reader, writer = await asyncio.open_connection(sock=waiting)
    with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
