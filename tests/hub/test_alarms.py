"""Who is silent, who is back, what no bridge reported: found and reported once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from msgspec.structs import replace

from bridge.configuration.event_schema import APPROVALS
from bridge.events.cloudevent import CloudEvent, hash32
from bridge.foundation.errors import HubStoreAwayError, OutboxLockedError
from bridge.foundation.values import Address
from bridge.hub import hub
from bridge.hub.alarm_sinks import AlarmPublisher, context_of, open_alarms, route_of
from bridge.hub.housekeeping import FleetMonitor
from bridge.hub.load import HubFile
from bridge.hub.metrics import HubMetrics
from bridge.hub.sources import BrokerClock
from bridge.hub.store import alarms
from bridge.hub.store.alarms import AlarmContext, AlarmRow, events_of
from bridge.hub.store.lists import forget_bridge
from bridge.hub.store.rows import Entry
from bridge.hub.store.rows import alarm as add_alarm
from bridge.hub.store.store import Store, open_store
from bridge.hub.view_rows import Situation
from bridge.outbox.store import Outbox
from bridge.sinks.email.message import describe as describe_mail
from bridge.sinks.slack.text import describe
from bridge.sinks.webhook.presets.alert import AlertAction, alert
from bridge.telemetry.metrics import Metrics
from tests.bench.measuring import served
from tests.configuration.test_schemas import faults, sent
from tests.hub.test_hub import file_of
from tests.hub.test_sources import until
from tests.support.fakes import FakeClock
from tests.support.fleet import at, azure, event, life, step, vm
from tests.support.hub import beat, config, grid, received
from tests.support.sink_fixtures import sink_config

HUB = "https://hub.example"


class Fleet:
    """A fleet with its monitor, and a clock of the test."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.listening: Any = at(-60)
        self.missing_after: float | None = 60.0
        self.ahead = 0.0
        metrics = HubMetrics(("b",), "1")
        self.fleet_monitor = FleetMonitor(
            store, clock, metrics, self.situation, retention=90 * 86400.0
        )

    def situation(self) -> Situation:
        own = FakeClock(self.clock.now() + timedelta(seconds=self.ahead))
        broker = BrokerClock(own)  # a message has come as soon as it was enqueued
        broker.note(self.clock.now(), is_fresh=True)
        return Situation(
            now=broker.now(),
            clock_fault=broker.fault,
            listening={"b": self.listening},
            missing_after=self.missing_after,
        )

    async def look(self, seconds: float = 0.0) -> list[AlarmRow]:
        """Look after some time; return what is new, as if it was handed on."""
        self.clock.pass_by(seconds)
        await self.fleet_monitor.step()
        found = await self.store.read(alarms.waiting)
        ids = [row.id for row in found]
        await self.store.write(lambda c: alarms.mark_published(c, ids, at(0)))
        return found

    async def kinds(self, seconds: float = 0.0) -> list[tuple[str, object]]:
        found = await self.look(seconds)
        return sorted((row.kind, row.data.get("vmName")) for row in found)


@pytest.fixture
def fleet(store: Store, clock: FakeClock) -> Fleet:
    return Fleet(store, clock)


async def test_bridge_that_falls_silent_is_reported_once_and_so_is_its_return(
    fleet: Fleet,
) -> None:
    await fleet.store.keep([beat(0), beat(1)])
    assert await fleet.kinds(180) == []
    await fleet.store.keep([beat(1, 180)])
    assert await fleet.kinds(60) == [("hub.bridge-silent", "web-0")]
    assert await fleet.kinds(60) == []

    await fleet.store.keep([beat(0, 300), beat(1, 300)])
    assert await fleet.kinds() == [("hub.bridge-back", "web-0")]
    assert await fleet.kinds() == []


async def test_silence_while_nobody_listens_is_no_news(fleet: Fleet) -> None:
    await fleet.store.keep([beat(0)])
    fleet.listening = None
    assert await fleet.kinds(3600) == []
    fleet.listening = fleet.clock.now()
    assert await fleet.kinds(179) == []
    assert await fleet.kinds(2) == [("hub.bridge-silent", "web-0")]


async def test_connection_that_is_made_anew_is_not_the_return_of_a_bridge(
    fleet: Fleet,
) -> None:
    await fleet.store.keep([beat(0)])
    assert await fleet.kinds(200) == [("hub.bridge-silent", "web-0")]
    fleet.listening = fleet.clock.now()  # or another hub, or this one after its restart

    assert await fleet.kinds(60) == []
    assert await fleet.kinds(200) == []


@pytest.mark.parametrize("state", ["stopped", "gone"])
async def test_silence_ends_when_the_bridge_stops_or_is_forgotten(
    fleet: Fleet, state: str
) -> None:
    await fleet.store.keep([beat(0)])
    await fleet.look(200)
    if state == "stopped":
        await fleet.store.keep([received(life("stopped", who=vm(0), seconds=201), 201)])
    else:
        await fleet.store.write(lambda c: forget_bridge(c, vm(0).vm_id or "", at(201)))

    (row,) = await fleet.look(2)

    assert (row.kind, row.data["state"]) == ("hub.bridge-back", state)
    assert await fleet.kinds(3600) == []


async def test_machine_made_anew_answers_for_the_silent_one_before(
    fleet: Fleet,
) -> None:
    await fleet.store.keep([beat(0)])
    await fleet.look(200)
    anew = orjson.loads(life("started", who=vm(0), seconds=210, intervalSeconds=60))
    anew["data"]["reporter"]["vmId"] = "00000000-0000-0000-0000-aaaaaaaaaaaa"
    await fleet.store.keep([received(orjson.dumps(anew), 210)])

    (row,) = await fleet.look(10)

    assert (row.kind, row.data["state"]) == ("hub.bridge-back", "alive")


async def test_two_hubs_on_one_store_add_an_alarm_once(
    fleet: Fleet, clock: FakeClock
) -> None:
    await fleet.store.keep([beat(0)])
    clock.pass_by(200)
    other = Fleet(fleet.store, clock)
    await asyncio.gather(fleet.fleet_monitor.step(), other.fleet_monitor.step())
    assert len(await fleet.store.read(alarms.waiting)) == 1


async def test_event_that_no_bridge_reported_is_an_alarm_once_in_its_life(
    fleet: Fleet,
) -> None:
    await fleet.store.keep([beat(0), grid(azure("Scheduled"))])
    assert [k for k, _ in await fleet.kinds(59)] == []
    await fleet.store.keep([beat(0, 60)])
    (row,) = await fleet.look(2)
    assert row.kind == "hub.unreported"
    assert row.data["machines"] == ["web-0", "web-1"]
    assert await fleet.kinds(60) == []


async def test_event_of_which_a_bridge_knows_is_reported(fleet: Fleet) -> None:
    await fleet.store.keep([beat(0), grid(azure("Scheduled"))])
    await fleet.store.keep([received(step("scheduled"), 30)])
    assert await fleet.kinds(100) == []


async def test_wave_of_unreported_events_is_read_in_portions(fleet: Fleet) -> None:
    wave = [grid(azure("Scheduled", event(f"E-{n:04}"))) for n in range(501)]
    await fleet.store.keep([beat(0), *wave])
    assert len(await fleet.look(100)) == 501


@pytest.mark.parametrize(
    ("ahead", "count"), [(60.0, 0), (-60.0, 0), (61, 1), (-7e3, 1)]
)
async def test_clock_that_is_wrong_is_reported_once_a_day_for_each_hub(
    fleet: Fleet, ahead: float, count: int
) -> None:
    fleet.ahead = ahead
    other = Fleet(fleet.store, fleet.clock)
    other.ahead, other.fleet_monitor.host = ahead, "hub-1"
    for hours in (0, 1, 24):
        kinds = await fleet.kinds(hours * 3600) + await other.kinds()
        again = await fleet.kinds(30) + await other.kinds()
        wanted = 0 if hours == 1 else 2 * count
        assert kinds == [("hub.clock-wrong", None)] * wanted
        assert again == []


async def test_fleet_monitor_goes_on_while_the_store_is_away(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        async def read(self, _work: object) -> None:
            raise HubStoreAwayError("it is away")

    stop = asyncio.Event()
    fleet.fleet_monitor.store = Away()  # type: ignore[assignment]  # as little as it needs
    running = asyncio.create_task(fleet.fleet_monitor.run(stop))

    async def has_reported() -> bool:
        await fleet.clock.advance(60)
        return "fleet cannot be looked at" in caplog.text

    await until(has_reported)
    stop.set()
    await running


APPROVAL: dict[str, object] = {
    "eventId": "A/B",
    "decision": "d",
    "via": "bridge",
    "detail": "no answer",
    "by": None,
}


# -- in words ----------------------------------------------------------------------


def rows(kind: str, *found: dict[str, object]) -> list[AlarmRow]:
    return [
        AlarmRow(id=hash32([kind, n]), kind=kind, time=at(0), data=one)
        for n, one in enumerate(found)
    ]


def bridge(number: int, state: str = "silent") -> dict[str, object]:
    return {"vmId": f"id-{number}", "vmName": f"web-{number}", "state": state}


def spoken(given: list[AlarmRow], silent: int = 0) -> list[CloudEvent]:
    file = HubFile(hub=replace(config(), public_url=HUB))
    shared = AlarmContext(
        context=context_of(file), public_url=HUB, silent=silent, now=at(60)
    )
    return [one.event for one in events_of(given, shared)]


def test_many_silent_bridges_are_one_event_with_fifty_names() -> None:
    (found,) = spoken(rows("hub.bridge-silent", *map(bridge, range(120))), 120)

    assert found.type == "sebridge.hub.bridge-silent.v1"
    assert found.source == HUB
    assert found.data["count"] == 120
    assert len(found.data["bridges"]) == 50  # type: ignore[arg-type]  # a list
    words = "120 bridges are silent: web-0, web-1, web-2 and 117 more"
    assert found.data["headline"] == words
    assert found.data["link"] == f"{HUB}/bridges"
    assert describe_mail(found).headline == describe(found).headline == words


def test_same_alarms_are_the_same_event_in_any_order() -> None:
    given = rows("hub.bridge-silent", bridge(1), bridge(2))
    assert spoken(given)[0].id == spoken(given[::-1])[0].id


def test_one_that_is_back_or_gone_is_named_so() -> None:
    (found,) = spoken(rows("hub.bridge-back", bridge(1, "alive"), bridge(2, "gone")))
    words = "2 bridges are no longer silent: web-1, web-2 (gone)"
    assert found.data["headline"] == words


def test_unreported_event_is_named_by_type_and_machines() -> None:
    one: dict[str, object] = {
        "eventId": "E",
        "eventType": "Redeploy",
        "machines": ["a", "b"],
    }
    (found,) = spoken(rows("hub.unreported", one))
    words = "1 event of Azure not reported by a bridge: Redeploy of a, b"
    assert found.data["headline"] == words
    assert found.extensions["severitytext"] == "ERROR"


@pytest.mark.parametrize(
    "given",
    [
        rows("hub.bridge-silent", bridge(1)),
        rows("hub.bridge-back", bridge(1, "alive")),
        rows("hub.unreported", {"eventType": "", "machines": []}),
        rows("hub.message-slow", {"source": "b", "heard": "2026-03-02T12:00:00Z"}),
        rows("hub.key-unknown", {"vmId": "v", "vmName": "web-0", "key": {}}),
        rows("hub.clock-wrong", {"host": "hub-0", "fault": "it is 90 s ahead"}),
        rows(
            "hub.report",
            {
                "headline": "Maintenance, 23 Feb to 02 Mar: 1 event",
                "lines": ["web-0, Freeze: 0 s down, 31 s paused"],
                "from": "2026-02-23T06:00:00Z",
                "to": "2026-03-02T06:00:00Z",
            },
        ),
        *(rows(f"hub.approval.{word}", APPROVAL) for word in APPROVALS),
    ],
    ids=lambda given: given[0].kind,
)
@pytest.mark.parametrize("url", [HUB, ""])
def test_every_alarm_is_what_the_schema_says(given: list[AlarmRow], url: str) -> None:
    context = context_of(HubFile(hub=replace(config(), public_url=url)))
    shared = AlarmContext(context=context, public_url=url, silent=1, now=at(60))
    (found,) = events_of(given, shared)

    assert faults("event", sent(found)) == []


def approval(word: str) -> list[AlarmRow]:
    return rows(f"hub.approval.{word}", APPROVAL)


def test_approval_that_failed_is_reported_with_its_event_and_reason() -> None:
    (found,) = spoken(approval("failed"))

    assert found.type == "sebridge.hub.approval.failed.v1"
    assert found.subject == "A/B"
    assert found.data["headline"] == "An approval was not carried out: A/B"
    assert found.data["link"] == f"{HUB}/events/A%2FB"
    assert dict(describe(found).facts)["Reason"] == "no answer"


@pytest.mark.parametrize(
    ("given", "silent", "turn"),
    [
        (rows("hub.bridge-silent", bridge(1)), 1, AlertAction.OPEN),
        (rows("hub.bridge-back", bridge(1, "alive")), 1, None),
        (rows("hub.bridge-back", bridge(1, "alive")), 0, AlertAction.RESOLVE),
        (
            rows("hub.unreported", {"eventType": "", "machines": []}),
            0,
            AlertAction.OPEN,
        ),
        (approval("failed"), 0, AlertAction.OPEN),
        (approval("done"), 0, None),
    ],
)
def test_service_of_alerts_is_told_what_needs_somebody(
    given: list[AlarmRow], silent: int, turn: AlertAction | None
) -> None:
    (found,) = spoken(given, silent)
    meant = alert(found)
    assert (meant and meant.action) == turn


# -- to the sinks ------------------------------------------------------------------


class Receiver:
    """A webhook that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.asked = 0
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.status == 200:
            self.got.append(orjson.loads(await request.read()))
        return web.Response(status=self.status)


@asynccontextmanager
async def receiving(**more: object) -> AsyncIterator[tuple[Receiver, Any]]:
    found = Receiver()
    async with served([web.post("/", found.take)]) as url:
        yield found, sink_config({"type": "webhook", "url": url, **more})


def file_with(tmp_path: Path, sink: Any) -> HubFile:
    file = file_of(tmp_path, "Endpoint=sb://x.example", sinks=(sink,))
    state = replace(file.state, path=str(tmp_path / "state.db"))
    return replace(file, state=state)


async def test_alarm_reaches_a_sink_and_is_not_handed_on_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    await fleet.store.keep([beat(0)])
    fleet.clock.pass_by(200)
    await fleet.fleet_monitor.step()
    async with receiving(when={"lifecycle": False}) as (receiver, sink):
        file, stop = file_with(tmp_path, sink), asyncio.Event()
        opened = open_alarms(file, fleet.store, fleet.clock, Metrics(["s"], "1"))
        async with opened as workers, asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(stop))

            async def has_come() -> bool:
                return bool(receiver.got)

            await until(has_come)
            stop.set()
            fleet.clock.pass_by(1)
    (got,) = receiver.got
    assert got["data"]["headline"] == "1 bridge is silent: web-0"
    assert await fleet.store.read(alarms.waiting) == []


async def test_alarm_goes_out_though_its_file_cannot_be_locked(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Only a lock that another process holds ends a start."""
    await fleet.store.keep([beat(0)])
    fleet.clock.pass_by(200)
    await fleet.fleet_monitor.step()
    (tmp_path / "state.db.lock").mkdir()
    async with receiving() as (receiver, sink):
        file, stop = file_with(tmp_path, sink), asyncio.Event()
        opened = open_alarms(file, fleet.store, fleet.clock, Metrics(["s"], "1"))
        async with opened as workers, asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(stop))

            async def has_come() -> bool:
                return bool(receiver.got)

            await until(has_come)
            stop.set()
            fleet.clock.pass_by(1)
    assert receiver.got[0]["data"]["headline"] == "1 bridge is silent: web-0"


async def test_alarm_waits_for_a_sink_that_is_down(
    tmp_path: Path, clock: FakeClock
) -> None:
    """The hub goes on; another life of it delivers what the first one could not."""
    async with receiving() as (receiver, sink):
        file, lives = file_with(tmp_path, sink), 0
        receiver.status = 503
        await add_one(file)
        while not receiver.got:
            stop, lives = asyncio.Event(), lives + 1
            running = asyncio.create_task(hub.run(file, stop, clock))

            async def was_asked(before: int = receiver.asked) -> bool:
                await clock.advance(5)
                return receiver.asked >= before + 2 or bool(receiver.got)

            await until(was_asked)
            receiver.status = 200
            stop.set()
            await clock.advance(1)
            await running
    assert lives == 2
    assert [one["type"] for one in receiver.got] == ["sebridge.hub.approval.failed.v1"]


async def test_hub_hands_its_alarms_on(tmp_path: Path, clock: FakeClock) -> None:
    """A decision's alarm is in the store already when the hub starts."""
    async with receiving() as (receiver, sink):
        file = file_with(tmp_path, sink)
        stop, where = asyncio.Event(), asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            hub.run(file, stop, clock, lambda _, port: where.set_result(port))
        )
        url = f"http://127.0.0.1:{await where}/metrics"
        await add_one(file)

        async def has_come() -> bool:
            await clock.advance(5)
            return bool(receiver.got)

        await until(has_come)
        async with aiohttp.request("GET", url) as found:
            text = await found.text()
        stop.set()
        await running
    assert (
        f'sebridge_deliveries_total{{outcome="delivered",sink="{sink.name}"}}' in text
    )
    assert "sebridge_imds" not in text
    assert receiver.got[0]["type"] == "sebridge.hub.approval.failed.v1"


async def add_one(file: HubFile) -> None:
    entry = Entry(time=at(0), event_key="E", event_id="E", life=1, what="failed")
    async with open_store(file.hub) as store:
        await store.write(lambda c: add_alarm(c, entry))


@pytest.fixture
async def publisher(store: Store, outbox: Outbox, clock: FakeClock) -> AlarmPublisher:
    file = HubFile(hub=config())
    return AlarmPublisher(store, outbox, clock, context_of(file), "")


async def test_one_of_two_hubs_hands_on_and_the_other_after_it_died(
    publisher: AlarmPublisher, fleet: Fleet
) -> None:
    other = replace_holder(publisher)
    await fleet.store.keep([beat(0), beat(1)])
    assert await publisher.step() == 0
    fleet.clock.pass_by(200)
    await publisher.step()
    await fleet.fleet_monitor.step()
    assert await other.step() == 0
    assert await publisher.step() == 2
    await fleet.store.keep([beat(0, 200)])
    await fleet.fleet_monitor.step()
    fleet.clock.pass_by(61)
    assert await other.step() == 1


async def test_hub_that_starts_again_has_its_turn_at_once(
    fleet: Fleet, tmp_path: Path
) -> None:
    async with receiving() as (_, sink):
        file, holders = file_with(tmp_path, sink), list[str]()
        for _ in range(2):
            opened = open_alarms(file, fleet.store, fleet.clock, Metrics(["s"], "1"))
            async with opened as workers:
                (publisher,) = (
                    one for one in workers if isinstance(one, AlarmPublisher)
                )
                holders.append(publisher.holder)
                await add_failed(fleet)
                assert await publisher.step() == 1
    assert len(set(holders)) == 1


async def test_second_hub_on_a_state_file_is_told_of_a_hub(
    fleet: Fleet, tmp_path: Path
) -> None:
    async with receiving() as (_, sink):
        file, metrics = file_with(tmp_path, sink), Metrics(["s"], "1")
        async with open_alarms(file, fleet.store, fleet.clock, metrics):
            with pytest.raises(OutboxLockedError, match="a hub already runs on"):
                async with open_alarms(file, fleet.store, fleet.clock, metrics):
                    pytest.fail("both hold it")  # pragma: no cover - must not come here


async def test_two_hubs_with_one_file_never_share_an_id(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The lock is removed under the first one; then it cannot be taken at all."""
    lock = tmp_path / "state.db.lock"
    async with receiving() as (_, sink), AsyncExitStack() as stack:
        file, found = file_with(tmp_path, sink), list[AlarmPublisher]()

        async def start() -> AlarmPublisher:
            opened = open_alarms(file, fleet.store, fleet.clock, Metrics(["s"], "1"))
            workers = await stack.enter_async_context(opened)
            return next(one for one in workers if isinstance(one, AlarmPublisher))

        found.append(await start())
        await found[0].step()
        lock.unlink()
        found.append(await start())
        lock.unlink()
        lock.mkdir()
        found.append(await start())
        for one in found:  # each of them writes, and so sees that its lock is gone
            await one.outbox.commit([], now=0.0)
        await add_failed(fleet)
        counts = [await one.step() for one in found]

        assert len({one.holder for one in found}) == 3
        assert sum(counts) == 0, "the lease is that of the id before"
        fleet.clock.pass_by(61)
        assert [await one.step() for one in found] == [1, 0, 0]


async def add_failed(fleet: Fleet) -> None:
    fleet.clock.pass_by(1)
    now, detail = fleet.clock.now(), str(fleet.clock.monotonic())
    entry = Entry(time=now, event_key="E", event_id="E", life=1, what="failed")
    await fleet.store.write(lambda c: add_alarm(c, entry.by("ann", detail)))


async def test_clock_that_is_set_back_stops_no_other_hub(
    publisher: AlarmPublisher, fleet: Fleet
) -> None:
    other = replace_holder(publisher)
    await publisher.step()
    fleet.clock.jump(-3600)
    failed = Entry(time=at(-3600), event_key="E", event_id="E", life=1, what="failed")
    await fleet.store.write(lambda c: add_alarm(c, failed))

    assert await other.step() == 1


def replace_holder(publisher: AlarmPublisher) -> AlarmPublisher:
    return AlarmPublisher(
        publisher.store,
        publisher.outbox,
        publisher.clock,
        publisher.context,
        "",
        "other",
    )


async def test_alarm_of_yesterday_is_not_reported_any_more(
    publisher: AlarmPublisher, fleet: Fleet
) -> None:
    await fleet.store.keep([beat(0)])
    fleet.clock.pass_by(200)
    await fleet.fleet_monitor.step()
    fleet.clock.pass_by(25 * 3600)
    assert await publisher.step() == 0
    assert await fleet.store.read(alarms.waiting) == []


async def test_handing_goes_on_while_the_store_is_away(
    publisher: AlarmPublisher, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        async def write(self, _work: object) -> None:
            raise HubStoreAwayError("it is away")

    stop = asyncio.Event()
    publisher.store = Away()  # type: ignore[assignment]  # as little as it needs
    running = asyncio.create_task(publisher.run(stop))

    async def has_reported() -> bool:
        await clock.advance(5)
        return "alarms cannot be read" in caplog.text

    await until(has_reported)
    stop.set()
    await running


async def test_without_sinks_nothing_is_opened(store: Store, clock: FakeClock) -> None:
    file = HubFile(hub=replace(config(), store=Address("sqlite:/x", {})))
    async with open_alarms(file, store, clock, Metrics([], "1")) as workers:
        assert workers == []


def test_filters_of_a_sink_are_said_to_limit_nothing() -> None:
    sink = sink_config({"type": "webhook", "url": "https://x.example/"})
    filtered = replace(sink, when=replace(sink.when, event_types=("Freeze",)))
    assert route_of(filtered).lifecycle
    (words,) = HubFile(hub=config(), sinks=(filtered,))._idle_filters()
    assert "when: limits nothing" in words
