"""Approvals when the VM's clock differs from that of IMDS: the clock of IMDS counts."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from bridge.approvals.context import Pending, intent_of
from bridge.approvals.message import Approval
from bridge.approvals.policy import Conclusion, Post, Request
from bridge.events.vocabulary import OutcomeKind
from bridge.foundation.errors import MetadataUnavailableError
from tests.approvals.approval_world import World, message, world_of
from tests.support.builders import EVENT_ID, imds_event, not_before
from tests.support.fakes import START

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        yield found


def asked(**more: object) -> dict[str, object]:
    """Return the body of an approval with more than the EventId."""
    data = {"StartRequests": [{"EventId": EVENT_ID}], **more}
    return {"specversion": "1.0", "type": "sebridge.startrequest.v1", "data": data}


@pytest.mark.parametrize(
    ("ahead", "expires", "outcome"),
    [
        (2 * HOUR, HOUR, "expired"),  # the VM's clock is late: by it, there is time
        (-2 * HOUR, -HOUR, "relayed"),  # the VM's clock is early: by it, time is up
        (2 * HOUR, 3 * HOUR, "relayed"),
        (-2 * HOUR, -3 * HOUR, "expired"),
    ],
)
async def test_expiry_counts_by_the_clock_of_imds(
    ahead: timedelta, expires: timedelta, outcome: str, world: World
) -> None:
    world.imds.shows(imds_event())
    world.imds.ahead = ahead
    body = asked(expiresAt=(START + expires).isoformat())

    await world.handle(message(body=body, enqueued_at=START + ahead))

    assert await world.kinds() == [outcome]


@pytest.mark.parametrize(
    ("ahead", "enqueued", "outcome"),
    [
        (25 * HOUR, -HOUR, "expired"),
        (-2 * HOUR, -25 * HOUR, "relayed"),  # by the VM's clock a day has passed
    ],
)
async def test_age_counts_by_the_clock_of_imds(
    ahead: timedelta, enqueued: timedelta, outcome: str, world: World
) -> None:
    world.imds.shows(imds_event())
    world.imds.ahead = ahead

    await world.handle(message(EVENT_ID, enqueued_at=START + enqueued))

    assert await world.kinds() == [outcome]


@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR, timedelta()])
async def test_failures_are_retried_until_not_before_by_the_clock_of_imds(
    ahead: timedelta, world: World
) -> None:
    """NotBefore and the present time both come from IMDS."""
    soon = ahead + 5 * MINUTE
    world.imds.shows(imds_event(NotBefore=not_before(soon.total_seconds())))
    world.imds.ahead = ahead
    world.imds.answers.extend([503] * 1000)

    await world.handle(message(EVENT_ID, enqueued_at=START + ahead))

    assert await world.kinds() == ["failed"]
    taken = world.clock.now() - START
    assert 4 * MINUTE <= taken <= 6 * MINUTE


async def test_clock_of_imds_is_used_while_imds_does_not_answer(world: World) -> None:
    world.imds.shows(
        imds_event(NotBefore=not_before((2 * HOUR + 5 * MINUTE).total_seconds()))
    )
    world.imds.ahead = 2 * HOUR
    silent = MetadataUnavailableError("no answer", outcome="timeout")
    world.imds.answers.append(503)
    world.imds.on_look = lambda: world.imds.faults.extend([silent] * 1000)

    await world.handle(message(EVENT_ID, enqueued_at=START + 2 * HOUR))

    assert await world.kinds() == ["failed"]
    assert world.clock.now() - START <= 6 * MINUTE


@pytest.mark.parametrize("looked_before", [True, False])
async def test_no_clock_that_is_ahead_ends_an_approval_at_the_first_failure(
    *, looked_before: bool, world: World
) -> None:
    """By the VM's clock, NotBefore has passed, and IMDS never answers."""
    soon = 5 * MINUTE - 2 * HOUR
    world.imds.shows(imds_event(NotBefore=not_before(soon.total_seconds())))
    world.imds.ahead = -2 * HOUR
    if looked_before:
        await world.looks()
    world.imds.faults.append(MetadataUnavailableError("no answer", outcome="timeout"))
    body = asked(expiresAt=(START - HOUR).isoformat())

    await world.handle(message(body=body, enqueued_at=START - 2 * HOUR))

    assert await world.kinds() == ["relayed"]


async def test_approval_waits_minutes_for_an_imds_that_never_answers(
    world: World,
) -> None:
    """It is unknown which clock is right: that of the VM or that of Service Bus."""
    silent = MetadataUnavailableError("no answer", outcome="timeout")
    world.imds.faults.extend([silent] * 1000)
    body = asked(expiresAt=(START - HOUR).isoformat())

    await world.handle(message(body=body, enqueued_at=START - 2 * HOUR))

    assert await world.kinds() == ["failed"]
    assert MINUTE <= world.clock.now() - START <= 4 * MINUTE


@pytest.mark.parametrize(("waited", "kind"), [(30.0, None), (90.0, "expired")])
async def test_decision_counts_the_time_since_the_look(
    waited: float, kind: str | None, world: World
) -> None:
    """During the wait for the turn at IMDS, the look gets older."""
    world.imds.shows(imds_event())
    world.imds.ahead = HOUR
    look = await world.looks()
    request = Request(
        approval=Approval(event_ids=(EVENT_ID,), expires_at=START + HOUR),
        event_id=EVENT_ID,
        enqueued_at=START + HOUR,
    )
    pending = Pending(world.context, request, intent_of("m", EVENT_ID), was_tried=False)

    world.clock.pass_by(waited)
    step = pending.decide(look, world.clock.monotonic())

    if kind is None:
        assert isinstance(step, Post)
    else:
        assert isinstance(step, Conclusion)
        assert step.kind is OutcomeKind.EXPIRED
