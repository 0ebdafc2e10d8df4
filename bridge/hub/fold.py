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
    pinned            once a bridge in Resources has spoken whose key is pinned, what
                      others without a pin say counts for nothing; see ``pins``
    another           an appearance more than 10 s after the end, or at any time from a
    occurrence        reporter that has already reported the end. What was enqueued
                      before the end is no later appearance, whatever its clock says

At most 1,000 messages of an occurrence are kept, and 12 of a machine; see ``bounded``.

Source: the hub's contract; ``tests/hub/test_fold.py`` checks it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.document import ScheduledEvent
from bridge.hub.facts import (
    Fact,
    Kind,
    Machine,
    Reporter,
    group_of,
    kept_name,
)
from bridge.hub.occurrences import (
    Life,
    Past,
    Place,
    Reading,
    bounded,
    group_in,
    is_of,
    kept_outcomes,
    lives_of,
    older,
    places_named,
    unique,
)

_MOST_LIVES = 10
_MAKESHIFT = "urn:sebridge:"  # the source of a bridge that knows none yet
_STRENGTH = (Kind.CANCELLED, Kind.ENDED, Kind.COMPLETED)
# The order of Reporter; its own comparison is slow for a thousand.
_BY_VM = attrgetter("vm_id", "name", "resource_id")


class Voice(Struct, frozen=True, kw_only=True):
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


class Occurrence(Struct, frozen=True, kw_only=True):
    """One occurrence of an event, from its first appearance to its end.

    Attributes:
        status: scheduled, started, completed, cancelled or ended; other = only Azure
            reported it, with an undocumented status.
        event: the latest IMDS object; None = no message contained one.
        is_whole: False = the reporter has left out names of Resources.
        digest: the fingerprint of the message with that object.
        first: the first message of those whose word counts.
        opened: the time of that message.
        started: when it started; None = it has not, or nobody has seen it.
        ended: the time of the first message about the end; None = not ended.
        said: the end by the word of others alone; None = there is none. The event is
            still open.
        said_by: who said so first.
        said_until: when that end counts, unless somebody whose word counts agrees.
        is_by_others: whether the content is by the word of others alone. Then its
            changes make no vote void.
        is_pinned: whether a pinned bridge in Resources has spoken: the words of others
            without a pin count for nothing.
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
        source: the source of the events of the bridges whose word counts; "" = only
            Azure has reported it.
        resource: the resource id of the event at ARM; "" = Azure has not reported it.
    """

    status: Kind
    event: ScheduledEvent | None
    is_whole: bool
    digest: str
    first: Fact
    opened: datetime
    started: datetime | None
    ended: datetime | None
    said: Kind | None
    said_by: Reporter | None
    said_until: datetime | None
    is_by_others: bool
    is_pinned: bool
    doubled: tuple[Reporter, ...]
    bridges_say: Kind | None
    azure: Fact | None
    group: tuple[str, str]
    machines: tuple[Machine, ...]
    named: tuple[Machine, ...]
    voices: tuple[Voice, ...]
    has_bridge: bool
    prefix: str
    source: str
    resource: str

    @property
    def is_open(self) -> bool:
        """Whether it is pending or running."""
        return not self.status.is_end


class State(Struct, frozen=True, kw_only=True):
    """The state of an event.

    Attributes:
        key: the EventId in capitals.
        event_id: the EventId as in the first message.
        occurrences: its occurrences, the oldest first; the latest ten.
        before: how many occurrences were before those.
        outcomes: the results of approvals, the oldest first.
        last_reported: the time of the latest message.
    """

    key: str
    event_id: str
    occurrences: tuple[Occurrence, ...]
    before: int
    outcomes: tuple[Fact, ...]
    last_reported: datetime

    @property
    def lives(self) -> int:
        """The number of its occurrences."""
        return self.before + len(self.occurrences)

    @property
    def now(self) -> Occurrence | None:
        """Its latest occurrence; None if there are only outcomes."""
        return self.occurrences[-1] if self.occurrences else None


class Folded(Struct, frozen=True, kw_only=True):
    """The state of an event, and which of its messages are kept.

    Attributes:
        state: the state; None = no message is kept.
        kept: the facts that the state is derived from.
        full: when the latest of them was enqueued, if no more messages by others are
            kept; None = they are.
        heeded: then, the others whose messages may be kept; see ``Life.heeded``.
        dropped: how many facts are not kept.
        past: the occurrences before those.
        lists: the names in Resources that were needed, by ``Fact.names``.
    """

    state: State | None
    kept: tuple[Fact, ...]
    full: datetime | None = None
    heeded: tuple[Place, ...] = ()
    dropped: int
    past: Past
    lists: Mapping[str, tuple[str, ...]]


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
    outcomes = kept_outcomes([f for f in known if f.kind is Kind.OUTCOME], own)
    steps = [fact for fact in known if fact.kind is not Kind.OUTCOME]
    inside = places_named(steps, group_in(steps), reading) if steps else set()
    lives = [bounded(life) for life in lives_of(steps, inside, reading)]
    past = older(past, lives[:-_MOST_LIVES])
    lives = lives[-_MOST_LIVES:]
    kept = [*(fact for life in lives for fact in life.facts), *outcomes]
    if not kept:
        return Folded(
            state=None, kept=(), dropped=count, past=past, lists=reading.lists
        )
    moments = [fact.enqueued for fact in kept]
    latest = max([*moments, now] if now else moments)
    ordered = sorted(kept, key=lambda fact: fact.order)
    is_full = bool(lives) and lives[-1].is_full
    state = State(
        key=ordered[0].key,
        event_id=ordered[0].event_id,
        occurrences=tuple(_occurrence(life, reading, latest) for life in lives),
        before=past.lives,
        outcomes=tuple(outcomes),
        last_reported=ordered[-1].time,
    )
    return Folded(
        state=state,
        kept=tuple(ordered),
        full=max(moments) if is_full else None,
        heeded=tuple(sorted(lives[-1].heeded)) if is_full else (),
        dropped=count - len(kept),
        past=past,
        lists=reading.lists,
    )


def _occurrence(life: Life, reading: Reading, latest: datetime) -> Occurrence:
    """Return an occurrence.

    Args:
        life: its facts.
        reading: reads their IMDS objects.
        latest: when the last message about the event was enqueued.
    """
    life = life.counted
    facts, group = life.facts, group_in(life.facts)
    named = places_named(facts, group, reading)
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
        started=_started([*counted, *azures], first),
        ended=_ended(ends, first) if status.is_end else None,
        said=None if is_over or not said else _strongest(bridges),
        said_by=None if is_over or not said else said.reporter,
        said_until=None if is_over else said_until,
        is_by_others=bool(bridges) and not (inside or firsts),
        is_pinned=life.is_pinned,
        doubled=_doubled(facts),
        bridges_say=bridges_say,
        azure=_with_event(azures[-1], reading) if azures else None,
        group=place,
        machines=machines_of(event, place),
        named=tuple(Machine.at(place) for place in sorted(named)),
        voices=_voices(facts),
        has_bridge=bool(bridges),
        prefix=next((fact.prefix for fact in counted if fact.prefix), ""),
        source=_source(counted),
        resource=azures[-1].resource if azures else "",
    )


def _with_event(fact: Fact, reading: Reading) -> Fact:
    return fact if fact.event else replace(fact, event=reading.event_of(fact))


def _first_end(facts: Sequence[Fact]) -> Fact | None:
    return next((fact for fact in facts if fact.kind.is_end), None)


def _source(facts: Sequence[Fact]) -> str:
    """Return the source of bridges' events; one they know is better than a makeshift.

    A bridge that does not know its VM yet has a source of its own making, and another
    one later: it would deny an approval for the former.
    """
    found = [fact.source for fact in facts if not fact.is_azures]
    known = (source for source in found if not source.startswith(_MAKESHIFT))
    return next(known, found[0] if found else "")


def _started(facts: Sequence[Fact], first: Fact) -> datetime | None:
    """Return when an occurrence started: not before it was opened."""
    times = [fact.time for fact in facts if fact.is_started]
    return max(min(times), first.time) if times else None


def _ended(ends: Sequence[Fact], first: Fact) -> datetime | None:
    """Return when an occurrence ended: not before it was opened, as some clock says."""
    end = next(iter(ends), None)
    if end is None:
        return None
    return end.time if end.time >= first.time else max(end.enqueued, first.time)


def _first_heard(life: Life) -> list[Fact]:
    """Return the facts of the VM that was heard first, if it names itself."""
    opener = life.opener
    if opener is None or opener.is_azures:
        return []
    if not life.reading.names_itself(opener):
        return []
    return [fact for fact in life.facts if is_of(fact, opener)]


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
    return tuple(Machine.at((*group, name)) for name in sorted(names))


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
        for reporter, said in sorted(found.items(), key=lambda one: _BY_VM(one[0]))
    )
