"""Derives the state of an event from the set of its messages. Pure.

Order and repetition of messages make no difference. An event of twelve machines has up
to twelve reporters; one of them is enough:

    (source, id)      counts once: of two different messages, the earlier one is kept
    content           an ``updated`` comes after the content in its ``previous``, even
                      if the clocks disagree; otherwise the latest by (time, id) is kept
    end               completed > ended > cancelled; the end that Azure reports wins
    another           an appearance more than 10 s after the end, or at any time from a
    occurrence        reporter that has already reported the end

Source: the hub's contract; ``tests/hub/test_fold.py`` checks it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import orjson

from bridge.events.build import clean
from bridge.events.document import ScheduledEvent
from bridge.events.identity import bare
from bridge.events.vocabulary import EventStatus
from bridge.hub.facts import Address, Fact, Kind, Reporter, group_of

_LATE = timedelta(seconds=10)  # VMs may report the same change this far apart
_INSTANCE = re.compile(
    r"(?:/virtualmachinescalesets/([^/]+))?/virtualmachines/([^/]+)/?$", re.IGNORECASE
)
_STRENGTH = (Kind.CANCELLED, Kind.ENDED, Kind.COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Machine:
    """A virtual machine: subscription, resource group and name, in lower case."""

    subscription: str
    group: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A reporter of an occurrence, with what its messages say of places and types.

    Attributes:
        reporter: the VM, or Azure.
        group: subscription and resource group of the VM itself; "" = not known.
        groups: the subscriptions and resource groups in its messages, sorted.
        event_types: the EventTypes in its messages, as received, sorted.
    """

    reporter: Reporter
    group: tuple[str, str]
    groups: tuple[tuple[str, str], ...]
    event_types: tuple[str, ...]


class HasNamed(Protocol):
    """An occurrence, or what the store keeps of one."""

    @property
    def named(self) -> tuple[Machine, ...]:
        """The machines in Resources; see ``Occurrence``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One occurrence of an event, from its first appearance to its end.

    Attributes:
        status: scheduled, started, completed, cancelled or ended; other = only Azure
            reported it, with an undocumented status.
        event: the latest IMDS object; None = no message contained one.
        is_whole: False = the reporter has left out names of Resources.
        first: the first message.
        opened: the time of the first message.
        ended: the time of the first message about the end; None = not ended.
        bridges_say: the end that bridges reported, if Azure reported another one.
        azure: the latest message of Azure; None = there is none.
        group: subscription and resource group.
        machines: the machines in Resources, sorted.
        named: the machines whose word counts as that of one in Resources: those that
            the message heard first has named, or Azure, or since then one of them. No
            machine is among them by its own word. Sorted.
        voices: who has reported it, sorted.
        has_bridge: whether a bridge has reported it.
        prefix: the prefix of the types of the bridges' events.
        resource: the resource id of the event at ARM; "" = Azure has not reported it.
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
    named: tuple[Machine, ...]
    voices: tuple[Voice, ...]
    has_bridge: bool
    prefix: str
    resource: str

    @property
    def is_open(self) -> bool:
        """Whether it is pending or running."""
        return not self.status.is_end


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an event.

    Attributes:
        key: the EventId in capitals.
        event_id: the EventId as in the first message.
        occurrences: its occurrences, the oldest first.
        outcomes: the results of approvals, the oldest first.
        addresses: every approval address in its messages, sorted.
        last_reported: the time of the latest message.
    """

    key: str
    event_id: str
    occurrences: tuple[Occurrence, ...]
    outcomes: tuple[Fact, ...]
    addresses: tuple[Address, ...]
    last_reported: datetime

    @property
    def now(self) -> Occurrence | None:
        """Its latest occurrence; None if there are only outcomes."""
        return self.occurrences[-1] if self.occurrences else None


@dataclass(slots=True)
class _Life:
    """An occurrence while its facts are collected in the order of their times."""

    facts: list[Fact] = field(default_factory=list)
    ended: datetime | None = None
    enders: set[str] = field(default_factory=set)

    def is_over_for(self, fact: Fact) -> bool:
        """Whether a fact must belong to the next occurrence."""
        if self.ended is None or not fact.kind.is_appearance:
            return False
        return fact.reporter.vm_id in self.enders or fact.time - self.ended > _LATE

    def take(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
        if fact.kind.is_end:
            self.ended = self.ended or fact.time
            self.enders.add(fact.reporter.vm_id)


def fold(facts: Iterable[Fact], addresses: Iterable[Address] = ()) -> State | None:
    """Return the state of one event; None if there are no facts.

    Args:
        facts: all facts of one EventId.
        addresses: approval addresses of messages that were dropped, because one with
            the same (source, id) is kept.
    """
    known = list(facts)
    if not known:
        return None
    ordered = sorted(unique(known), key=lambda fact: fact.order)
    found = {fact.address for fact in known if fact.address} | set(addresses)
    return State(
        key=ordered[0].key,
        event_id=ordered[0].event_id,
        occurrences=tuple(_occurrence(life) for life in _lives(ordered)),
        outcomes=tuple(fact for fact in ordered if fact.kind is Kind.OUTCOME),
        addresses=tuple(sorted(found)),
        last_reported=ordered[-1].time,
    )


def unique(facts: Iterable[Fact]) -> list[Fact]:
    """Return one fact for each (source, id): the earliest one."""
    kept: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        name = (fact.source, fact.id)
        if name not in kept or precedes(fact, kept[name]):
            kept[name] = fact
    return list(kept.values())


def precedes(fact: Fact, other: Fact) -> bool:
    """Whether a fact is kept instead of another one with the same source and id."""
    return fact.precedence < other.precedence


def _lives(facts: Sequence[Fact]) -> list[_Life]:
    lives = [_Life()]
    for fact in facts:
        if fact.kind is Kind.OUTCOME:
            continue
        if lives[-1].is_over_for(fact):
            lives.append(_Life())
        lives[-1].take(fact)
    return [life for life in lives if life.facts]


def _occurrence(life: _Life) -> Occurrence:
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
        named=tuple(sorted(_named(facts, group))),
        voices=_voices(facts),
        has_bridge=bool(bridges),
        prefix=next((fact.prefix for fact in bridges), ""),
        resource=azures[-1].resource if azures else "",
    )


def _status(bridges: list[Fact], azures: list[Fact]) -> tuple[Kind, Kind | None]:
    """Return the status, and the end that bridges reported if Azure's differs."""
    mine = max(
        (fact.kind for fact in bridges if fact.kind.is_end),
        key=_STRENGTH.index,
        default=None,
    )
    ends = [fact.kind for fact in azures if fact.kind.is_end]
    if ends:
        # A bridge reports "ended" when it cannot tell how the event ended.
        differs = mine not in {None, Kind.ENDED, ends[-1]}
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


def _content(facts: list[Fact]) -> tuple[ScheduledEvent | None, bool]:
    """Return the current IMDS object, and whether it is complete.

    Each ``updated`` names the content before it as ``previous``, so contents form a
    chain. ``last`` is the end of the chain, ``needed`` the content before its first
    link. A fact with the content ``needed`` comes before the chain, even if its time is
    later, so it does not replace ``last``.
    """
    shown = [fact for fact in facts if fact.kind.is_appearance] or facts
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
    """Return the machines in the Resources of an event, sorted."""
    names = event.resources if event else ()
    found = {
        Machine(subscription=group[0], group=group[1], name=kept_name(name))
        for name in names
    }
    return tuple(sorted(found))


def is_named(occurrence: HasNamed, reporter: Reporter) -> bool:
    """Whether a reporter is one of the machines in Resources of an occurrence.

    Its machine is that in its resource id. Azure is no machine: see ``is_azures``.
    """
    return machine_of(reporter) in occurrence.named


def machine_of(reporter: Reporter) -> Machine | None:
    """Return the machine in the resource id of a reporter; None = it has none.

    The name of an instance of a scale set (uniform) is that of the set, an underscore,
    and the number of the instance.

    Source: learn.microsoft.com/azure/virtual-machine-scale-sets
    /virtual-machine-scale-sets-instance-ids
    """
    subscription, group = group_of(reporter.resource_id)
    found = _INSTANCE.search(reporter.resource_id)
    if found is None or not group:
        return None
    name = f"{found[1]}_{found[2]}" if found[1] else found[2]
    return Machine(subscription=subscription, group=group, name=kept_name(name))


def _named(facts: Sequence[Fact], group: tuple[str, str]) -> set[Machine]:
    """Return the machines that are in Resources by the word of another; see ``named``.

    Args:
        facts: those of one occurrence.
        group: that of the occurrence, for messages without one.
    """
    first = min(facts, key=lambda fact: fact.heard)
    found = _names_in(first, group) - _own(first, group)
    waiting = [(fact, machine_of(fact.reporter)) for fact in facts]
    while True:
        known = [f for f, machine in waiting if f.is_azures or machine in found]
        waiting = [(f, m) for f, m in waiting if not f.is_azures and m not in found]
        if not known:
            return found
        found = found.union(*(_names_in(fact, group) for fact in known))


def _names_in(fact: Fact, group: tuple[str, str]) -> set[Machine]:
    return set(machines_of(fact.event, fact.group if fact.group[1] else group))


def _own(fact: Fact, group: tuple[str, str]) -> set[Machine]:
    """Return the reporter's machine, by its resource id and by its name."""
    machine, name = machine_of(fact.reporter), kept_name(fact.reporter.name)
    place = fact.group if fact.group[1] else group
    by_name = Machine(subscription=place[0], group=place[1], name=name)
    return {by_name, machine} if machine else {by_name}


def _voices(facts: Sequence[Fact]) -> tuple[Voice, ...]:
    """Return who has reported an occurrence, each with what it has said."""
    found = defaultdict[Reporter, list[Fact]](list)
    for fact in facts:
        found[fact.reporter].append(fact)
    return tuple(
        Voice(
            reporter=reporter,
            group=group_of(reporter.resource_id),
            groups=tuple(sorted({one.group for one in said})),
            event_types=tuple(sorted({_type(one) for one in said} - {""})),
        )
        for reporter, said in sorted(found.items())
    )


def _type(fact: Fact) -> str:
    return (fact.event.event_type or "") if fact.event else ""


def kept_name(name: str) -> str:
    """Return the name of a machine in the form that is compared and stored."""
    return clean(bare(name))
