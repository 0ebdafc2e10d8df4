"""The announcer and the gate: events, the stored state, and waits of approvals."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.rules import Rule
from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.foundation.values import Duration
from bridge.imds.poller import Poller
from bridge.outbox.records import TRAFFIC
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.telemetry.metrics import Metrics
from bridge.traffic.config import TrafficConfig
from bridge.traffic.gate import Announcer, Gate
from bridge.traffic.rotation import Standing, Why, decode
from tests.approvals.approval_world import World, message, world_of
from tests.support.book import sent_to
from tests.support.builders import (
    EVENT_ID,
    ME,
    SINK,
    body_of,
    event_context_of,
    imds_event,
    not_before,
    observed,
    started,
)
from tests.support.fakes import START, FakeClock, FakeMetadata, settled


def reboot(seconds: float = 900, **fields: object) -> dict[str, object]:
    shape = {"EventType": "Reboot", "NotBefore": not_before(seconds), **fields}
    return {**imds_event(), **shape}


BEGUN = started(EventType="Reboot")


@dataclass
class Life:
    """One run of a bridge on a state file, with the parts that the announcer needs."""

    outbox: Outbox
    clock: FakeClock
    config: TrafficConfig = field(default_factory=TrafficConfig)
    metadata: FakeMetadata = field(default_factory=FakeMetadata)
    metrics: Metrics = field(
        default_factory=lambda: Metrics([SINK], "1", has_traffic=True)
    )
    me: Identity = ME
    poller: Poller = field(init=False)
    observer: Observer = field(init=False)
    gate: Gate = field(init=False)
    announcer: Announcer = field(init=False)

    async def begin(self, *, is_waiting: bool = False) -> None:
        self.poller, self.observer = observed(
            self.metadata,
            self.outbox,
            event_context_of(self.me),
            self.clock,
            self.metrics,
            is_waiting=is_waiting,
        )
        await self.observer.restore()
        self.gate = Gate(
            config=self.config,
            clock=self.clock,
            blind_after=30.0,
            watch=lambda: self.observer.watch,
            me=lambda: self.observer.event_context.identity,
        )
        body = await self.outbox.observations.load(TRAFFIC)
        record = decode(body) if body else None
        self.gate.restore(record.standing if record else None)
        self.observer.changed = self.gate.changed.set
        self.announcer = Announcer(
            gate=self.gate,
            outbox=self.outbox,
            observer=self.observer,
            clock=self.clock,
            gauge=self.metrics.traffic_in,
            is_told_out=record is not None and record.is_told_out,
        )

    async def sees(self, *events: object, incarnation: int = 2) -> None:
        self.metadata.answers.clear()
        self.metadata.says(body_of(*events, incarnation=incarnation))
        await self.poller.step()

    @property
    def is_in(self) -> float | None:
        return self.metrics.registry.get_sample_value("sebridge_traffic_in")

    async def events(self) -> list[CloudEvent]:
        found = await self.outbox.database.read(lambda db: sent_to(db, SINK))
        events = [CloudEvent.from_json(delivery.body) for delivery in found]
        return [event for event in events if ".traffic-" in event.type]

    async def brief(self) -> list[tuple[str, object]]:
        return [
            (event.type.split(".")[-2], event.data["reason"])
            for event in await self.events()
        ]


@pytest.fixture
async def life(outbox: Outbox, clock: FakeClock) -> Life:
    found = Life(outbox, clock)
    await found.begin()
    return found


async def test_change_is_published_once_measured_and_stored(life: Life) -> None:
    await life.sees(reboot(60))

    await life.announcer.step()
    await life.announcer.step()

    assert await life.brief() == [("traffic-out", "scheduled")]
    (event,) = await life.events()
    assert event.type == "sebridge.bridge.traffic-out.v1"
    assert event.subject == ME.vm_id
    assert event.data["eventId"] == EVENT_ID
    assert event.data["since"] == "2026-03-02T12:00:00Z"
    assert life.is_in == 0
    record = decode(await life.outbox.observations.load(TRAFFIC) or b"")
    assert record is not None
    assert record.is_told_out
    assert record.standing.why is Why.SCHEDULED


async def test_bridge_that_starts_in_rotation_publishes_nothing(life: Life) -> None:
    await life.sees()

    await life.announcer.step()

    assert await life.events() == []
    assert life.is_in == 1


async def test_way_out_and_back_in_time(life: Life) -> None:
    stop = asyncio.Event()
    await life.sees(reboot(400))
    running = asyncio.create_task(life.announcer.run(stop))
    await settled(life.outbox)

    await life.clock.advance(99)
    assert life.gate.shown() == {"traffic": "in"}
    await life.sees(reboot(400))
    await life.clock.advance(1.1)
    await settled(life.outbox)
    assert await life.brief() == [("traffic-out", "scheduled")]

    await life.sees(BEGUN, incarnation=3)
    await settled(life.outbox)
    assert life.gate.shown() == {
        "traffic": "out",
        "reason": "started",
        "eventId": EVENT_ID,
        "since": "2026-03-02T12:01:40Z",
    }

    await life.sees(incarnation=4)
    await settled(life.outbox)
    assert life.gate.shown()["reason"] == "over"
    await life.clock.advance(29)
    await settled(life.outbox)
    assert life.is_in == 0
    await life.clock.advance(1.1)
    await settled(life.outbox)
    assert life.is_in == 1
    assert await life.brief() == [("traffic-out", "scheduled"), ("traffic-in", None)]
    stop.set()
    await running


async def test_change_of_the_document_is_published_at_once(life: Life) -> None:
    stop = asyncio.Event()
    await life.sees()
    running = asyncio.create_task(life.announcer.run(stop))
    await settled(life.outbox)

    await life.sees(BEGUN, incarnation=3)
    await settled(life.outbox)

    assert await life.brief() == [("traffic-out", "started")]
    assert min(life.clock.waits) >= 5.0  # no needless wakeup
    stop.set()
    await running


async def test_vm_stays_out_after_a_restart_until_the_event_is_gone(
    life: Life, clock: FakeClock, outbox: Outbox
) -> None:
    await life.sees(BEGUN)
    await life.announcer.step()
    clock.pass_by(300)

    later = Life(outbox, clock)
    await later.begin()
    await later.announcer.step()
    assert later.gate.shown()["since"] == "2026-03-02T12:00:00Z"
    assert len(await later.events()) == 1  # and is not published again

    await later.sees(incarnation=3)
    await later.announcer.step()
    assert later.gate.shown()["reason"] == "over"
    clock.pass_by(30)
    await later.announcer.step()
    assert await later.brief() == [("traffic-out", "started"), ("traffic-in", None)]


async def test_resume_after_continues_over_a_restart(
    life: Life, clock: FakeClock, outbox: Outbox
) -> None:
    await life.sees(BEGUN)
    await life.announcer.step()
    await life.sees(incarnation=3)
    await life.announcer.step()
    clock.pass_by(20)

    later = Life(outbox, clock)
    await later.begin()
    assert later.gate.shown()["reason"] == "over"
    clock.pass_by(10)
    assert later.gate.shown() == {"traffic": "in"}


async def test_unpublished_change_is_published_after_a_restart(
    life: Life, clock: FakeClock, outbox: Outbox
) -> None:
    await life.sees(BEGUN)  # and is killed before the announcer checks

    later = Life(outbox, clock)
    await later.begin()
    await later.announcer.step()

    assert await later.brief() == [("traffic-out", "started")]


async def test_change_is_published_only_when_the_vm_is_known(
    outbox: Outbox, clock: FakeClock
) -> None:
    early = Life(outbox, clock)
    await early.begin(is_waiting=True)
    await early.sees(reboot(30))

    await early.announcer.step()
    assert early.is_in == 0
    assert await early.events() == []

    await early.observer.set_identity(event_context_of())
    await early.announcer.step()
    assert await early.brief() == [("traffic-out", "scheduled")]


async def test_stop_ends_the_announcer(life: Life) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(life.announcer.run(stop))
    await settled(life.outbox)

    stop.set()
    await asyncio.wait_for(running, 60)


# -- approvals -----------------------------------------------------------------------


def scheduled(seconds: float, **fields: object) -> ScheduledEvent:
    return ScheduledEvent(event_id=EVENT_ID, raw=reboot(seconds, **fields))


async def test_persons_approval_takes_the_vm_out_at_once(life: Life) -> None:
    await life.sees(reboot(9000))

    assert life.gate.leave(scheduled(9000), settles=False) == 0
    assert life.gate.shown()["reason"] == "approved"
    assert life.gate.changed.is_set()


@pytest.mark.parametrize(
    ("notice", "out_for", "waits"),
    [(9000, 0, 15), (20, 0, 10), (0, 0, 0), (-5, 0, 0), (100, 4, 11), (100, 20, 0)],
)
async def test_rules_approval_waits_half_the_notice_at_most(
    life: Life, notice: float, out_for: float, waits: float
) -> None:
    event = reboot(notice + out_for)
    await life.sees(event)
    life.gate.look()
    life.clock.pass_by(out_for)

    found = ScheduledEvent(event_id=EVENT_ID, raw=event)
    assert life.gate.leave(found, settles=True) == waits
    life.clock.pass_by(waits)
    assert life.gate.leave(found, settles=True) == 0


async def test_wait_is_computed_again_if_notbefore_changes(life: Life) -> None:
    await life.sees(reboot(9000))
    assert life.gate.leave(scheduled(9000), settles=True) == 15
    life.clock.pass_by(5)

    await life.sees(reboot(9), incarnation=3)
    assert life.gate.leave(scheduled(9), settles=True) == 2


async def test_event_without_notbefore_waits_for_settle(life: Life) -> None:
    await life.sees(reboot(NotBefore=""))

    assert life.gate.leave(scheduled(0, NotBefore=""), settles=True) == 15


@pytest.mark.parametrize("fields", [{"EventType": "Freeze"}, {"Resources": ["b"]}])
async def test_event_that_does_not_concern_the_probe_does_not_wait(
    life: Life, fields: dict[str, object]
) -> None:
    await life.sees(reboot(9000, **fields))

    assert life.gate.leave(scheduled(9000, **fields), settles=True) == 0
    assert life.gate.shown() == {"traffic": "in"}


async def test_failed_approval_lets_the_vm_in_again(life: Life) -> None:
    await life.sees(reboot(9000))
    life.gate.leave(scheduled(9000), settles=False)

    life.gate.stay(EVENT_ID)
    assert life.gate.shown()["reason"] == "over"
    life.clock.pass_by(30)
    assert life.gate.shown() == {"traffic": "in"}


async def test_approved_event_holds_the_vm_out_after_a_restart(
    life: Life, clock: FakeClock, outbox: Outbox
) -> None:
    await life.sees(reboot(9000))
    life.gate.leave(scheduled(9000), settles=False)
    await life.announcer.step()

    later = Life(outbox, clock)
    await later.begin()

    assert later.gate.shown()["reason"] == "approved"


@dataclass
class Approving:
    """An approval context with a gate and a fake IMDS."""

    world: World
    gate: Gate

    async def rule_approves(self) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as pursuits:
            await AutoApprover(self.world.context).step(pursuits)


@pytest.fixture
async def approving(tmp_path: Path) -> AsyncIterator[Approving]:
    async with world_of(tmp_path / "approving.db") as world:
        gate = Gate(
            config=TrafficConfig(),
            clock=world.clock,
            blind_after=30.0,
            watch=lambda: world.observer.watch,
            me=lambda: ME,
        )
        world.context = replace(world.context, rotation=gate)
        world.with_terms(rules=(Rule(action="auto-approve", delay=Duration(0)),))
        yield Approving(world, gate)


async def test_rule_posts_after_settle(
    approving: Approving,
) -> None:
    world = approving.world
    posted_at = list[float]()
    world.imds.shows(reboot(900), next_=(BEGUN,))
    await world.looks()
    before = world.clock.monotonic()
    world.imds.on_look = lambda: posted_at.append(len(world.imds.posts))

    await approving.rule_approves()

    assert world.imds.posts == [EVENT_ID]
    assert 15 <= world.clock.monotonic() - before <= 17
    assert await world.kinds() == ["relayed"]
    assert approving.gate.standing.why is Why.APPROVED
    assert posted_at[0] == 0


async def test_rule_waits_at_most_half_of_the_notice(approving: Approving) -> None:
    world = approving.world
    world.imds.shows(reboot(10), next_=(BEGUN,))
    await world.looks()
    before = world.clock.monotonic()

    await approving.rule_approves()

    assert 5 <= world.clock.monotonic() - before <= 6.5
    assert world.imds.posts == [EVENT_ID]


async def test_person_does_not_wait_for_the_probe(approving: Approving) -> None:
    world = approving.world
    world.imds.shows(reboot(900), next_=(BEGUN,))
    await world.looks()
    before = world.clock.monotonic()

    await world.handle(message(EVENT_ID))

    assert world.imds.posts == [EVENT_ID]
    assert world.clock.monotonic() == before
    assert approving.gate.standing.why is Why.APPROVED


async def test_rejected_approval_lets_the_vm_in_again(
    approving: Approving,
) -> None:
    world = approving.world
    world.imds.shows(reboot(900))
    await world.looks()
    world.imds.answers.extend([400, 400, 400])

    await world.handle(message(EVENT_ID))

    assert await world.kinds() == ["rejected"]
    assert approving.gate.look().why is Why.OVER


def test_standing_begins_in() -> None:
    clock = FakeClock()
    gate = Gate(
        config=TrafficConfig(),
        clock=clock,
        blind_after=30.0,
        watch=lambda: None,  # type: ignore[arg-type, return-value]  # not looked at
        me=Identity,
    )

    assert gate.standing == Standing(since=gate.standing.since)
    assert gate.standing.since.at == START
