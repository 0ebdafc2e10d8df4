"""The judge: knows the history, and says what the forwarder did wrong.

It shares no code with the forwarder: what is promised stands here a second time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from tests.chaos.approvals import ApprovalCase
from tests.chaos.expectation import GONE, Reads, Step, pasts
from tests.chaos.history import (
    SINKS,
    Event,
    Got,
    History,
    canonical_json,
    hashed,
    is_step,
    kind_of,
)


@dataclass(slots=True)
class Verdict:
    """What a round has shown.

    Attributes:
        faults: what the forwarder did wrong.
        published: how many different events each sink got.
        repeated: how many it got again.
        steps: how many steps of scheduled events there were.
        outcomes: how many approvals ended how.
    """

    kills: int
    faults: list[str] = field(default_factory=list)
    published: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    posts: int = 0
    degraded: int = 0
    replies: int = 0

    def __iadd__(self, other: Self) -> Self:
        self.kills += other.kills
        self.faults += other.faults
        self.posts += other.posts
        self.degraded += other.degraded
        self.replies += other.replies
        for name in ("published", "repeated", "steps", "outcomes", "sent"):
            getattr(self, name).update(getattr(other, name))
        return self


def judge(history: History) -> Verdict:
    """Compare what was published with what had to be."""
    verdict = Verdict(history.kills, list(history.flaws), degraded=history.degraded)
    verdict.sent.update(sent.kind for sent in history.sent)
    verdict.replies = len(history.replies)
    verdict.posts = sum(not request.is_read for request in history.requests)
    case = _Case(history, verdict)
    for judged in (
        case.ends,
        case.contents,
        case.steps,
        case.approvals.posts,
        case.approvals.outcomes,
        case.approvals.twins,
        case.approvals.replies,
    ):
        verdict.faults += judged()
    return verdict


class _Case:
    """One round before the judge."""

    def __init__(self, history: History, verdict: Verdict) -> None:
        self.history, self.verdict = history, verdict
        self.got = {sink: _in_order(history.got[sink]) for sink in SINKS}
        self.first = {sink: _first(got) for sink, got in self.got.items()}
        asked = frozenset(key for sent in history.sent for key in sent.keys)
        self.pasts: dict[str, set[tuple[Step, ...]]] = {}
        self.reads = Reads.of(history.requests, history.taken, asked)
        self.approvals = ApprovalCase(
            history=history,
            reads=self.reads,
            published=list(self.first["hook"].values()),
            got=[*self.got["hook"], *self.got["bus"]],
            outcomes=verdict.outcomes,
        )

    # -- what is left ------------------------------------------------------------

    def ends(self) -> Iterator[str]:
        """Everything is settled and delivered in the end."""
        if self.history.left:
            yield f"{self.history.left} messages are not settled"
        if self.history.pending:
            yield f"{self.history.pending} deliveries are not delivered"

    def contents(self) -> Iterator[str]:
        """No id has two contents; every sink gets the same, in the same order.

        What was published from memory, before a kill, is sent again with another time.
        """
        contents: dict[str, str] = {}
        for sink in SINKS:
            self.verdict.published[sink] = len(self.first[sink])
            self.verdict.repeated[sink] = len(self.got[sink]) - len(self.first[sink])
            for got in self.got[sink]:
                text, number = canonical_json(got.event), got.event["id"]
                is_same = contents.setdefault(number, text) == text
                if not is_same and not self.history.degraded:
                    yield f"{sink}: {number} has two contents"
        orders = {sink: _by_subject(first) for sink, first in self.first.items()}
        for key in {key for order in orders.values() for key in order}:
            ids = {sink: order.get(key, []) for sink, order in orders.items()}
            if any(found != ids["hook"] for found in ids.values()):
                kinds = {s: [self._name(i, s) for i in ids[s]] for s in SINKS}
                yield f"{key}: the sinks got {kinds}"

    def _name(self, number: str, sink: str) -> str:
        return kind_of(self.first[sink][number])

    # -- steps -------------------------------------------------------------------

    def steps(self) -> Iterator[str]:
        """Each sink got every step that was observed, in order, and no other."""
        for sink in SINKS:
            published = defaultdict[str, list[Event]](list)
            for event in self.first[sink].values():
                if is_step(event):
                    published[event["correlationid"].upper()].append(event)
            for key in self.reads.keys() | published.keys():
                yield from self._steps_of(sink, key, published[key])

    def _steps_of(
        self, sink: str, key: str, published: Sequence[Event]
    ) -> Iterator[str]:
        if sink == SINKS[0]:
            self.verdict.steps.update(map(kind_of, published))
        if key not in self.pasts:  # the same for each sink, and slow to find
            self.pasts[key] = pasts(self.reads, key)
        wanted = self.pasts[key]
        if not any(_are_published(published, steps) for steps in wanted):
            kinds = [kind_of(event) for event in published]
            ways = [["|".join(sorted(s.kinds)) for s in steps] for steps in wanted]
            yield f"{sink}: {key}: published {kinds}, where the documents say {ways}"
        causes = Counter[str]()
        for event in published:
            cause = _cause(event, key)
            count = causes[hashed(cause)]
            causes[hashed(cause)] += 1
            if event["id"] != hashed([*cause, count] if count else cause):
                yield f"{sink}: {kind_of(event)} of {key} has not the id of its cause"


def _in_order(got: Sequence[Got]) -> list[Got]:
    """Return what came, by the sink's own order; a place is taken but once."""
    return list({each.place: each for each in sorted(got, key=_place)}.values())


def _place(got: Got) -> int:
    return got.place


def _first(got: Sequence[Got]) -> dict[str, Event]:
    """Return each event once, in the order of first occurrences."""
    first: dict[str, Event] = {}
    for each in got:
        first.setdefault(each.event["id"], each.event)
    return first


def _by_subject(first: dict[str, Event]) -> dict[str, list[str]]:
    """Return the ids by EventId; those of the bridge itself, sorted, under ""."""
    found = defaultdict[str, list[str]](list)
    for number, event in first.items():
        if kind_of(event) == "stopped":
            continue  # the last word may stay behind
        key = str(event.get("correlationid", "")).upper()
        found[key].append(number)
    found[""].sort()
    return found


def _are_published(published: Sequence[Event], steps: Sequence[Step]) -> bool:
    return len(published) == len(steps) and all(map(_is_published, published, steps))


def _is_published(event: Event, step: Step) -> bool:
    data = event["data"]
    previous = data["previous"]
    return (
        kind_of(event) in step.kinds
        and canonical_json(data["event"]) == step.event
        and (canonical_json(previous) if previous else "") == step.before
        and (data["announced"] is True) == step.announced
    )


def _cause(event: Event, key: str) -> list[object]:
    """Return what the id of a step is the hash of."""
    kind, data = kind_of(event), event["data"]
    before = _shape(data["previous"]) if kind == "updated" else None
    return [key, kind, before, None if kind in GONE else _shape(data["event"])]


def _shape(event: Event) -> Event:
    event_id = str(event["EventId"]).upper()
    return {**event, "EventId": event_id, "Resources": sorted(event["Resources"])}
