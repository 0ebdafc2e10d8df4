"""Slack with a bot's token, against a Slack that enforces what the real one does."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from approver.buttons import read
from approver.vote_rules import digest
from bridge.configuration.load import parse
from bridge.events.cloudevent import CloudEvent
from bridge.events.samples import TEST_ATTRIBUTE
from bridge.foundation.errors import (
    ConfigError,
    DeliveryError,
    OutboxUnavailableError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.outbox.sink_state import SinkMemory
from bridge.simulator.faults import Answer, Hang, Reset, Truncated
from bridge.simulator.slack.refusals import refusal
from bridge.simulator.slack.workspace import Post
from bridge.sinks.base import Notebook, Resources, SinkConfig
from bridge.sinks.slack.blocks import Signer, render_card, render_step
from bridge.sinks.slack.blocks import digest as digest_of_button
from bridge.sinks.slack.card import Card, after
from tests.sinks.slack_world import (
    ADDRESS,
    BUTTON_SECRET,
    TOKEN,
    World,
    ruling,
    slack_world,
    step,
)
from tests.sinks.test_sink_slack import ANY_DATA, ANY_EVENT, ANY_TYPE
from tests.support.builders import (
    EVENT_ID,
    imds_event,
    not_before,
    patient_outbox,
    router,
    started,
)
from tests.support.fakes import START
from tests.support.sink_fixtures import config_faults, sink_config

NOW = START + timedelta(minutes=5)
APPROVED = {"approvedBy": "slack:U012AB3CD, runbook <x>", "reason": "drained"}


@pytest.fixture
async def world(resources: Resources) -> AsyncIterator[World]:
    async with slack_world(resources) as found:
        yield found


@pytest.fixture
async def voting(world: World) -> World:
    """A world whose messages have buttons."""
    world.options = {"buttons": True, "button_secret": BUTTON_SECRET}
    world.resources = with_fields(world.resources, approvals=ADDRESS)
    return world


def shown(post: Post) -> str:
    return str([post.content.text, *post.content.blocks])


def buttons(post: Post) -> Sequence[Mapping[str, Any]]:
    rows = [each for each in post.content.blocks if each["type"] == "actions"]
    return [button for row in rows for button in cast("list[Any]", row["elements"])]


def with_buttons(world: World) -> int:
    return sum(bool(buttons(each)) for each in world.messages)


# -- one message ---------------------------------------------------------------


async def test_one_message_tells_of_an_event_through_its_life(world: World) -> None:
    async with world.bot() as bot:
        await world.tell(bot, world.event())
        first = world.message
        await world.tell(
            bot,
            ruling("relayed", world.clock.now(), imds_event(), APPROVED),
            step("started", started(), world.clock.now(), imds_event()),
            step("completed", started(), world.clock.now(), started()),
        )

    last = world.message
    assert last.ts == first.ts
    assert "Freeze is scheduled: WestNO_0, WestNO_1" in shown(first)
    assert ":large_yellow_circle: *Freeze is scheduled" in shown(first)
    assert ":large_green_circle: *Freeze is over: WestNO_0, WestNO_1*" in shown(last)
    assert "Approval passed on to Azure" in shown(last)
    assert "<@U012AB3CD>, runbook &lt;x&gt;: drained" in shown(last)


async def test_each_step_is_reported_in_the_thread(world: World) -> None:
    later = imds_event(NotBefore=not_before(1800), Resources=["WestNO_0", "WestNO_7"])
    changes = ("NotBefore", "Resources")
    async with world.bot() as bot:
        await world.tell(
            bot,
            world.event(),
            step("updated", later, world.clock.now(), imds_event(), changes),
            ruling("denied", world.clock.now(), later, APPROVED),
            step("cancelled", later, world.clock.now(), later),
        )

    assert world.thread() == [
        "Freeze is scheduled",
        "Freeze was changed",
        "Approval denied (Freeze)",
        "Freeze was cancelled",
    ]
    update = shown(world.channel.thread(world.message.ts)[1])
    assert "Resources: added WestNO_7; removed WestNO_1" in update
    assert "|2026-03-02T12:15:00Z> → <!date^" in update
    assert "|2026-03-02T12:30:00Z>" in update
    denial = shown(world.channel.thread(world.message.ts)[2])
    assert "<@U012AB3CD>" in denial
    assert "EventChanged" in denial


async def test_change_is_reported_as_well_as_it_is_known(world: World) -> None:
    before = imds_event(Resources=["b", "a"])
    after_it = imds_event(Resources=["a", "b"], NotBefore="", More={"x": 1})
    changes = ("More", "NotBefore", "Resources")
    async with world.bot() as bot:
        await world.tell(bot, step("updated", after_it, NOW, before, changes))

    (found,) = world.channel.thread(world.message.ts)
    assert "Resources: another order" in shown(found)
    assert "|2026-03-02T12:15:00Z> → nothing" in shown(found)
    assert "*Changed*\\nMore\\n" in shown(found)


async def test_events_have_messages_of_their_own(world: World) -> None:
    async with world.bot() as bot:
        await world.tell(bot, world.event(), step("scheduled", imds_event("B"), NOW))

    assert len(world.messages) == 2


async def test_case_of_an_event_id_makes_no_other_event(world: World) -> None:
    async with world.bot() as bot:
        again = step("started", started(EVENT_ID.lower()), world.clock.now())
        await world.tell(bot, world.event(), again)

    assert len(world.messages) == 1


async def test_what_has_no_event_is_posted_by_itself(world: World) -> None:
    unknown = ruling("unknown-event", world.clock.now(), None, APPROVED)
    async with world.bot() as bot:
        await world.tell(bot, unknown, unknown)

    assert len(world.messages) == 2


async def test_outcome_whose_event_was_never_reported_begins_its_message(
    world: World,
) -> None:
    async with world.bot() as bot:
        await world.tell(bot, ruling("denied", world.clock.now(), imds_event()))
        await world.tell(bot, step("started", started(), world.clock.now()))

    assert "Freeze has started" in shown(world.message)
    assert "Approval denied" in shown(world.message)


async def test_event_that_returns_is_posted_anew(world: World) -> None:
    """Nobody is notified of an edit."""
    async with world.bot() as bot:
        await world.tell(bot, world.event(), world.event("cancelled"), world.event())

    first, second = world.messages
    assert "was cancelled" in shown(first)
    assert "is scheduled" in shown(second)


async def test_old_news_that_comes_late_is_for_the_thread_alone(world: World) -> None:
    """As when a person sends a dead letter again."""
    old = world.event()
    async with world.bot() as bot:
        await world.tell(bot, step("started", started(), NOW), old)

    assert "Freeze has started" in shown(world.message)
    assert world.thread() == ["Freeze has started", "Freeze is scheduled"]


# -- restarts and repetitions --------------------------------------------------


async def test_message_is_still_updated_after_a_restart(
    world: World, state_path: Path
) -> None:
    for event in (world.event(), step("started", started(), NOW)):
        async with patient_outbox(state_path, router()) as outbox:
            world.memory = SinkMemory(outbox, "ops", world.clock)
            async with world.bot() as bot:
                await world.tell(bot, event)

    assert "Freeze has started" in shown(world.message)
    assert world.thread() == ["Freeze is scheduled", "Freeze has started"]
    assert b"5ec12e7" not in state_path.read_bytes().lower()


async def test_repetition_goes_on_where_it_stopped(world: World) -> None:
    """The message stands, its thread did not get it: the whole step comes again."""
    event = world.event()
    async with world.bot() as bot:
        world.limits(posts=1)
        with pytest.raises(TransientDeliveryError) as caught:
            await world.tell(bot, event)
        await world.tell(bot, event, event)

    assert caught.value.retry_after == 1
    assert world.thread() == ["Freeze is scheduled"]


async def test_outcome_that_comes_twice_is_reported_once(world: World) -> None:
    outcome = ruling("relayed", NOW, imds_event(), APPROVED)
    async with world.bot() as bot:
        await world.tell(bot, world.event(), outcome, outcome)

    assert shown(world.message).count("passed on to Azure") == 1
    assert len(world.thread()) == 2


async def test_answer_that_is_lost_leaves_one_message_too_many(world: World) -> None:
    """Slack knows no way to post exactly once; only one of them is updated."""
    world.fails("chat.postMessage", Reset(), takes_effect=True)
    event = world.event()
    async with world.bot() as bot:
        with pytest.raises(TransientDeliveryError):
            await world.tell(bot, event)
        await world.tell(bot, event, step("started", started(), NOW))

    lost, kept = world.messages
    assert "is scheduled" in shown(lost)
    assert "has started" in shown(kept)


@pytest.mark.parametrize(
    "word", ["message_not_found", "cant_update_message", "edit_window_closed"]
)
async def test_message_that_cannot_be_changed_is_posted_anew(
    word: str, world: World
) -> None:
    async with world.bot() as bot:
        await world.tell(bot, world.event())
        world.answers("chat.update", word)
        await world.tell(bot, step("started", started(), world.clock.now()))
        await world.tell(bot, step("completed", started(), world.clock.now()))

    old, new = world.messages
    assert "is scheduled" in shown(old)
    assert "is over" in shown(new)
    assert world.thread(new) == ["Freeze has started", "Freeze is over"]


@pytest.mark.parametrize("word", ["channel_not_found", "is_archived"])
async def test_channel_that_was_left_holds_up_nothing_in_the_new_one(
    word: str, world: World
) -> None:
    async with world.bot(channel="old") as bot:
        await world.tell(bot, world.event())
    world.channel.refusal = word
    steps = [
        step("started", started(), NOW, imds_event()),
        step("completed", started(), NOW, started()),
    ]
    async with world.bot(channel="new") as bot:
        await world.tell(bot, *steps)

    _, new = world.inbox.slack.workspace.channels.values()
    message, *thread = new.posts.values()
    assert "Freeze is over" in shown(message)
    assert [each.content.text for each in thread] == [
        "Freeze has started",
        "Freeze is over",
    ]


@pytest.mark.parametrize("word", ["thread_not_found", "cannot_reply_to_message"])
async def test_thread_that_takes_no_answers_is_left_alone(
    word: str, world: World
) -> None:
    async with world.bot() as bot:
        await world.tell(bot, world.event())
        world.answers("chat.postMessage", word)
        await world.tell(bot, step("started", started(), world.clock.now()))

    assert "Freeze has started" in shown(world.message)


@pytest.mark.parametrize(
    "kept",
    [
        b'{"of": "another version"}',
        b'{"event": {"\xff": 1}}',
        b'{"event": {"a": ' + b"[" * 10_000,
    ],
)
async def test_card_that_cannot_be_read_is_begun_anew(
    world: World, kept: bytes
) -> None:
    await world.memory.keep(EVENT_ID, kept)
    async with world.bot() as bot:
        await world.tell(bot, world.event())

    assert "is scheduled" in shown(world.message)


# -- faults --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "error", "reason"),
    [
        ("ratelimited", TransientDeliveryError, Reason.THROTTLED),
        ("internal_error", TransientDeliveryError, Reason.SERVER),
        ("fatal_error", TransientDeliveryError, Reason.SERVER),
        ("service_unavailable", TransientDeliveryError, Reason.SERVER),
        ("request_timeout", TransientDeliveryError, Reason.SERVER),
        ("never_heard_of", TransientDeliveryError, Reason.SERVER),
        ("invalid_auth", RefusedDeliveryError, Reason.UNAUTHORIZED),
        ("account_inactive", RefusedDeliveryError, Reason.UNAUTHORIZED),
        ("token_revoked", RefusedDeliveryError, Reason.UNAUTHORIZED),
        ("token_expired", RefusedDeliveryError, Reason.UNAUTHORIZED),
        ("missing_scope", RefusedDeliveryError, Reason.UNAUTHORIZED),
        ("not_in_channel", RefusedDeliveryError, Reason.NOT_FOUND),
        ("is_archived", RefusedDeliveryError, Reason.NOT_FOUND),
        ("channel_not_found", RefusedDeliveryError, Reason.NOT_FOUND),
        ("msg_too_long", PermanentDeliveryError, Reason.TOO_LARGE),
        ("invalid_blocks", PermanentDeliveryError, Reason.REJECTED),
    ],
)
async def test_word_of_a_fault_decides_what_becomes_of_a_delivery(
    word: str, error: type[DeliveryError], reason: Reason, world: World
) -> None:
    world.answers("chat.postMessage", word)
    async with world.bot() as bot:
        with pytest.raises(error, match=f"answered {word}$") as caught:
            await world.tell(bot, world.event())

    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (Answer(status=503, retry_after="7"), Reason.SERVER),
        (Answer(status=429, retry_after="7"), Reason.THROTTLED),
        (Answer(status=200, body="<html>Sign in"), Reason.SERVER),
        (Answer(status=200, body="[]"), Reason.SERVER),
        (Answer(status=200, body='{"ok": true}'), Reason.SERVER),
        (Answer(status=200, body='{"ok": false, "error": 7}'), Reason.SERVER),
        (Truncated(), Reason.SERVER),
        (Reset(), Reason.CONNECTION),
        (Hang(30), Reason.TIMEOUT),
    ],
)
async def test_what_may_pass_is_tried_again(
    strike: Any, reason: Reason, world: World
) -> None:
    world.fails("chat.postMessage", strike)
    is_silent = isinstance(strike, Hang)
    async with world.bot(timeout="200ms" if is_silent else "30s") as bot:
        with pytest.raises(TransientDeliveryError) as caught:
            await world.tell(bot, world.event())

    assert caught.value.reason is reason
    wish = getattr(strike, "retry_after", None)
    assert caught.value.retry_after == (wish and float(wish))


async def test_redirect_is_not_followed(world: World) -> None:
    world.fails("chat.postMessage", Answer(status=302))
    async with world.bot() as bot:
        with pytest.raises(PermanentDeliveryError) as caught:
            await world.tell(bot, world.event())

    assert caught.value.reason is Reason.REDIRECTED


async def test_token_is_in_no_error_and_no_repr(world: World) -> None:
    body = f'{{"ok": false, "error": "{TOKEN.lower()}"}}'
    world.fails("chat.postMessage", Answer(status=200, body=body))
    async with world.bot() as bot:
        with pytest.raises(DeliveryError) as caught:
            await world.tell(bot, world.event())

        assert "5ec12e7" not in f"{caught.value!r} {bot!r}".lower()


async def test_token_is_read_anew_at_each_call(world: World, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    async with world.bot(token=f"file:{path}") as bot:
        for broken in ("", "two words", "xoxp-of-a-person"):
            path.write_text(broken)
            with pytest.raises(RefusedDeliveryError):
                await world.tell(bot, world.event())
        path.write_text(TOKEN)
        await world.tell(bot, world.event())

    assert world.messages


# -- the pace ------------------------------------------------------------------


async def test_first_message_and_its_thread_take_two_turns(world: World) -> None:
    """One message a second and channel: the relay has counted one of the two."""
    async with world.bot() as bot:
        pace = cast("Any", bot).pace
        before = world.clock.monotonic() + world.seconds
        await world.tell(bot, world.event())
        assert pace.opens_at == before + 1
        await world.tell(bot, step("started", started(), world.clock.now()))
        assert pace.opens_at == before + 1


# -- buttons -------------------------------------------------------------------


async def test_buttons_are_read_by_the_app_that_takes_the_clicks(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())

    found = buttons(voting.message)
    assert [each["action_id"] for each in found] == [
        "sebridge-approve",
        "sebridge-refuse",
    ]
    for each, action in zip(found, ("approve", "refuse"), strict=True):
        button = read(each["value"], [BUTTON_SECRET])
        assert button.action == action
        assert button.digest == digest(imds_event())
        assert (button.event_id, button.reply_to) == (EVENT_ID, ADDRESS.entity)
        assert button.session == ADDRESS.session
        assert "WestNO_0, WestNO_1" in each["confirm"]["text"]["text"]


@pytest.mark.parametrize(
    "last",
    [
        step("started", started(), NOW),
        step("cancelled", imds_event(), NOW),
        step("updated", started(), NOW),
        ruling("relayed", NOW, imds_event()),
        ruling("already-started", NOW, imds_event()),
    ],
    ids=["started", "gone", "started-seen-late", "relayed", "already-started"],
)
async def test_buttons_go_with_the_step_that_makes_them_useless(
    last: Any, voting: World
) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
        assert buttons(voting.message)
        await voting.tell(bot, last)

    assert not buttons(voting.message)


@pytest.mark.parametrize("outcome", ["denied", "expired", "failed", "rejected"])
async def test_approval_that_came_to_nothing_leaves_the_buttons(
    outcome: str, voting: World
) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event(), ruling(outcome, NOW, imds_event()))

    assert buttons(voting.message)


async def test_decision_is_not_forgotten_over_later_outcomes(voting: World) -> None:
    outcomes = ["denied", "relayed", *["denied"] * 5]
    rulings = [
        ruling(outcome, NOW + timedelta(seconds=n), imds_event())
        for n, outcome in enumerate(outcomes)
    ]
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event(), *rulings)

    assert not buttons(voting.message)
    assert shown(voting.message).count("*Approval denied*") == 2
    assert len(voting.thread()) == 8


async def test_changed_event_gets_buttons_of_its_own(voting: World) -> None:
    changed = imds_event(Resources=["WestNO_9"])
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event(), step("updated", changed, NOW))

    approve, _ = buttons(voting.message)
    assert read(approve["value"], [BUTTON_SECRET]).digest == digest(changed)


async def test_buttons_go_at_not_before(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
        await voting.clock.advance(890)
        assert buttons(voting.message)
        for _ in range(4):  # looks again now and then: the wall clock may be set
            await voting.clock.advance(30)
        await voting.until(lambda: not buttons(voting.message))

    assert "is scheduled" in shown(voting.message)


async def test_buttons_whose_time_came_while_the_bridge_was_down_go_at_its_start(
    voting: World, state_path: Path
) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        voting.memory = SinkMemory(outbox, "ops", voting.clock)
        async with voting.bot() as bot:
            await voting.tell(bot, voting.event(), step("scheduled", OTHER, NOW))
    voting.clock.pass_by(3600)

    async with patient_outbox(state_path, router()) as outbox:
        voting.memory = SinkMemory(outbox, "ops", voting.clock)
        async with voting.bot():
            for left in (1, 0):  # at the channel's pace
                wait = 2 - left
                await voting.until(lambda wait=wait: voting.clock.waits[-1] == wait)  # type: ignore[misc]  # as defaults
                await voting.clock.advance(wait)
                await voting.until(lambda left=left: with_buttons(voting) == left)  # type: ignore[misc]  # as defaults
    assert b"5ec12e7" not in state_path.read_bytes()


OTHER = imds_event("B", Resources=["WestNO_1"])


class Forgetful(Notebook, frozen=True):
    """A memory that cannot be read at first."""

    faults = 1

    async def all(self) -> Mapping[str, bytes]:
        if Forgetful.faults:
            Forgetful.faults -= 1
            raise OutboxUnavailableError("the state file cannot be read")
        return await super().all()


class Locked(Notebook, frozen=True):
    """A memory that is locked by somebody else."""

    async def recall(self, key: str) -> bytes | None:
        raise OutboxUnavailableError(f"the state file is locked: {key}")


async def test_memory_that_cannot_be_read_now_is_a_matter_of_time(
    world: World,
) -> None:
    world.memory = Locked()
    async with world.bot() as bot:
        with pytest.raises(TransientDeliveryError, match="state file is locked"):
            await world.tell(bot, world.event())

    assert not world.inbox.slack.workspace.channels


async def test_memory_that_cannot_be_read_is_read_later(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
    assert isinstance(voting.memory, Notebook)
    voting.memory = Forgetful(voting.memory.pages)
    voting.clock.pass_by(3600)

    async with voting.bot():
        await voting.until(lambda: voting.clock.waits[-1] == 60)
        await voting.clock.advance(60)
        await voting.until(lambda: not with_buttons(voting))


async def test_first_sight_past_not_before_has_no_buttons(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event(NotBefore=not_before(-1)))

    assert not buttons(voting.message)


async def test_slack_that_is_down_gets_rid_of_the_buttons_later(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
        it = cast("Any", bot)
        voting.fails("chat.update", Answer(status=503, retry_after="90"))
        voting.clock.pass_by(1000)
        assert await it.step() == 0
        assert buttons(voting.message)
        assert await it.step() == 60
        voting.clock.pass_by(91)
        await it.step()

    assert not buttons(voting.message)


async def test_buttons_of_a_message_that_is_gone_are_no_concern(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
        voting.channel.posts.clear()
        voting.clock.pass_by(1000)
        it = cast("Any", bot)
        await it.step()

        assert await it.step() == 3600
    assert not voting.messages


async def test_buttons_of_a_card_that_was_pruned_are_no_concern(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())
        cast("Notebook", voting.memory).pages.clear()
        voting.clock.pass_by(1000)
        it = cast("Any", bot)
        await it.step()

        assert await it.step() == 3600


@pytest.mark.parametrize(
    ("event", "where"),
    [
        (imds_event(Resources=[]), "nowhere"),
        (imds_event(Resources=["web-0", 7]), "nowhere"),
        (imds_event(Resources=[f"web-{n}" * 9 for n in range(100)]), "nowhere"),
        (imds_event("é" * 320), "nowhere"),
        (imds_event(Resources=[f"web-{n:03}" for n in range(20)]), "confirmation"),
        (imds_event(Resources=[f"web-{n:03}" for n in range(90)]), "message"),
    ],
    ids=["none", "odd", "too-many", "long-id", "twenty", "ninety"],
)
async def test_who_clicks_sees_every_name_or_there_are_no_buttons(
    event: dict[str, object], where: str, voting: World
) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, step("scheduled", event, voting.clock.now()))

    found, text = buttons(voting.message), shown(voting.message)
    if where == "nowhere":
        assert not found
        event_id = event["EventId"]
        command = f"`sebridge approve {event_id} --session vm-1`"
        assert (
            command if str(event_id).isascii() else "Use `sebridge approve`"
        ) in text
        return
    names = ", ".join(cast("list[str]", event["Resources"]))
    confirmed = [each["confirm"]["text"]["text"] for each in found]
    assert [names in each for each in confirmed] == [where == "confirmation"] * 2
    if where == "message":
        assert names in text
        assert all("90 machines that the message lists" in each for each in confirmed)


async def test_event_that_was_cut_has_no_buttons(voting: World) -> None:
    huge = imds_event(Resources=[f"{n:04}" * 135 for n in range(120)])
    event = step("scheduled", huge, voting.clock.now())
    assert event.data["truncated"] == ["Resources"]
    async with voting.bot() as bot:
        await voting.tell(bot, event)

    assert not buttons(voting.message)


async def test_test_event_has_no_buttons(voting: World) -> None:
    marked = {**voting.event().extensions, TEST_ATTRIBUTE: "true"}
    async with voting.bot() as bot:
        await voting.tell(bot, replace(voting.event(), extensions=marked))

    assert not buttons(voting.message)


async def test_who_wants_no_buttons_gets_none(voting: World) -> None:
    async with voting.bot(buttons=False) as bot:
        await voting.tell(bot, voting.event())

    assert not buttons(voting.message)
    assert COMMAND in shown(voting.message)


COMMAND = f"`sebridge approve {EVENT_ID} --session vm-1`"


async def test_command_goes_with_the_step_that_makes_it_useless(voting: World) -> None:
    async with voting.bot(buttons=False) as bot:
        await voting.tell(bot, voting.event())
        assert COMMAND in shown(voting.message)
        await voting.tell(bot, voting.event("started"))

    assert "sebridge approve" not in shown(voting.message)


async def test_no_command_is_shown_beside_buttons(voting: World) -> None:
    async with voting.bot() as bot:
        await voting.tell(bot, voting.event())

    assert buttons(voting.message)
    assert "sebridge approve" not in shown(voting.message)


async def test_no_command_is_shown_where_nothing_takes_approvals(world: World) -> None:
    async with world.bot() as bot:
        await world.tell(bot, world.event())

    assert "sebridge approve" not in shown(world.message)


async def test_preview_shows_the_command(voting: World) -> None:
    table = {"type": "slack", "token": TOKEN, "channel": "ops"}
    here = with_fields(voting.resources, approvals=ADDRESS, clock=voting.clock)
    preview = await sink_config(table).preview(here, voting.event())

    assert COMMAND.encode() in preview.body


# -- check and preview ---------------------------------------------------------


def bot_at(world: World, channel: str = "C012AB3CD") -> SinkConfig:
    api = f"{world.inbox.url}/slack/api/"
    return sink_config(
        {"type": "slack", "token": TOKEN, "channel": channel, "api_url": api}
    )


def have(world: World, refusal: str | None, *scopes: str, kind: str = "C") -> None:
    """Let Slack have one channel, and a bot with these scopes."""
    channel = {"id": f"{kind}012AB3CD", "name": "ops", "refusal": refusal}
    token = {"token": TOKEN, "scopes": scopes} if scopes else {"token": TOKEN}
    workspace = {"channels": [channel], "tokens": [token]}
    world.inbox.slack.configure(orjson.dumps(workspace))


async def test_reach_says_whose_token_it_is_and_where_it_may_post(world: World) -> None:
    have(world, None, "chat:write", "channels:read")
    found = await bot_at(world).reach(world.resources)

    said = "accepts the token: sebridge in Example, who may post to ops"
    assert found.endswith(said)
    assert not world.channel.posts
    world.answers("auth.test", "invalid_auth")
    with pytest.raises(RefusedDeliveryError, match="answered invalid_auth"):
        await bot_at(world).reach(world.resources)


@pytest.mark.parametrize(
    ("refusal", "scopes", "said"),
    [
        ("not_in_channel", (), r"no member of ops: write /invite @sebridge in the"),
        ("channel_not_found", (), r"no channel C012AB3CD, or .*/invite @sebridge"),
        ("is_archived", (), r"the channel ops is archived"),
        (None, ("channels:read",), r"has no scope chat:write; add it to the app"),
    ],
)
async def test_channel_that_cannot_be_posted_to_is_found(
    world: World, refusal: str, scopes: Sequence[str], said: str
) -> None:
    have(world, refusal, *scopes)
    with pytest.raises(RefusedDeliveryError, match=said):
        await bot_at(world).reach(world.resources)

    async with world.bot(channel="C012AB3CD") as bot:
        with pytest.raises(RefusedDeliveryError):
            await bot.deliver(world.event())


async def test_bot_that_may_post_everywhere_needs_no_invitation(world: World) -> None:
    scopes = ("chat:write", "chat:write.public", "channels:read", "groups:read")
    have(world, "not_in_channel", *scopes)
    found = await bot_at(world).reach(world.resources)
    assert found.endswith("who may post to ops")

    have(world, "not_in_channel", *scopes, kind="G")
    with pytest.raises(RefusedDeliveryError, match="no member of ops"):
        await bot_at(world, "G012AB3CD").reach(world.resources)


async def test_channel_that_cannot_be_looked_up_is_doubted(world: World) -> None:
    have(world, None, "chat:write")
    with pytest.raises(UnprovenError, match="channel not looked up") as caught:
        await bot_at(world).reach(world.resources)
    assert "channels:read" in caught.value.advice

    with pytest.raises(UnprovenError, match="channel not looked up") as caught:
        await bot_at(world, "#ops").reach(world.resources)
    assert "only the id of a channel" in caught.value.advice


async def test_other_fault_of_looking_up_is_reported(world: World) -> None:
    world.answers("conversations.info", "team_access_not_granted")
    with pytest.raises(RefusedDeliveryError, match="team_access_not_granted"):
        await bot_at(world).reach(world.resources)


async def test_preview_is_what_is_posted_but_for_secrets(voting: World) -> None:
    event = voting.event()
    table = {"type": "slack", "token": TOKEN, "channel": "ops", **voting.options}
    lent = with_fields(voting.resources, clock=voting.clock)
    preview = await sink_config(table).preview(lent, event)

    assert preview.head[:2] == (
        "POST https://slack.com chat.postMessage",
        "Authorization: Bearer <secret>",
    )
    body = orjson.loads(preview.body)
    assert body["channel"] == "ops"
    assert refusal(body) is None
    assert preview.body.count(b"<signature>.") == 2
    assert b"5ec12e7" not in preview.body.lower()
    assert not voting.inbox.slack.workspace.channels


async def test_preview_of_what_has_no_event_is_a_message_by_itself(
    world: World,
) -> None:
    table = {"type": "slack", "token": TOKEN, "channel": "ops"}
    event = ruling("unknown-event", NOW)
    preview = await sink_config(table).preview(world.resources, event)

    assert b"no such event here" in preview.body


async def test_preview_of_a_webhook_shows_no_secret(world: World) -> None:
    table = {"type": "slack", "webhook_url": "https://hooks.example/5EC12E7"}
    preview = await sink_config(table).preview(world.resources, world.event())

    assert preview.head[0] == "POST https://hooks.example"
    assert refusal(orjson.loads(preview.body)) is None


# -- configuration -------------------------------------------------------------

BOT = {"type": "slack", "token": TOKEN, "channel": "C012AB3CD"}
HOOK = {"type": "slack", "webhook_url": "https://hooks.example/x"}
ONE_FORM = "webhook_url: set either webhook_url, or token and channel"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"type": "slack"}, ONE_FORM),
        ({**BOT, **HOOK}, ONE_FORM),
        ({**BOT, "channel": ""}, "channel: is missing: the channel to post to"),
        ({**HOOK, "channel": "ops"}, "channel: needs token"),
        ({**BOT, "api_url": "http://slack.example/api/"}, "api_url: must be an https:"),
        ({**BOT, "api_url": "https://slack.example/api"}, "api_url: must be an https:"),
        ({**BOT, "api_url": "slack.example"}, "api_url: must be an https://"),
        ({**BOT, "timeout": 0}, "timeout: must be more than 0s"),
        (
            {**BOT, "buttons": True},
            "button_secret: is missing: set it to BUTTON_SECRET",
        ),
        (
            {**BOT, "buttons": True, "button_secret": "5EC12E7"},
            "button_secret: must have at least 32 characters",
        ),
        (
            {**HOOK, "buttons": True, "button_secret": BUTTON_SECRET},
            "buttons: needs token and channel",
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    options: Mapping[str, object], fault: str
) -> None:
    (found,) = config_faults(options)

    assert found.startswith(fault)
    assert "5EC12E7" not in found


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:80", "[::1]:80"])
def test_token_may_go_unencrypted_to_this_machine_alone(host: str) -> None:
    assert not config_faults({**BOT, "api_url": f"http://{host}/slack/api/"})


def test_buttons_need_approvals() -> None:
    sink = {"name": "ops", "buttons": True, "button_secret": BUTTON_SECRET, **BOT}
    with pytest.raises(ConfigError, match=r"sinks\.ops\.buttons: needs \[approvals\]"):
        parse({"sinks": [sink]}, file="b.toml", environ={})


# -- limits --------------------------------------------------------------------

SECRETS = st.sampled_from([None, BUTTON_SECRET])


@settings(max_examples=40)
@given(st.lists(st.tuples(ANY_TYPE, ANY_DATA), min_size=1, max_size=3), SECRETS)
def test_whatever_comes_slack_takes_it(
    steps: list[tuple[str, dict[str, object]]], secret: str | None
) -> None:
    signer = Signer(address=ADDRESS, secret=secret) if secret else None
    card: Card | None = None
    for number, (kind, data) in enumerate(steps):
        event = CloudEvent(
            id=str(number), source="/s", type=kind, time="2026-03-02T12:00:00Z",
            dataschema="d", data=orjson.loads(orjson.dumps(data)),
        )  # fmt: skip
        assert refusal(orjson.loads(orjson.dumps(render_step(event, NOW)))) is None
        shown_now = after(card, event)
        if shown_now is not None:
            card = Card.from_bytes(shown_now.to_bytes())
            assert card == shown_now == after(card, event)
            message = render_card(card, NOW, signer).message
            assert refusal(orjson.loads(orjson.dumps(message))) is None


@settings(max_examples=40)
@given(ANY_EVENT.filter(lambda value: isinstance(value, dict)))
def test_digest_is_that_of_the_app(event: dict[str, object]) -> None:
    assert digest_of_button(event) == digest(event)
