"""``at_start``: one restore where the first good document of a life names no event."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.events.routing import When
from bridge.sinks.command.process import Exit
from bridge.sinks.slack.text import describe
from tests.approvals.after_world import SIEM, Life, Stage, reboot
from tests.support.book import sent_to
from tests.support.builders import EVENT_ID, ME

RESTORE, PREPARE = ("restore", ""), ("prepare", "scheduled")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    found = Stage(tmp_path / "state.db", rules=(), options={"at_start": True})
    found.runner.let.set()
    return found


async def results(life: Life) -> list[dict[str, Any]]:
    """Return what was published of commands, oldest first."""
    found = await life.file.database.read(lambda db: sent_to(db, SIEM))
    bodies = [orjson.loads(delivery.body) for delivery in found]
    return [body for body in bodies if ".command." in body["type"]]


async def test_life_without_an_event_begins_with_one_restore(stage: Stage) -> None:
    async with stage.life() as life:
        await life.ran()
        await life.passes(120)
        assert stage.runner.actions == [RESTORE]
        (ran,) = stage.runner.ran
        assert ran["SEBRIDGE_EVENT_ID"] == ""
        assert ran["SEBRIDGE_OTHER_EVENTS"] == ""
        assert ran["SEBRIDGE_TYPE"] == "sebridge.bridge.started.v1"
        (result,) = await results(life)

    assert result["type"] == "sebridge.command.succeeded.v1"
    assert result["subject"] == ME.vm_id
    assert "correlationid" not in result
    data = result["data"]
    assert (data["event"], data["transition"]) == (None, None)
    assert (data["action"], data["attempts"]) == ("restore", 1)
    shown = describe(CloudEvent.from_json(orjson.dumps(result)))
    assert shown.headline == "Command drain restore succeeded"
    assert "Event" not in dict(shown.facts)


async def test_each_life_begins_with_its_own(stage: Stage) -> None:
    for count in (1, 2, 3):
        async with stage.life() as life:
            await life.ran(count)
            await life.until(lambda: not stage.runner.running)
            await life.passes(5)
    assert stage.runner.actions == [RESTORE] * 3
    async with stage.life() as life:
        ids = {one["id"] for one in await results(life)}
        assert len(ids) == 3


async def test_life_that_is_killed_in_the_middle_leaves_one_to_the_next(
    stage: Stage,
) -> None:
    stage.runner.let.clear()
    async with stage.life() as life:
        await life.ran()
    stage.runner.let.set()
    async with stage.life() as life:
        await life.ran(2)
        await life.passes(10)
        assert await life.states() == ["delivered"]
    assert len(stage.runner.ran) == 2


async def test_event_at_the_start_is_restored_after_by_its_own_end(
    stage: Stage,
) -> None:
    stage.imds.shows(reboot())
    async with stage.life() as life:
        await life.ran()
        await life.sees()
        await life.ran(2)
        await life.passes(60)

    assert stage.runner.actions == [PREPARE, ("restore", "cancelled")]


async def test_event_that_was_over_meanwhile_is_restored_after_once(
    stage: Stage,
) -> None:
    """It is gone at the first look: what is published of that restores."""
    stage.imds.shows(reboot())
    async with stage.life() as life:
        await life.ran()
        await life.until(lambda: not stage.runner.running)
    stage.clock.pass_by(600)
    stage.imds.shows()
    async with stage.life() as life:
        await life.ran(2)
        await life.passes(30)

    assert [action for action, _ in stage.runner.actions] == ["prepare", "restore"]


@pytest.mark.parametrize(
    "event",
    [reboot(Resources=["WestNO_1"]), reboot(EventType="Freeze")],
    ids=["another-machine", "another-type"],
)
async def test_event_that_does_not_fit_is_none(
    stage: Stage, event: dict[str, object]
) -> None:
    stage.options = {**stage.options, "when": When(event_types=("Reboot",))}
    stage.imds.shows(event)
    async with stage.life() as life:
        await life.ran()
        await life.passes(10)

    assert stage.runner.actions == [RESTORE]


async def test_document_with_what_cannot_be_read_says_nothing(stage: Stage) -> None:
    stage.imds.shows(5)
    async with stage.life() as life:
        await life.passes(10)
        assert not stage.runner.ran
        await life.sees()
        await life.ran()

    assert stage.runner.actions == [RESTORE]


async def test_nothing_is_run_while_the_own_name_is_unknown(stage: Stage) -> None:
    stage.me = Identity(vm_id=ME.vm_id)
    async with stage.life() as life:
        await life.passes(10)
        assert not stage.runner.ran
        life.me = ME
        await life.ran()

    assert stage.runner.actions == [RESTORE]


async def test_restore_that_fails_is_tried_again(stage: Stage) -> None:
    stage.runner.ends = [Exit(code=75), Exit(code=0)]
    async with stage.life() as life:
        await life.ran(2)
        await life.until(lambda: not stage.runner.running)
        await life.passes(5)
        (result,) = await results(life)

    assert result["data"]["attempts"] == 2
    assert [one["SEBRIDGE_ATTEMPT"] for one in stage.runner.ran] == ["1", "2"]


async def test_event_that_comes_before_it_begins_makes_it_needless(
    stage: Stage,
) -> None:
    stage.runner.let.clear()
    async with stage.life() as life:
        await life.ran()
    stage.runner.let.set()
    stage.imds.shows(reboot())
    async with stage.life() as life:
        await life.ran(2)
        await life.passes(10)
        assert stage.runner.actions == [RESTORE, PREPARE]
        found = {one["data"]["action"]: one["type"] for one in await results(life)}
        assert found["restore"] == "sebridge.command.skipped.v1"


async def test_it_is_off_by_default(stage: Stage) -> None:
    stage.options = {}
    async with stage.life() as life:
        await life.sees()
        await life.passes(30)

    assert not stage.runner.ran
    assert EVENT_ID not in stage.imds.posts
