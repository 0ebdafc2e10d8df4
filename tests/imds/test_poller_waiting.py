"""A poller that does not know its VM yet: which events wait, and which cannot."""

import orjson
import pytest
from msgspec.structs import replace

from bridge.events.build import EventContext
from bridge.events.identity import Identity
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.imds.test_poller import Rig, data_of, fresh, running, unavailable
from tests.support.builders import (
    body_of,
    event_context_of,
    imds_event,
    not_before,
    started,
)
from tests.support.fakes import FakeClock, FakeMetadata, FullOutbox

NOBODY = replace(event_context_of(Identity()), source="urn:sebridge:host")
SOON = imds_event("SOON", NotBefore=not_before(30), EventType="Preempt")
LATER = imds_event("LATER")
EMPTY = body_of(incarnation=1)


@pytest.fixture
def rig(
    metadata: FakeMetadata, outbox: Outbox, clock: FakeClock, metrics: Metrics
) -> Rig:
    found = Rig(metadata, outbox, NOBODY, clock, metrics)
    found.observer.is_waiting = True
    return found


def brief(delivery: Delivery) -> tuple[str, str]:
    return str(delivery.key), delivery.type.split(".")[-2]


async def published(rig: Rig) -> list[tuple[str, str]]:
    return [brief(one) for one in await rig.deliveries()]


def reporter(delivery: Delivery) -> object:
    found = data_of(delivery)["reporter"]
    assert isinstance(found, dict)
    return found["vmName"]


async def next_life(rig: Rig, event_context: EventContext | None = None) -> Rig:
    """Return the next life after a crash; it knows who it is unless told otherwise."""
    later = Rig(
        rig.metadata,
        rig.outbox,
        event_context or event_context_of(),
        rig.clock,
        rig.metrics,
    )
    await later.observer.restore()
    return later


# -- what cannot wait --------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (SOON, "scheduled"),
        (imds_event("SOON", NotBefore=not_before(119)), "scheduled"),
        (imds_event("SOON", NotBefore=not_before(-5)), "scheduled"),
        (imds_event("SOON", NotBefore=""), "scheduled"),
        (started("SOON"), "started"),
    ],
)
async def test_what_cannot_wait_is_published_with_what_is_known(
    event: dict[str, object], kind: str, rig: Rig
) -> None:
    await rig.sees(body_of(event))

    (delivery,) = await rig.deliveries()
    assert brief(delivery) == ("SOON", kind)
    assert orjson.loads(delivery.body)["source"] == "urn:sebridge:host"
    assert data_of(delivery)["affectsThisVm"] is None
    assert reporter(delivery) is None


async def test_event_with_two_minutes_of_notice_waits(rig: Rig) -> None:
    await rig.sees(body_of(imds_event("SOON", NotBefore=not_before(120))))

    assert await published(rig) == []


async def test_event_that_waits_goes_when_its_notice_falls_under_two_minutes(
    rig: Rig,
) -> None:
    body = body_of(imds_event("SOON", NotBefore=not_before(150)), LATER)
    await rig.sees(*[body] * 30)
    assert await published(rig) == []

    await rig.sees(body, body)

    assert await published(rig) == [("SOON", "scheduled")]


async def test_what_can_wait_is_not_taken_along(rig: Rig) -> None:
    await rig.sees(body_of(LATER, SOON))

    assert await published(rig) == [("SOON", "scheduled")]


async def test_earlier_step_of_what_cannot_wait_goes_before_it(rig: Rig) -> None:
    await rig.sees(
        EMPTY, body_of(LATER), body_of(LATER, SOON), body_of(started("LATER"), SOON)
    )

    assert await published(rig) == [
        ("SOON", "scheduled"),
        ("LATER", "scheduled"),
        ("LATER", "started"),
    ]


# -- what waits --------------------------------------------------------------------


async def test_what_waited_is_published_as_it_was_seen_once_the_identity_is_known(
    rig: Rig,
) -> None:
    at = rig.clock.now()
    await rig.sees(body_of(LATER), body_of(LATER))
    rig.clock.pass_by(40)

    await rig.observer.set_identity(event_context_of())

    (delivery,) = await rig.deliveries()
    data = data_of(delivery)
    assert brief(delivery) == ("LATER", "scheduled")
    assert reporter(delivery) == "WestNO_0"
    assert data["affectsThisVm"] is True
    assert data["announced"] is True
    assert data["observedAt"] == at.isoformat().replace("+00:00", "Z")
    assert data["noticeSeconds"] == 900


async def test_what_waited_is_published_although_imds_is_away_by_then(rig: Rig) -> None:
    await rig.sees(body_of(LATER))
    await rig.fails(unavailable(), unavailable("timeout"))

    await rig.observer.set_identity(event_context_of())

    assert await published(rig) == [("LATER", "scheduled")]


async def test_after_the_introduction_nothing_waits(rig: Rig) -> None:
    await rig.sees(EMPTY)
    await rig.observer.set_identity(event_context_of())

    await rig.sees(body_of(LATER))

    assert await published(rig) == [("LATER", "scheduled")]


async def test_what_came_and_went_while_waiting_is_published_in_full(rig: Rig) -> None:
    await rig.sees(
        EMPTY,
        body_of(LATER, incarnation=2),
        body_of(incarnation=3),
        body_of(LATER, incarnation=4),
    )
    assert await published(rig) == []

    await rig.observer.set_identity(event_context_of())

    found = await rig.deliveries()
    assert [brief(one) for one in found] == [
        ("LATER", "scheduled"),
        ("LATER", "cancelled"),
        ("LATER", "scheduled"),
    ]
    assert len({one.cloud_event_id for one in found}) == 3


async def test_end_of_what_could_not_wait_waits(rig: Rig) -> None:
    await rig.sees(EMPTY, body_of(started("SOON")), body_of(incarnation=3))
    assert await published(rig) == [("SOON", "started")]

    await rig.observer.set_identity(event_context_of())

    assert await published(rig) == [("SOON", "completed")]


async def test_documents_wait_as_such(
    metadata: FakeMetadata, outbox: Outbox, clock: FakeClock, metrics: Metrics
) -> None:
    rig = Rig(metadata, outbox, NOBODY, clock, metrics, with_documents=True)
    rig.observer.is_waiting = True
    await rig.sees(EMPTY, body_of(SOON, incarnation=2), body_of(incarnation=3))
    first = await rig.published()

    await rig.observer.set_identity(event_context_of())

    assert first == ["scheduled"]
    assert await rig.published() == ["changed", "changed", "cancelled", "changed"]


async def test_whoever_asks_for_a_fresh_look_gets_it_while_events_wait(
    rig: Rig,
) -> None:
    rig.metadata.says(body_of(LATER))
    async with running(rig):
        look = await fresh(rig.poller)

    assert set(look.document.events) == set(look.watch.known) == {"LATER"}
    assert await published(rig) == []


# -- lives that end while something waits --------------------------------------------


async def test_next_life_tells_what_waited_with_the_id_it_would_have_had(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY, body_of(LATER))
    later = await next_life(rig)
    await later.sees(body_of(LATER))
    (found,) = await later.deliveries()

    other = await next_life(rig)
    assert await published(other) == []
    assert brief(found) == ("LATER", "scheduled")
    assert data_of(found)["announced"] is True


async def test_next_life_does_not_tell_again_what_could_not_wait(rig: Rig) -> None:
    await rig.sees(EMPTY, body_of(LATER, SOON))
    assert await published(rig) == [("SOON", "scheduled")]

    later = await next_life(rig)
    await later.sees(body_of(LATER, SOON))

    assert await published(later) == [("LATER", "scheduled")]


async def test_next_life_does_not_claim_that_what_waited_was_never_announced(
    rig: Rig,
) -> None:
    """It was Scheduled when the last life saw it, and it was not published."""
    await rig.sees(EMPTY, body_of(LATER, SOON, incarnation=2))
    await published(rig)

    later = await next_life(rig)
    await later.sees(body_of(started("LATER"), SOON, incarnation=3))

    (found,) = await later.deliveries()
    assert brief(found) == ("LATER", "started")
    assert data_of(found)["announced"] is None


async def test_stop_while_something_waits_loses_nothing(rig: Rig) -> None:
    rig.metadata.says(EMPTY, body_of(LATER, SOON))
    async with running(rig):
        await rig.clock.advance(3)
    assert await published(rig) == [("SOON", "scheduled")]

    later = await next_life(rig)
    await later.sees(body_of(LATER, SOON))

    assert await published(later) == [("LATER", "scheduled")]


async def test_event_of_the_last_life_that_is_gone_is_not_forgotten_while_it_waits(
    rig: Rig,
) -> None:
    await rig.observer.set_identity(event_context_of())
    await rig.sees(EMPTY, body_of(LATER))
    assert await published(rig) == [("LATER", "scheduled")]
    second = await next_life(rig, NOBODY)
    second.observer.is_waiting = True
    await second.sees(body_of(SOON, incarnation=3))
    assert await published(second) == [("SOON", "scheduled")]

    third = await next_life(rig)
    await third.sees(body_of(SOON, incarnation=3))

    assert await published(third) == [("LATER", "cancelled")]


# -- no room -----------------------------------------------------------------------


async def test_what_finds_no_room_once_the_vm_is_known_is_published_at_the_next_look(
    rig: Rig,
) -> None:
    full = FullOutbox(rig.outbox)
    rig.observer.outbox = full
    await rig.sees(EMPTY, body_of(LATER))
    full.is_full = True
    await rig.observer.set_identity(event_context_of())
    assert await published(rig) == []

    full.is_full = False
    await rig.sees(body_of(LATER))

    assert await published(rig) == [("LATER", "scheduled")]
