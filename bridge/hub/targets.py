"""Chooses where to send an approval of an event. Pure.

An address belongs to the bridge that offers it in ``bridge.started``. The ReplyTo of a
message counts only if its reporter offers the same address, or has never made an offer
(an older version; marked). An address is used by itself unless

    it does not match ``[hub.sources.approvals] entities``
    no bridge there is alive or unknown
    it is contested, or only a stranger without an offer has named it

A person may choose one that is contested. What a bridge there would refuse by its
latest offer is not sent, unless a person overrides this: the bridge decides. Of several
addresses, one of a bridge in Resources comes first, then the one with the most bridges
that are alive.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from bridge.approvals.rules import Rule, judge
from bridge.events.identity import Identity
from bridge.foundation.sections import Reader
from bridge.hub.bridges import Liveness, Offer
from bridge.hub.config import BridgesSource, HubConfig
from bridge.hub.decisions import CurrentEvent
from bridge.hub.facts import Address, Machine, machine_of
from bridge.hub.view_rows import BridgeRow, Situation

_ANSWERS = {Liveness.ALIVE, Liveness.UNKNOWN}
_SETTLED = timedelta(minutes=15)  # so long a machine must have offered a session
_INTERVALS = 3
_FRESH = 300.0  # seconds after which a bridge without heartbeats may have moved

Claims = Mapping[tuple[str, str, str], Mapping[Machine, datetime]]


class Target(Struct, frozen=True, kw_only=True):
    """An address, and the bridges that take approvals there.

    Attributes:
        unknown_bridges: how many more bridges have named the address, but are not in
            the store.
        rank: 0 = a bridge in Resources takes approvals there; 1 = one of a machine that
            the event names; 2 = only others do.
        is_older: whether only bridges that have never made an offer have named it.
        contested: why it is not known whose address it is; "" = it is.
    """

    address: Address
    bridges: tuple[BridgeRow, ...]
    unknown_bridges: int = 0
    rank: int = 2
    is_older: bool = False
    contested: str = ""

    def count(self, state: Liveness) -> int:
        """Return how many of its bridges are in a state."""
        more = self.unknown_bridges if state is Liveness.UNKNOWN else 0
        return more + sum(1 for bridge in self.bridges if bridge.liveness is state)

    @property
    def answers(self) -> bool:
        """Whether a bridge there is alive, or may be."""
        return any(self.count(state) for state in _ANSWERS)

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key of targets: the best one first."""
        alive, unknown = self.count(Liveness.ALIVE), self.count(Liveness.UNKNOWN)
        return self.rank, self.is_older, -alive, -unknown, self.address


class Wishes(Struct, frozen=True, kw_only=True):
    """What the people have wished for a decision.

    Attributes:
        address: the id of the address that they have chosen; "" = none.
        is_overridden: whether it is sent although a bridge would refuse it.
        prefix: the prefix that the message has already; None = it is not made yet.
    """

    address: str = ""
    is_overridden: bool = False
    prefix: str | None = None


_NO_WISHES = Wishes()


class TargetChoice(Struct, frozen=True, kw_only=True):
    """The address to send an approval to, or why there is none.

    Attributes:
        best: the address; None = there is none now.
        why: why there is no address; "" = there is one.
        is_denied: whether the rules of a bridge forbid the approval.
        is_contested: whether a person must choose the address.
        prefix: the prefix of the types there; None = there is no address at all.
    """

    best: Address | None = None
    why: str = ""
    is_denied: bool = False
    is_contested: bool = False
    prefix: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether an address may be used, now or once a bridge is back."""
        return self.prefix is not None and not self.is_denied and not self.is_contested


def targets_of(
    named_in_messages: Iterable[tuple[Address, str]],
    fleet: Mapping[str, BridgeRow],
    current: CurrentEvent,
    now: datetime,
    claims: Claims | None = None,
) -> list[Target]:
    """Return the targets for an event, the best one first.

    Args:
        named_in_messages: the addresses in messages about the event, each with the
            vmId of its reporter.
        fleet: the bridges of the event and of its machines, by vmId.
        current: the event.
        now: the present moment.
        claims: by the place of an address with a session, which machines offer it, and
            since when; only those whose bridges are neither gone, stopped nor silent.
    """
    owners = dict[Address, set[str]]()
    older = dict[Address, set[str]]()
    moved = dict[Address, str]()
    for bridge in fleet.values():
        for address, why in _offered(bridge, now).items():
            owners.setdefault(address, set()).add(bridge.vm_id)
            moved[address] = why or moved.get(address, "")
    for address, vm_id in named_in_messages:
        found = fleet.get(vm_id)
        if found is None or not found.offers:
            older.setdefault(address, set()).add(vm_id)
    known = {
        address: owners.get(address, set()) | older.get(address, set())
        for address in (*owners, *older)
    }
    targets = [
        Target(
            address=address,
            bridges=tuple(fleet[vm_id] for vm_id in sorted(ids) if vm_id in fleet),
            unknown_bridges=sum(1 for vm_id in ids if vm_id not in fleet),
            rank=min(_rank(fleet.get(vm_id), current) for vm_id in ids),
            is_older=address not in owners,
            contested=moved.get(address, ""),
        )
        for address, ids in known.items()
    ]
    judged = [_judged(target, claims or {}, now) for target in targets]
    return sorted(judged, key=lambda target: target.order)


def _offered(bridge: BridgeRow, now: datetime) -> dict[Address, str]:
    """Return the addresses of a bridge, each with why it is contested; "" = it is not.

    Its machine may have offered another one a short time ago, with this vmId or with
    another one. Then either may be a forgery.
    """
    if bridge.address is None:
        return {}
    longest = _INTERVALS * (bridge.interval_seconds or 0.0) or _FRESH
    others = {
        offer.address: f"{bridge.name or bridge.vm_id} has offered two addresses"
        for offer in bridge.offers
        if offer.address is not None
        and not offer.is_dropped
        and offer.address != bridge.address
        and (now - offer.heard).total_seconds() <= longest
    }
    return {bridge.address: next(iter(others.values()), ""), **others}


def _rank(bridge: BridgeRow | None, current: CurrentEvent) -> int:
    if bridge is None:
        return 2
    if machine_of(bridge.reporter) in current.named:
        return 0
    return 1 if bridge.machine in current.machines else 2


def _judged(target: Target, claims: Claims, now: datetime) -> Target:
    """Add whether a session belongs to a machine that is not that of a bridge there.

    A session that one machine alone has offered for 15 minutes is that machine's. What
    another one offers since then is contested, as long as the first one's bridge lives.
    """
    claimed = claims.get(target.address.place, {})
    settled = [one for one, since in claimed.items() if now - since >= _SETTLED]
    if target.contested or len(settled) != 1 or len(claimed) < 2:
        return target
    owners = {bridge.machine for bridge in target.bridges}
    if owners & set(settled):
        return target
    (owner,) = settled
    return replace(target, contested=f"its session is that of {owner.name}")


class EventBridges(Struct, frozen=True, kw_only=True):
    """The bridges for an event, and the targets for its approvals.

    Attributes:
        fleet: the bridges of its machines.
        targets: the addresses for approvals, the best one first.
    """

    fleet: tuple[BridgeRow, ...]
    targets: tuple[Target, ...]

    def allowed(self, config: HubConfig) -> list[Target]:
        """Return the targets that the hub may send approvals to."""
        globs = {
            source.name: source.approvals.entities
            for source in config.sources
            if isinstance(source, BridgesSource) and source.approvals is not None
        }
        return [
            target
            for target in self.targets
            if any(
                fnmatchcase(target.address.place[1], glob.lower())
                for glob in globs.get(target.address.source, ())
            )
        ]

    def is_answered(self, config: HubConfig) -> bool:
        """Whether a bridge answers for the event, even if its rules deny it."""
        return any(target.answers for target in self.allowed(config))

    def choose_target(
        self,
        config: HubConfig,
        current: CurrentEvent,
        situation: Situation,
        wishes: Wishes = _NO_WISHES,
    ) -> TargetChoice:
        """Choose the address to send an approval to."""
        allowed = [
            target
            for target in self.allowed(config)
            if wishes.prefix in {None, target.address.prefix}
        ]
        if not allowed:
            words = "no bridge of this event takes approvals from the hub"
            return TargetChoice(why=words)
        usable = _usable(allowed, wishes)
        if not usable:
            return _none_usable(allowed, wishes)
        now = situation.now
        willing = [(target, refusal_of(target, current, now)) for target in usable]
        free = [one for one, why in willing if why is None or wishes.is_overridden]
        if not free:
            why = next(why for _, why in willing if why is not None)
            words = f"the bridge would refuse it: {why}"
            prefix = usable[0].address.prefix
            return TargetChoice(why=words, is_denied=True, prefix=prefix)
        best = next((target.address for target in free if target.answers), None)
        why = "" if best else "no bridge of this event answers"
        prefix = (best or free[0].address).prefix
        return TargetChoice(best=best, why=why, prefix=prefix)


def _usable(allowed: Sequence[Target], wishes: Wishes) -> list[Target]:
    """Return the chosen target, or those that are used by themselves."""
    if wishes.address:
        return [one for one in allowed if one.address.id == wishes.address]
    is_offered = any(not one.is_older for one in allowed)
    return [
        one
        for one in allowed
        if not one.contested and not (is_offered and one.is_older and one.rank == 2)
    ]


def _none_usable(allowed: Sequence[Target], wishes: Wishes) -> TargetChoice:
    prefix = allowed[0].address.prefix
    if wishes.address:
        words = "the chosen address is not offered any more"
        return TargetChoice(why=words, is_contested=True, prefix=prefix)
    whose = next((one.contested for one in allowed if one.contested), "")
    words = f"the address is contested ({whose}): choose where to send it"
    return TargetChoice(why=words, is_contested=True, prefix=prefix)


def refusal_of(target: Target, current: CurrentEvent, now: datetime) -> str | None:
    """Return why a bridge at an address would deny the approval; None = none would."""
    for bridge in target.bridges:
        found = expected_answer(bridge.approvals, current, bridge.name, now)
        if found.verdict is Verdict.DENIES and bridge.liveness is not Liveness.GONE:
            return found.why
    return None


def has_offered(
    known: Sequence[Offer], tried: Collection[tuple[str, str, str]]
) -> bool:
    """Whether an outcome of a bridge may close a decision.

    It may, if the decision was sent, and the bridge offers an address that it was sent
    to, or has never made an offer.

    Args:
        known: the offers that were heard in its name.
        tried: the places of the addresses of all attempts.
    """
    places = {one.address.place for one in known if one.address is not None}
    return bool(tried) and (not known or not places.isdisjoint(tried))


# -- Predicts how bridges would answer an approval, by the rules they published. Pure --
#
# A bridge publishes in ``bridge.started`` where it takes approvals and by which rules
# (``data.approvals``), and in each heartbeat the digest of these rules.


class Verdict(StrEnum):
    """How a bridge would answer."""

    ALLOWS = "allows"
    WAITS = "waits"  # for a delay, or for commands
    DENIES = "denies"
    UNKNOWN = "unknown"


class ExpectedAnswer(Struct, frozen=True, kw_only=True):
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
