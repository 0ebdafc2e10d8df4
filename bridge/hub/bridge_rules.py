"""Predicts how bridges would answer an approval, by the rules they published. Pure.

A bridge publishes in ``bridge.started`` where it takes approvals and by which rules
(``data.approvals``), and in each heartbeat the digest of these rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from bridge.approvals.rules import Rule, judge
from bridge.events.identity import Identity
from bridge.foundation.sections import Reader
from bridge.hub.voting import CurrentEvent


class Verdict(StrEnum):
    """How a bridge would answer."""

    ALLOWS = "allows"
    WAITS = "waits"  # for a delay, or for commands
    DENIES = "denies"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAnswer:
    """How a bridge would answer, and why."""

    verdict: Verdict
    why: str = ""


NOT_KNOWN = ExpectedAnswer(verdict=Verdict.UNKNOWN, why="its rules are not known")


def expected_answer(
    offer: Mapping[str, object] | None, current: CurrentEvent, name: str, now: datetime
) -> ExpectedAnswer:
    """Predict how a bridge would answer an approval of an event.

    Args:
        offer: ``data.approvals`` of the bridge; None = not known.
        current: the event.
        name: the name of the bridge's VM.
        now: the present moment.
    """
    rules, allowed = _read(offer)
    if rules is None or allowed is None:
        return NOT_KNOWN
    event = current.scheduled
    kind = (event.event_type or "").casefold()
    if allowed and kind not in {name.casefold() for name in allowed}:
        return ExpectedAnswer(verdict=Verdict.DENIES, why="EventTypeNotAllowed")
    age = max((now - current.since).total_seconds(), 0.0)
    ruling = judge(rules, event, age=age, now=now, me=Identity(vm_name=name))
    if ruling.action == "deny":
        why = f"DeniedByRule {ruling.rule}" if ruling.rule else "NoRuleAllows"
        return ExpectedAnswer(verdict=Verdict.DENIES, why=why)
    if ruling.hold is not None or ruling.left:
        return ExpectedAnswer(
            verdict=Verdict.WAITS, why=f"rule {ruling.rule} still waits"
        )
    return ExpectedAnswer(verdict=Verdict.ALLOWS)


def _read(
    offer: Mapping[str, object] | None,
) -> tuple[tuple[Rule, ...] | None, tuple[str, ...] | None]:
    """Parse the rules and the allowed types of an offer; None, None if invalid."""
    if offer is None:
        return None, None
    listed, types = offer.get("rules"), offer.get("allowEventTypes")
    if not isinstance(listed, list) or not isinstance(types, list):
        return None, None
    reader = Reader("")
    found = [reader.section(Rule, rule, "rules") for rule in listed]
    rules = tuple(rule for rule in found if rule is not None)
    is_whole = len(rules) == len(listed) and all(
        isinstance(name, str) for name in types
    )
    return (rules, tuple(types)) if is_whole else (None, None)
