"""Divides the facts of an event into occurrences, and bounds how many are kept. Pure.

An appearance more than 10 s after the end belongs to another occurrence; see ``fold``,
which derives the state of each.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from bridge.events.document import ScheduledEvent
from bridge.hub.facts import MOST_NAMES, Fact, Kind, Trust, kept_name

_LATE = timedelta(seconds=10)  # VMs may report the same change this far apart
_GRACE = timedelta(minutes=15)  # an end by the word of others counts after NotBefore
_MOST_FACTS = 1000  # of an occurrence
_MOST_OF_A_MACHINE = 12
MOST_OUTCOMES = 100
_MOST_LISTS = 8  # lists of Resources that machines are named by

Place = tuple[str, str, str]  # subscription, resource group and name of a machine


def _event_in(fact: Fact) -> ScheduledEvent | None:
    return fact.event


class Past(Struct, frozen=True, kw_only=True):
    """Occurrences whose messages are not kept any more.

    Attributes:
        lives: how many there were.
        until: messages enqueued until then are theirs; None = there was no such
            occurrence.
    """

    lives: int = 0
    until: datetime | None = None


class Reading(Struct, frozen=True, kw_only=True):
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
        if fact.trust is Trust.DOUBTFUL:
            return False
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


class Life(Struct):
    """An occurrence while its facts are collected in the order of their times.

    Attributes:
        inside: the machines whose word counts for the end.
        reading: reads the IMDS objects of facts.
        over: the first end that counts, by the trust in it.
        ends: the last end of each reporter, by ``Fact.speaker``.
        opener: the fact that was heard first.
        told: the lists of Resources, all of them and by vmId.
        not_before: the latest NotBefore, by those in Resources and by all.
    """

    inside: Collection[Place]
    reading: Reading
    facts: list[Fact] = field(default_factory=list)
    over: dict[Trust, Fact] = field(default_factory=dict)
    ends: dict[str, Fact] = field(default_factory=dict)
    opener: Fact | None = None
    told: dict[str, set[str]] = field(default_factory=dict)
    not_before: dict[bool, datetime] = field(default_factory=dict)
    has_inside: bool = False
    has_pinned: bool = False

    @property
    def is_pinned(self) -> bool:
        """Whether a pinned bridge in Resources has spoken; see ``counted``."""
        if self.has_pinned or self.opener is None:
            return self.has_pinned
        is_signed = self.opener.trust is Trust.PINNED
        return is_signed and self.reading.names_itself(self.opener)

    @property
    def counted(self) -> "Life":
        """The occurrence without the words that count for nothing.

        Once a pinned bridge in Resources has spoken, these are all words of others that
        are not pinned.
        """
        if not self.is_pinned:
            return self
        return self.fewer(fact for fact in self.facts if is_proved(fact))

    def fewer(self, kept: Iterable[Fact]) -> "Life":
        """Return the occurrence with some of its facts."""
        found = Life(self.inside, self.reading)
        for fact in sorted(kept, key=lambda fact: fact.order):
            found.take(fact)
        return found

    def is_over_for(self, fact: Fact) -> bool:
        """Whether a fact must belong to the next occurrence."""
        if not self.ends or not fact.kind.is_appearance:
            return False
        own, over = self.ends.get(fact.speaker), self._over(fact)
        if over is None or fact.enqueued < over.enqueued:
            return False
        if own is not None and self._counts(own):
            return fact.enqueued >= own.enqueued
        return fact.time - over.time > _LATE

    def _over(self, fact: Fact) -> Fact | None:
        """Return the end that counts for a later fact; None = there is none."""
        ends = [end for end in self.ends.values() if self._may_count(end)]
        if (over := [end for end in self.over.values() if self._may_count(end)]) != []:
            return min(over, key=lambda end: end.order)
        if not ends:
            return None
        found = min(ends, key=lambda end: end.order)
        if self.opener_counts and self.opener and (vm := self.opener.speaker):
            found = self.ends.get(vm, found)
            if vm in self.ends:
                return found
        return found if fact.enqueued > self.said_until(found) else None

    def _may_count(self, fact: Fact) -> bool:
        return is_proved(fact) or not self.is_pinned

    def _counts(self, fact: Fact) -> bool:
        is_opener = self.opener is not None and is_of(fact, self.opener)
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
        opener = self.opener.speaker if self.opener else ""
        return self.told[""] <= self.told[opener or "?"]

    @property
    def is_full(self) -> bool:
        """Whether no more messages by others are kept, and none opens another."""
        return len(self.facts) >= _MOST_FACTS and not self.ends

    @property
    def heeded(self) -> set[Place]:
        """Whose next message may be kept, or change which ones are, when it is full.

        The first of them is the VM that was heard first. Of the others, those that have
        as many messages as are kept of a machine.
        """
        counts = Counter(_machine_of(fact) for fact in self.facts)
        found = {one for one, count in counts.items() if count >= _MOST_OF_A_MACHINE}
        return found | ({_machine_of(self.opener)} if self.opener else set())

    def said_until(self, end: Fact) -> datetime:
        """Return when an end by the word of others counts."""
        known = self.not_before.get(True) or self.not_before.get(False)
        return (known or end.enqueued) + _GRACE

    def take(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
        is_inside = self._is_inside(fact)
        self.has_inside |= is_inside and not fact.is_azures
        self.has_pinned |= is_inside and fact.trust is Trust.PINNED
        if self.opener is None or fact.heard < self.opener.heard:
            self.opener = fact
        for who in ("", fact.speaker or "?"):
            told = self.told.setdefault(who, set())
            if fact.kind.is_appearance and not fact.is_azures:
                told.add(fact.names)
        if fact.not_before is not None:
            self.not_before[is_inside] = fact.not_before
        if fact.kind.is_end:
            self.ends[fact.speaker] = fact
            if is_inside:
                self.over.setdefault(fact.trust, fact)

    def _is_inside(self, fact: Fact) -> bool:
        return fact.is_azures or fact.place in self.inside


def unique(facts: Iterable[Fact]) -> list[Fact]:
    """Return one fact for each report; see ``Fact.report``."""
    kept: dict[tuple[str, str, str, str], Fact] = {}
    for fact in facts:
        known = kept.get(fact.report)
        kept[fact.report] = known.joined(fact) if known else fact
    return list(kept.values())


def kept_outcomes(outcomes: Sequence[Fact], own: Collection[str]) -> list[Fact]:
    """Return the outcomes that are kept: of own decisions first, then the newest."""
    if len(outcomes) <= MOST_OUTCOMES:
        return list(outcomes)
    ids = set(own)

    def rank(fact: Fact) -> tuple[bool, object]:
        return bool(fact.outcome and fact.outcome.message_id in ids), fact.heard

    kept = sorted(outcomes, key=rank)[-MOST_OUTCOMES:]
    return sorted(kept, key=lambda fact: fact.order)


def lives_of(
    facts: Sequence[Fact], inside: Collection[Place], reading: Reading
) -> list[Life]:
    """Divide facts into occurrences, the oldest first.

    Args:
        facts: all facts but outcomes, in the order of their times.
        inside: the machines whose word counts for the end.
        reading: reads the IMDS objects of facts.
    """
    lives = [Life(inside, reading)]
    for fact in facts:
        if lives[-1].is_over_for(fact):
            lives.append(Life(inside, reading))
        lives[-1].take(fact)
    return [life for life in lives if life.facts]


def older(past: Past, dropped: Sequence[Life]) -> Past:
    """Return the past, with occurrences whose messages are not kept any more."""
    if not dropped:
        return past
    until = max(fact.enqueued for life in dropped for fact in life.facts)
    return Past(lives=past.lives + len(dropped), until=until)


def bounded(life: Life) -> Life:
    """Return an occurrence with the messages that are kept.

    They are twelve of a machine: beyond that, the first and the last that was heard of
    each kind. And a thousand in all: those of Azure, of machines in Resources, and of
    the VM that was heard first, then the others, the first heard first.
    """
    by_machine, opener = defaultdict[Place, list[Fact]](list), life.opener
    for fact in life.facts:
        by_machine[_machine_of(fact)].append(fact)
    kept = [fact for said in by_machine.values() for fact in _ends_of(said)]
    if len(kept) > _MOST_FACTS:
        inside = places_named(kept, group_in(kept), life.reading)

        def rank(fact: Fact) -> tuple[bool, object]:
            is_first = opener is not None and is_of(fact, opener)
            counts = fact.is_azures or is_first or fact.place in inside
            return not counts, fact.heard

        kept = sorted(kept, key=rank)[:_MOST_FACTS]
    if len(kept) == len(life.facts):
        return life
    return life.fewer(kept)


def _machine_of(fact: Fact) -> Place:
    """Return the machine of a reporter; if that is not known, the reporter itself."""
    vm = fact.reporter
    return fact.place or (vm.vm_id, vm.name, vm.resource_id)


def is_surplus(
    fact: Fact, full: datetime, named: Collection[Place], heeded: Collection[Place]
) -> bool:
    """Whether a message that is not stored yet changes nothing.

    So it is if its event has enough messages, none of which tells the end, and this one
    is the last heard, by a machine whose messages are kept only if there is room.

    Args:
        fact: the message.
        full: when the latest of the kept messages was enqueued.
        named: the machines in Resources.
        heeded: see ``Life.heeded``.
    """
    return (
        fact.enqueued > full
        and fact.kind is not Kind.OUTCOME
        and not fact.is_azures
        and fact.place not in named
        and _machine_of(fact) not in heeded
    )


def _ends_of(facts: Sequence[Fact]) -> Iterable[Fact]:
    """Return the messages of a machine that are kept."""
    if len(facts) <= _MOST_OF_A_MACHINE:
        return facts
    by_kind = defaultdict[Kind, list[Fact]](list)
    for fact in sorted(facts, key=lambda fact: fact.heard):
        by_kind[fact.kind].append(fact)
    found = {id(one): one for said in by_kind.values() for one in (said[0], said[-1])}
    return found.values()


def group_in(facts: Sequence[Fact]) -> tuple[str, str]:
    """Return the first resource group that was heard of."""
    known = [fact for fact in facts if fact.group[1]]
    return min(known, key=lambda fact: fact.heard).group if known else ("", "")


def is_of(fact: Fact, other: Fact) -> bool:
    """Whether two facts are of one reporter."""
    return fact.speaker == other.speaker and fact.place == other.place


def is_proved(fact: Fact) -> bool:
    """Whether a fact is of Azure, or signed by the key of its machine."""
    return fact.is_azures or fact.trust is Trust.PINNED


def places_named(
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
