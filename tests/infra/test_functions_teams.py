"""The bot in Teams from the event to the approval, over a real namespace."""

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from msgspec.structs import replace

from approver.vote_rules import digest
from bridge.approvals.message import Approval, parse
from bridge.simulator.faults import Answer, Fault
from tests.infra.functions_world import ADDRESS, SESSION, called, request
from tests.infra.teams_world import (
    ALICE,
    BOB,
    EVE,
    TeamsStage,
    buttons,
    event_of,
    heard,
    runs,
    teams_stage,
)
from tests.support.builders import not_before, started

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[TeamsStage]:
    """One for all: opening a link takes half a second. Each test has its event."""
    async with teams_stage() as found:
        yield found


async def approval(stage: TeamsStage) -> tuple[str, Approval]:
    """Take the approval from the queue; return its id, and how the bridge reads it."""
    (message,) = await stage.host.approvals()
    assert message.session_id == SESSION
    body = b"".join(message.body)
    return str(message.message_id), parse(body, {}, prefix="sebridge")


async def test_event_is_announced_approved_and_over_in_one_card(
    stage: TeamsStage,
) -> None:
    event = event_of("T-1")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    assert "Freeze is scheduled" in runs(post.card)
    assert "WestNO_0, WestNO_1" in runs(post.card)
    assert buttons(post.card) == ["Approve", "Refuse"]

    answer = await stage.click(ALICE, "approve", post)
    message_id, found = await approval(stage)
    assert found.event_ids == ("T-1",)
    assert found.approved_event == event
    assert found.approved_by == f"teams:{ALICE}"
    assert found.reason == "decided in Teams, rule: one"
    assert "Approved by Alice Ndiaye" in runs(answer["answer"]["value"])
    assert "Approved by Alice Ndiaye" in runs(post.card)
    assert buttons(post.card) == []

    await stage.settle("relayed", event, message_id)
    assert "Approval passed on to Azure" in runs(post.card)
    await stage.tell("started", started("T-1"), after=60)
    assert "Freeze has started" in runs(post.card)
    await stage.tell("completed", started("T-1"), after=70)
    assert runs(post.card)[0] == "Freeze is over"
    assert "Approved by Alice Ndiaye" in runs(post.card)
    assert buttons(post.card) == []
    assert len(stage.cards(event)) == 1


async def test_event_that_was_refused_keeps_its_buttons(stage: TeamsStage) -> None:
    event, changed = event_of("T-2"), event_of("T-2", DurationInSeconds=60)
    await stage.tell("scheduled", event)
    post = stage.card(event)

    await stage.click(BOB, "refuse", post)
    assert "Not approved: refused by Bob Keller" in runs(post.card)
    assert buttons(post.card) == ["Approve", "Refuse"]
    await stage.tell("updated", changed, after=60)

    assert buttons(post.card) == ["Approve", "Refuse"]
    assert "Not approved: refused by Bob Keller" not in runs(post.card)
    assert stage.host.waiting() == 0


async def test_button_of_an_event_that_changed_does_not_count(
    stage: TeamsStage,
) -> None:
    """Alice's client shows the card of before: hers is not refreshed."""
    event, changed = event_of("T-3"), event_of("T-3", DurationInSeconds=60)
    await stage.tell("scheduled", event)
    post = stage.card(event)
    before = post.card
    await stage.tell("updated", changed, after=60)
    post.card = before

    answer = await stage.click(ALICE, "approve", post)

    assert "has changed since this message" in answer["words"]
    assert stage.host.waiting() == 0


async def test_event_past_its_not_before_is_nobodys_to_decide(
    stage: TeamsStage,
) -> None:
    event = event_of("T-4", NotBefore="Mon, 19 Sep 2016 18:29:47 GMT")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    assert buttons(post.card) == []

    post.card = {**post.card, "actions": [execute("approve", event)]}
    answer = await stage.click(ALICE, "approve", post)

    assert answer["words"] == "It is too late: Azure starts the event by itself now."
    assert stage.host.waiting() == 0


def execute(verb: str, event: Mapping[str, object]) -> dict[str, object]:
    """Return a button as a card had it once."""
    data = {"eventId": event["EventId"], "digest": digest(event)}
    return {"type": "Action.Execute", "title": "x", "verb": verb, "data": data}


async def test_stranger_is_told_and_sees_no_buttons(stage: TeamsStage) -> None:
    event = event_of("T-5")
    await stage.tell("scheduled", event)
    post = stage.card(event)

    answer = await stage.click(EVE, "approve", post)
    html = await stage.page(EVE)

    assert answer["answer"]["type"] == "application/vnd.microsoft.activity.message"
    assert "You are not among those who may decide" in answer["words"]
    assert "You are not among those who may decide" in html
    assert buttons(post.card_for(EVE)) == []
    assert buttons(post.card) == ["Approve", "Refuse"]
    assert stage.host.waiting() == 0


async def test_page_lets_a_person_click(stage: TeamsStage) -> None:
    event = event_of("T-6")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    html = await stage.page(ALICE)

    assert "<form" in html
    assert "Freeze is scheduled" in html
    await stage.click(ALICE, "refuse", post)
    assert "refused by Alice Ndiaye" in await stage.page()


async def test_the_same_request_again_is_the_same_click(stage: TeamsStage) -> None:
    event = event_of("T-7")
    await stage.tell("scheduled", event)
    await stage.click(ALICE, "approve", stage.card(event))
    sent = stage.inbox.teams.clicks.last
    assert sent is not None

    again = await heard(sent.body, {"Authorization": f"Bearer {sent.token}"})

    assert again[0] == 200
    assert "Approved by Alice Ndiaye" in runs(again[1]["value"])
    _, found = await approval(stage)
    assert found.event_ids == ("T-7",)
    assert stage.host.waiting() == 0


async def test_card_that_shows_the_same_is_left_alone(stage: TeamsStage) -> None:
    """Two VMs tell the same step; the broker here drops no duplicates."""
    event = event_of("T-8")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    await stage.tell("scheduled", event, after=2)

    assert post.edited_at is None
    assert len(stage.cards(event)) == 1


async def test_decision_of_a_tool_is_shown(stage: TeamsStage) -> None:
    event = event_of("T-9")
    await stage.tell("scheduled", event)
    body = b'{"eventId": "t-9", "approvedBy": "runbook"}'
    response = await called("approve", request("approvals", body))
    await stage.host.approvals()

    assert response.status_code == 202
    assert "Approved by a tool" in runs(stage.card(event).card)
    assert buttons(stage.card(event).card) == []


async def test_failed_approval_is_void_and_can_be_given_again(
    stage: TeamsStage,
) -> None:
    event = event_of("T-10")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    await stage.click(ALICE, "approve", post)
    first, _ = await approval(stage)

    await stage.settle("denied", event, first)
    assert "Approval denied" in runs(post.card)
    assert buttons(post.card) == ["Approve", "Refuse"]
    await stage.click(ALICE, "approve", post)

    second, _ = await approval(stage)
    assert second != first


async def test_late_messages_of_an_event_that_is_over_bring_no_card(
    stage: TeamsStage,
) -> None:
    """The host hands over several messages at once: they may overtake each other."""
    event = event_of("T-11")
    await stage.tell("scheduled", event)
    await stage.tell("completed", started("T-11"), after=70)
    await stage.tell("started", started("T-11"), after=60)

    post = stage.card(event)
    assert runs(post.card)[0] == "Freeze is over"
    answer = await stage.click(ALICE, "look", post)
    assert runs(answer["answer"]["value"])[0] == "Freeze is over"


async def test_event_that_no_bridge_takes_approvals_for_has_no_buttons(
    stage: TeamsStage,
) -> None:
    event = event_of("T-12")
    await stage.tell("scheduled", event, at=replace(ADDRESS, entity="elsewhere"))

    assert buttons(stage.card(event).card) == []


async def test_teams_that_is_busy_gets_the_card_later(stage: TeamsStage) -> None:
    event = event_of("T-13")
    stage.inbox.faults.add(
        Fault(
            path="/teams/v3", method="POST", strike=Answer(status=429, retry_after="1")
        )
    )
    await stage.tell("scheduled", event)
    assert stage.cards(event) == []

    stage.clock.ahead += 6
    await stage.host.count()

    assert buttons(stage.card(event).card) == ["Approve", "Refuse"]


async def test_deleted_message_is_posted_anew(stage: TeamsStage) -> None:
    event, changed = event_of("T-14"), event_of("T-14", DurationInSeconds=60)
    await stage.tell("scheduled", event)
    first = stage.card(event)
    del stage.conversation.posts[first.id]

    await stage.tell("updated", changed, after=60)

    assert stage.card(event).id != first.id


async def test_buttons_go_when_not_before_passes(stage: TeamsStage) -> None:
    """The broker hands the reminder over at NotBefore and a second."""
    event = event_of("T-15", NotBefore=not_before(60, stage.now))
    await stage.tell("scheduled", event)
    post = stage.card(event)
    assert buttons(post.card) == ["Approve", "Refuse"]

    stage.clock.ahead += 62
    await stage.host.count()

    assert buttons(post.card) == []
