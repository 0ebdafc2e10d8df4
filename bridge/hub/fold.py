"""Derives the state of an event from the set of its messages. Pure.

Order and repetition of messages make no difference. An event of twelve machines has up
to twelve reporters; one of them is enough:

    (source, id,      counts once. Reporters of one step share source and id; if one VM
    vmId)             reports two things with one id, both count, and are shown so
    whose word        that of the VMs in Resources, if one has spoken. Else that of the
                      VM that was heard first, if it names itself; else that of all
    content           an ``updated`` comes after the content in its ``previous``, even
                      if the clocks disagree; otherwise the latest by (time, id) is kept
    end               completed > ended > cancelled; the end that Azure reports wins.
                      An end by the word of others alone is "said to be over": it counts
                      once one whose word counts agrees, or 15 min after NotBefore
    another           an appearance more than 10 s after the end, or at any time from a
    occurrence        reporter that has already reported the end. What was enqueued
                      before the end is no later appearance, whatever its clock says

At most 1,000 messages of an occurrence are kept, and 12 of a machine; see ``_bounded``.

Source: the hub's contract; ``tests/hub/test_fold.py`` checks it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from bridge.events.document import ScheduledEvent
from bridge.hub.facts import (
    MOST_NAMES,
    Address,
    Fact,
    Kind,
    Reporter,
    group_of,
    kept_name,
    place_of,
)

_LATE = timedelta(seconds=10)  # VMs may report the same change this far apart
_GRACE = timedelta(minutes=15)  # an end by the word of others counts after NotBefore
_MOST_FACTS = 1000  # of an occurrence
_MOST_OF_A_MACHINE = 12
MOST_OUTCOMES = 100
_MOST_LIVES = 10
_MOST_LISTS = 8  # lists of Resources that machines are named by
_STRENGTH = (Kind.CANCELLED, Kind.ENDED, Kind.COMPLETED)


Place = tuple[str, str, str]  # subscription, resource group and name of a machine


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
        digest: the fingerprint of the message with that object.
        first: the first message of those whose word counts.
        opened: the time of that message.
        ended: the time of the first message about the end; None = not ended.
        said: the end by the word of others alone; None = there is none. The event is
            still open.
        said_by: who said so first.
        said_until: when that end counts, unless somebody whose word counts agrees.
        is_by_others: whether the content is by the word of others alone. Then its
            changes make no vote void.
        doubled: the reporters that have reported two things with one id.
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
    digest: str
    first: Fact
    opened: datetime
    ended: datetime | None
    said: Kind | None
    said_by: Reporter | None
    said_until: datetime | None
    is_by_others: bool
    doubled: tuple[Reporter, ...]
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
        occurrences: its occurrences, the oldest first; the latest ten.
        before: how many occurrences were before those.
        outcomes: the results of approvals, the oldest first.
        addresses: every approval address in its messages, sorted.
        last_reported: the time of the latest message.
    """

    key: str
    event_id: str
    occurrences: tuple[Occurrence, ...]
    before: int
    outcomes: tuple[Fact, ...]
    addresses: tuple[Address, ...]
    last_reported: datetime

    @property
    def lives(self) -> int:
        """The number of its occurrences."""
        return self.before + len(self.occurrences)

    @property
    def now(self) -> Occurrence | None:
        """Its latest occurrence; None if there are only outcomes."""
        return self.occurrences[-1] if self.occurrences else None


def _event_in(fact: Fact) -> ScheduledEvent | None:
    return fact.event


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Occurrences whose messages are not kept any more.

    Attributes:
        lives: how many there were.
        until: messages enqueued until then are theirs; None = there was no such
            occurrence.
    """

    lives: int = 0
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The state of an event, and which of its messages are kept.

    Attributes:
        state: the state; None = no message is kept.
        kept: the facts that the state is derived from.
        dropped: how many facts are not kept.
        past: the occurrences before those.
        lists: the names in Resources that were needed, by ``Fact.names``.
    """

    state: State | None
    kept: tuple[Fact, ...]
    dropped: int
    past: Past
    lists: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Reads the IMDS objects of facts.

    Attributes:
        event_of: returns the IMDS object of a fact, whose ``event`` may be missing.
        stored: the names in Resources that are known without it, by ``Fact.names``.
        lists: those that were needed.
        known: the same names as machines.
    """

    event_of: Callable[[Fact], ScheduledEvent | None] = _event_in
    stored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: dict[tuple[str, str, str], frozenset[Place]] = field(default_factory=dict)

    def places(self, fact: Fact, group: tuple[str, str]) -> frozenset[Place]:
        """Return the machines in Resources of a fact.

        Args:
            fact: the fact.
            group: the resource group of its occurrence, if the fact has none.
        """
        subscription, group_name = fact.group if fact.group[1] else group
        key = (fact.names, subscription, group_name)
        if key not in self.known:
            self.known[key] = frozenset(
                (subscription, group_name, kept_name(name)) for name in self.names(fact)
            )
        return self.known[key]

    def names_itself(self, fact: Fact) -> bool:
        """Whether the reporter of a fact is in Resources by its own word."""
        own = fact.place[2] if fact.place else kept_name(fact.reporter.name)
        return any(place[2] == own for place in self.places(fact, ("", "")))

    def names(self, fact: Fact) -> tuple[str, ...]:
        """Return the names in Resources of a fact."""
        if not fact.names:
            return ()
        if fact.names not in self.lists:
            stored = self.stored.get(fact.names)
            event = self.event_of(fact) if stored is None else None
            found = event.resources if event else ()
            self.lists[fact.names] = found if stored is None else tuple(stored)
        return self.lists[fact.names]


@dataclass(slots=True)
class _Life:
    """An occurrence while its facts are collected in the order of their times.

    Attributes:
        inside: the machines whose word counts for the end.
        reading: reads the IMDS objects of facts.
        over: the first end that counts.
        ends: the last end of each reporter, by vmId.
        opener: the fact that was heard first.
        told: the lists of Resources, all of them and by vmId.
        not_before: the latest NotBefore, by those in Resources and by all.
    """

    inside: Collection[Place]
    reading: Reading
    facts: list[Fact] = field(default_factory=list)
    over: Fact | None = None
    ends: dict[str, Fact] = field(default_factory=dict)
    opener: Fact | None = None
    told: dict[str, set[str]] = field(default_factory=dict)
    not_before: dict[bool, datetime] = field(default_factory=dict)
    has_inside: bool = False

    def is_over_for(self, fact: Fact) -> bool:
        """Whether a fact must belong to the next occurrence."""
        if not self.ends or not fact.kind.is_appearance:
            return False
        own, over = self.ends.get(fact.reporter.vm_id), self._over(fact)
        if over is None or fact.enqueued < over.enqueued:
            return False
        if own is not None and self._counts(own):
            return fact.enqueued >= own.enqueued
        return fact.time - over.time > _LATE

    def _over(self, fact: Fact) -> Fact | None:
        """Return the end that counts for a later fact; None = there is none."""
        if self.over is not None:
            return self.over
        found = min(self.ends.values(), key=lambda end: end.order)
        if self.opener_counts and self.opener and (vm := self.opener.reporter.vm_id):
            found = self.ends.get(vm, found)
            if vm in self.ends:
                return found
        return found if fact.enqueued > self.said_until(found) else None

    def _counts(self, fact: Fact) -> bool:
        is_opener = self.opener is not None and _is_of(fact, self.opener)
        return self._is_inside(fact) or (is_opener and self.opener_counts)

    @property
    def opener_counts(self) -> bool:
        """Whether an end by the VM that was heard first counts.

        It does if this VM names itself, while nobody in Resources has spoken, and
        nobody has told of other Resources.
        """
        if self.has_inside or self.opener is None or self.opener.is_azures:
            return False
        return self.is_undisputed and self.reading.names_itself(self.opener)

    @property
    def is_undisputed(self) -> bool:
        """Whether nobody has told of other Resources than the VM heard first."""
        opener = self.opener.reporter.vm_id if self.opener else ""
        return self.told[""] <= self.told[opener or "?"]

    def said_until(self, end: Fact) -> datetime:
        """Return when an end by the word of others counts."""
        known = self.not_before.get(True) or self.not_before.get(False)
        return (known or end.enqueued) + _GRACE

    def take(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
        is_inside = self._is_inside(fact)
        self.has_inside |= is_inside and not fact.is_azures
        if self.opener is None or fact.heard < self.opener.heard:
            self.opener = fact
        for vm_id in ("", fact.reporter.vm_id or "?"):
            told = self.told.setdefault(vm_id, set())
            if fact.kind.is_appearance and not fact.is_azures:
                told.add(fact.names)
        if fact.not_before is not None:
            self.not_before[is_inside] = fact.not_before
        if fact.kind.is_end:
            self.ends[fact.reporter.vm_id] = fact
            if is_inside and self.over is None:
                self.over = fact

    def _is_inside(self, fact: Fact) -> bool:
        return fact.is_azures or fact.place in self.inside


def fold(facts: Iterable[Fact]) -> State | None:
    """Return the state of one event; None if there are no facts.

    Args:
        facts: all facts of one EventId.
    """
    return fold_in(facts).state


def fold_in(
    facts: Iterable[Fact],
    *,
    reading: Reading | None = None,
    own: Collection[str] = (),
    past: Past | None = None,
    now: datetime | None = None,
) -> Folded:
    """Return the state of one event, and which of its facts are kept.

    Args:
        facts: all facts of one EventId, or those that were kept, and new ones.
        reading: reads the IMDS objects of facts; None = each fact has its own.
        own: the ids of the hub's decisions on the event: their outcomes are kept first.
        past: the occurrences whose messages are not kept any more.
        now: a moment by the broker's clock that is over; None = that of the last
            message.
    """
    reading, past = reading or Reading(), past or Past()
    known = sorted(unique(facts), key=lambda fact: fact.order)
    count = len(known)
    if past.until is not None:
        known = [fact for fact in known if fact.enqueued > past.until]
    outcomes = _some([f for f in known if f.kind is Kind.OUTCOME], own)
    steps = [fact for fact in known if fact.kind is not Kind.OUTCOME]
    inside = _named(steps, _group(steps), reading) if steps else set()
    lives = [_bounded(life) for life in _lives(steps, inside, reading)]
    past = _older(past, lives[:-_MOST_LIVES])
    lives = lives[-_MOST_LIVES:]
    kept = [*(fact for life in lives for fact in life.facts), *outcomes]
    if not kept:
        return Folded(
            state=None, kept=(), dropped=count, past=past, lists=reading.lists
        )
    moments = [fact.enqueued for fact in kept]
    latest = max([*moments, now] if now else moments)
    ordered = sorted(kept, key=lambda fact: fact.order)
    found = {fact.address for fact in kept if fact.address}
    state = State(
        key=ordered[0].key,
        event_id=ordered[0].event_id,
        occurrences=tuple(_occurrence(life, reading, latest) for life in lives),
        before=past.lives,
        outcomes=tuple(outcomes),
        addresses=tuple(sorted(found)),
        last_reported=ordered[-1].time,
    )
    return Folded(
        state=state,
        kept=tuple(ordered),
        dropped=count - len(kept),
        past=past,
        lists=reading.lists,
    )


def unique(facts: Iterable[Fact]) -> list[Fact]:
    """Return one fact for each report; see ``Fact.report``."""
    kept: dict[tuple[str, str, str, str], Fact] = {}
    for fact in facts:
        known = kept.get(fact.report)
        kept[fact.report] = known.joined(fact) if known else fact
    return list(kept.values())


def _some(outcomes: Sequence[Fact], own: Collection[str]) -> list[Fact]:
    """Return the outcomes that are kept: of own decisions first, then the newest."""
    if len(outcomes) <= MOST_OUTCOMES:
        return list(outcomes)
    ids = set(own)

    def rank(fact: Fact) -> tuple[bool, object]:
        return bool(fact.outcome and fact.outcome.message_id in ids), fact.heard

    kept = sorted(outcomes, key=rank)[-MOST_OUTCOMES:]
    return sorted(kept, key=lambda fact: fact.order)


def _lives(
    facts: Sequence[Fact], inside: Collection[Place], reading: Reading
) -> list[_Life]:
    lives = [_Life(inside, reading)]
    for fact in facts:
        if lives[-1].is_over_for(fact):
            lives.append(_Life(inside, reading))
        lives[-1].take(fact)
    return [life for life in lives if life.facts]


def _older(past: Past, dropped: Sequence[_Life]) -> Past:
    if not dropped:
        return past
    until = max(fact.enqueued for life in dropped for fact in life.facts)
    return Past(lives=past.lives + len(dropped), until=until)


def _bounded(life: _Life) -> _Life:
    """Return an occurrence with the messages that are kept.

    They are twelve of a machine: beyond that, the first and the last that was heard of
    each kind. And a thousand in all: those of Azure and of machines in Resources, then
    the others, the first heard first.
    """
    by_machine = defaultdict[object, list[Fact]](list)
    for fact in life.facts:
        by_machine[fact.place or fact.reporter].append(fact)
    kept = [fact for said in by_machine.values() for fact in _ends_of(said)]
    if len(kept) > _MOST_FACTS:
        inside = _named(kept, _group(kept), life.reading)

        def rank(fact: Fact) -> tuple[bool, object]:
            return not (fact.is_azures or fact.place in inside), fact.heard

        kept = sorted(kept, key=rank)[:_MOST_FACTS]
    if len(kept) == len(life.facts):
        return life
    fewer = _Life(life.inside, life.reading)
    for fact in sorted(kept, key=lambda fact: fact.order):
        fewer.take(fact)
    return fewer


def _ends_of(facts: Sequence[Fact]) -> Iterable[Fact]:
    """Return the messages of a machine that are kept."""
    if len(facts) <= _MOST_OF_A_MACHINE:
        return facts
    by_kind = defaultdict[Kind, list[Fact]](list)
    for fact in sorted(facts, key=lambda fact: fact.heard):
        by_kind[fact.kind].append(fact)
    found = {id(one): one for said in by_kind.values() for one in (said[0], said[-1])}
    return found.values()


def _occurrence(life: _Life, reading: Reading, latest: datetime) -> Occurrence:
    """Return an occurrence.

    Args:
        life: its facts.
        reading: reads their IMDS objects.
        latest: when the last message about the event was enqueued.
    """
    facts, group = life.facts, _group(life.facts)
    named = _named(facts, group, reading)
    azures = [fact for fact in facts if fact.is_azures]
    bridges = [fact for fact in facts if not fact.is_azures]
    inside = [fact for fact in bridges if fact.place in named]
    firsts = [] if inside else _first_heard(life)
    counted = inside or firsts or bridges or azures
    content, is_whole = _content(counted)
    enders = inside or (firsts if life.is_undisputed else [])
    status, bridges_say = _status(enders, counted, azures)
    said = None if status.is_end else _first_end(bridges)
    said_until = life.said_until(said) if said else None
    is_over = said_until is not None and latest > said_until
    if is_over and said is not None:
        status, bridges_say = _strongest(bridges) or said.kind, None
    ends = [
        f for f in facts if f.kind.is_end and (is_over or f in enders or f.is_azures)
    ]
    first = min((*counted, *azures), key=lambda fact: fact.order)
    place = content.group if content.group[1] else group
    event = reading.event_of(content)
    return Occurrence(
        status=status,
        event=event,
        is_whole=is_whole,
        digest=content.digest,
        first=first,
        opened=first.time,
        ended=_ended(ends, first) if status.is_end else None,
        said=None if is_over or not said else _strongest(bridges),
        said_by=None if is_over or not said else said.reporter,
        said_until=None if is_over else said_until,
        is_by_others=bool(bridges) and not (inside or firsts),
        doubled=_doubled(facts),
        bridges_say=bridges_say,
        azure=_with_event(azures[-1], reading) if azures else None,
        group=place,
        machines=machines_of(event, place),
        named=tuple(_at(place) for place in sorted(named)),
        voices=_voices(facts),
        has_bridge=bool(bridges),
        prefix=next((fact.prefix for fact in counted if fact.prefix), ""),
        resource=azures[-1].resource if azures else "",
    )


def _with_event(fact: Fact, reading: Reading) -> Fact:
    return fact if fact.event else replace(fact, event=reading.event_of(fact))


def _first_end(facts: Sequence[Fact]) -> Fact | None:
    return next((fact for fact in facts if fact.kind.is_end), None)


def _ended(ends: Sequence[Fact], first: Fact) -> datetime | None:
    """Return when an occurrence ended: not before it was opened, as some clock says."""
    end = next(iter(ends), None)
    if end is None:
        return None
    return end.time if end.time >= first.time else max(end.enqueued, first.time)


def _group(facts: Sequence[Fact]) -> tuple[str, str]:
    """Return the first resource group that was heard of."""
    known = [fact for fact in facts if fact.group[1]]
    return min(known, key=lambda fact: fact.heard).group if known else ("", "")


def _first_heard(life: _Life) -> list[Fact]:
    """Return the facts of the VM that was heard first, if it names itself."""
    opener = life.opener
    if opener is None or opener.is_azures:
        return []
    if not life.reading.names_itself(opener):
        return []
    return [fact for fact in life.facts if _is_of(fact, opener)]


def _is_of(fact: Fact, other: Fact) -> bool:
    """Whether two facts are of one reporter."""
    return fact.reporter.vm_id == other.reporter.vm_id and fact.place == other.place


def _doubled(facts: Sequence[Fact]) -> tuple[Reporter, ...]:
    """Return the reporters that have reported two things with one id."""
    seen, found = set[tuple[str, str, str]](), set[Reporter]()
    for fact in facts:
        name = fact.report[:3]
        if name in seen and fact.reporter.vm_id:
            found.add(fact.reporter)
        seen.add(name)
    return tuple(sorted(found))


def _status(
    enders: Sequence[Fact], counted: Sequence[Fact], azures: Sequence[Fact]
) -> tuple[Kind, Kind | None]:
    """Return the status, and the end that bridges reported if Azure's differs.

    Args:
        enders: the facts of bridges whose ends count.
        counted: the facts whose word counts.
        azures: the facts of Azure.
    """
    mine = _strongest(enders)
    ends = [fact.kind for fact in azures if fact.kind.is_end]
    if ends:
        # A bridge reports "ended" when it cannot tell how the event ended.
        differs = mine not in {None, Kind.ENDED, ends[-1]}
        return ends[-1], mine if differs else None
    if mine is not None:
        return mine, None
    if any(fact.is_started for fact in (*counted, *azures)):
        return Kind.STARTED, None
    is_known = any(fact.kind is not Kind.OTHER for fact in (*counted, *azures))
    return (Kind.SCHEDULED if is_known else Kind.OTHER), None


def _strongest(facts: Sequence[Fact]) -> Kind | None:
    ends = [fact.kind for fact in facts if fact.kind.is_end]
    return max(ends, key=_STRENGTH.index, default=None)


def _content(facts: Sequence[Fact]) -> tuple[Fact, bool]:
    """Return the fact with the current IMDS object, and whether it is complete.

    Each ``updated`` names the content before it as ``previous``, so contents form a
    chain. ``last`` is the end of the chain, ``needed`` the content before its first
    link. A fact with the content ``needed`` comes before the chain, even if its time is
    later, so it does not replace ``last``.
    """
    shown = [fact for fact in facts if fact.kind.is_appearance] or facts
    last, needed = shown[0], shown[0].before
    for fact in shown[1:]:
        if needed and fact.link == needed and fact.before != last.link:
            needed = fact.before
        else:
            follows = fact.before and fact.before == last.link
            last, needed = fact, needed if follows else fact.before
    return last, last.is_whole


def machines_of(
    event: ScheduledEvent | None, group: tuple[str, str]
) -> tuple[Machine, ...]:
    """Return the machines in the Resources of an event, sorted."""
    names = {kept_name(name) for name in (event.resources if event else ())}
    return tuple(_at((*group, name)) for name in sorted(names))


def is_named(occurrence: HasNamed, reporter: Reporter) -> bool:
    """Whether a reporter is one of the machines in Resources of an occurrence.

    Its machine is that in its resource id. Azure is no machine: see ``is_azures``.
    """
    machine = machine_of(reporter)
    return machine is not None and machine in occurrence.named


def machine_of(reporter: Reporter) -> Machine | None:
    """Return the machine in the resource id of a reporter; None = it has none."""
    place = place_of(reporter)
    return None if place is None else _at(place)


def _at(place: Place) -> Machine:
    return Machine(subscription=place[0], group=place[1], name=place[2])


def _named(
    facts: Sequence[Fact], group: tuple[str, str], reading: Reading
) -> set[Place]:
    """Return the machines that are in Resources by the word of another.

    At most 2,000 machines, by at most 8 different lists of Resources, the first heard
    first.

    Args:
        facts: those of one occurrence.
        group: that of the occurrence, for messages without one.
        reading: reads the names.
    """
    ordered = sorted(facts, key=lambda fact: fact.heard)
    found = set(reading.places(ordered[0], group)) - _own(ordered[0], group)
    waiting, used = [fact for fact in ordered if fact.names], set[str]()
    while len(used) < _MOST_LISTS and len(found) < MOST_NAMES:
        fact = next((f for f in waiting if f.is_azures or f.place in found), None)
        if fact is None:
            break
        used.add(fact.names)
        found |= reading.places(fact, group)
        waiting = [one for one in waiting if one.names not in used]
    return set(sorted(found)[:MOST_NAMES])


def _own(fact: Fact, group: tuple[str, str]) -> set[Place | None]:
    """Return the reporter's machine, by its resource id and by its name."""
    subscription, name = fact.group if fact.group[1] else group
    return {(subscription, name, kept_name(fact.reporter.name)), fact.place}


def _voices(facts: Sequence[Fact]) -> tuple[Voice, ...]:
    """Return who has reported an occurrence, each with what it has said."""
    found = defaultdict[Reporter, list[Fact]](list)
    for fact in facts:
        found[fact.reporter].append(fact)
    return tuple(
        Voice(
            reporter=reporter,
            group=said[0].place[:2]
            if said[0].place
            else group_of(reporter.resource_id),
            groups=tuple(sorted({one.group for one in said})),
            event_types=tuple(sorted({one.event_type for one in said} - {""})),
        )
        for reporter, said in sorted(found.items())
    )
