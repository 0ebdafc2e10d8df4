"""Rules: events that they approve, and messages that they hold or deny.

The document, the clock and IMDS are fake; outbox and state file are real.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.rules import Action, Rule, content_of
from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MetadataUnavailableError
from bridge.foundation.values import Duration
from bridge.servicebus.decode import Settlement
from tests.approvals.approval_world import ENTITY, World, message, world_of
from tests.support.builders import EVENT_ID, document, imds_event, not_before, started
from tests.support.fakes import START

NO_ANSWER = MetadataUnavailableError("no answer", outcome="timeout")
REBOOT = imds_event(EventType="Reboot", EventSource="User", DurationInSeconds=-1)
LATER = {**REBOOT, "NotBefore": not_before(1800)}
BEGUN = {**REBOOT, "EventStatus": "Started", "NotBefore": ""}
HOUR = timedelta(hours=1)
COMPLETE, DENIED = Settlement("complete"), "Denied"


def rule(action: Action = "auto-approve", delay: float = 0.0, **fields: object) -> Rule:
    return Rule(action=action, delay=Duration(delay), **fields)  # type: ignore[arg-type]  # a test's own words


USER_MADE = rule(name="user-made", event_sources=("User",))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path / "state.db") as found:
        found.with_terms(rules=(USER_MADE,))
        yield found


def show(world: World, *events: object) -> None:
    """Change the document, and let the poller read it."""
    world.imds.shows(*events)
    found = document(*events, incarnation=world.imds.incarnation)
    now = Moment(at=world.clock.now(), monotonic=world.clock.monotonic())
    watch, _ = diff(world.observer.watch, found, now, poll_interval=1.0)
    world.observer.watch = watch


async def tick(world: World, pilot: AutoApprover | None = None) -> None:
    """Run one step of an auto_approver (by default a new one), with all its flows."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as pursuits:
        await (pilot or AutoApprover(world.context)).step(pursuits)


async def looks_at_a_tick(world: World) -> int:
    """Return how often a step reads the document; it does before each POST."""
    looks: list[None] = []
    world.imds.on_look = lambda: looks.append(None)
    await tick(world)
    return len(looks)


async def is_without_intent(world: World) -> bool:
    return not await world.outbox.approvals.open_initiatives()


# -- approvals and outcomes ------------------------------------------------------


async def test_event_is_approved_without_a_message(world: World) -> None:
    show(world, REBOOT)

    await tick(world)

    assert world.imds.posts == [EVENT_ID]
    assert world.counts == ["relayed"]
    (event,) = await world.outcomes()
    assert event.type == "sebridge.startrequest.relayed.v1"
    assert event.data["confirmed"] is True
    assert event.data["imdsStatus"] == 200
    assert event.data["event"] == REBOOT
    assert event.data["request"] == {
        "messageId": None,
        "enqueuedAt": None,
        "approvedBy": "rule:user-made",
        "reason": None,
        "expiresAt": None,
    }
    assert not await world.replies()


async def test_event_is_approved_once_for_its_content(world: World) -> None:
    show(world, REBOOT)
    pilot = AutoApprover(world.context)

    for _ in range(3):
        await tick(world, pilot)
        world.clock.pass_by(60.0)
    await tick(world)  # after a restart

    assert world.imds.posts == [EVENT_ID]
    assert await world.kinds() == ["relayed"]


async def test_changed_event_is_approved_again(world: World) -> None:
    for shown in (REBOOT, LATER, REBOOT):
        show(world, shown)
        await tick(world)

    assert len(world.imds.posts) == 2
    events = await world.outcomes()
    contents = [
        content_of(ScheduledEvent(event_id=EVENT_ID, raw=raw))
        for raw in (REBOOT, LATER)
    ]
    assert [event.id for event in events] == [
        hash32([ENTITY, content, None, EVENT_ID, "relayed"]) for content in contents
    ]


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ((), REBOOT),
        ((USER_MADE,), imds_event()),
        ((USER_MADE,), BEGUN),
        ((rule("deny"), USER_MADE), REBOOT),
        ((rule("allow"), USER_MADE), REBOOT),
        ((rule(resources=("WestNO_0",)),), REBOOT),  # it also names WestNO_1
        ((rule(max_duration=Duration(8)),), REBOOT),
        ((rule(notice_below=Duration(900)),), REBOOT),
        ((rule(delay=0.1),), REBOOT),
    ],
)
async def test_event_without_a_rule_is_not_approved(
    world: World, rules: tuple[Rule, ...], shown: object
) -> None:
    world.with_terms(rules=rules)
    show(world, shown)

    assert not await looks_at_a_tick(world)
    assert not await world.outcomes()
    assert await is_without_intent(world)


async def test_type_that_is_not_allowed_is_not_approved(world: World) -> None:
    world.with_terms(allow_event_types=("Freeze",))
    show(world, REBOOT)

    assert not await looks_at_a_tick(world)


async def test_held_event_is_not_approved(world: World) -> None:
    """The incarnation fell: the event is not in the document, but may come back."""
    show(world, REBOOT)
    world.imds.incarnation = 0
    world.clock.pass_by(1.0)
    show(world)
    assert EVENT_ID in world.observer.watch.known

    assert not await looks_at_a_tick(world)


@pytest.mark.parametrize(
    ("waiting", "seconds"),
    [
        pytest.param(rule(notice_below=Duration(300)), 600.0, id="notice-runs-down"),
        pytest.param(rule(delay=300.0), 299.0, id="delay-is-over"),
    ],
)
async def test_rule_waits_for_its_delay(
    world: World, waiting: Rule, seconds: float
) -> None:
    world.with_terms(rules=(waiting,))
    show(world, REBOOT)
    pilot = AutoApprover(world.context)

    world.clock.pass_by(seconds)
    await tick(world, pilot)
    assert not world.imds.posts

    world.clock.pass_by(1.0)
    await tick(world, pilot)
    assert world.imds.posts == [EVENT_ID]


# -- between the rule's request and the POST -------------------------------------


@pytest.mark.parametrize("now", [(BEGUN,), (), (imds_event(),)])
async def test_outdated_request_of_a_rule_publishes_nothing(
    world: World, now: tuple[object, ...]
) -> None:
    show(world, REBOOT)
    world.imds.shows(*now)  # which the poller has not read yet

    await tick(world)

    assert not world.imds.posts
    assert not await world.outcomes()
    assert not world.counts
    assert await is_without_intent(world)


async def test_event_changed_after_the_request_is_decided_again(
    world: World,
) -> None:
    show(world, REBOOT)
    world.imds.shows(LATER)
    pilot = AutoApprover(world.context)

    await tick(world, pilot)
    assert not world.imds.posts

    await tick(world, pilot)
    assert world.imds.posts == [EVENT_ID]
    (event,) = await world.outcomes()
    assert event.data["event"] == LATER


async def test_failed_request_of_a_rule_is_repeated_after_a_pause(
    world: World,
) -> None:
    """The clocks differ: the rule fits by the VM's clock, but not by that of IMDS."""
    world.with_terms(rules=(rule(notice_below=Duration(900)),))
    show(world, REBOOT)
    world.clock.pass_by(1.0)
    looks: list[None] = []
    world.imds.ahead, world.imds.on_look = -HOUR, lambda: looks.append(None)
    pilot = AutoApprover(world.context)

    for _ in range(31):
        await tick(world, pilot)
        world.clock.pass_by(1.0)

    assert len(looks) == 2
    assert not world.imds.posts


async def test_post_in_doubt_is_repeated(world: World) -> None:
    show(world, REBOOT)
    world.imds.answers.extend([NO_ANSWER, 200])

    await tick(world)

    assert world.imds.posts == [EVENT_ID] * 2
    assert await world.kinds() == ["relayed"]


async def test_post_in_doubt_of_an_event_that_starts_is_relayed(world: World) -> None:
    show(world, REBOOT)
    world.imds.answers.append(NO_ANSWER)
    world.imds.shows(REBOOT, next_=(BEGUN,))

    await tick(world)

    assert world.imds.posts == [EVENT_ID]
    (event,) = await world.outcomes()
    assert event.data["outcome"] == "relayed"
    assert event.data["confirmed"] is False


async def test_post_in_doubt_of_a_changed_event_is_published_not_repeated(
    world: World,
) -> None:
    show(world, REBOOT)
    world.imds.answers.append(NO_ANSWER)
    world.imds.shows(REBOOT, next_=(imds_event(),))

    await tick(world)

    assert world.imds.posts == [EVENT_ID]
    (event,) = await world.outcomes()
    assert event.data["outcome"] == "denied"
    assert event.data["reason"] == "EventChanged"
    assert await world.outbox.approvals.posted() == {EVENT_ID}


async def test_unreachable_imds_is_published_once(world: World) -> None:
    show(world, REBOOT)
    world.imds.is_dark = lambda: world.clock.now() < START + timedelta(seconds=1000)
    pilot = AutoApprover(world.context)

    await tick(world, pilot)
    world.clock.pass_by(200.0)
    await tick(world, pilot)

    assert await world.kinds() == ["failed"]
    assert not world.imds.posts


async def test_refusal_of_imds_is_published_once(world: World) -> None:
    show(world, REBOOT)
    world.imds.answers.extend([400] * 3)

    await tick(world)
    await tick(world)

    assert len(world.imds.posts) == 3
    assert await world.kinds() == ["rejected"]


# -- the delay -------------------------------------------------------------------


async def test_every_change_starts_the_delay_again(world: World) -> None:
    world.with_terms(rules=(rule(delay=300.0),))
    show(world, REBOOT)
    pilot = AutoApprover(world.context)
    world.clock.pass_by(299.0)
    show(world, LATER)

    world.clock.pass_by(299.0)
    await tick(world, pilot)
    assert not world.imds.posts

    world.clock.pass_by(1.0)
    await tick(world, pilot)
    assert world.imds.posts == [EVENT_ID]


@pytest.mark.parametrize(
    ("jump", "is_over"), [(3600.0, False), (-100.0, False), (0, True)]
)
async def test_shorter_elapsed_time_of_both_clocks_counts(
    world: World, jump: float, *, is_over: bool
) -> None:
    """If the wall clock jumps forward, the monotonic time counts; if back, the wall."""
    world.with_terms(rules=(rule(delay=300.0),))
    show(world, REBOOT)
    world.clock.pass_by(60.0 if jump > 0 else 300.0)

    world.clock.at += timedelta(seconds=jump)
    await tick(world)

    assert bool(world.imds.posts) is is_over


@pytest.mark.parametrize(
    ("before", "away", "is_over"),
    [(200.0, 99.0, False), (200.0, 100.0, True), (0.0, 300.0, True)],
)
async def test_delay_continues_over_a_restart(
    world: World, before: float, away: float, *, is_over: bool
) -> None:
    world.with_terms(rules=(rule(delay=300.0),))
    show(world, REBOOT)
    world.clock.pass_by(before)

    restart(world, away)
    await tick(world)

    assert bool(world.imds.posts) is is_over


@pytest.mark.parametrize("is_before", [True, False])
async def test_jump_of_the_clock_before_or_after_a_restart_adds_nothing(
    world: World, *, is_before: bool
) -> None:
    world.with_terms(rules=(rule(delay=300.0),))
    show(world, REBOOT)
    world.clock.pass_by(100.0)
    if is_before:
        world.clock.at += timedelta(hours=1)
    restart(world, 100.0)
    if not is_before:
        world.clock.at += timedelta(hours=1)

    world.clock.pass_by(99.0)
    await tick(world)
    assert not world.imds.posts

    world.clock.pass_by(1.0)
    await tick(world)
    assert world.imds.posts == [EVENT_ID]


def restart(world: World, away: float) -> None:
    """Restart the machine after so many seconds, and let the poller read once."""
    watch, shown = world.observer.watch, world.imds.shown
    now = Moment(at=world.clock.now(), monotonic=world.clock.monotonic())
    body = replace(watch, seen=now).to_json()
    world.clock.pass_by(away)
    world.clock.monotonic_at = 5.0
    world.observer.watch = Watch.from_json(body)
    show(world, *shown)


# -- restarts --------------------------------------------------------------------


async def die(world: World, place: str) -> None:
    """Run a step until it reaches the place of its death, and kill it."""
    hanging = world.imds.hanging = asyncio.Event()
    world.imds.gate = asyncio.Event() if place == "look" else None
    running = asyncio.create_task(tick(world))
    async with asyncio.timeout(60):
        if place == "post":
            await hanging.wait()
        while place == "look" and not world.poller.reads:
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def live(world: World, outcomes: int) -> None:
    """Let an auto_approver decide until it has published so many outcomes."""
    pilot = AutoApprover(world.context)
    async with asyncio.timeout(60):
        while len(world.counts) < outcomes or not await is_without_intent(world):
            await tick(world, pilot)
            world.clock.pass_by(1.0)


@pytest.mark.parametrize(
    ("after", "published", "posts"),
    [
        ((REBOOT,), [("relayed", True)], 1),
        ((BEGUN,), [("relayed", False)], 0),
        ((), [("relayed", False)], 0),
        ((imds_event(),), [("denied", None)], 0),
        ((LATER,), [("denied", None), ("relayed", True)], 1),
    ],
)
async def test_post_is_completed_after_a_restart(
    tmp_path: Path,
    after: tuple[object, ...],
    published: list[tuple[str, bool | None]],
    posts: int,
) -> None:
    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(rules=(USER_MADE,))
        show(world, REBOOT)
        await die(world, "post")
        assert not await world.outcomes()

    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(rules=(USER_MADE,))
        show(world, *after)
        await live(world, len(published))

        events = await world.outcomes()
        found = [(e.data["outcome"], e.data["confirmed"]) for e in events]
        assert sorted(found, key=str) == published
        assert len(world.imds.posts) == posts
        request = events[0].data["request"]
        assert isinstance(request, dict)
        assert request["approvedBy"] == "rule:user-made"
        assert len({event.id for event in events}) == len(events)


@pytest.mark.parametrize(
    ("after", "published"),
    [
        ((REBOOT,), [("relayed", True)]),
        ((BEGUN,), []),
        ((), []),
        ((imds_event(),), []),
        ((LATER,), [("relayed", True)]),
    ],
)
async def test_request_without_a_post_is_decided_again_after_a_restart(
    tmp_path: Path,
    after: tuple[object, ...],
    published: list[tuple[str, bool | None]],
) -> None:
    """No POST was begun, so this bridge has not changed the event."""
    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(rules=(USER_MADE,))
        show(world, REBOOT)
        await die(world, "look")
        assert await is_without_intent(world)

    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(rules=(USER_MADE,))
        show(world, *after)
        await live(world, len(published))

        events = await world.outcomes()
        found = [(e.data["outcome"], e.data["confirmed"]) for e in events]
        assert found == published
        assert len(world.imds.posts) == len(published)


async def test_intent_of_a_removed_rule_is_not_posted(tmp_path: Path) -> None:
    async with world_of(tmp_path / "state.db") as world:
        world.with_terms(rules=(USER_MADE,))
        show(world, REBOOT)
        await die(world, "post")

    async with world_of(tmp_path / "state.db") as world:
        show(world, REBOOT)
        await live(world, 1)

        (event,) = await world.outcomes()
        assert event.data["outcome"] == "denied"
        assert event.data["reason"] == "RuleChanged"
        assert not world.imds.posts


async def test_stop_deletes_an_intent_without_a_post(world: World) -> None:
    """The stop comes while the mark is being written."""
    show(world, REBOOT)
    running = asyncio.create_task(tick(world))
    async with asyncio.timeout(60):
        while await is_without_intent(world):
            await asyncio.sleep(0)

    world.poller.stop.set()
    await running

    assert await is_without_intent(world)
    assert not world.imds.posts
    assert not await world.outcomes()


async def test_outcomes_of_two_vms_have_the_same_id(tmp_path: Path) -> None:
    ids = []
    for vm in ("first", "second"):
        async with world_of(tmp_path / f"{vm}.db") as world:
            world.with_terms(rules=(USER_MADE,))
            show(world, REBOOT)
            await tick(world)
            ids += [event.id for event in await world.outcomes()]

    assert len(ids) == 2
    assert len(set(ids)) == 1


# -- messages --------------------------------------------------------------------


def reason_of(settlement: Settlement | None) -> str:
    assert settlement is not None
    return settlement.reason


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ((rule("deny", name="not-today"),), "DeniedByRule not-today"),
        ((rule(event_types=("Freeze",)), rule("deny")), "DeniedByRule rules[1]"),
        ((rule("allow", event_types=("Freeze",)),), "NoRuleAllows"),
    ],
)
async def test_message_for_an_event_that_a_rule_denies_is_denied(
    world: World, rules: tuple[Rule, ...], reason: str
) -> None:
    world.with_terms(rules=rules)
    show(world, REBOOT)

    settlement = await world.handle(message(EVENT_ID))

    assert reason_of(settlement) == DENIED
    (event,) = await world.outcomes()
    assert event.data["outcome"] == "denied"
    assert event.data["reason"] == reason
    assert not world.imds.posts


async def test_message_waits_for_the_delay_of_an_allow_rule(world: World) -> None:
    world.with_terms(rules=(rule("allow", delay=300.0),))
    show(world, REBOOT)
    world.clock.pass_by(100.0)
    came = world.clock.monotonic()

    assert await world.handle(message(EVENT_ID)) == COMPLETE

    assert world.clock.monotonic() - came == pytest.approx(200.0, abs=1.0)
    assert world.imds.posts == [EVENT_ID]


async def test_message_does_not_wait_for_an_auto_approve_rule(
    world: World,
) -> None:
    world.with_terms(rules=(rule(delay=300.0),))
    show(world, REBOOT)
    came = world.clock.monotonic()

    assert await world.handle(message(EVENT_ID)) == COMPLETE

    assert world.clock.monotonic() == came
    assert world.imds.posts == [EVENT_ID]


@pytest.mark.parametrize(
    ("then", "outcome", "after"),
    [
        (imds_event(EventType="Redeploy", EventSource="User"), "denied", 100.0),
        (started(EventSource="User"), "already-started", 100.0),
        (LATER, "relayed", 400.0),
    ],
)
async def test_changed_event_is_decided_again_during_a_wait(
    world: World, then: dict[str, object], outcome: str, after: float
) -> None:
    world.with_terms(rules=(rule("allow", delay=300.0, event_types=("Reboot",)),))
    show(world, REBOOT)
    came = world.clock.monotonic()
    handling = asyncio.create_task(world.handle(message(EVENT_ID)))
    async with asyncio.timeout(60):
        while world.clock.monotonic() < came + 100.0:
            await asyncio.sleep(0)
    show(world, then)
    await handling

    assert await world.kinds() == [outcome]
    assert world.clock.monotonic() - came == pytest.approx(after, abs=3.0)


async def test_message_that_expires_while_it_waits_is_not_relayed(
    world: World,
) -> None:
    world.with_terms(rules=(rule("allow", delay=7200.0),), max_age=600.0)
    show(world, REBOOT)

    assert reason_of(await world.handle(message(EVENT_ID))) == "Expired"
    assert not world.imds.posts
    waited = world.clock.now() - START
    assert timedelta(seconds=660) < waited <= timedelta(seconds=720)


async def test_message_with_a_delay_is_abandoned_at_the_stop(world: World) -> None:
    world.with_terms(rules=(rule("allow", delay=7200.0),))
    show(world, REBOOT)
    stop = asyncio.Event()
    handling = asyncio.create_task(world.handle(message(EVENT_ID), stop))
    async with asyncio.timeout(60):
        while not world.clock.waits:
            await asyncio.sleep(0)

    stop.set()

    assert await handling is None
    assert not await world.outcomes()
