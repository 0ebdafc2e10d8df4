"""A state file that can be read only a while after the start.

What earlier runs knew is taken over then. Until then events are published, and nothing
is done that might have been done before.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.events.cloudevent import CloudEvent
from tests.approvals.after_world import SIEM, Life, Stage, after_rule, reboot
from tests.support.book import sent_to

PREPARE, RESTORE = ("prepare", "scheduled"), ("restore", "ended")


def hide(path: Path) -> Callable[[], None]:
    """Put a folder in place of the state file, as where its disk is not mounted yet.

    Returns:
        What brings the file back.
    """
    parts = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    moved = [(part, Path(f"{part}.hidden")) for part in parts if part.exists()]
    for part, hidden in moved:
        part.rename(hidden)
    path.mkdir()

    def back() -> None:
        path.rmdir()
        for part, hidden in moved:
            hidden.rename(part)

    return back


@asynccontextmanager
async def late(stage: Stage) -> AsyncIterator[tuple[Life, Callable[[], None]]]:
    """Start while the file cannot be read."""
    back = hide(stage.path)
    async with stage.life(may_degrade=True) as life:
        yield life, back


async def found_again(life: Life, back: Callable[[], None]) -> None:
    back()
    await life.outbox.database.heal()
    assert life.outbox.database.fault is None


async def published(life: Life) -> list[tuple[str, str, str]]:
    """Return EventId, transition and id of what was published, oldest first."""
    found = await life.file.database.read(lambda db: sent_to(db, SIEM))
    events = [CloudEvent.from_json(delivery.body) for delivery in found]
    return [
        (str(event.text("correlationid")), str(event.data["transition"]), event.id)
        for event in events
        if ".scheduledevent." in event.type
    ]


def stage_with(tmp_path: Path, **options: object) -> Stage:
    stage = Stage(tmp_path / "state.db", rules=(), options=options)
    stage.runner.let.set()
    return stage


async def test_event_that_went_meanwhile_is_published_as_soon_as_the_file_is_read(
    tmp_path: Path,
) -> None:
    stage = stage_with(tmp_path)
    async with stage.life() as life:
        await life.sees(reboot("GONE"), reboot("STAYS"))
        before = await published(life)
    async with late(stage) as (life, back):
        await life.sees(reboot("STAYS"), reboot("NEW"))
        await life.sees(reboot("STAYS"))
        await found_again(life, back)
        await life.passes(5)
        found = await published(life)

    ids = {name: one for name, _, one in before}
    assert [(name, step) for name, step, _ in found[2:]] == [
        ("NEW", "scheduled"),
        ("STAYS", "scheduled"),
        ("NEW", "cancelled"),
        ("GONE", "ended"),
    ]
    assert found[3][2] == ids["STAYS"], "the same event has got another id"
    assert len({one for _, _, one in found}) == len(found) - 1
    async with stage.life() as life:
        await life.passes(5)
        assert await published(life) == found


async def test_end_is_published_by_the_next_run_if_this_one_is_killed_first(
    tmp_path: Path,
) -> None:
    stage = stage_with(tmp_path)
    async with stage.life() as life:
        await life.sees(reboot("GONE"), reboot("STAYS"))
    async with late(stage) as (life, back):
        await life.sees(reboot("STAYS"))
        await life.passes(30)
        await found_again(life, back)
    async with stage.life() as life:
        await life.passes(5)
        counts = Counter((name, step) for name, step, _ in await published(life))

    assert counts["GONE", "ended"] == 1
    assert counts["STAYS", "scheduled"] == 2
    assert set(counts.values()) == {1, 2}


async def test_rule_approves_nothing_before_it_is_known_what_was_approved(
    tmp_path: Path,
) -> None:
    stage = stage_with(tmp_path)
    stage.rules = (after_rule(after=None),)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.posted(1)
    async with late(stage) as (life, back):
        await life.sees(reboot())
        await life.passes(60)
        assert len(stage.imds.posts) == 1
        await found_again(life, back)
        await life.passes(60)
        assert len(stage.imds.posts) == 1
        await life.sees(reboot(), reboot("NEW"))
        await life.posted(2)
    assert stage.imds.posts[1] == "NEW"


@pytest.mark.parametrize("at_start", [False, True])
async def test_restore_waits_until_it_is_known_what_was_prepared(
    tmp_path: Path, *, at_start: bool
) -> None:
    stage = stage_with(tmp_path, at_start=at_start)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.runner.actions[-1:] == [PREPARE])
        await life.until(lambda: not stage.runner.running)
        done = len(stage.runner.actions)
    async with late(stage) as (life, back):
        await life.sees()
        await life.passes(60)
        assert len(stage.runner.actions) == done
        await found_again(life, back)
        await life.until(lambda: len(stage.runner.actions) > done)
        await life.passes(30)
        assert stage.runner.actions[done:] == [RESTORE]
        states = await life.states()
    assert states.count("pending") == 0
