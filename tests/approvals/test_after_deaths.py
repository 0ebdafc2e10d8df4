"""The bridge is killed at each commit between an event and its approval.

A first run is killed just before or just after the commit. A second run continues with
the state file, and with the event as it is by then.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridge.outbox.questions import Selection
from bridge.outbox.sink_state import Runs
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Rows
from tests.approvals.after_world import DRAIN, Life, Stage, reboot
from tests.support.book import Book
from tests.support.builders import EVENT_ID, patient_outbox, router, started

WORSE = reboot(DurationInSeconds=60)
BEGUN = started(EventType="Reboot", Resources=["WestNO_0"])


@dataclass
class Dying:
    """A state file that stops to be written at a commit: the process has died.

    Attributes:
        database: the file.
        at: the number of the last commit; 0 = never stop.
        is_after: whether the last commit is still made.
        commits: how many commits were requested.
    """

    database: Database
    at: int
    is_after: bool
    commits: int = 0
    is_dead: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def put(self, rows: Rows, then: Any = None) -> None:
        self.commits += 1
        if self.is_dead.is_set():
            return
        if self.commits != self.at:
            self.database.put(rows, then)
            return
        self.is_dead.set()
        if self.is_after:
            self.database.put(rows)


@dataclass(frozen=True)
class Found:
    """The state after the first run."""

    commits: int
    was_done: bool
    was_published: bool
    posts: int


async def lived(stage: Stage, at: int, *, is_after: bool) -> Found:
    """Run a bridge until the event is approved, or until its death."""
    files: list[Dying] = []

    def dying(database: Database) -> Dying:
        files.append(Dying(database, at, is_after))
        return files[-1]

    stage.imds.shows(reboot())
    async with stage.life(dying) as life:
        (file,) = files

        async def is_over() -> bool:
            return file.is_dead.is_set() or await life.has("relayed")

        await life.until(is_over)
        return Found(
            commits=file.commits,
            was_done=bool(stage.imds.successes()),
            was_published=await life.has("relayed"),
            posts=len(stage.imds.posts),
        )


async def judged(life: Life, found: Found, *, runs: int) -> None:
    """Check the invariants, for one content of the event."""
    outcomes = Counter(await life.outcomes())
    assert all(count == 1 for count in outcomes.values()), outcomes
    assert all(done == [DRAIN] for done in life.imds.done)
    is_in_doubt = found.posts == 1 and not found.was_published
    assert len(life.imds.posts) <= 1 + is_in_doubt
    assert runs <= 2 - found.was_done  # after a stored success there is no other run


def stage_at(folder: Path) -> Stage:
    folder.mkdir()
    stage = Stage(folder / "state.db")
    stage.runner.let.set()
    return stage


async def deaths(folder: Path) -> range:
    """Return the numbers of all commits of a run that is not killed."""
    found = await lived(stage_at(folder), at=0, is_after=False)
    assert found.was_published
    return range(1, found.commits + 1)


@pytest.mark.parametrize("is_after", [False, True])
async def test_event_is_approved_once_at_any_death(
    tmp_path: Path, *, is_after: bool
) -> None:
    numbers = await deaths(tmp_path / "whole")
    assert len(numbers) >= 5  # seen, withheld, done, posted, outcome

    for at in numbers:
        stage = stage_at(tmp_path / f"{at}")
        found = await lived(stage, at, is_after=is_after)
        async with stage.life() as life:
            await life.is_published("relayed")
            await life.passes(5)

            await judged(life, found, runs=len(stage.runner.ran))
            assert await life.states() == ["delivered"]


async def test_event_started_after_the_death_is_not_posted(
    tmp_path: Path,
) -> None:
    for at in await deaths(tmp_path / "whole"):
        stage = stage_at(tmp_path / f"{at}")
        found = await lived(stage, at, is_after=True)
        async with stage.life() as life:
            await life.sees(BEGUN)
            await life.passes(5)

            assert len(stage.imds.posts) == found.posts
            kinds = [kind for kind, _ in await life.outcomes()]
            assert kinds.count("relayed") >= bool(found.posts)
            assert not {"denied", "failed", "already-started"} & set(kinds)
            await judged(life, found, runs=len(stage.runner.ran))


async def test_event_worse_after_the_death_is_prepared_again(
    tmp_path: Path,
) -> None:
    for at in await deaths(tmp_path / "whole"):
        stage = stage_at(tmp_path / f"{at}")
        found = await lived(stage, at, is_after=True)
        stage.runner.ran.clear()
        stage.runner.let.clear()
        async with stage.life() as life:
            await life.sees(WORSE)
            await life.ran()
            await life.passes(5)
            assert len(stage.imds.posts) == found.posts

            stage.runner.let.set()
            posts = found.posts + 1
            await life.posted(posts)
            await life.passes(5)
            assert stage.imds.posts == [EVENT_ID] * posts
            assert stage.imds.done == [[DRAIN]] * posts


async def test_approval_after_a_restart_needs_a_success(
    tmp_path: Path,
) -> None:
    """The success is deleted; after another run, the event is approved at once."""
    met = 0
    for at in await deaths(tmp_path / "whole"):
        stage = stage_at(tmp_path / f"{at}")
        found = await lived(stage, at, is_after=True)
        async with patient_outbox(stage.path, router()) as outbox:
            intents = await outbox.approvals.open_initiatives()
            await Runs(outbox, DRAIN).void(EVENT_ID)
        if intents or found.was_published or not found.was_done:
            continue
        met += 1
        async with stage.life() as life:
            await life.is_held()
            await life.passes(5)
            assert not stage.imds.posts

            await Book(life.file).retry(
                Selection(sink=DRAIN, states=("delivered",)),
                now=stage.clock.now().timestamp(),
                force=True,
            )
            life.relay.resume()
            began = stage.clock.monotonic()
            await life.is_published("relayed")
            assert stage.clock.monotonic() - began < 20
            await judged(life, found, runs=1)
    assert met
