"""The rules of persons: one text for the hub and for the Functions app."""

from pathlib import Path

import pytest

from bridge.hub import vote_rules
from bridge.hub.answers import ApprovalState, PersonsRow, Vote
from bridge.hub.vote_rules import Rule, Rules, digest, missing_votes, voids
from tests.support.fleet import event

ROOT = Path(__file__).parents[2]
SEEN = event(DurationInSeconds=5)


def test_functions_app_carries_the_same_text() -> None:
    """`cp bridge/hub/vote_rules.py infra/functions/approver/` makes it so again."""
    copy = ROOT / "infra" / "functions" / "approver" / "vote_rules.py"

    assert copy.read_bytes() == Path(vote_rules.__file__).read_bytes()


@pytest.mark.parametrize(
    ("changes", "is_void"),
    [
        ({}, False),
        ({"Description": "Other words.", "EventStatus": "Started"}, False),
        ({"EventType": "FREEZE"}, False),
        ({"EventType": "Redeploy"}, True),
        ({"EventSource": "User"}, True),
        ({"Resources": ["WEB-0"]}, False),
        ({"Resources": ["web-0", "_web-1"]}, False),
        ({"Resources": ["web-0", "web-1", "web-2"]}, True),
        ({"Resources": None}, False),
        ({"DurationInSeconds": 4}, False),
        ({"DurationInSeconds": 6}, True),
        ({"DurationInSeconds": -1}, True),
        ({"DurationInSeconds": None}, True),
        ({"DurationInSeconds": True}, True),
    ],
)
def test_vote_is_void_once_more_is_asked_for(
    changes: dict[str, object], *, is_void: bool
) -> None:
    assert voids(SEEN, {**SEEN, **changes}, is_earlier=False) is is_void


def test_earlier_start_makes_a_vote_void() -> None:
    assert voids(SEEN, SEEN, is_earlier=True)


def test_duration_that_nobody_knew_does_not_get_longer() -> None:
    assert not voids({**SEEN, "DurationInSeconds": -1}, SEEN, is_earlier=False)


def test_different_people_count_and_nobody_twice() -> None:
    assert [
        missing_votes(voters, 2) for voters in ([], ["a"], ["a", "a"], ["a", "b"])
    ] == [*(2, 1, 1, 0)]


def test_fingerprint_knows_what_a_person_agrees_to() -> None:
    same = {"Resources": ["web-1", "web-0"], "Description": "Other", "EventStatus": "x"}
    others: dict[str, object] = {
        "DurationInSeconds": 6,
        "EventSource": "User",
        "EventType": "Redeploy",
        "NotBefore": "",
        "Resources": ["web-0"],
    }

    assert digest({**SEEN, **same}) == digest(SEEN)
    assert digest({**SEEN, "Resources": None}) == digest({**SEEN, "Resources": []})
    changed = {digest({**SEEN, name: value}) for name, value in others.items()}
    assert len(changed - {digest(SEEN)}) == len(others)
    assert {len(one) for one in changed} == {32}


def test_rules_of_the_app_say_who_and_how_many() -> None:
    two = Rules(approvers=frozenset("ab"), rule=Rule.TWO, team="T", same={"a": "x-1"})
    owned = Rules(rule=Rule.RESOURCES, owners={"web-*": frozenset("a")})

    assert two.refusal("a", "T") is None
    assert two.refusal("a", "U") is not None
    assert two.refusal("c", "T") is not None
    assert two.missing(["a"], []) == ["1 more"]
    assert two.missing(["a", "b"], []) == []
    assert two.missing(["a", "x-1"], []) == ["1 more"]
    assert two.is_same("a", "x-1")
    assert not two.is_same("b", "x-1")
    assert Rules().missing([], []) == ["one person"]
    assert Rules().is_answerable("a", [])
    assert owned.is_answerable("a", ["_web-1"])
    assert owned.missing(["a"], ["web-1", "db-1"]) == ["db-1"]
    assert owned.missing(["a"], []) == ["a named resource"]


def test_voters_of_a_channel_are_those_whose_votes_count() -> None:
    def vote(person: str, via: str, *, counts: bool) -> Vote:
        return Vote(person=person, via=via, entry=None, counts=counts, why=None)

    found = ApprovalState(
        votes=(
            vote("ada", "bridge", counts=True),
            vote("bob", "bridge", counts=False),
            vote("cyd", "arm", counts=True),
        ),
        persons=PersonsRow(wanted=1, rule="", raised_by=()),
        decision=None,
    )

    assert found.voters("bridge") == ["ada"]
    assert found.voters("arm") == ["cyd"]
