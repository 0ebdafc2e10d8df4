"""Where an approval of an event can be sent, and whether a bridge answers there. Pure.

an address that came with the event, or that a bridge of its machines has told
├─ not among ``[hub.sources.approvals] entities``      → never
├─ a bridge there is known to deny the event           → never
└─ a bridge there is alive, or nobody can say that it is not → the shared ones first
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
        strangers: how many bridges named it of which nothing else is known.
    """

    address: Address
    bridges: tuple[BridgeRow, ...]
    unknown_bridges: int = 0

    def count(self, state: Liveness) -> int:
        """Return how many of its bridges fare so."""
        more = self.unknown_bridges if state is Liveness.UNKNOWN else 0
        return more + sum(1 for bridge in self.bridges if bridge.liveness is state)

    @property
    def answers(self) -> bool:
        """Whether a bridge answers there, or may do so for all that is known."""
        return any(self.count(state) for state in _ANSWERS)

    @property
    def order(self) -> tuple[int, int, Address]:
        """What addresses are sorted by: the one to take first."""
        alive, unknown = self.count(Liveness.ALIVE), self.count(Liveness.UNKNOWN)
        return -alive, -unknown, self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
    """What is known of the way to an event's bridges.

    Attributes:
        best: where to send; None = nowhere now.
        why: why not; "" where there is a best way.
        is_denied: whether it is a bridge's rules that forbid it.
        is_open: whether any address may be sent to at all.
    """

    best: Address | None = None
    why: str = ""
    is_denied: bool = False
    is_open: bool = False


def targets_of(
    told: Iterable[tuple[Address, str]], fleet: Mapping[str, BridgeRow]
) -> list[Target]:
    """Return the addresses of an event, the one to take first first.

    Args:
        told: addresses that came with the event, with the vmId that named each.
        fleet: the bridges of the event and of its machines, by vmId.
    """
    named = {(address, vm_id) for address, vm_id in told}
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
    """Return where a bridge says that it takes approvals."""
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
    """Say where an approval of an event goes.

    Args:
        sources: of bridges.
        found: the addresses, the one to take first first.
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
    """Whether a bridge answers for the event, willing or not."""
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
    """Return why a bridge at an address is known to refuse; None = none is."""
    for bridge in target.bridges:
        found = expected_answer(bridge.approvals, current, bridge.name, now)
        if found.verdict is Verdict.DENIES and bridge.liveness is not Liveness.GONE:
            return found.why
    return None
