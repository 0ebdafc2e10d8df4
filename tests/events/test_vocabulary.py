"""The closed sets of words: what they hold, and that no other module repeats them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from bridge.events.routing import Transition
from bridge.events.vocabulary import (
    APPROVED,
    COMMAND_OUTCOMES,
    GONE,
    NOTHING_TO_APPROVE,
    PRESENT,
    TRANSITIONS,
    OutcomeKind,
    TransitionKind,
)
from bridge.hub.facts import Kind
from bridge.sinks.acting import Fate
from bridge.telemetry.metrics import OUTCOMES

BRIDGE = Path(__file__).parents[2] / "bridge"
SETS = (APPROVED, GONE, NOTHING_TO_APPROVE, PRESENT, TRANSITIONS, {*OutcomeKind})
# A configuration value must be a Literal; and the simulator imports nothing of ours.
REPEATS = {"events/routing.py"}


def test_each_transition_leaves_the_event_in_the_document_or_not() -> None:
    assert TRANSITIONS == PRESENT | GONE
    assert PRESENT.isdisjoint(GONE)
    assert sorted(GONE) == ["cancelled", "completed", "ended"]


def test_outcome_is_good_if_the_event_is_approved() -> None:
    assert set(APPROVED) == {"relayed", "already-started"}
    assert set(NOTHING_TO_APPROVE) == {*APPROVED, "event-ended"}


def test_configuration_metrics_and_hub_have_the_same_words() -> None:
    assert set(get_args(Transition)) == TRANSITIONS
    assert set(OUTCOMES) == set(OutcomeKind)
    assert set(COMMAND_OUTCOMES) == set(Fate)
    assert {*Kind} == TRANSITIONS | {"outcome", "other"}


def test_members_are_written_as_their_words() -> None:
    assert f"{TransitionKind.COMPLETED}" == "completed"
    assert "completed" in GONE
    assert Kind.COMPLETED in GONE


def words_of(node: ast.AST) -> Iterator[object]:
    for part in getattr(node, "elts", ()):
        yield part.value if isinstance(part, ast.Constant) else None


def repeats_a_set(path: Path) -> bool:
    found = (set(words_of(node)) for node in ast.walk(ast.parse(path.read_text())))
    return any(words in SETS for words in found if words)


def test_no_module_repeats_a_set() -> None:
    paths = [path for path in BRIDGE.rglob("*.py") if "simulator" not in path.parts]
    known = {*TRANSITIONS, *OutcomeKind}
    candidates = [p for p in paths if any(f'"{w}"' in p.read_text() for w in known)]

    repeating = {
        path.relative_to(BRIDGE).as_posix()
        for path in candidates
        if repeats_a_set(path)
    }

    assert repeating == REPEATS
