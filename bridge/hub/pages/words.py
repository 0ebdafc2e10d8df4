"""Formats times, states and names for people. Pure."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from bridge.events.cloudevent import rfc3339
from bridge.events.vocabulary import NOTHING_TO_APPROVE
from bridge.hub.answers import DecisionRow, EventRow, OutcomeRow, Vote
from bridge.hub.decisions import ARM, BRIDGE, DROP_OFFER, SET_ASIDE
from bridge.hub.vote_rules import missing_votes

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_FEW = 3
_URGENT, _SOON = 5 * _MINUTE, 15 * _MINUTE
_DECISIONS = {
    "decided": ("decided, not sent yet", "wait"),
    "sending": ("being sent", "wait"),
    "sent": ("sent, no outcome yet", "wait"),
    "done": ("approved", "good"),
    "failed": ("failed", "bad"),
    "void": ("void", "soft"),
    "refused": ("refused", "bad"),
}
_STANDS = {"decided", "sending", "sent", "done"}  # later votes do not replace it
_STEPS = {
    "scheduled": "Announced",
    "updated": "Changed",
    "other": "Reported",
    "voted": "Vote",
    "sending": "Attempt",
    "drop-offer": "Offer dropped",
}


class When(Struct, frozen=True):
    """A time in four forms: for programs, relative, exact, and as a clock shows it."""

    iso: str
    words: str
    exact: str
    clock: str


def when(moment: datetime, now: datetime) -> When:
    """Return a time in all its forms; the date is left out if it is today's."""
    form = "%H:%M UTC" if moment.date() == now.date() else "%d %b, %H:%M UTC"
    return When(
        iso=rfc3339(moment),
        words=relative(moment, now),
        exact=moment.strftime("%d %b %Y, %H:%M:%S UTC"),
        clock=moment.strftime(form),
    )


def doubts(row: EventRow, now: datetime) -> list[str]:
    """Return what is said of an event that counts less than the rest."""
    found = []
    said, doubled = row.said_to_be_over, row.two_reports_with_one_id
    if said is not None and said.counts_from is not None:
        until = when(said.counts_from, now).clock
        found.append(
            f"Said to be {said.status}, by the word of {said.by.name} alone: it counts "
            f"once one of its machines or Azure agrees, or from {until}"
        )
    twice = "Two reports with one id, both shown: from"
    found += [f"{twice} {one.name}" for one in doubled[:_FEW]]
    if len(doubled) > _FEW:
        found.append(f"and from {len(doubled) - _FEW} more")
    if count := row.messages_not_kept:
        found.append(f"{count} more messages were received and are not kept")
    return found


def span(seconds: float) -> str:
    """Format a duration in at most two units."""
    left = int(abs(seconds))
    if left >= _DAY:
        return f"{left // _DAY} d {left % _DAY // _HOUR} h"
    if left >= _HOUR:
        return f"{left // _HOUR} h {left % _HOUR // _MINUTE:02} min"
    if left >= _MINUTE:
        return f"{left // _MINUTE} min {left % _MINUTE:02} s"
    return f"{left} s"


def plain_span(seconds: float) -> str:
    """Format a duration without a second unit that is 0."""
    return span(seconds).removesuffix(" 00 s").removesuffix(" 00 min")


def relative(moment: datetime, now: datetime) -> str:
    """Format a time relative to now: "in 5 min 00 s", "2 h 10 min ago"."""
    left = (moment - now).total_seconds()
    return f"in {span(left)}" if left > 0 else f"{span(left)} ago"


def urgency(moment: datetime | None, now: datetime) -> str:
    """Return the CSS class for how near a time is."""
    if moment is None:
        return ""
    left = (moment - now).total_seconds()
    return "now" if left < _URGENT else "soon" if left < _SOON else ""


def duration(raw: Mapping[str, Any] | None) -> str:
    """Format how long an event interrupts its machines."""
    found = (raw or {}).get("DurationInSeconds")
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        return "for an unknown time"
    return f"for {plain_span(found)}" if found else "without an interruption"


def status(value: str) -> str:
    """Return the name of a status."""
    return "Unknown" if value == "other" else value.capitalize()


def step(kind: str) -> str:
    """Return the name of a step in the life of an event."""
    return _STEPS.get(kind) or kind.replace("-", " ").capitalize()


def action(row: DecisionRow) -> str:
    """Return what was decided, with whom or what it is about."""
    if row.action == SET_ASIDE:
        return f"Reporter {row.about} set aside"
    if row.action == DROP_OFFER:
        return f"Offer {row.about} dropped"
    name = "Refused" if row.action == "refuse" else "Approved"
    return f"{name}, although a bridge would refuse it" if row.overridden else name


def outcome(found: OutcomeRow) -> str:
    """Return the outcome of an approval, who said it, and whether it counts."""
    who = found.reporter.name
    what = " ".join(filter(None, (found.outcome, found.reason)))
    match found.standing:
        case "not-asked":
            return f"{what}: said by {who}, not asked"
        case "elsewhere":
            is_good = found.outcome in NOTHING_TO_APPROVE
            done = "approved elsewhere" if is_good else "asked elsewhere"
            return f"{what}: {done}, said by {who}"
        case "rule":
            return f"{what}: by a rule of the bridge of {who}"
        case _:
            return f"{what}: said by {who}"


def decided(row: DecisionRow) -> tuple[str, str]:
    """Return the state or outcome of a decision as text, and its CSS class."""
    words, kind = _DECISIONS.get(row.state, (row.state, ""))
    who = ", ".join(row.by)
    if row.action in {SET_ASIDE, DROP_OFFER}:
        return f"by {who}", kind
    if row.state == "done":
        return f"approved by {who}: {row.outcome}", kind
    if row.state == "refused":
        return f"refused by {who}", kind
    why = row.outcome_reason or row.outcome
    return (f"{words}: {why}" if why else words), kind


def approval(row: EventRow) -> tuple[str, str]:
    """Return the progress of an event's approval as text, and its CSS class."""
    decision, wanted = row.approval.decision, row.approval.persons.wanted
    votes = _votes(row)
    if decision is not None and (not votes or decision.state in _STANDS):
        text, kind = decided(decision)
        is_over = not votes or decision.state == "done"
        return text if is_over else f"{text}; {votes}", kind
    if votes:
        return votes, "wait"
    if row.status != "scheduled":
        return "", ""
    people = "one person" if wanted == 1 else f"{wanted} people"
    return f"waits for {people}", "wait"


def _votes(row: EventRow) -> str:
    """Return how many people have approved, by channel: each has its own votes."""
    counts = Counter(one.via for one in row.approval.votes if one.counts)
    wanted = row.approval.persons.wanted
    found = [f"{counts[BRIDGE]} of {wanted} votes"] if counts[BRIDGE] else []
    found += [f"{counts[ARM]} of {wanted} votes through ARM"] if counts[ARM] else []
    return ", ".join(found)


def voter(row: Vote) -> str:
    """Return who has voted, the channel if it is ARM, and why a vote does not count."""
    name = f"{row.person} (through ARM)" if row.via == ARM else row.person
    if row.via.startswith(SET_ASIDE):
        name = f"{row.person} (to {row.via.replace('-', ' ')})"
    return f"{name} (does not count: {row.why})" if row.why else name


def missing(row: EventRow) -> str:
    """Return how many more people must approve, of those that a bridge needs."""
    voters = row.approval.voters(BRIDGE)
    left = missing_votes(voters, row.approval.persons.wanted)
    people = "person must" if left == 1 else "people must"
    return f"{left} more {people} approve." if left else ""


def way(row: EventRow) -> list[Mapping[str, str]]:
    """Return the steps from the first vote to the start of the event.

    Each has ``words`` and ``kind``: done, now, bad, or "" for what is still to come.
    [] = nobody has approved it.
    """
    decision = row.approval.decision
    if decision is not None and decision.state in {"refused", "void"}:
        decision = None
    counts = Counter(one.via for one in row.approval.votes if one.counts)
    if decision is None and not counts:
        return []
    via = decision.via if decision else max(counts, key=lambda one: counts[one])
    reached = _reached(row)
    answer = _answer(row, via)
    of = row.approval.persons.wanted
    counted = f"counted: {counts[via]} of {of}" if decision is None else "counted"
    names = (counted, "decided", "sent", answer, "started")
    steps = [
        {"words": name, "kind": _step_kind(number, reached)}
        for number, name in enumerate(names)
    ]
    if decision is not None and decision.state == "failed":
        steps[3]["kind"] = "bad"
    return [*steps]


def _reached(row: EventRow) -> int:
    """Return how many steps of the way are done."""
    if row.status not in {"scheduled", "unknown", "other"}:
        return 5
    states = {"decided": 2, "sending": 2, "sent": 3, "failed": 3, "done": 4}
    decision = row.approval.decision
    return states.get(decision.state, 0) if decision else 0


def _step_kind(number: int, reached: int) -> str:
    if number < reached:
        return "done"
    return "now" if number == reached else ""


def _answer(row: EventRow, via: str) -> str:
    """Return the name of the step in which the bridge or Azure answers."""
    decision = row.approval.decision
    if decision is not None and decision.outcome:
        return decision.outcome
    return "acknowledged by Azure" if via == ARM else "relayed to Azure"
