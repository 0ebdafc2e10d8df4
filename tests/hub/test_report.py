"""Why was it down, for how long, and was it planned; on either store."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text

from bridge.foundation.values import Duration
from bridge.hub.alarm_sinks import context_of
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import FleetMonitor, forget
from bridge.hub.load import HubFile
from bridge.hub.metrics import HubMetrics
from bridge.hub.report import report_of, time_line
from bridge.hub.store import alarms
from bridge.hub.store.alarms import AlarmContext, events_of
from bridge.hub.store.lists import machines_named
from bridge.hub.store.rows import micros
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events, notes
from bridge.sinks.email.message import describe
from tests.support.builders import EVENT_ID, not_before
from tests.support.fakes import START
from tests.support.fleet import (
    GROUP,
    SUBSCRIPTION,
    annotation,
    at,
    azure,
    event,
    health,
    life,
    outcome,
    step,
    vm,
    window,
)
from tests.support.hub import HubWorld, beat, config, grid, received

MACHINE = f"subscription={SUBSCRIPTION}&resourceGroup={GROUP}&name=web-0"
PATH = f"/machines/{SUBSCRIPTION}/{GROUP}/web-0"
HOUR = 3600.0


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    async with HubWorld(store, config()).open() as found:
        yield found


def paused(body: bytes, seconds: float) -> bytes:
    """Return a step, before which the VM of its bridge stood still."""
    return body.replace(b'"data":{', b'"data":{"pausedSeconds":%d,' % seconds, 1)


async def line(world: HubWorld) -> Any:
    return await world.get(f"/api/v1/timeline?{MACHINE}")


async def outage(world: HubWorld) -> Any:
    """Return the only outage of web-0."""
    (found,) = (await line(world))["outages"]
    return found


async def freeze(world: HubWorld, *, pause: float = 31) -> None:
    """Let web-0 be frozen: announced, approved, started after 5 min, over."""
    raw = event(EventType="Freeze", NotBefore=not_before(900))
    await world.store.keep([beat(), received(step("scheduled", raw))])
    world.clock.pass_by(120)
    assert (await world.post())[0] == 200
    world.clock.pass_by(400)
    over = paused(step("completed", raw, seconds=340), pause)
    await world.store.keep(
        [
            received(
                step("started", {**raw, "EventStatus": "Started"}, seconds=300), 300
            ),
            received(over, 340),
        ]
    )


async def test_freeze_on_one_time_line(world: HubWorld) -> None:
    await freeze(world)

    found = await line(world)
    assert [(one["what"], one["words"]) for one in found["entries"]] == [
        ("announced", "Freeze by Platform"),
        ("approved", "by ann"),
        ("started", "Freeze"),
        ("paused", None),
        ("completed", "Freeze"),
        ("back", "planned: host maintenance"),
    ]
    assert found["entries"][0]["seconds"] == 900
    (down,) = found["outages"]
    assert (down["how"], down["seconds"], down["planned"]) == ("paused", 31, True)
    assert down["eventId"] == EVENT_ID
    page = await world.get(PATH)
    assert "Paused 31 s" in page
    assert "planned: host maintenance" in page


async def monitored(world: HubWorld) -> None:
    """Look for silent bridges once."""
    monitor = FleetMonitor(
        world.store, world.clock, HubMetrics(("b",), "1"), world.situation, HOUR
    )
    await monitor.step()


async def test_hardware_fails_without_a_word(world: HubWorld) -> None:
    """The bridge is silent; Azure says why, later."""
    await world.store.keep([beat()])
    world.clock.pass_by(200)
    await monitored(world)
    said = annotation(60, "VirtualMachineHostCrashed", "Unplanned")
    await world.store.keep([grid(said, 90), beat(0, 252), beat(0, 300)])
    world.clock.pass_by(200)
    await monitored(world)

    down = await outage(world)
    assert (down["how"], down["seconds"]) == ("silent", 252)
    assert (down["planned"], down["why"]) == (False, "unplanned: hardware")
    assert "Silent 4 min 12 s" in await world.get(PATH)


async def test_outage_goes_on(world: HubWorld) -> None:
    await world.store.keep([beat()])
    world.clock.pass_by(200)
    await monitored(world)

    down = await outage(world)
    assert (down["until"], down["why"]) == (None, "not announced by Azure")
    page = await world.get(PATH)
    assert "Silent until now" in page


async def test_reboot_by_its_event_and_resource_health(world: HubWorld) -> None:
    """The bridge stops, and is back; Resource Health saw less of it."""
    raw = event(EventType="Reboot", EventSource="User")
    begun = {**raw, "EventStatus": "Started"}
    await world.store.keep(
        [
            beat(),
            received(step("scheduled", raw, seconds=1), 1),
            received(step("started", begun, seconds=100), 100),
            received(life("stopped", seconds=110), 110),
            grid(health(120, availabilityState="Unavailable"), 130),
            grid(health(150, availabilityState="Available"), 160),
        ]
    )
    await world.store.keep([beat(0, 190)])
    world.clock.pass_by(300)

    down = await outage(world)
    assert (down["how"], down["seconds"]) == ("unavailable", 80)
    assert down["why"] == "planned: Reboot, asked for by a user"
    assert down["eventId"] == EVENT_ID


async def test_bridge_that_stops_for_an_update_is_no_outage(world: HubWorld) -> None:
    await world.store.keep([beat(), received(life("stopped", seconds=10), 10)])
    await world.store.keep([beat(0, 14)])
    world.clock.pass_by(60)

    found = await line(world)
    assert found["outages"] == []
    assert [(one["what"], one["seconds"]) for one in found["entries"]] == [
        ("stopped", 4)
    ]


async def test_window_of_a_maintenance_configuration(world: HubWorld) -> None:
    await world.store.keep(
        [
            grid(window(-60, is_over=False, begin=0, end=600), -60),
            grid(health(30, availabilityState="Unavailable"), 30),
            grid(health(90, availabilityState="Available"), 90),
            grid(window(200, is_over=True, begin=0, end=600), 200),
        ]
    )
    world.clock.pass_by(300)

    assert (await outage(world))["why"] == "planned: maintenance configuration patches"
    (reported,) = [
        one for one in (await line(world))["entries"] if one["what"] == "window"
    ]
    assert (reported["words"], reported["seconds"]) == ("patches: Succeeded", 200)


@pytest.mark.parametrize(
    ("name", "category", "context", "why"),
    [
        (
            "VirtualMachineRebootInitiatedForPlannedMaintenance",
            "Planned",
            "Platform Initiated",
            "planned: host maintenance",
        ),
        (
            "VirtualMachineStorageOffline",
            "Unplanned",
            "Platform Initiated",
            "unplanned: storage",
        ),
        (
            "VirtualMachineMigrationInitiatedForRepair",
            "Unplanned",
            "Platform Initiated",
            "unplanned: hardware",
        ),
        (
            "VirtualMachineRestarted",
            "Not Applicable",
            "Customer Initiated",
            "planned: asked for by a user (Host reboot)",
        ),
        (
            "VirtualMachineCrashed",
            "Not Applicable",
            "VM Initiated",
            "unplanned: the guest crashed",
        ),
    ],
)
async def test_reason_of_resource_health(
    world: HubWorld, name: str, category: str, context: str, why: str
) -> None:
    await world.store.keep(
        [
            grid(health(30, availabilityState="Unavailable"), 30),
            grid(annotation(31, name, category, context=context), 31),
            grid(health(90, availabilityState="Available"), 90),
        ]
    )
    world.clock.pass_by(300)

    assert (await outage(world))["why"] == why


# -- the report ------------------------------------------------------------------------


async def test_report_of_a_period(world: HubWorld) -> None:
    await freeze(world)

    found = await world.get("/api/v1/report?from=2026-03-01&to=2026-03-02")
    assert found["totals"]["events"] == 1
    assert found["totals"]["pausedSeconds"] == 31
    rows = {row["machine"]: row for row in found["rows"]}
    assert set(rows) == {"web-0", "web-1"}
    first = rows["web-0"]
    assert (first["eventType"], first["events"], first["by"]) == ("Freeze", 1, ["ann"])
    assert (first["noticeSeconds"], first["decisionSeconds"]) == (900, 120)
    assert (first["plannedSeconds"], first["unplannedSeconds"]) == (31, 0)
    assert rows["web-1"]["pausedSeconds"] == 0

    table = await world.get("/api/v1/report.csv?from=2026-03-01&to=2026-03-02")
    assert '"web-0","web","' in table
    page = await world.get("/report?from=2026-03-01&to=2026-03-02")
    assert "31 s" in page
    assert "1 of 1 events were approved" in page
    none = await world.get("/api/v1/report?from=2026-02-01&to=2026-02-02")
    assert (none["rows"], none["totals"]["events"]) == ([], 0)


async def test_report_of_a_hub_that_heard_nothing_says_only_that(
    world: HubWorld,
) -> None:
    page = await world.get("/report?from=2026-02-01&to=2026-02-02")

    assert "Nothing is known of this time" in page
    assert "no machine was down" not in page
    assert "0 of 0 events were approved." in page  # no time that nobody has measured


async def test_approvals_of_rules_and_of_others_are_named(world: HubWorld) -> None:
    other = event("OTHER", Resources=["web-1"])
    await world.store.keep(
        [
            received(step("scheduled")),
            received(outcome("relayed", "", seconds=30), 30),
            received(step("scheduled", other)),
            received(outcome("relayed", "elsewhere", other, seconds=60), 60),
        ]
    )
    world.clock.pass_by(100)

    rows = (await world.get("/api/v1/report"))["rows"]
    by = {(row["machine"], *row["by"]) for row in rows}
    assert ("web-0", "a rule") in by
    assert any("somebody, without this hub" in one for one in by)


@pytest.mark.parametrize(
    "query", ["from=yesterday", "from=2026-03-02&to=2026-03-01", "from=2024-01-01"]
)
async def test_period_that_cannot_be_is_refused(world: HubWorld, query: str) -> None:
    for path in ("/report", "/api/v1/report", "/api/v1/report.csv"):
        assert "error" in await world.get(f"{path}?{query}")


async def test_first_days_of_all_are_a_period(world: HubWorld) -> None:
    """Before them there is no week."""
    for path in ("/api/v1/report", "/api/v1/report.csv", "/report"):
        found = await world.ask("GET", f"{path}?to=0001-01-02", {"User": "ann"})
        assert found[0] == 200
    assert "entries" in await world.get(f"/api/v1/timeline?{MACHINE}&until=0001-01-02")


async def test_clock_of_the_year_1_harms_no_time_line(world: HubWorld) -> None:
    """A VM may say any time, also with a pause before it, and name any machine."""
    first = b'"time":"0001-01-01T00:00:00Z"'
    begun = event(EventStatus="Started")
    steps = [step("scheduled"), step("started", begun, seconds=60)]
    odd = [re.sub(b'"time":"[^"]*"', first, paused(one, 5)) for one in steps]
    await world.store.keep(
        [
            *map(received, odd),
            grid(health(30, availabilityState="Unavailable"), 30),
            grid(annotation(31, "VirtualMachineHostCrashed", "Unplanned"), 31),
            grid(health(90, availabilityState="Available"), 90),
        ]
    )
    world.clock.pass_by(300)

    assert (await outage(world))["why"] == "unplanned: hardware"
    assert "unplanned: hardware" in await world.get(PATH)


async def test_lists_by_time(world: HubWorld) -> None:
    """An event belongs to each period in which it was known, and not over."""
    over = event("OVER", Resources=["web-1"])
    await world.store.keep(
        [
            received(step("scheduled", over, seconds=-2 * HOUR, who=vm(1)), -2 * HOUR),
            received(step("completed", over, seconds=-HOUR, who=vm(1)), -HOUR),
            received(step("scheduled")),
        ]
    )

    async def listed(query: str) -> list[str]:
        found = await world.get(f"/api/v1/events?{query}")
        return sorted(one["eventId"] for one in found["events"])

    ago = (START - timedelta(minutes=30)).isoformat().replace("+", "%2B")
    assert await listed(f"since={ago}") == [EVENT_ID]
    assert await listed(f"until={ago}") == ["OVER"]
    assert await listed("since=2026-03-02&until=2026-03-02") == [EVENT_ID, "OVER"]
    assert "error" in await world.get("/api/v1/events?since=now")
    page = await world.get("/?open=false&since=2026-03-02")
    assert "OVER" in page
    assert "OVER" not in await world.get("/?open=false&since=2026-03-03")


# -- the digest of a week --------------------------------------------------------------


async def digests(world: HubWorld, day: str) -> list[Any]:
    """Let the hub look at its fleet; return the digests that wait to be sent."""
    monitor = FleetMonitor(
        world.store,
        world.clock,
        HubMetrics(("b",), "1"),
        world.situation,
        90 * 24 * HOUR,
        weekly=day,
    )
    await monitor.step()
    found = await world.store.read(alarms.waiting)
    return [one for one in found if one.kind == "hub.report"]


async def test_digest_of_a_week_is_made_once(world: HubWorld) -> None:
    """On the day that is asked for, from 06:00 UTC on; it is a Monday, 12:00."""
    await freeze(world)
    world.more = {"listening": {"b": None}}  # so nobody counts as silent
    assert await digests(world, "") == []
    assert await digests(world, "friday") == [], "due for too long"
    assert len(await digests(world, "monday")) == 1, "of the week before"
    world.clock.pass_by(17 * HOUR)  # Tuesday, before 06:00
    assert len(await digests(world, "tuesday")) == 1
    world.clock.pass_by(2 * HOUR)
    _, second = await digests(world, "tuesday")
    assert len(await digests(world, "tuesday")) == 2
    assert (
        second.data["headline"]
        == "Maintenance, 24 Feb to 03 Mar: 1 event, 0 s down, 31 s paused"
    )
    assert "web-0, Freeze: 0 s down, 31 s paused" in second.data["lines"]


async def test_mail_shows_the_digest(world: HubWorld) -> None:
    await freeze(world)
    world.more = {"listening": {"b": None}}
    world.clock.pass_by(24 * HOUR)
    found = await digests(world, "tuesday")
    file = HubFile(hub=config(public_url="https://hub.example"))
    shared = AlarmContext(
        context=context_of(file), public_url="https://hub.example", silent=0, now=at(0)
    )
    (out,) = events_of(found, shared)

    mail = describe(out.event)

    assert mail.subject.startswith("Maintenance, 24 Feb to 03 Mar: 1 event")
    assert "web-0, Freeze: 0 s down, 31 s paused" in mail.paragraphs
    assert mail.link.startswith("https://hub.example/report?from=2026-02-24")


# -- bounds ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_words_of_bridges_displace_nothing_of_azure(world: HubWorld) -> None:
    """A VM that may only send speaks in the name of web-0, very often."""
    await world.store.keep([grid(health(1, availabilityState="Unavailable"), 1)])
    for number in range(10, 400, 2):
        stop = received(life("stopped", seconds=number), number)
        await world.store.keep([stop, beat(0, number + 1)])

    query = select(notes.c.kind, func.count()).group_by(notes.c.kind)
    rows = await world.store.read(lambda c: c.execute(query).all())
    assert dict(map(tuple, rows)) == {"health": 1, "stopped": 100}


async def test_notes_are_kept_as_long_as_events(store: Store) -> None:
    old = grid(health(0, availabilityState="Available"))
    await store.keep([old, grid(health(HOUR, availabilityState="Available"), HOUR)])

    def forgotten(connection: Any) -> int:
        config = HubConfig(retention=Duration(HOUR))
        return forget(connection, at(1.5 * HOUR), config)

    assert await store.write(forgotten) == 1
    assert await store.read(lambda c: c.scalar(select(func.count(notes.c.id)))) == 1


def many_events(connection: Any) -> None:
    """Copy the only event 100,000 times, and add 10,000 silences."""
    kind = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    nothing = f"CAST('{{}}' AS {kind})"
    empty = {"summary": nothing, "state": nothing, "event_key": "'E' || n"}
    empty["version"] = "n + 10"
    columns = ", ".join(f'"{c.name}"' for c in events.c)
    values = ", ".join(empty.get(c.name, f'"{c.name}"') for c in events.c)
    when = f"{micros(START)} + n * CAST(1000000 AS BIGINT)"
    place = f"'{SUBSCRIPTION}', '{GROUP}', 'web-' ||"
    into = {
        f"INSERT INTO events ({columns})": f"{values} FROM s, events",
        "INSERT INTO machines": f"'E' || n, {place} (n % 500) FROM s",
        'INSERT INTO notes (id, kind, subscription, "group", name, event_key,'
        ' "time", until, data)': f"'n' || n, 'silent', {place} (n % 100), '', {when},"
        f" {when} + 500000, {nothing} FROM s WHERE n <= 10000",
    }
    series = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"
    for insert, rows in into.items():
        query = f"{series} WHERE n < 100000) {insert} SELECT {rows}"
        connection.execute(text(query))


@pytest.mark.slow
async def test_report_of_100_000_events_is_cut(store: Store, world: HubWorld) -> None:
    """And the time line of a machine that all of them name, with 10,000 notes."""
    await freeze(world)
    await store.write(many_events)
    now, since, until = at(HOUR * 24), at(-HOUR), at(HOUR * 24)
    found = await store.read(lambda c: report_of(c, since, until, now))
    assert found.cut
    assert found.totals.events == 20_000

    (machine,) = await store.read(lambda c: machines_named(c, "web-0"))
    line = await store.read(lambda c: time_line(c, machine, since, until, now))
    assert line.cut


async def test_unreadable_messages_show_on_the_first_page(world: HubWorld) -> None:
    broken = grid(azure("Started")).put_aside("EventStatus is no text")
    await world.store.keep([beat(1), broken])

    page = await world.get("/")

    assert "One message of the last day could not be read" in page
    assert (await world.get("/api/v1/hub"))["unread"] == 1


async def test_hostile_names_are_escaped(world: HubWorld) -> None:
    await world.store.keep(
        [
            grid(health(1, availabilityState="<script>"), 1),
            grid(annotation(2, "<script>", "Unplanned", reason="<script>"), 2),
            received(step("scheduled", event(EventType="<script>"), who=vm(0))),
        ]
    )

    for path in (PATH, "/report"):
        assert (
            "<script>"
            not in (await world.get(path)).partition("<main")[2].partition("</main>")[0]
        )
