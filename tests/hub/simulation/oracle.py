"""The judge: what was voted for, what may be sent of it, and what must not be lost.

It keeps books of its own, by what was committed and in which order.
"""

from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from bridge.hub.choices import VoteRequest, VoteResult
from bridge.hub.decisions import Claimed, CurrentEvent
from tests.hub.simulation.plan import TWO, Plan, Raw

FINAL = {"done", "failed", "void", "refused"}


def is_worse(seen: Raw, now: Raw) -> bool:
    """Whether an event has become another than the one that was approved."""
    before, after = seen["DurationInSeconds"], now["DurationInSeconds"]
    return (
        seen["EventType"] != now["EventType"]
        or seen["EventSource"] != now["EventSource"]
        or not set(now["Resources"]) <= set(seen["Resources"])
        or (before >= 0 and (after < 0 or after > before))
        or _time(now) < _time(seen)
    )


def _time(raw: Raw) -> float:
    text = raw.get("NotBefore")
    return parsedate_to_datetime(text).timestamp() if text else 0.0


def persons(current: CurrentEvent) -> int:
    """Return the number for any type that was told: no message makes it smaller."""
    types = {kind for one in current.voices for kind in one.event_types}
    return 2 if types & set(TWO) else 1


@dataclass(slots=True)
class Decided:
    """A decision that was committed."""

    via: str
    raw: Raw
    life: int
    voters: frozenset[str]
    message: bytes | None = None
    sent: int = 0
    is_refused: bool = False
    good: bool = False
    outcomes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Snapshot:
    """What stood in the store when a decision was claimed."""

    current: CurrentEvent
    is_refused: bool
    offers: frozenset[int]


@dataclass(slots=True)
class Oracle:
    """Keeps the books, and blames."""

    plan: Plan
    faults: list[str] = field(default_factory=list)
    votes: dict[str, dict[str, Raw]] = field(default_factory=dict)
    decided: dict[str, Decided] = field(default_factory=dict)
    claims: dict[str, Snapshot] = field(default_factory=dict)
    life: int = 0

    def blame(self, what: str) -> None:
        self.faults.append(what)

    def stands(self, current: CurrentEvent | None) -> None:
        """Take in how the event stands after a commit."""
        if current is None or current.event is None:
            return
        if current.life != self.life:
            self.life, self.votes = current.life, {}
        now: Any = current.event
        for via, mine in self.votes.items():
            self.votes[via] = {
                who: seen
                for who, seen in mine.items()
                if "NotBefore" in now and not is_worse(seen, now)
            }

    def answered(
        self, ask: VoteRequest, answer: VoteResult, current: CurrentEvent | None
    ) -> None:
        """Take in what was committed for somebody's wish."""
        if answer.status not in {200, 202}:
            return
        if current is None or current.content != ask.asked.content:
            self.blame(f"{ask.person.id} has decided on what was not shown")
            return
        if not current.is_open or current.status == "started":
            self.blame(f"{ask.person.id} has decided on what is past asking")
        if ask.asked.decision == "refuse":
            self._refused()
        else:
            self._approved(ask, answer, current)

    def _refused(self) -> None:
        self.votes = {}
        for one in self.decided.values():
            one.is_refused = one.is_refused or not one.sent

    def _approved(
        self, ask: VoteRequest, answer: VoteResult, current: CurrentEvent
    ) -> None:
        raw: Any = current.event
        if answer.status == 200 and answer.id != ask.id:
            if answer.id not in self.decided:
                self.blame(f"{answer.id} was never decided")
            return
        via = ask.asked.via
        mine = self.votes.setdefault(via, {})
        mine[ask.person.id] = raw
        lacking = max(persons(current) - len(mine), 0)
        # through ARM one more, if a bridge has told its rules less than 15 minutes ago
        one_more = max(persons(current) + 1 - len(mine), 0)
        if answer.missing not in {
            lacking,
            one_more if via == "arm" else lacking,
        }:
            self.blame(f"{answer.missing} are said to be missing, and {lacking} are")
        if answer.status == 200:
            self.decided[ask.id] = Decided(
                ask.asked.via, raw, current.life, frozenset(mine)
            )
            self.votes[via] = {}

    def claimed(
        self, claimed: Claimed, current: CurrentEvent, offers: frozenset[int]
    ) -> None:
        """Note that a decision was claimed."""
        mine = self.decided.get(claimed.id)
        is_refused = mine is not None and mine.is_refused
        self.claims[claimed.id] = Snapshot(current, is_refused, offers)
        if mine is not None:
            mine.sent += 1

    def sends(self, claimed: Claimed, now: float) -> None:
        """Judge what goes out."""
        mine, snapshot = self.decided.get(claimed.id), self.claims.get(claimed.id)
        if mine is None or snapshot is None:
            self.blame(f"{claimed.id} is sent, and nobody decided it")
            return
        if mine.message not in {None, claimed.message}:
            self.blame(f"{claimed.id} is sent with another body")
        mine.message = claimed.message
        if claimed.id.encode() not in claimed.message:
            self.blame(f"{claimed.id} is sent under another id")
        name, current = f"{claimed.via} {claimed.id[-4:]}", snapshot.current
        raw: Any = current.event
        if snapshot.is_refused:
            self.blame(f"{name} is sent, and was refused before")
        if current.life != mine.life or not current.is_open:
            self.blame(f"{name} is sent for an event that is over")
        elif raw["EventStatus"] == "Started":
            self.blame(f"{name} is sent for an event that has started")
        elif is_worse(mine.raw, raw):
            self.blame(f"{name} is sent for an event that has changed")
        if len(mine.voters) < persons(current):
            self.blame(f"{name} is sent by the will of {sorted(mine.voters)} alone")
        self._judge_rules(name, claimed.via, raw, snapshot.offers)

    def _judge_rules(
        self, name: str, via: str, raw: Raw, offers: frozenset[int]
    ) -> None:
        for number in offers:
            if self.plan.denies[number] == raw["EventType"]:
                self.blame(f"{name} is sent against the rules of web-{number}")
        if via != "arm":
            return
        named = {int(name.removeprefix("web-")) for name in raw["Resources"]}
        if not named <= offers:
            self.blame(f"{name} is sent, and not all rules are known")

    def outcome(self, decision: str, what: str) -> None:
        """Take in what a bridge or ARM has told of a decision."""
        mine = self.decided[decision]
        mine.outcomes.append(what)
        mine.good = mine.good or what in {"relayed", "already-started", "acknowledged"}

    def ends(self, rows: dict[str, Any]) -> None:
        """Judge what has become of all decisions."""
        for name, mine in self.decided.items():
            row = rows.get(name)
            if row is None:
                self.blame(f"{name} is lost")
            elif row.state not in FINAL:
                self.blame(f"{name} is still {row.state}")
            elif mine.good and row.state != "done":
                self.blame(f"{name} was relayed, and is {row.state}")
            elif row.state == "done" and not mine.outcomes:
                self.blame(f"{name} is done, and nobody told so")
            elif not mine.sent and row.state not in {"void", "failed"}:
                self.blame(f"{name} is {row.state}, and was never sent")
            elif not mine.sent and self._must_go(mine):
                self.blame(f"{name} was never sent, and nothing forbade it")
        for name, row in rows.items():
            if row.action == "approve" and name not in self.decided:
                self.blame(f"{name} stands in the store, and nobody decided it")

    def _must_go(self, mine: Decided) -> bool:
        """Whether nothing in the plan could keep a decision from being sent."""
        steps = [step.kind for step in self.plan.steps]
        is_quiet = steps == ["scheduled", "started", "completed"]
        is_alive = min(self.plan.dies) > 600
        is_free = mine.raw["EventType"] not in self.plan.denies
        return is_quiet and is_alive and is_free and not mine.is_refused
