"""The relay of a command against the real outbox: what it runs, and what follows."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.events.identity import Identity
from bridge.events.routing import Route, When
from bridge.foundation.pace import Pace
from bridge.health.status import StatusSource
from bridge.imds.poller import Poller
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery, Success
from bridge.outbox.sink_state import Runs
from bridge.sinks.acting import Actor, Ending, Step
from bridge.sinks.command.process import Exit
from tests.pipeline.acting_world import (
    DRAIN,
    OTHER,
    SIEM,
    Make,
    World,
    config_of,
    reboot,
    rebooting,
    worlds,
)
from tests.support.book import Book
from tests.support.builders import (
    EVENT_ID,
    ME,
    document,
    event_context_of,
    imds_event,
    not_before,
    observed,
    outgoing,
    router,
)
from tests.support.fakes import FakeMetadata, settled


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    async with worlds(tmp_path / "state.db") as made:
        yield made


@pytest.fixture
def world(make: Make) -> World:
    return make()


def poller_of(world: World) -> Poller:
    poller, _ = observed(
        FakeMetadata(), world.outbox, event_context_of(), world.clock, world.metrics
    )
    return poller


# -- prepare and restore -----------------------------------------------------------


async def test_prepare_and_restore_are_run_in_order(world: World) -> None:
    world.runner.let.set()
    await world.see(reboot())
    await world.see(rebooting())  # started is not asked for by default
    await world.see()

    assert world.runner.actions == [("prepare", "scheduled"), ("restore", "completed")]
    assert await world.states() == ["delivered", "delivered"]
    assert await world.outcomes() == [
        ("succeeded", "scheduled"),
        ("succeeded", "completed"),
    ]
    assert world.count("succeeded") == 2


async def test_environment_tells_the_step_and_nothing_of_the_bridges_own(
    world: World,
) -> None:
    world.runner.let.set()
    await world.see(reboot(), reboot(OTHER, Resources=["WestNO_0"], Resour="x"))

    (first, *_) = world.runner.ran
    assert first["SEBRIDGE_EVENT_ID"] in {EVENT_ID, OTHER}
    assert first["SEBRIDGE_OTHER_EVENTS"] in {EVENT_ID, OTHER}
    assert first["SEBRIDGE_NOTICE_SECONDS"] == "899"
    assert first["SEBRIDGE_VM_NAME"] == "WestNO_0"
    assert {name for name in first if not name.startswith("SEBRIDGE_")} == {"PATH"}


async def test_update_after_which_it_no_longer_fits_is_a_restore(make: Make) -> None:
    world = make(when=When(event_types=("Reboot",)))
    world.runner.let.set()
    await world.see(reboot())
    assert await world.successes() == [DRAIN]
    await world.see(imds_event())
    assert await world.successes() == []  # it is undone, although the event is there
    await world.see()

    assert world.runner.actions == [("prepare", "scheduled"), ("restore", "updated")]
    assert (await world.outcomes())[-1][0] == "skipped"


async def test_nothing_is_begun_before_a_good_document_of_this_life(
    world: World,
) -> None:
    await world.see(reboot(), looks=False)
    world.begin_new_life()
    await world.later(30)
    assert world.runner.ran == []

    await world.see(reboot())
    assert world.runner.actions == [("prepare", "scheduled")]


async def test_event_that_is_over_after_a_restart_is_not_prepared_for(
    make: Make,
) -> None:
    world = make(when=When(transitions=("scheduled",)))
    await world.see(reboot(), looks=False)
    world.begin_new_life()
    await world.look()
    await world.see()

    assert world.runner.ran == []
    assert await world.states() == ["skipped"]
    (result,) = await world.results()
    assert result["data"]["reason"] == "the event is over"
    assert world.count("skipped") == 1


async def test_step_that_is_committed_before_its_document_is_known_waits(
    world: World,
) -> None:
    """The poller commits first: what it has not noted yet is not over."""
    watch = world.watch
    await world.see(reboot(), looks=False)
    after, seen = world.document, world.watch
    world.document, world.watch = document(), watch
    await world.look()
    assert await world.states() == ["pending"]

    world.document, world.watch = after, seen
    await world.look()
    assert world.runner.actions == [("prepare", "scheduled")]


async def test_event_that_has_started_is_not_prepared_for(make: Make) -> None:
    world = make(lead=0.0)
    await world.see(reboot(NotBefore=not_before(60)), looks=True)
    assert world.runner.ran == []
    await world.see(rebooting())

    assert world.runner.ran == []
    assert await world.outcomes() == [("skipped", "scheduled")]


async def test_started_is_prepared_for_where_it_is_asked_for(make: Make) -> None:
    world = make(when=When(transitions=("started", "completed")))
    world.runner.let.set()
    await world.see(rebooting())

    assert world.runner.actions == [("prepare", "started")]
    assert await world.successes() == []


async def test_prepare_waits_for_its_lead(make: Make) -> None:
    world = make(lead=600.0)
    await world.see(reboot(NotBefore=not_before(3600)))
    await world.later(2900)
    assert world.runner.ran == []
    await world.later(100)

    assert world.runner.actions == [("prepare", "scheduled")]


async def test_other_event_is_not_held_up_by_one_that_waits_for_its_lead(
    make: Make,
) -> None:
    world = make(lead=600.0)
    far = [
        reboot(f"{n:08}-0000-4000-8000-000000000000", NotBefore=not_before(86400))
        for n in range(12)
    ]
    await world.see(*far, reboot(NotBefore=not_before(300)))

    assert [e["SEBRIDGE_EVENT_ID"] for e in world.runner.ran] == [EVENT_ID]


# -- whose event -------------------------------------------------------------------


async def test_nothing_is_run_while_the_own_name_is_unknown(world: World) -> None:
    world.identity = Identity()
    world.outbox.router = router({DRAIN: world.config.route}, Identity())
    await world.see(reboot())
    assert world.runner.ran == []
    assert world.relay.obstacle is not None
    assert "name is not known" in world.relay.obstacle

    world.identity = ME
    await world.look()
    assert world.runner.actions == [("prepare", "scheduled")]
    assert world.relay.obstacle is None


@pytest.mark.parametrize("resources", [["other"], None, "WestNO_0"])
async def test_event_that_may_be_anothers_runs_nothing(
    world: World, resources: object
) -> None:
    """It was routed while the name was unknown, and that passes every scope."""
    world.identity = Identity()
    world.outbox.router = router(
        {
            DRAIN: world.config.route,
            SIEM: Route(when=When(), scope="all", lifecycle=True),
        },
        Identity(),
    )
    await world.see(reboot(Resources=resources))
    world.identity = ME
    await world.see()

    assert world.runner.ran == []
    assert set(await world.states()) == {"skipped"}


# -- overtaking and stopping -------------------------------------------------------


async def test_newer_step_overtakes_waiting_prepares(world: World) -> None:
    await world.see(reboot(), looks=False)
    await world.see(reboot(DurationInSeconds=9), looks=False)
    await world.see(reboot(DurationInSeconds=11))

    assert world.runner.actions == [("prepare", "updated")]
    assert await world.states() == ["skipped", "skipped", "pending"]


async def test_overtaken_step_is_not_run_when_a_person_retries_it(
    world: World,
) -> None:
    world.runner.ends = [Exit(code=1), Exit(code=0)]
    await world.see(reboot())
    await world.see(reboot(DurationInSeconds=9))
    assert await world.states() == ["dead", "delivered"]

    await Book(world.outbox).retry(
        Selection(sink=DRAIN, states=("dead",)),
        now=world.clock.now().timestamp(),
        force=True,
    )
    await world.look()
    assert await world.states() == ["skipped", "delivered"]
    assert len(world.runner.ran) == 2


async def test_restore_is_not_overtaken_by_an_event_that_comes_back(
    world: World,
) -> None:
    await world.see(reboot(), looks=False)
    await world.see(looks=False)
    await world.see(reboot(), looks=False)
    world.runner.let.set()
    await world.look()

    actions = [action for action, _ in world.runner.actions]
    assert actions == ["restore", "prepare"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"DurationInSeconds": 60}, "the event has changed"),
        ({"DurationInSeconds": -1}, "the event has changed"),
        ({"EventType": "Redeploy"}, "the event has changed"),
        ({"Resources": ["WestNO_0", "WestNO_1", "x"]}, "the event has changed"),
        ({"Resources": ["x"]}, "the event is over, or fits no more"),
    ],
)
async def test_running_prepare_is_stopped_when_the_event_has_changed(
    world: World, change: dict[str, object], reason: str
) -> None:
    await world.see(reboot())
    assert world.runner.running == 1
    await world.see(reboot(EVENT_ID, **change))

    first, *_ = await world.results()
    assert first["data"]["reason"] == reason
    assert first["type"] == "sebridge.command.skipped.v1"
    assert await world.successes() == []
    assert len(world.runner.ran) == 2


async def test_running_prepare_is_stopped_when_the_event_is_over(world: World) -> None:
    await world.see(reboot())
    await world.see()

    assert world.runner.actions == [("prepare", "scheduled"), ("restore", "cancelled")]
    assert (await world.outcomes())[0] == ("skipped", "scheduled")


async def test_running_prepare_is_stopped_although_no_sink_gets_the_end(
    make: Make,
) -> None:
    world = make(when=When(transitions=("scheduled",)))
    await world.see(reboot())
    await world.see()

    assert await world.outcomes() == [("skipped", "scheduled")]
    assert world.runner.running == 0


async def test_running_prepare_goes_on_when_the_event_merely_starts(
    world: World,
) -> None:
    await world.see(reboot())
    await world.see(rebooting())
    assert world.runner.running == 1
    world.runner.let.set()
    await world.look()

    assert await world.outcomes() == [("succeeded", "scheduled")]
    assert await world.successes() == []  # it came too late to rely on


async def test_lesser_update_neither_stops_a_run_nor_runs_it_again(
    world: World,
) -> None:
    await world.see(reboot())
    await world.see(reboot(Description="other words", DurationInSeconds=1))
    assert world.runner.running == 1
    world.runner.let.set()
    await world.look()

    assert len(world.runner.ran) == 1
    assert await world.states() == ["delivered", "skipped"]
    assert await world.successes() == [DRAIN]


# -- attempts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        Exit(code=75),
        Exit(code=-9),
        Exit(code=-15, timed_out=True),
        Exit(code=0, timed_out=True),
        Exit(code=None, fault="Text file busy", is_transient=True),
    ],
)
async def test_what_may_pass_is_tried_again_so_often_and_no_more(
    world: World, end: Exit
) -> None:
    world.runner.ends = [end, end, end, end]
    await world.see(reboot())
    await world.later(60)
    await world.later(60)
    await world.later(60)

    assert [e["SEBRIDGE_ATTEMPT"] for e in world.runner.ran] == ["1", "2", "3"]
    assert await world.states() == ["dead"]
    (result,) = await world.results()
    assert result["data"]["attempts"] == 3
    assert result["data"]["timedOut"] is end.timed_out
    assert world.count("failed") == 1


@pytest.mark.parametrize("end", [Exit(code=1), Exit(code=None, fault="no such file")])
async def test_any_other_end_has_failed_for_good(world: World, end: Exit) -> None:
    world.runner.ends = [end]
    await world.see(reboot())
    await world.later(60)

    assert len(world.runner.ran) == 1
    assert await world.outcomes() == [("failed", "scheduled")]
    assert world.relay.state == "retrying"
    assert await world.successes() == []


async def test_failed_run_holds_up_no_other_event_and_parks_nothing(
    world: World,
) -> None:
    world.runner.ends = [Exit(code=1)] * 6
    events = [reboot(f"{n:08}-0000-4000-8000-000000000000") for n in range(6)]
    await world.see(*events)

    assert len(world.runner.ran) == 6
    assert world.relay.state != "parked"


async def test_prepare_is_not_tried_again_once_the_event_has_started(
    world: World,
) -> None:
    world.runner.ends = [Exit(code=75)]
    await world.see(reboot())
    await world.see(rebooting(), looks=False)
    await world.later(60)

    assert len(world.runner.ran) == 1
    (result,) = await world.results()
    assert result["type"] == "sebridge.command.failed.v1"
    assert "exit code 75" in result["data"]["reason"]


async def test_restore_never_grows_too_old(world: World) -> None:
    world.runner.ends = [Exit(code=0), Exit(code=75)]
    await world.see(reboot())
    await world.see()
    world.runner.let.set()
    await world.later(30 * 86400)

    assert world.runner.actions[-1] == ("restore", "cancelled")
    assert await world.states() == ["delivered", "delivered"]


async def test_one_runs_at_a_time(world: World) -> None:
    await world.see(*(reboot(f"{n:08}-0000-4000-8000-000000000000") for n in range(3)))

    assert world.runner.running == 1


async def test_urgent_one_runs_before_those_that_are_older(make: Make) -> None:
    world = make(lead=86400.0, timeout=10.0)
    far = [reboot(f"{n:08}-0000-4000-8000-000000000000") for n in range(3)]
    far = [{**event, "NotBefore": not_before(7200)} for event in far]
    await world.see(*far, looks=False)
    await world.see(*far, reboot(NotBefore=not_before(600)))
    assert [e["SEBRIDGE_EVENT_ID"] for e in world.runner.ran] == [EVENT_ID]

    world.runner.let.set()
    await world.look()
    ids = [e["SEBRIDGE_EVENT_ID"] for e in world.runner.ran]
    assert ids == [EVENT_ID, *(event["EventId"] for event in far)]


async def test_second_one_runs_beside_only_where_it_cannot_wait(make: Make) -> None:
    world = make(timeout=600.0)
    await world.see(reboot(NotBefore=not_before(1500)))
    await world.see(
        reboot(NotBefore=not_before(1500)),
        reboot(OTHER, NotBefore=not_before(300)),
        reboot("BBBBBBBB-0000", NotBefore=not_before(200)),
    )

    assert world.runner.running == 2
    assert world.runner.ran[1]["SEBRIDGE_EVENT_ID"] in {OTHER, "BBBBBBBB-0000"}
    assert world.runner.most_running == 2
    world.runner.let.set()
    await world.look()
    assert await world.states() == ["delivered"] * 3


async def test_stop_of_the_bridge_is_no_attempt_and_no_failure(world: World) -> None:
    stop = asyncio.Event()
    working = asyncio.create_task(world.relay.run(stop))
    await world.see(reboot(), looks=False)
    for _ in range(50):
        await asyncio.to_thread(int)
        await settled(world.outbox)
        if world.runner.running:
            break
        await world.clock.advance(1.0)
    stop.set()
    await settled(world.outbox)
    assert world.runner.running == 1  # it has its grace
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert world.runner.cancelled == 1
    (pending,) = await Book(world.outbox).find(Selection(sink=DRAIN))
    assert (pending.state, pending.attempts) == ("pending", 0)
    assert await world.results() == []
    world.begin_new_life()
    world.runner.let.set()
    await world.see(reboot())
    assert await world.states() == ["delivered"]


# -- results -----------------------------------------------------------------------


async def test_notice_is_that_at_the_start_of_each_attempt(world: World) -> None:
    world.runner.ends = [Exit(code=75), Exit(code=75), Exit(code=0)]
    await world.see(reboot(NotBefore=not_before(900)))
    await world.later(60)
    await world.later(60)

    notices = [e["SEBRIDGE_NOTICE_SECONDS"] for e in world.runner.ran]
    assert notices == ["899", "839", "779"]


async def test_attempt_is_given_up_15_s_after_its_timeout(make: Make) -> None:
    """So much ending it may take: 10 s to SIGKILL, and 1 s for the pipes."""
    assert make(timeout=90.0).relay.actor.limit == 90 + 15


async def test_seconds_of_each_run_are_measured_by_sink(world: World) -> None:
    world.runner.ends = [Exit(code=75, seconds=0.5), Exit(code=0, seconds=2.5)]
    await world.see(reboot())
    await world.later(60)

    registry, labels = world.metrics.registry, {"sink": DRAIN}
    name = "sebridge_command_seconds"
    assert registry.get_sample_value(f"{name}_count", labels) == 2
    assert registry.get_sample_value(f"{name}_sum", labels) == 3.0


async def test_result_is_published_to_all_others_and_to_no_command(make: Make) -> None:
    world = make(output="always")
    world.outbox.router = router(
        {
            DRAIN: world.config.route,
            "second": config_of(name="second").route,
            SIEM: Route(when=When(), scope="all", lifecycle=True),
        }
    )
    world.runner.ends = [Exit(code=0, output="drained", seconds=2.5)]
    await world.see(reboot())

    (result,) = await world.results()
    assert result["subject"] == EVENT_ID
    assert result["dataschema"] == "urn:sebridge:schema:command:v1"
    data = result["data"]
    assert (data["sink"], data["action"], data["exitCode"]) == (DRAIN, "prepare", 0)
    assert (data["output"], data["seconds"]) == ("drained", 2.5)
    second = await Book(world.outbox).find(Selection(sink="second"))
    assert [d.type for d in second] == ["sebridge.scheduledevent.scheduled.v1"]


@pytest.mark.parametrize(
    ("output", "code", "is_published"),
    [
        ("failed", 1, True),
        ("failed", 0, False),
        ("always", 0, True),
        ("never", 1, False),
    ],
)
async def test_output_is_published_as_configured(
    make: Make, output: str, code: int, *, is_published: bool
) -> None:
    world = make(output=output)
    world.runner.ends = [Exit(code=code, output="words")]
    await world.see(reboot())

    (result,) = await world.results()
    assert result["data"]["output"] == ("words" if is_published else None)


async def test_success_is_of_one_appearance_of_the_event(world: World) -> None:
    world.runner.let.set()
    await world.see(reboot())
    assert await world.successes() == [DRAIN]
    await world.see()
    assert await world.successes() == []
    await world.see(reboot())

    assert [action for action, _ in world.runner.actions] == [
        "prepare",
        "restore",
        "prepare",
    ]
    assert await world.successes() == [DRAIN]


async def test_success_that_comes_after_the_event_has_gone_counts_for_nothing(
    world: World,
) -> None:
    """The end is committed while the run is being settled."""
    await world.see(reboot())
    world.runner.let.set()
    await world.see(looks=False)
    await world.see(reboot(), looks=False)
    await world.look()

    assert [a for a, _ in world.runner.actions][-2:] == ["restore", "prepare"]
    found = await world.outbox.commands.successes(EVENT_ID)
    assert [s.appearance for s in found] == [1]


async def test_success_survives_a_restart_and_the_command_is_not_run_again(
    world: World,
) -> None:
    world.runner.let.set()
    await world.see(reboot())
    world.begin_new_life()
    await world.see(reboot(Description="other"))

    assert len(world.runner.ran) == 1
    assert await world.successes() == [DRAIN]


async def test_run_that_ends_while_the_relay_looks_is_not_begun_again(
    world: World,
) -> None:
    """What was read as pending before its end is no longer so."""
    ids = [f"{n:08}-0000-4000-8000-000000000000" for n in range(30)]
    await world.see(*map(reboot, ids), looks=False)
    world.runner.let.set()
    stop = asyncio.Event()
    working = asyncio.create_task(world.relay.run(stop))
    async with asyncio.timeout(60):
        while len(await world.results()) < len(ids):
            await asyncio.sleep(0.005)
    stop.set()
    await working

    assert [e["SEBRIDGE_EVENT_ID"] for e in world.runner.ran] == ids
    assert len(await world.results()) == len(ids)


async def test_bridge_is_not_ready_while_no_command_can_be_run(world: World) -> None:
    status_source = StatusSource(
        clock=world.clock, metrics=world.metrics, outbox=world.outbox
    )
    status_source.poller = poller_of(world)
    status_source.relays = [world.relay]
    world.identity = Identity()
    unknown = "sinks.drain: this VM's name is not known: no command is run"
    assert unknown in status_source.missing()

    world.identity = ME
    assert unknown not in status_source.missing()


async def test_event_without_resources_runs_nothing_and_is_named(
    make: Make,
) -> None:
    """It may be this VM's: somebody should look."""
    world = make(when=When(event_types=("Reboot",), resources=("West*",)))
    status_source = StatusSource(
        clock=world.clock, metrics=world.metrics, outbox=world.outbox
    )
    status_source.poller = poller_of(world)
    status_source.relays = [world.relay]
    named = f"sinks.drain: {EVENT_ID} has no Resources: no command is run for it"
    assert world.relay.obstacle is None  # no document was read yet

    await world.see(reboot(Resources=None), reboot(OTHER))
    assert named in status_source.missing()
    assert [e["SEBRIDGE_EVENT_ID"] for e in world.runner.ran] == [OTHER]

    await world.see(imds_event(EVENT_ID, Resources=None))  # no matter of the sink
    assert world.relay.obstacle is None


async def test_what_waits_for_its_lead_is_not_behind(make: Make) -> None:
    """An alert on the age of what waits would ring for each event known days ahead."""
    world = make(lead=60.0)
    status_source = StatusSource(
        clock=world.clock, metrics=world.metrics, outbox=world.outbox
    )
    status_source.relays = [world.relay]

    def oldest() -> float | None:
        name = "sebridge_outbox_oldest_seconds"
        return world.metrics.registry.get_sample_value(name, {"sink": DRAIN})

    await world.see(reboot(NotBefore=not_before(600)))
    await world.later(200)
    await status_source.measure()
    assert (world.relay.state, oldest()) == ("early", 0)

    world.runner.ends = [Exit(code=75)]
    await world.later(350)
    await status_source.measure()
    assert (world.relay.state, oldest()) == ("retrying", 550)


async def test_heartbeat_is_left_alone(world: World) -> None:
    await world.see(reboot())
    world.relay.offer(outgoing("h1").event)
    world.runner.let.set()
    await world.look()

    assert len(world.runner.ran) == 1


async def test_damaged_step_is_given_up_and_not_run(world: World) -> None:
    await world.see(reboot(), looks=False)

    def damage(db: sqlite3.Connection) -> None:
        db.execute("UPDATE items SET body = body || ' '")

    await world.outbox.database.run(damage)
    world.outbox.image._read.clear()  # its content must be read again
    await world.look()

    assert world.runner.ran == []
    assert await world.states() == ["dead"]


async def test_pace_is_kept(make: Make) -> None:
    world = make()
    world.relay.pace = Pace(most=0.1)
    world.runner.let.set()
    await world.see(reboot(), reboot(OTHER))
    assert len(world.runner.ran) == 1
    await world.later(11)
    assert len(world.runner.ran) == 2


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), None])
async def test_run_that_cannot_even_begin_or_hangs_is_tried_again(
    make: Make, error: OSError | None
) -> None:
    world = make(timeout=0.001)
    world.relay.actor = Faulty(world.relay.actor, error)
    await world.see(reboot())
    async with asyncio.timeout(60):
        while not (delivery := await the_one_of(world)).attempts:
            await asyncio.sleep(0.01)
    assert (delivery.state, delivery.attempts) == ("pending", 1)
    text = "Too many open files" if error else "no end within 0.02 s"
    assert text in str(delivery.last_error)


async def the_one_of(world: World) -> Delivery:
    """Return the one delivery of the command."""
    await settled(world.outbox)
    (found,) = await Book(world.outbox).find(Selection(sink=DRAIN))
    return found


class Faulty:
    """An actor whose every attempt raises, or hangs."""

    limit = 0.02

    def __init__(self, actor: Actor, error: OSError | None) -> None:
        self._actor, self._error = actor, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    async def act(self, step: Step, stop: asyncio.Event) -> Ending:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        raise AssertionError


async def test_success_of_an_event_that_has_gone_is_not_kept(world: World) -> None:
    """It goes between the end of the command and the commit that settles the run."""
    await world.see(reboot(), looks=False)
    (delivery,) = await Book(world.outbox).find(Selection(sink=DRAIN))
    await world.see(looks=False)
    late = Success(sink=DRAIN, key=EVENT_ID, appearance=0, content=b"{}", at=1.0)
    runs = Runs(world.outbox, DRAIN)
    await runs.settle(delivery, "delivered", [], now=2.0, success=late)

    await world.see(reboot(), looks=False)
    assert await world.successes() == []


async def test_success_of_what_a_person_has_discarded_is_not_kept(
    world: World,
) -> None:
    await world.see(reboot(), looks=False)
    ledger = Book(world.outbox)
    (delivery,) = await ledger.find(Selection(sink=DRAIN))
    await ledger.discard(Selection(sink=DRAIN), now=1.0)
    late = Success(sink=DRAIN, key=EVENT_ID, appearance=0, content=b"{}", at=1.0)
    await Runs(world.outbox, DRAIN).settle(
        delivery, "delivered", [], now=2.0, success=late
    )

    assert await world.states() == ["discarded"]
    assert await world.successes() == []
