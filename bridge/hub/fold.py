"""What is known of an event: a function of the set of its messages. Pure.

Neither order nor repetition makes a difference, and one reporter of twelve says what
all of them do:

    (source, id)      is taken once: of two that differ, the one told first holds
    content           an ``updated`` follows what it names as ``previous``, whatever the
                      clocks say; otherwise the later one by (time, id) holds
    end               completed > ended > cancelled; Azure's word overrules all three
    back again        an appearance more than 10 s after the end, or any from a teller
                      that told the end, opens another occurrence

Source: the hub's contract; ``tests/hub/test_fold.py`` holds it to that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import orjson

from bridge.events.build import clean
from bridge.events.document import ScheduledEvent
from bridge.events.identity import bare
from bridge.events.vocabulary import EventStatus
from bridge.hub.facts import Address, Fact, Kind

_LATE = timedelta(seconds=10)  # so far VMs may lag behind one another
_STRENGTH = (Kind.CANCELLED, Kind.ENDED, Kind.COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Machine:
    """A virtual machine, by the names that a person knows it by; in lower case."""

    subscription: str
    group: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One life of an event, from its first appearance to its end.

    Attributes:
        status: scheduled, started, completed, cancelled or ended; other where Azure
            alone spoke, in a word that is not documented.
        event: the IMDS object as it was last; None where only ends were told of it.
        is_whole: False where names of its Resources were left out.
        first: what was told first.
        opened: when that was.
        ended: when an end was told first; None while it is there.
        bridges_say: the end that bridges told, where Azure said another.
        azure: what Azure said last; None where it said nothing.
        group: subscription and resource group.
        machines: sorted.
        has_bridge: whether any bridge told of it.
        prefix: what the types of the bridges' events begin with.
        resource: the id that ARM knows it by; "" where Azure said nothing.
    """

    status: Kind
    event: ScheduledEvent | None
    is_whole: bool
    first: Fact
    opened: datetime
    ended: datetime | None
    bridges_say: Kind | None
    azure: Fact | None
    group: tuple[str, str]
    machines: tuple[Machine, ...]
    has_bridge: bool
    prefix: str
    resource: str

    @property
    def is_open(self) -> bool:
        """Whether it is pending or running."""
        return not self.status.is_end


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of an event.

    Attributes:
        key: the EventId without case.
        event_id: as it was told first.
        occurrences: its lives, the last one last.
        outcomes: what became of requests, in order.
        addresses: every approval address that came, sorted.
        told: when anything was told of it last.
    """

    key: str
    event_id: str
    occurrences: tuple[Occurrence, ...]
    outcomes: tuple[Fact, ...]
    addresses: tuple[Address, ...]
    told: datetime

    @property
    def now(self) -> Occurrence | None:
        """Its last life; None where only outcomes were told."""
        return self.occurrences[-1] if self.occurrences else None


@dataclass(slots=True)
class _Life:
    """One occurrence while its facts are read in order."""

    facts: list[Fact] = field(default_factory=list)
    ended: datetime | None = None
    enders: set[str] = field(default_factory=set)

    def is_over_for(self, fact: Fact) -> bool:
        """Whether a fact can only be of another life."""
        if self.ended is None or not fact.kind.is_appearance:
            return False
        return fact.teller.vm_id in self.enders or fact.time - self.ended > _LATE

    def take(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
        if fact.kind.is_end:
            self.ended = self.ended or fact.time
            self.enders.add(fact.teller.vm_id)


def fold(facts: Iterable[Fact], addresses: Iterable[Address] = ()) -> State | None:
    """Return what is known of one event; None of no messages.

    Args:
        facts: of one EventId.
        addresses: more of them, of messages whose (source, id) came before.
    """
    known = list(facts)
    if not known:
        return None
    told = sorted(unique(known), key=lambda fact: fact.order)
    found = {fact.address for fact in known if fact.address} | set(addresses)
    return State(
        key=told[0].key,
        event_id=told[0].event_id,
        occurrences=tuple(_closed(life) for life in _lives(told)),
        outcomes=tuple(fact for fact in told if fact.kind is Kind.OUTCOME),
        addresses=tuple(sorted(found)),
        told=told[-1].time,
    )


def unique(facts: Iterable[Fact]) -> list[Fact]:
    """Take each (source, id) once: the one that was told first."""
    kept: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        name = (fact.source, fact.id)
        if name not in kept or precedes(fact, kept[name]):
            kept[name] = fact
    return list(kept.values())


def precedes(fact: Fact, other: Fact) -> bool:
    """Whether of two messages with one id the first one is to be kept."""
    return fact.precedence < other.precedence


def _lives(told: Sequence[Fact]) -> list[_Life]:
    lives = [_Life()]
    for fact in told:
        if fact.kind is Kind.OUTCOME:
            continue
        if lives[-1].is_over_for(fact):
            lives.append(_Life())
        lives[-1].take(fact)
    return [life for life in lives if life.facts]


def _closed(life: _Life) -> Occurrence:
    facts = life.facts
    azures = [fact for fact in facts if fact.is_azures]
    bridges = [fact for fact in facts if not fact.is_azures]
    content, is_whole = _content(bridges or azures)
    status, bridges_say = _status(bridges, azures)
    group = next((fact.group for fact in facts if fact.group[1]), ("", ""))
    return Occurrence(
        status=status,
        event=content,
        is_whole=is_whole,
        first=facts[0],
        opened=facts[0].time,
        ended=life.ended,
        bridges_say=bridges_say,
        azure=azures[-1] if azures else None,
        group=group,
        machines=machines_of(content, group),
        has_bridge=bool(bridges),
        prefix=next((fact.prefix for fact in bridges), ""),
        resource=azures[-1].resource if azures else "",
    )


def _status(bridges: list[Fact], azures: list[Fact]) -> tuple[Kind, Kind | None]:
    """Return what became of an occurrence, and what bridges said instead."""
    mine = max(
        (fact.kind for fact in bridges if fact.kind.is_end),
        key=_STRENGTH.index,
        default=None,
    )
    ends = [fact.kind for fact in azures if fact.kind.is_end]
    if ends:
        differs = mine not in {None, Kind.ENDED, ends[-1]}  # "ended" is not to know
        return ends[-1], mine if differs else None
    if mine is not None:
        return mine, None
    if any(_is_started(fact) for fact in (*bridges, *azures)):
        return Kind.STARTED, None
    is_known = any(fact.kind.is_appearance for fact in (*bridges, *azures))
    return (Kind.SCHEDULED if is_known else Kind.OTHER), None


def _is_started(fact: Fact) -> bool:
    is_so = fact.event is not None and fact.event.status == EventStatus.STARTED
    return fact.kind is Kind.STARTED or (fact.kind.is_appearance and is_so)


def _content(told: list[Fact]) -> tuple[ScheduledEvent | None, bool]:
    """Return the object as it is now, and whether all of it is known.

    A chain of contents is kept: its end is what holds, and its beginning is what the
    first link names as ``previous``. Whatever turns out to be that comes before it.
    """
    shown = [fact for fact in told if fact.kind.is_appearance] or told
    last, needed = shown[0], _link(shown[0].previous)
    for fact in shown[1:]:
        content, previous = _link(fact.event), _link(fact.previous)
        if needed is not None and content == needed and previous != _link(last.event):
            needed = previous
        else:
            follows = previous is not None and previous == _link(last.event)
            last, needed = fact, needed if follows else previous
    return last.event, last.is_whole


def _link(event: ScheduledEvent | None) -> bytes | None:
    if event is None:
        return None
    return orjson.dumps(event.canonical, option=orjson.OPT_SORT_KEYS)


def machines_of(
    event: ScheduledEvent | None, group: tuple[str, str]
) -> tuple[Machine, ...]:
    """Return the machines that an event names."""
    names = event.resources if event else ()
    found = {
        Machine(subscription=group[0], group=group[1], name=kept_name(name))
        for name in names
    }
    return tuple(sorted(found))


def kept_name(name: str) -> str:
    """Return the name of a machine as it is compared and kept."""
    return clean(bare(name))
