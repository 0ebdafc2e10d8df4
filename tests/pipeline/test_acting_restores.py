"""When a restore is run, and what it knows of other events that wait."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import When
from tests.pipeline.acting_world import (
    OTHER,
    Make,
    World,
    reboot,
    rebooting,
    worlds,
)
from tests.support.builders import EVENT_ID, imds_event, started

PREPARE = ("prepare", "scheduled")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    async with worlds(tmp_path / "state.db") as made:
        yield made


@pytest.fixture
def world(make: Make) -> World:
    found = make()
    found.runner.let.set()
    return found


def moved_away() -> dict[str, object]:
    """Return the event, started, as it no longer names this VM."""
    return started(EventType="Reboot", Resources=["other"])


# -- which action ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transition", "event_type", "action"),
    [
        ("scheduled", "Reboot", "prepare"),
        ("updated", "Reboot", "prepare"),
        ("started", "Reboot", "prepare"),
        ("completed", "Reboot", "restore"),
        ("cancelled", "Reboot", "restore"),
        ("ended", "Reboot", "restore"),
        ("updated", "Freeze", "restore"),
        ("started", "Freeze", "restore"),
    ],
)
def test_action_is_that_of_the_step(
    make: Make, transition: str, event_type: str, action: str
) -> None:
    """It fits no more where an update has made another type of it."""
    world = make(when=When(event_types=("Reboot",)))
    step = CloudEvent(
        id="1",
        source="s",
        type=f"sebridge.scheduledevent.{transition}.v1",
        time="2026-03-02T12:00:00Z",
        dataschema="urn:x",
        data={"transition": transition, "event": imds_event(EventType=event_type)},
    )

    assert world.relay.actor.action(step).value == action


# -- before the first document of a life -------------------------------------------


async def test_restore_waits_for_the_first_document_of_a_life(world: World) -> None:
    """Before it, nobody knows whether another event waits."""
    await world.see(reboot(), reboot(OTHER))
    await world.see(reboot(OTHER), looks=False)
    world.begin_new_life()
    await world.later(30)
    assert [action for action, _ in world.runner.actions] == ["prepare", "prepare"]

    await world.see(reboot(OTHER))
    assert world.runner.actions[-1] == ("restore", "cancelled")
    assert world.runner.ran[-1]["SEBRIDGE_OTHER_EVENTS"] == OTHER


async def test_restore_by_an_update_waits_for_the_first_document_too(
    make: Make,
) -> None:
    world = make(when=When(event_types=("Reboot",)))
    world.runner.let.set()
    await world.see(reboot())
    await world.see(imds_event(), looks=False)
    world.begin_new_life()
    await world.later(30)
    assert world.runner.actions == [PREPARE]

    await world.see(imds_event())
    assert world.runner.actions == [PREPARE, ("restore", "updated")]


# -- an event that starts and stops naming this VM in one document -------------------


async def test_event_that_starts_without_this_vm_is_restored_at_once(
    world: World,
) -> None:
    await world.see(reboot())
    await world.see(moved_away())
    assert world.runner.actions == [PREPARE, ("restore", "started")]

    await world.see()
    assert len(world.runner.ran) == 2  # its end has nothing more to restore
    assert (await world.outcomes())[-1] == ("skipped", "completed")


async def test_start_is_a_restore_only_for_who_gets_changes(make: Make) -> None:
    """Who asks for the first and the last step alone gets these."""
    world = make(when=When(transitions=("scheduled", "completed")))
    world.runner.let.set()
    await world.see(reboot())
    await world.see(moved_away())
    assert world.runner.actions == [PREPARE]

    await world.see()
    assert world.runner.actions == [PREPARE, ("restore", "completed")]


async def test_end_restores_where_no_step_between_was_asked_for(make: Make) -> None:
    world = make(when=When(transitions=("scheduled", "cancelled")))
    world.runner.let.set()
    await world.see(reboot())
    await world.see(reboot(Resources=["other"]))
    await world.see()

    assert world.runner.actions == [PREPARE, ("restore", "cancelled")]


async def test_start_of_an_event_that_still_fits_reaches_no_command(
    world: World,
) -> None:
    await world.see(reboot())
    await world.see(rebooting())

    assert world.runner.actions == [PREPARE]
    assert await world.states() == ["delivered"]


async def test_running_prepare_is_stopped_when_the_event_starts_without_this_vm(
    world: World,
) -> None:
    world.runner.let.clear()
    await world.see(reboot())
    assert world.runner.running == 1
    await world.see(moved_away())

    assert world.runner.actions == [PREPARE, ("restore", "started")]
    assert (await world.outcomes())[0] == ("skipped", "scheduled")


async def test_end_restores_where_the_steps_before_are_no_longer_kept(
    make: Make,
) -> None:
    world = make(when=When(transitions=("scheduled", "cancelled")))
    world.runner.let.set()
    await world.see(reboot())
    await world.outbox.database.run(lambda db: db.execute("DELETE FROM deliveries"))
    await world.see(reboot(Resources=["other"]))
    await world.see()

    assert world.runner.actions == [PREPARE, ("restore", "cancelled")]


async def test_event_that_comes_back_for_others_restores_nothing(
    world: World,
) -> None:
    """Its last step that was published here was a restore already."""
    await world.see(reboot())
    await world.see()
    await world.see(reboot(EVENT_ID, Resources=["other"]))
    await world.see()

    assert world.runner.actions == [PREPARE, ("restore", "cancelled")]
