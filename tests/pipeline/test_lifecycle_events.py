"""The bridge's own life: started, IMDS lost and found, heartbeats, stopped."""

import asyncio
from pathlib import Path

import orjson
import pytest

from bridge.events.build import EventContext
from bridge.events.cloudevent import hash32
from bridge.events.routing import Route, When
from bridge.foundation.errors import MetadataUnavailableError, Reason
from bridge.foundation.pace import RetryPolicy
from bridge.foundation.values import Duration
from bridge.outbox.records import REPLIES, Delivery, Reply
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.lifecycle_events import LifecycleEvents
from bridge.pipeline.relay import Relay
from bridge.signing.own_key import EventSigner
from bridge.telemetry.metrics import Metrics
from tests.signing.test_dsse import KEY
from tests.support.builders import (
    ME,
    SINK,
    body_of,
    observed,
    outgoing,
    patient_outbox,
    router,
)
from tests.support.fakes import (
    FakeClock,
    FakeMetadata,
    RecordingSink,
    one_thread,
    settled,
)


class Rig:
    """LifecycleEvents with a poller whose IMDS is a script; its sinks record."""

    def __init__(
        self, outbox: Outbox, event_context: EventContext, path: Path, *names: str
    ) -> None:
        self.outbox, self.clock = outbox, FakeClock()
        self.metadata, self.metrics = FakeMetadata(), Metrics(names, "1")
        self.sinks = {name: RecordingSink() for name in names}
        self.poller, _ = observed(
            self.metadata, outbox, event_context, self.clock, self.metrics
        )
        self.lifecycle = LifecycleEvents(
            outbox=outbox,
            poller=self.poller,
            relays=[self.relay(name) for name in names],
            event_context=event_context,
            clock=self.clock,
            heartbeat=0,
            state_path=path,
        )

    def relay(self, name: str) -> Relay:
        return Relay(
            sink=name,
            deliver=self.sinks[name],
            outbox=self.outbox,
            clock=self.clock,
            metrics=self.metrics,
            policy=RelayPolicy(backoff=RetryPolicy(), max_age=86400, slots=4),
            chance=lambda: 1.0,
        )

    async def answers(self) -> None:
        """Let IMDS answer once."""
        self.metadata.says(body_of(incarnation=1))
        await self.poller.step()

    async def fails(self) -> None:
        """Let IMDS fail once."""
        self.metadata.answers.clear()
        self.metadata.fails(MetadataUnavailableError("no answer", outcome="timeout"))
        await self.poller.step()
        self.metadata.answers.clear()

    async def stored(self) -> list[Delivery]:
        found, _ = await self.outbox.deliveries.due(SINK, now=9e9, limit=100)
        return found

    async def published(self) -> list[str]:
        return [one.type.split(".", 1)[1] for one in await self.stored()]

    async def beaten(self) -> list[dict[str, object]]:
        """Return the data of the heartbeats that reach the sinks now."""
        async with asyncio.TaskGroup() as group:
            for relay in self.lifecycle.relays:
                await relay.step(group)
        taken = [one for sink in self.sinks.values() for one in sink.taken]
        beats = [one for one in taken if "heartbeat" in one.type]
        return [orjson.loads(one.body)["data"] for one in beats]


@pytest.fixture
async def rig(outbox: Outbox, event_context: EventContext, state_path: Path) -> Rig:
    one_thread()  # the free space of the disk is read in another one
    return Rig(outbox, event_context, state_path, SINK)


# -- IMDS lost and found -------------------------------------------------------


async def test_nothing_is_said_while_imds_answers(rig: Rig) -> None:
    for _ in range(10):
        await rig.answers()
        rig.clock.pass_by(29)
        await rig.lifecycle.step()

    assert await rig.published() == []


async def test_nothing_is_said_during_the_patient_first_request(rig: Rig) -> None:
    rig.clock.pass_by(130)
    await rig.lifecycle.step()

    assert await rig.published() == []


async def test_imds_that_never_answered_is_published_after_its_patience(
    rig: Rig,
) -> None:
    rig.clock.pass_by(131)
    await rig.lifecycle.step()

    (event,) = await rig.stored()
    assert event.type == "sebridge.bridge.imds-unreachable.v1"
    assert orjson.loads(event.body)["data"]["reason"] == "starting"


@pytest.mark.parametrize("seconds", [33, 300])
async def test_pause_of_the_vm_is_not_published_as_a_failure_of_imds(
    rig: Rig, seconds: int
) -> None:
    await rig.answers()
    rig.clock.pass_by(seconds)
    await rig.lifecycle.step()
    await rig.fails()  # the read that the pause has cut
    await rig.lifecycle.step()
    await rig.answers()
    await rig.lifecycle.step()

    assert await rig.published() == []


async def test_imds_lost_and_found_is_published_once_each(rig: Rig) -> None:
    await rig.answers()
    for _ in range(5):
        rig.clock.pass_by(31)
        await rig.fails()
        await rig.fails()
        await rig.lifecycle.step()
    await rig.answers()
    for _ in range(5):
        await rig.lifecycle.step()

    assert await rig.published() == [
        "bridge.imds-unreachable.v1",
        "bridge.imds-recovered.v1",
    ]


# -- what is published ---------------------------------------------------------


async def test_start_says_what_to_rely_on(rig: Rig) -> None:
    rig.lifecycle.heartbeat = Duration(60)
    rig.lifecycle.offer = {"entity": "q", "rules": [], "digest": "d"}
    stop = asyncio.Event()
    stop.set()
    await rig.answers()
    await rig.lifecycle.run(stop)

    taken = [one for sink in rig.sinks.values() for one in sink.taken]
    events = {one.type: one for one in (*taken, *await rig.stored())}
    data = orjson.loads(events["sebridge.bridge.started.v1"].body)["data"]
    assert data["intervalSeconds"] == 60
    assert data["approvals"] == rig.lifecycle.offer

    rig.clock.pass_by(61)
    await rig.lifecycle.step()
    beat = (await rig.beaten())[-1]
    assert (beat["intervalSeconds"], beat["approvals"]) == (60, {"digest": "d"})


async def test_what_is_published_is_stored_with_its_time_and_id(rig: Rig) -> None:
    cloud_event_id = await rig.lifecycle.publish("stopped", "signal")

    (event,) = await rig.stored()
    kind = "sebridge.bridge.stopped.v1"
    assert event.cloud_event_id == cloud_event_id
    assert cloud_event_id == hash32([ME.vm_id, kind, "2026-03-02T12:00:00Z"])
    data = orjson.loads(event.body)["data"]
    assert (data["reason"], data["observedAt"]) == ("signal", "2026-03-02T12:00:00Z")


async def test_started_is_published_first(rig: Rig) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.lifecycle.run(stop))
        await settled(rig.outbox)
        assert await rig.published() == ["bridge.started.v1"]
        stop.set()


async def test_stopped_is_published_last_and_tried_once(rig: Rig) -> None:
    stop = asyncio.Event()
    stop.set()

    await rig.lifecycle.run(stop)

    tried = [one.type for sink in rig.sinks.values() for one in sink.tried]
    assert set(tried) == {"sebridge.bridge.stopped.v1"}
    assert await rig.published() == ["bridge.started.v1"]


async def test_imds_is_looked_at_every_few_seconds(rig: Rig) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.lifecycle.run(stop))
        for _ in range(140):
            await rig.clock.advance(1)
            await settled(rig.outbox)
        stop.set()

    published = await rig.published()
    assert published[:2] == ["bridge.started.v1", "bridge.imds-unreachable.v1"]


# -- heartbeats ----------------------------------------------------------------


async def test_no_heart_beats_unless_it_is_wanted(rig: Rig) -> None:
    rig.clock.pass_by(86400)
    await rig.answers()
    await rig.lifecycle.step()

    assert await rig.beaten() == []


async def test_heart_beats_at_its_interval_and_not_at_the_start(rig: Rig) -> None:
    rig.lifecycle.heartbeat = 7
    await rig.answers()
    stop, counts = asyncio.Event(), []
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.lifecycle.run(stop))
        for _ in range(22):
            await settled(rig.outbox)
            counts.append(len(await rig.beaten()))
            await rig.clock.advance(1)
        stop.set()

    assert [counts[second] for second in (0, 6, 7, 13, 14, 20, 21)] == [
        *(0, 0, 1, 1, 2, 2, 3)
    ]


async def test_heart_is_looked_after_no_later_than_its_beat(rig: Rig) -> None:
    rig.lifecycle.heartbeat = 7
    await rig.answers()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.lifecycle.run(stop))
        for _ in range(14):
            await settled(rig.outbox)
            await rig.clock.advance(1)
        stop.set()

    assert rig.clock.waits[:4] == [5.5, 1.5, 5.5, 1.5]


async def test_heartbeat_tells_what_waits_and_what_is_dead_but_no_replies(
    rig: Rig,
) -> None:
    await rig.outbox.commit(
        [outgoing("1"), outgoing("2")], now=9e9, reply=Reply(key="m", body=b"")
    )
    await rig.outbox.commit([], now=0, reply=Reply(key="n", body=b""))
    ((dead,), _) = await rig.outbox.deliveries.due(REPLIES, now=0, limit=1)
    await rig.outbox.deliveries.dead_letter(
        dead, now=0, error="no", reason=Reason.EXPIRED
    )
    rig.lifecycle.heartbeat = 60
    await rig.lifecycle.step()

    (data,) = await rig.beaten()
    assert (data["pending"], data["dead"]) == (2, 0)
    free = data["freeDiskBytes"]
    assert isinstance(free, int)
    assert free > 0
    tally = (await rig.outbox.deliveries.tallies())[REPLIES]
    assert (tally.pending, tally.dead) == (1, 1)


async def test_heartbeat_tells_once_how_long_the_vm_stood_still(rig: Rig) -> None:
    rig.lifecycle.heartbeat = 60
    rig.poller.pauses.late(33.4)
    rig.clock.pass_by(60)
    await rig.lifecycle.step()
    assert [data.get("pausedSeconds") for data in await rig.beaten()] == [33]

    rig.clock.pass_by(60)
    await rig.lifecycle.step()
    assert [data.get("pausedSeconds") for data in await rig.beaten()] == [33, None]


@pytest.mark.slow
async def test_heartbeat_holds_the_whole_offer_once_a_day(rig: Rig) -> None:
    """So that a hub that begins later learns it, and the key of the bridge."""
    rig.lifecycle.heartbeat = 3600
    rig.lifecycle.signer = EventSigner([KEY], "run")
    rig.outbox.sign = rig.lifecycle.signer.signed
    rig.lifecycle.offer = {"entity": "q", "rules": [], "digest": "d"}
    await rig.answers()
    stop, beats = asyncio.Event(), list[dict[str, object]]()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.lifecycle.run(stop))
        for _ in range(49):
            await settled(rig.outbox)
            beats = await rig.beaten()
            await rig.clock.advance(3600)
        stop.set()
    signing = [data["signing"] for data in beats]
    assert signing[0] == {"n": 1}  # bridge.started
    assert signing[23] == {"n": 1, "keys": [KEY.jwk]}
    approvals = [data["approvals"] for data in beats]
    whole = [
        number for number, one in enumerate(approvals, 1) if one != {"digest": "d"}
    ]
    assert (whole, approvals[23]) == ([24, 48], rig.lifecycle.offer)


async def test_heartbeat_is_not_stored(rig: Rig) -> None:
    rig.lifecycle.heartbeat = 60
    await rig.lifecycle.step()

    assert len(await rig.beaten()) == 1
    assert await rig.outbox.deliveries.tallies() == {}


async def test_heartbeat_goes_where_lifecycle_is_wanted(
    state_path: Path, event_context: EventContext
) -> None:
    quiet = Route(when=When(), scope="all", lifecycle=False)
    loud = Route(when=When(), scope="all", lifecycle=True)
    routes = router({"quiet": quiet, "loud": loud})
    async with patient_outbox(state_path, routes) as outbox:
        rig = Rig(outbox, event_context, state_path, "quiet", "loud")
        rig.lifecycle.heartbeat = 60
        await rig.lifecycle.step()
        await rig.beaten()

    assert [len(rig.sinks[name].taken) for name in ("quiet", "loud")] == [0, 1]


async def test_heart_beats_although_the_disk_cannot_be_asked(rig: Rig) -> None:
    """It is the sign of life: what cannot be known is left out of it."""
    rig.lifecycle.heartbeat = 60
    rig.lifecycle.state_path = Path("/nowhere/at/all/state.db")
    await rig.lifecycle.step()

    (data,) = await rig.beaten()
    assert "freeDiskBytes" not in data


async def test_last_event_is_tried_although_many_came_after_it(rig: Rig) -> None:
    """Other workers end at the same time, and may bring many events."""
    rig.clock.pass_by(30)
    since = rig.clock.now().timestamp()
    event = await rig.lifecycle.publish("stopped")
    late = [outgoing(str(number)) for number in range(1200)]
    await rig.outbox.commit(late, now=rig.clock.now().timestamp())
    (relay,) = rig.lifecycle.relays

    await relay.last_call(event, since)

    assert [one.cloud_event_id for one in rig.sinks[SINK].taken] == [event]
