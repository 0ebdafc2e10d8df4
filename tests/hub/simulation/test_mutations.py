"""The judge bites: bugs are planted one at a time, and each is found."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from sqlalchemy import update

from bridge.hub import arm_rules, sending, targets
from bridge.hub import decisions as decision_words
from bridge.hub.decisions import CurrentEvent
from bridge.hub.store import deciding
from bridge.hub.store.current import current_event
from bridge.hub.store.tables import decisions
from tests.hub.simulation.world import run

SEEDS = 120  # so many at most, until a planted bug shows
# The search begins at the first seed that shows the bug: else 20 s each.
SINCE = {
    "change_after_the_decision_is_not_looked_at": 33,
    "votes_live_on_after_a_decision": 3,
    "rules_of_bridges_are_not_judged_again": 2,
    "decision_counts_as_sent_before_it_is": 13,
    "message_is_made_anew_each_time": 13,
    "refusal_leaves_what_was_decided": 11,
    "content_that_was_shown_is_not_compared": 20,
}

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Add a bug to those that are planted."""
    BUGS[plant.__name__] = plant
    return plant


@bug
def change_after_the_decision_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(CurrentEvent, "voids", lambda *_: False)


@bug
def one_person_is_enough(patch: Patch) -> None:
    patch.setattr(deciding, "persons_for", lambda *_: (1, "bug"))


@bug
def votes_live_on_after_a_decision(patch: Patch) -> None:
    patch.setattr(deciding, "_forget_votes", lambda *_: None)


@bug
def rules_of_bridges_are_not_judged_again(patch: Patch) -> None:
    patch.setattr(targets, "refusal_of", lambda *_: None)
    patch.setattr(arm_rules, "forbids", lambda *_: None)


@bug
def decision_counts_as_sent_before_it_is(patch: Patch) -> None:
    claimed = sending._claimed

    def early(connection: Any, row: Any, *given: Any) -> Any:
        found = claimed(connection, row, *given)
        change = update(decisions).where(decisions.c.id == row.id)
        connection.execute(change.values(state="done", due=None))
        return found

    patch.setattr(sending, "_claimed", early)


@bug
def message_is_made_anew_each_time(patch: Patch) -> None:
    claimed = sending._claimed

    def anew(connection: Any, row: Any, *given: Any) -> Any:
        found = claimed(connection, row, *given)
        return replace(found, message=found.message + b" " * found.attempt)

    patch.setattr(sending, "_claimed", anew)


@bug
def refusal_leaves_what_was_decided(patch: Patch) -> None:
    patch.setattr(deciding, "void", lambda *_: None)


@bug
def content_that_was_shown_is_not_compared(patch: Patch) -> None:
    handle_vote = deciding.handle_vote

    def blind(connection: Any, ask: Any, *given: Any) -> Any:
        current = current_event(connection, ask.key)
        seen = current.content if current else ""
        return handle_vote(connection, structs.replace(ask, content=seen), *given)

    patch.setattr("tests.hub.simulation.world.handle_vote", blind)


@bug
def bad_outcome_beats_a_good_one(patch: Patch) -> None:
    patch.setattr(decision_words, "GOOD", set())


def is_found(first: int) -> bool:
    """Return whether a seed fails, however it does."""
    for seed in range(first, first + SEEDS):
        try:
            faults = run(seed).oracle.faults
        except Exception:  # noqa: BLE001 - a bug may end it in any way
            return True
        if faults:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    BUGS[name](monkeypatch)

    assert is_found(SINCE.get(name, 0))
