"""The identity of this VM: read from IMDS, stored, or replaced with a warning."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.app.identify import (
    Instance,
    ask_once,
    ask_repeatedly,
    ask_slowly,
    provisional,
    remembered,
    settle,
)
from bridge.events.identity import Identity, IdentityConfig
from bridge.foundation.errors import MetadataError, MetadataUnavailableError
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from tests.support.builders import ME
from tests.support.fakes import FakeClock, turns

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
    """Fake instance metadata: gives the answers in order, and repeats the last one."""

    answers: "deque[Mapping[str, object] | MetadataError]" = field(
        default_factory=lambda: deque([COMPUTE])
    )
    timeouts: list[float] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return len(self.timeouts)

    async def instance(self, timeout: float) -> Mapping[str, object]:  # noqa: ASYNC109 - the protocol's word
        self.timeouts.append(timeout)
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MetadataError):
            raise answer
        return answer


_INSTANCE: type[Instance] = FakeInstance


@dataclass
class Introduction:
    """A running call of ``ask_repeatedly``."""

    task: "asyncio.Task[Identity | None]"
    instance: FakeInstance
    clock: FakeClock
    stop: asyncio.Event


async def begun(
    clock: FakeClock,
    *answers: Mapping[str, object] | MetadataError,
    config: IdentityConfig | None = None,
    is_stopped: bool = False,
) -> Introduction:
    instance, stop = FakeInstance(deque(answers)), asyncio.Event()
    if is_stopped:
        stop.set()
    asking = ask_repeatedly(instance, config or IdentityConfig(), clock, stop)
    task = asyncio.ensure_future(asking)
    await turns()
    return Introduction(task, instance, clock, stop)


# -- asking --------------------------------------------------------------------


async def test_answer_of_metadata_is_used_at_once() -> None:
    instance = FakeInstance()

    assert await ask_once(instance, IdentityConfig()) == LEARNED
    assert instance.timeouts == [1]


async def test_ask_once_does_not_wait_for_slow_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    instance = FakeInstance(deque([GONE]))

    assert await ask_once(instance, IdentityConfig(vm_name="a", vm_id="b")) is None
    assert instance.asked == 1
    assert caplog.messages == ["asking who this VM is"]


async def test_complete_identity_is_not_waited_for() -> None:
    config = IdentityConfig(vm_name="a", vm_id="b", resource_id="/c")
    instance = FakeInstance(deque([GONE]))

    assert await ask_once(instance, config) == Identity().overridden(config)
    assert instance.asked == 1


async def test_metadata_completes_a_configured_identity() -> None:
    config = IdentityConfig(vm_name="a", vm_id="b", resource_id="/c")

    identity = await ask_once(FakeInstance(), config)

    assert identity is not None
    assert identity.vm_scale_set_name == "WestNO"


async def test_metadata_is_asked_again_until_it_answers(clock: FakeClock) -> None:
    introduction = await begun(clock, GONE, GONE, COMPUTE)

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
    assert caplog.messages == ["identity of this VM cannot be read"]


async def test_request_takes_no_longer_than_what_is_left_of_the_minute(
    clock: FakeClock,
) -> None:
    """The document is not read during a request: so the first requests are short."""
    introduction = await begun(clock, GONE)

    await clock.advance(60)

    timeouts = introduction.instance.timeouts
    assert timeouts[:3] == [1, 2, 4]
    ends = [
        sum(clock.waits[: number + 1]) + timeout
        for number, timeout in enumerate(timeouts)
    ]
    assert max(ends) <= 60


async def test_last_request_has_at_least_half_a_second(clock: FakeClock) -> None:
    """Although the request before it waited for its turn until the minute was over."""
    introduction = await begun(clock, GONE, COMPUTE)

    clock.pass_by(200)
    await turns()

    assert await introduction.task is None
    assert introduction.instance.timeouts == [0.5]


async def test_identity_of_the_configuration_overrides_metadata(
    clock: FakeClock,
) -> None:
    config = IdentityConfig(vm_name="other")
    introduction = await begun(clock, COMPUTE, config=config)

    await clock.advance(1)

    assert await introduction.task == LEARNED.overridden(config)


async def test_late_metadata_is_asked_each_ten_minutes_at_last(
    clock: FakeClock,
) -> None:
    instance, stop = FakeInstance(deque([*[GONE] * 6, COMPUTE])), asyncio.Event()
    config = IdentityConfig(vm_name="other")
    asking = asyncio.ensure_future(ask_slowly(instance, config, clock, stop))
    await turns()

    await clock.advance(3 * 3600)

    assert await asking == LEARNED.overridden(config)
    assert clock.waits == [60, 120, 240, 480, 600, 600, 600]
    assert set(instance.timeouts) == {5}


async def test_late_metadata_is_not_asked_after_the_stop(clock: FakeClock) -> None:
    instance, stop = FakeInstance(), asyncio.Event()
    asking = asyncio.ensure_future(ask_slowly(instance, IdentityConfig(), clock, stop))
    await turns()

    stop.set()

    assert await asking is None
    assert instance.asked == 0


async def test_stop_ends_the_waiting(clock: FakeClock) -> None:
    introduction = await begun(clock, GONE)
    assert not introduction.task.done()

    introduction.stop.set()
    await turns()

    assert introduction.task.done()
    assert introduction.instance.asked == 0


async def test_no_request_is_sent_after_a_stop(clock: FakeClock) -> None:
    introduction = await begun(clock, COMPUTE, is_stopped=True)

    assert await introduction.task is None
    assert introduction.instance.asked == 0


# -- settling ------------------------------------------------------------------


@pytest.fixture
async def database(state_path: Path) -> AsyncIterator[Database]:
    async with Database.open(File(state_path)) as opened:
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


async def test_stored_identity_and_source_are_used_without_an_answer(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")

    origin = await settle(database, Identity(), "")

    assert (origin.identity, origin.source) == (LEARNED, SOURCE)


async def test_stored_identity_survives_another_restart(
    state_path: Path,
) -> None:
    async with Database.open(File(state_path)) as first:
        await settle(first, ME, "")
    async with Database.open(File(state_path)) as second:
        assert await remembered(second) == ME


async def test_stored_source_completes_an_identity_without_one(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")

    origin = await settle(database, Identity(vm_name="WestNO_0"), "")

    assert origin.source == SOURCE


async def test_stored_values_complete_the_configured_identity(
    database: Database,
) -> None:
    """[identity] names the VM and IMDS is down: vmId and group come from storage."""
    await settle(database, LEARNED, "")

    origin = await settle(database, Identity(vm_name="other"), "")

    assert origin.identity == LEARNED.overridden(IdentityConfig(vm_name="other"))
    assert await remembered(database) == origin.identity


async def test_complete_identity_keeps_the_stored_group(
    database: Database,
) -> None:
    """Otherwise the sessions of approvals would change at a start without IMDS."""
    await settle(database, LEARNED, "")
    given = Identity(vm_name="a", vm_id="b", resource_id=LEARNED.resource_id)

    origin = await settle(database, given, "")

    assert origin.identity.group == "westno"


async def test_values_that_metadata_leaves_out_are_dropped(
    database: Database,
) -> None:
    """A VM may have been detached from its scale set."""
    await settle(database, LEARNED, "")
    now = Identity.from_metadata({**COMPUTE, "vmScaleSetName": ""})

    assert (await settle(database, now, "")).identity.vm_scale_set_name is None


async def test_unknown_vm_is_named_by_its_host_with_a_warning(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    origin = await settle(database, Identity(), "")

    assert re.fullmatch(r"urn:sebridge:[a-z0-9._~%-]+", origin.source)
    assert origin.identity == Identity()
    assert origin.identity.is_named_in(["WestNO_0"]) is None
    assert caplog.messages == ["no resource group is known: the source names this host"]


async def test_makeshift_source_is_not_remembered(database: Database) -> None:
    await settle(database, Identity(), "")

    assert (await settle(database, LEARNED, "")).source == SOURCE


async def test_makeshift_does_not_displace_a_better_source(
    database: Database,
) -> None:
    await settle(database, LEARNED, "")
    await settle(database, Identity(), "urn:sebridge:mine")

    assert (await settle(database, Identity(), "")).source == SOURCE


async def test_new_state_file_has_no_identity(database: Database) -> None:
    assert await remembered(database) is None


# -- provisional identity ------------------------------------------------------


async def test_provisional_identity_of_an_unnamed_vm_is_empty(
    database: Database,
) -> None:
    origin = await provisional(database, Identity(), "")

    assert origin.source.startswith("urn:sebridge:")
    assert origin.identity == Identity()


async def test_configured_identity_is_known_at_once(database: Database) -> None:
    given = Identity(vm_name="WestNO_0", vm_id="b")

    origin = await provisional(database, given, "/mine")

    assert (origin.source, origin.identity) == ("/mine", given)


async def test_provisional_source_is_the_stored_one(
    database: Database,
) -> None:
    """The stored VM is not used yet: the disk may be a copy of another VM's disk."""
    await settle(database, LEARNED, "")

    origin = await provisional(database, Identity(), "")

    assert origin.source == SOURCE
    assert origin.identity == Identity()


async def test_provisional_values_are_not_stored(database: Database) -> None:
    await provisional(database, Identity(vm_name="a"), "/mine")

    assert await remembered(database) is None
    assert (await settle(database, Identity(), "")).source.startswith("urn:sebridge:")
