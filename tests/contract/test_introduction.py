"""Who this VM is: asked patiently, remembered, or made up with a warning."""

import asyncio
import re
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.errors import MetadataError, MetadataUnavailableError
from bridge.identity import Identity, IdentityConfig
from bridge.introduction import (
    Instance,
    introduce,
    is_remembered,
    remembered,
    settle,
)
from bridge.outbox.database import Database
from tests.builders import ME
from tests.fakes import FakeClock, turns

GONE = MetadataUnavailableError("IMDS answered 503", outcome="503")
COMPUTE = {
    "name": "WestNO_0",
    "vmId": "13f56399",
    "resourceId": "/subscriptions/S/resourceGroups/RG/providers/x/y/WestNO_0",
    "location": "westnorway",
    "vmScaleSetName": "WestNO",
    "subscriptionId": "S",
    "resourceGroupName": "RG",
}
SOURCE = "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute"
LEARNED = Identity.from_metadata(COMPUTE)


@dataclass
class FakeInstance:
    """Instance metadata by script: the last answer stays."""

    answers: "deque[Mapping[str, object] | MetadataError]" = field(
        default_factory=lambda: deque([COMPUTE])
    )
    asked: int = 0

    async def instance(self) -> Mapping[str, object]:
        self.asked += 1
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MetadataError):
            raise answer
        return answer


_INSTANCE: type[Instance] = FakeInstance


@dataclass
class Introduction:
    """An introduction under way."""

    task: "asyncio.Task[Identity | None]"
    instance: FakeInstance
    clock: FakeClock
    stop: asyncio.Event


async def begun(
    clock: FakeClock,
    *answers: Mapping[str, object] | MetadataError,
    config: IdentityConfig | None = None,
    is_stopped: bool = False,
    is_remembered: bool = False,
) -> Introduction:
    instance, stop = FakeInstance(deque(answers)), asyncio.Event()
    if is_stopped:
        stop.set()
    asking = introduce(
        instance,
        config or IdentityConfig(),
        clock,
        stop,
        is_remembered=is_remembered,
    )
    task = asyncio.ensure_future(asking)
    await turns()
    return Introduction(task, instance, clock, stop)


# -- asking --------------------------------------------------------------------


async def test_what_metadata_says_is_taken_at_once(clock: FakeClock) -> None:
    introduction = await begun(clock, COMPUTE)

    assert await introduction.task == LEARNED
    assert clock.waits == []


async def test_metadata_is_asked_again_until_it_answers(clock: FakeClock) -> None:
    introduction = await begun(clock, GONE, GONE, GONE, COMPUTE)

    await clock.advance(0.5 + 1 + 2)

    assert await introduction.task == LEARNED
    assert clock.waits == [0.5, 1, 2]


async def test_metadata_is_asked_for_a_minute_and_no_longer(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    introduction = await begun(clock, GONE)

    await clock.advance(50)
    assert not introduction.task.done()
    await clock.advance(10)

    assert await introduction.task is None
    assert sum(clock.waits) <= 60
    assert max(clock.waits) == 5
    assert caplog.messages == ["who this VM is cannot be had"]


async def test_vm_that_is_remembered_is_asked_for_ten_seconds_and_no_longer(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The notice may be half a minute: who this VM was is good enough."""
    introduction = await begun(clock, GONE, is_remembered=True)

    await clock.advance(7)
    assert not introduction.task.done()
    await clock.advance(3)

    assert await introduction.task is None
    assert sum(clock.waits) <= 10
    (text,) = caplog.messages
    assert "whether the disk was cloned" in text


async def test_vm_that_is_remembered_is_asked_all_the_same(clock: FakeClock) -> None:
    """Its disk may be a clone of another's."""
    introduction = await begun(clock, GONE, COMPUTE, is_remembered=True)

    await clock.advance(0.5)

    assert await introduction.task == LEARNED


async def test_waiting_is_told_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    introduction = await begun(clock, GONE, GONE, GONE, COMPUTE)

    await clock.advance(60)

    assert await introduction.task == LEARNED
    assert caplog.messages == ["asking who this VM is"]


async def test_identity_of_the_configuration_overrides_metadata(
    clock: FakeClock,
) -> None:
    config = IdentityConfig(vm_name="other")
    introduction = await begun(clock, COMPUTE, config=config)

    identity = await introduction.task

    assert identity == LEARNED.overridden(config)


async def test_complete_identity_is_not_waited_for(clock: FakeClock) -> None:
    config = IdentityConfig(vm_name="a", vm_id="b", resource_id="/c")
    introduction = await begun(clock, GONE, config=config)

    assert await introduction.task == Identity().overridden(config)
    assert clock.waits == []
    assert introduction.instance.asked == 1


async def test_metadata_adds_what_a_complete_identity_does_not_say(
    clock: FakeClock,
) -> None:
    config = IdentityConfig(vm_name="a", vm_id="b", resource_id="/c")
    introduction = await begun(clock, COMPUTE, config=config)

    identity = await introduction.task

    assert identity is not None
    assert identity.vm_scale_set_name == "WestNO"


async def test_incomplete_identity_is_used_once_patience_is_over(
    clock: FakeClock,
) -> None:
    introduction = await begun(clock, GONE, config=IdentityConfig(vm_name="a"))

    await clock.advance(60)

    assert await introduction.task == Identity(vm_name="a")


async def test_stop_ends_the_waiting(clock: FakeClock) -> None:
    introduction = await begun(clock, GONE)
    assert not introduction.task.done()

    introduction.stop.set()
    await turns()

    assert introduction.task.done()
    assert introduction.instance.asked == 1


async def test_nobody_is_asked_after_a_stop(clock: FakeClock) -> None:
    introduction = await begun(clock, COMPUTE, is_stopped=True)

    assert await introduction.task is None
    assert introduction.instance.asked == 0


# -- settling ------------------------------------------------------------------


@pytest.fixture
async def database(state_path: Path) -> AsyncIterator[Database]:
    async with Database.open(state_path) as opened:
        yield opened


async def test_source_is_the_resource_group_of_the_vm(database: Database) -> None:
    origin = await settle(database, LEARNED, "")

    assert origin.source == SOURCE
    assert origin.identity == LEARNED


async def test_configured_source_wins(database: Database) -> None:
    await settle(database, LEARNED, "")

    assert (await settle(database, LEARNED, "/mine")).source == "/mine"


async def test_configured_source_is_forgotten_once_metadata_answers(
    database: Database,
) -> None:
    await settle(database, LEARNED, "/mine")

    assert (await settle(database, LEARNED, "")).source == SOURCE


async def test_identity_and_source_of_the_last_life_serve_when_nobody_answers(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")

    origin = await settle(database, None, "")

    assert (origin.identity, origin.source) == (LEARNED, SOURCE)


async def test_identity_of_the_last_life_survives_a_restart(
    state_path: Path,
) -> None:
    async with Database.open(state_path) as first:
        await settle(first, ME, "")
    async with Database.open(state_path) as second:
        assert await remembered(second) == ME


async def test_source_of_the_last_life_serves_an_identity_without_one(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")

    origin = await settle(database, Identity(vm_name="WestNO_0"), "")

    assert origin.source == SOURCE


async def test_last_life_fills_in_what_the_configuration_alone_does_not_say(
    database: Database,
) -> None:
    """[identity] names the VM, IMDS is down: vmId and group are still known."""
    await settle(database, LEARNED, "")

    origin = await settle(database, Identity(vm_name="other"), "")

    assert origin.identity == LEARNED.overridden(IdentityConfig(vm_name="other"))
    assert await remembered(database) == origin.identity


async def test_complete_identity_keeps_the_group_of_the_last_life(
    database: Database,
) -> None:
    """Else the sessions of approvals would change with each start IMDS misses."""
    await settle(database, LEARNED, "")
    given = Identity(vm_name="a", vm_id="b", resource_id=LEARNED.resource_id)

    origin = await settle(database, given, "")

    assert origin.identity.group == "westno"


async def test_metadata_that_answers_is_believed_in_what_it_leaves_out(
    database: Database,
) -> None:
    """A VM may be detached from its scale set."""
    await settle(database, LEARNED, "")
    now = Identity.from_metadata({**COMPUTE, "vmScaleSetName": ""})

    assert (await settle(database, now, "")).identity.vm_scale_set_name is None


async def test_unknown_vm_is_named_by_its_host_with_a_warning(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    origin = await settle(database, None, "")

    assert re.fullmatch(r"urn:sebridge:[a-z0-9._~%-]+", origin.source)
    assert origin.identity == Identity()
    assert origin.identity.is_named_in(["WestNO_0"]) is None
    assert caplog.messages == ["no resource group is known: the source names this host"]


async def test_makeshift_source_is_not_remembered(database: Database) -> None:
    await settle(database, None, "")

    assert (await settle(database, LEARNED, "")).source == SOURCE


async def test_makeshift_does_not_displace_a_better_source(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")
    await settle(database, None, "urn:sebridge:mine")

    assert (await settle(database, None, "")).source == SOURCE


async def test_fresh_state_remembers_nobody(database: Database) -> None:
    assert await remembered(database) is None


# -- a look at the state file before it is opened --------------------------------


async def left_behind(path: Path, identity: Identity | None, source: str = "") -> None:
    async with Database.open(path) as database:
        await settle(database, identity, source)


async def test_state_file_of_an_earlier_life_remembers_who_it_was_of(
    state_path: Path,
) -> None:
    await left_behind(state_path, LEARNED)

    assert await is_remembered(state_path)


async def test_state_file_remembers_also_while_it_is_not_closed_properly(
    state_path: Path, tmp_path: Path
) -> None:
    """What a kill leaves behind: the last commits stand in the log beside the file."""
    killed = tmp_path / "killed.db"
    async with Database.open(state_path) as database:
        await settle(database, LEARNED, "")
        for suffix in ("", "-wal"):
            copied = Path(f"{state_path}{suffix}").read_bytes()
            Path(f"{killed}{suffix}").write_bytes(copied)

    assert await is_remembered(killed)


@pytest.mark.parametrize(
    ("identity", "source"),
    [
        (None, ""),
        (None, "/mine"),
        (Identity(vm_name="a", vm_id="b", resource_id=LEARNED.resource_id), ""),
    ],
)
async def test_vm_that_metadata_never_told_of_is_not_remembered(
    state_path: Path, identity: Identity | None, source: str
) -> None:
    """The configuration says it anew anyway, and less of it."""
    await left_behind(state_path, identity, source)

    assert not await is_remembered(state_path)


async def test_state_file_that_is_missing_remembers_nobody(state_path: Path) -> None:
    assert not await is_remembered(state_path)
    assert not state_path.exists()


@pytest.mark.parametrize("body", [b"", b"no database", b"SQLite format 3\x00" * 400])
async def test_damaged_state_file_remembers_nobody(
    state_path: Path, body: bytes
) -> None:
    state_path.write_bytes(body)

    assert not await is_remembered(state_path)
    assert state_path.read_bytes() == body


async def test_place_that_is_no_file_remembers_nobody(tmp_path: Path) -> None:
    assert not await is_remembered(tmp_path)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"vm_id": 7}', b"\xff", 1])
async def test_identity_that_cannot_be_read_is_none(
    state_path: Path, value: bytes | int
) -> None:
    await left_behind(state_path, LEARNED)
    with closing(sqlite3.connect(state_path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'identity'", (value,))

    assert not await is_remembered(state_path)


async def test_state_file_of_a_newer_version_may_remember(state_path: Path) -> None:
    """It is refused later, by who opens it: the sooner the better."""
    await left_behind(state_path, LEARNED)
    with closing(sqlite3.connect(state_path)) as db:
        db.execute("PRAGMA user_version = 99")

    assert await is_remembered(state_path)


async def test_look_at_the_state_file_leaves_it_as_it_is(state_path: Path) -> None:
    await left_behind(state_path, LEARNED)
    before = state_path.read_bytes()

    await is_remembered(state_path)

    assert state_path.read_bytes() == before
