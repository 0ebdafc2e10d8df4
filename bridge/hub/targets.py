"""Chooses where to send an approval of an event. Pure.

The candidates are the addresses in messages about the event, and those that the bridges
of its machines have published. An address is used unless

    it does not match ``[hub.sources.approvals] entities``
    a bridge there would deny the approval by its rules
    no bridge there is alive or unknown

Of several, the address with the most bridges that are alive is used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bridge.hub.bridge_rules import Verdict, expected_answer
from bridge.hub.bridges import Liveness
from bridge.hub.facts import Address
from bridge.hub.source_config import BridgesSource
from bridge.hub.view_rows import BridgeRow
from bridge.hub.voting import CurrentEvent

_ANSWERS = {Liveness.ALIVE, Liveness.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An address, and the bridges that take approvals there.

    Attributes:
        unknown_bridges: how many more bridges have named the address, but are not in
            the store.
    """

    address: Address
    bridges: tuple[BridgeRow, ...]
    unknown_bridges: int = 0

    def count(self, state: Liveness) -> int:
        """Return how many of its bridges are in a state."""
        more = self.unknown_bridges if state is Liveness.UNKNOWN else 0
        return more + sum(1 for bridge in self.bridges if bridge.liveness is state)

    @property
    def answers(self) -> bool:
        """Whether a bridge there is alive, or may be."""
        return any(self.count(state) for state in _ANSWERS)

    @property
    def order(self) -> tuple[int, int, Address]:
        """The sort key of targets: the best one first."""
        alive, unknown = self.count(Liveness.ALIVE), self.count(Liveness.UNKNOWN)
        return -alive, -unknown, self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
    """The address to send an approval to, or why there is none.

    Attributes:
        best: the address; None = there is none now.
        why: why there is no address; "" = there is one.
        is_denied: whether the rules of a bridge forbid the approval.
        is_open: whether an address may be used, now or once a bridge is back.
    """

    best: Address | None = None
    why: str = ""
    is_denied: bool = False
    is_open: bool = False


def targets_of(
    named_in_messages: Iterable[tuple[Address, str]], fleet: Mapping[str, BridgeRow]
) -> list[Target]:
    """Return the targets for an event, the best one first.

    Args:
        named_in_messages: the addresses in messages about the event, each with the
            vmId of its reporter.
        fleet: the bridges of the event and of its machines, by vmId.
    """
    named = {(address, vm_id) for address, vm_id in named_in_messages}
    named |= {
        (address, vm_id)
        for vm_id, bridge in fleet.items()
        if (address := _offered(bridge)) is not None
    }
    by_address: dict[Address, set[str]] = {}
    for address, vm_id in named:
        by_address.setdefault(address, set()).add(vm_id)
    found = [
        Target(
            address=address,
            bridges=tuple(fleet[vm_id] for vm_id in sorted(ids) if vm_id in fleet),
            unknown_bridges=sum(1 for vm_id in ids if vm_id not in fleet),
        )
        for address, ids in by_address.items()
    ]
    return sorted(found, key=lambda target: target.order)


def _offered(bridge: BridgeRow) -> Address | None:
    """Return the address that a bridge has published for approvals; None = none."""
    entity = (bridge.approvals or {}).get("entity")
    session = (bridge.approvals or {}).get("session")
    if not isinstance(entity, str) or not entity:
        return None
    text = session if isinstance(session, str) else ""
    return Address(source=bridge.origin, entity=entity, session=text)


def choose_target(
    sources: Sequence[BridgesSource],
    found: Sequence[Target],
    current: CurrentEvent,
    now: datetime,
) -> TargetChoice:
    """Choose the address to send an approval to.

    Args:
        sources: the configured sources of bridges.
        found: the targets for the event, the best one first.
        current: the event.
        now: the present moment.
    """
    allowed = [target for target in found if _is_allowed(sources, target.address)]
    if not allowed:
        return TargetChoice(why="no bridge of this event takes approvals from the hub")
    willing = [(target, _denial(target, current, now)) for target in allowed]
    free = [target for target, why in willing if why is None]
    if not free:
        why = next(why for _, why in willing if why is not None)
        return TargetChoice(why=f"the bridge would refuse it: {why}", is_denied=True)
    best = next((target.address for target in free if target.answers), None)
    why = "" if best else "no bridge of this event answers"
    return TargetChoice(best=best, why=why, is_open=True)


def is_answered(
    sources: Sequence[BridgesSource],
    found: Sequence[Target],
) -> bool:
    """Whether a bridge answers for the event, even if its rules deny it."""
    return any(
        target.answers for target in found if _is_allowed(sources, target.address)
    )


def _is_allowed(sources: Sequence[BridgesSource], address: Address) -> bool:
    return any(
        source.approvals is not None
        and source.name == address.source
        and source.approvals.allows(address.entity)
        for source in sources
    )


def _denial(target: Target, current: CurrentEvent, now: datetime) -> str | None:
    """Return why a bridge at an address would deny the approval; None = none would."""
    for bridge in target.bridges:
        found = expected_answer(bridge.approvals, current, bridge.name, now)
        if found.verdict is Verdict.DENIES and bridge.liveness is not Liveness.GONE:
            return found.why
    return None
