"""Votes and decisions: pure, and the same when something happens twice."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from approver.announcements import Announcement, Outcome
from approver.ballots import Ballot, Vote
from approver.buttons import Action, Button
from approver.polls import (
    Counted,
    Decided,
    Refused,
    Verdict,
    announced,
    cast,
    reopened,
    sent,
)
from approver.vote_rules import Rule, Rules, digest
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START

ALICE, BOB = "U0ALICE", "U0BOB"
APPROVERS = frozenset({ALICE, BOB})
ONE = Rules(approvers=APPROVERS)
TWO = Rules(approvers=APPROVERS, rule=Rule.TWO)
OWNERS = {"westno_0": frozenset({ALICE}), "westno_1*": frozenset({BOB})}
EACH = Rules(approvers=APPROVERS, rule=Rule.RESOURCES, owners=OWNERS)


def announcement(
    transition: str = "scheduled",
    event: dict[str, object] | None = None,
    after: float = 0.0,
    **fields: object,
) -> Announcement:
    return Announcement(
        transition=transition,
        event_id=EVENT_ID,
        time=START + timedelta(seconds=after),
        event=event or imds_event(),
        **fields,  # type: ignore[arg-type]  # a test names its fields
    )


def open_ballot(**fields: object) -> Ballot:
    ballot = announced(None, announcement(event=imds_event(EVENT_ID, **fields)))
    assert ballot is not None
    return ballot


def click(
    ballot: Ballot, user: str, at: str, rules: Rules = ONE, action: Action = "approve"
) -> tuple[Ballot, Verdict]:
    """Click on what is announced; what is kept is what is read back."""
    vote = Vote(user=user, click=at)
    after, verdict = cast(ballot, vote, button(ballot.event, action), rules, START)
    assert after is not None
    assert Ballot.from_bytes(after.to_bytes()) == after
    return after, verdict


def button(event: Mapping[str, object], action: Action = "approve") -> Button:
    return Button(
        action=action,
        event_id=EVENT_ID,
        digest=digest(event),
        reply_to="q",
        session="s",
    )


def words(verdict: Verdict) -> str:
    assert isinstance(verdict, Refused)
    return verdict.words


def test_one_person_decides() -> None:
    ballot, verdict = click(open_ballot(), ALICE, "1")

    assert isinstance(verdict, Decided)
    assert verdict.decision.by == ("slack:U0ALICE",)
    assert ballot.unsent == verdict.decision
    assert sent(ballot).unsent is None


def test_same_click_again_is_the_same_decision() -> None:
    ballot, first = click(open_ballot(), ALICE, "1")
    after, second = click(sent(ballot), ALICE, "1")

    assert isinstance(first, Decided)
    assert isinstance(second, Decided)
    assert first.decision.request_id == second.decision.request_id
    assert after.unsent is None


def test_two_different_persons_decide() -> None:
    ballot, first = click(open_ballot(), ALICE, "1", TWO)
    ballot, again = click(ballot, ALICE, "1", TWO)
    ballot, second = click(ballot, ALICE, "2", TWO)
    ballot, third = click(ballot, BOB, "3", TWO)

    assert isinstance(first, Counted)
    assert again == first
    assert words(second) == "Your approval is already counted."
    assert isinstance(third, Decided)
    assert third.decision.by == ("slack:U0ALICE", "slack:U0BOB")


ALICE_IN_TEAMS = "a11ce000-0000-4000-8000-000000000001"
BOB_IN_TEAMS = "b0b00000-0000-4000-8000-000000000002"


def test_one_person_in_two_places_is_one() -> None:
    same = {ALICE: ALICE_IN_TEAMS, ALICE_IN_TEAMS: ALICE}
    rules = Rules(approvers=APPROVERS, rule=Rule.TWO, same=same)
    ballot, _ = click(open_ballot(), ALICE, "1", rules)
    _, again = click(ballot, ALICE_IN_TEAMS, "2", rules)
    _, refused = click(ballot, ALICE_IN_TEAMS, "3", rules, "refuse")
    _, other = click(ballot, BOB, "4", rules)

    assert words(again) == "Your approval is already counted."
    assert isinstance(refused, Decided)
    assert refused.decision.by == (f"teams:{ALICE_IN_TEAMS}",)
    assert isinstance(other, Decided)


def test_persons_of_two_places_are_two_only_if_that_is_known() -> None:
    """Alice of Slack may be the person whom Entra knows by some object id."""
    ballot, _ = click(open_ballot(), ALICE, "1", TWO)
    ballot, second = click(ballot, BOB_IN_TEAMS, "2", TWO)
    _, third = click(ballot, ALICE_IN_TEAMS, "3", TWO)

    assert isinstance(second, Counted)
    assert second.missing == ("1 more",)
    assert isinstance(third, Decided)


def test_owner_may_click_in_either_place() -> None:
    same = {ALICE: ALICE_IN_TEAMS, ALICE_IN_TEAMS: ALICE}
    rules = Rules(approvers=APPROVERS, rule=Rule.RESOURCES, owners=OWNERS, same=same)

    assert rules.is_answerable(ALICE_IN_TEAMS, ["WestNO_0"])
    assert not rules.is_answerable(BOB_IN_TEAMS, ["WestNO_0"])


def test_every_resource_wants_a_vote() -> None:
    ballot, first = click(
        open_ballot(Resources=["WestNO_0", "_WestNO_1"]), ALICE, "1", EACH
    )
    ballot, second = click(ballot, BOB, "2", EACH)

    assert first == Counted(
        voters=(f"slack:{ALICE}",), missing=("_WestNO_1",), names=("",)
    )
    assert isinstance(second, Decided)


def test_resources_without_owner_are_never_approved() -> None:
    ballot, first = click(open_ballot(Resources=["WestNO_0", "db"]), ALICE, "1", EACH)
    _, second = click(ballot, BOB, "2", EACH)
    _, nothing = click(open_ballot(Resources=[]), ALICE, "1", EACH)

    assert first == Counted(voters=(f"slack:{ALICE}",), missing=("db",), names=("",))
    assert "may not decide" in words(second)
    assert "may not decide" in words(nothing)


def test_refusal_deletes_the_votes_and_sends_nothing() -> None:
    ballot, _ = click(open_ballot(), ALICE, "1", TWO)
    ballot, verdict = click(ballot, BOB, "2", TWO, action="refuse")
    _, again = click(ballot, ALICE, "3", TWO, action="refuse")

    assert isinstance(verdict, Decided)
    assert ballot.votes == ()
    assert ballot.unsent is None
    assert words(again) == "The event was already refused by <@U0BOB>."


def test_what_was_refused_takes_all_votes_again() -> None:
    ballot, _ = click(open_ballot(), ALICE, "1", TWO)
    ballot, _ = click(ballot, BOB, "2", TWO, action="refuse")
    ballot, first = click(ballot, BOB, "3", TWO)
    ballot, second = click(ballot, ALICE, "4", TWO)

    assert isinstance(first, Counted)
    assert isinstance(second, Decided)
    assert second.decision.action == "approve"
    assert ballot.unsent == second.decision


def test_refusal_deletes_the_votes_that_came_after_another() -> None:
    ballot, _ = click(open_ballot(), BOB, "1", TWO, action="refuse")
    ballot, _ = click(ballot, ALICE, "2", TWO)
    ballot, verdict = click(ballot, BOB, "3", TWO, action="refuse")

    assert isinstance(verdict, Decided)
    assert (verdict.decision.action, ballot.votes) == ("refuse", ())


def test_click_whose_vote_was_deleted_counts_for_nothing() -> None:
    """The queue may deliver it once more, after the refusal."""
    ballot, _ = click(open_ballot(), ALICE, "1", TWO)
    ballot, _ = click(ballot, BOB, "2", TWO, action="refuse")
    again = announced(ballot, announcement("updated", after=1))
    assert again is not None
    _, late = click(again, ALICE, "1", TWO)

    assert words(late) == "Your vote was deleted by a refusal."


def test_who_has_voted_may_still_refuse() -> None:
    ballot, _ = click(open_ballot(), ALICE, "1", TWO)
    ballot, verdict = click(ballot, ALICE, "2", TWO, action="refuse")

    assert isinstance(verdict, Decided)
    assert verdict.decision.by == ("slack:U0ALICE",)


@pytest.mark.parametrize(
    ("ballot", "said"),
    [
        (None, "does not know the event"),
        (announced(None, announcement("started", started())), "already started"),
        (announced(None, announcement(is_whole=False)), "more resources"),
        (open_ballot(DurationInSeconds=60), "has changed since this message"),
    ],
)
def test_what_cannot_be_decided_is_refused(ballot: Ballot | None, said: str) -> None:
    vote = Vote(user=ALICE, click="1")
    after, verdict = cast(ballot, vote, button(imds_event()), ONE, START)

    assert after == ballot

    assert said in words(verdict)


def test_changed_event_voids_votes_and_decisions() -> None:
    voted, _ = click(open_ballot(), ALICE, "1", TWO)
    decided, _ = click(open_ballot(), ALICE, "1")
    changed = announcement("updated", imds_event(DurationInSeconds=-1), after=5)

    for ballot in (voted, decided):
        after = announced(ballot, changed)
        assert after is not None
        assert (after.votes, after.decision) == ((), None)


def test_unchanged_event_keeps_votes() -> None:
    voted, _ = click(open_ballot(), ALICE, "1", TWO)

    for step in (
        announcement(),
        announcement("updated", imds_event(Description="x"), after=5),
    ):
        after = announced(voted, step)
        assert after is not None
        assert after.votes == voted.votes


def test_older_news_changes_nothing() -> None:
    ballot = announced(None, announcement(after=5))

    assert (
        announced(ballot, announcement("updated", imds_event(EventType="Reboot")))
        == ballot
    )
    assert announced(ballot, announcement("cancelled")) == ballot


@pytest.mark.parametrize("transition", ["completed", "cancelled", "ended"])
def test_gone_event_leaves_nothing(transition: str) -> None:
    assert announced(open_ballot(), announcement(transition, after=5)) is None


def test_address_is_kept_when_a_step_names_none() -> None:
    ballot = announced(None, announcement(reply_to="q", session="s"))
    after = announced(ballot, announcement("started", started(), after=5))

    assert after is not None
    assert (after.reply_to, after.session) == ("q", "s")


def test_failed_approval_opens_the_vote_again() -> None:
    ballot, _ = click(open_ballot(), ALICE, "1")
    assert ballot.decision is not None
    mine = ballot.decision.request_id

    def after(outcome: str, message_id: str | None) -> Ballot | None:
        became = Outcome(outcome=outcome, event_id=EVENT_ID, message_id=message_id)
        return reopened(ballot, became)

    assert after("denied", mine) == open_ballot()
    assert after("denied", "another") == after("relayed", mine) == ballot
    assert (
        reopened(None, Outcome(outcome="denied", event_id="e", message_id="m")) is None
    )


def test_nobody_is_allowed_where_nobody_is_named() -> None:
    assert Rules().refusal(ALICE, "T1") is not None


def test_other_workspace_is_not_heard() -> None:
    rules = Rules(approvers=APPROVERS, team="T1")

    assert rules.refusal(ALICE, "T1") is None
    assert "workspace" in str(rules.refusal(ALICE, "T2"))
