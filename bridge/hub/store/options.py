"""Reads which decisions are possible for an event, and why others are not."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.hub import arm_rules
from bridge.hub.answers import (
    NO_OPTIONS,
    AddressRow,
    ArmOptions,
    BridgeOptions,
    OfferRow,
    Options,
)
from bridge.hub.config import HubConfig
from bridge.hub.store.current_event import EventBridges, current_event, event_bridges
from bridge.hub.store.deciding import arm_objection
from bridge.hub.targets import Target, Wishes, expected_answer, is_allowed, refusal_of
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.voting import CurrentEvent


def options(
    connection: Connection, key: str, config: HubConfig, situation: Situation
) -> Options | None:
    """Return which decisions are possible for an event; None = it is not known."""
    current = current_event(connection, key)
    if current is None:
        return None
    if what := current.lacks():
        return replace(NO_OPTIONS, closed=f"Nothing can be decided: {what}.")
    bridges = event_bridges(connection, current, situation)
    found = bridges.choose_target(config, current, situation)
    objection = arm_objection(config, current, bridges, situation)
    is_local = config.access.mode == "loopback"
    more = 0 if is_local else arm_rules.more_persons(bridges.fleet, situation.now)
    return Options(
        closed=None,
        bridge=BridgeOptions(
            why=None if found.is_open else found.why or None,
            contested=found.is_contested,
            refused=found.is_denied,
        ),
        addresses=_addresses(config, current, bridges, situation),
        arm=ArmOptions(
            why=objection,
            more_persons=more,
            offers=_offers(current, bridges.fleet, situation.now) if config.arm else (),
        ),
    )


def _addresses(
    config: HubConfig,
    current: CurrentEvent,
    bridges: EventBridges,
    situation: Situation,
) -> tuple[AddressRow, ...]:
    best = bridges.choose_target(
        config, current, situation, Wishes(is_overridden=True)
    ).best
    return tuple(
        _address(target, current, situation.now, is_best=target.address == best)
        for target in bridges.targets
        if is_allowed(config.bridge_sources, target.address)
    )


def _address(
    target: Target, current: CurrentEvent, now: datetime, *, is_best: bool
) -> AddressRow:
    return AddressRow(
        id=target.address.id,
        entity=target.address.entity,
        session=target.address.session or None,
        prefix=target.address.prefix,
        machines=tuple(sorted(bridge.name for bridge in target.bridges)),
        answers=target.answers,
        in_resources=target.rank == 0,
        older=target.is_older,
        contested=target.contested or None,
        refusal=refusal_of(target, current, now),
        best=is_best,
    )


def _offers(
    current: CurrentEvent, fleet: Sequence[BridgeRow], now: datetime
) -> tuple[OfferRow, ...]:
    found = []
    for bridge in fleet:
        for offer in arm_rules.recent_offers(bridge, now):
            answer = expected_answer(offer.data, current, bridge.name, now)
            found.append(
                OfferRow(
                    id=offer.id,
                    vm_name=bridge.name,
                    vm_id=offer.vm_id,
                    first_heard=offer.first_heard,
                    last_heard=offer.heard,
                    answer=answer.verdict,
                    why=answer.why or None,
                )
            )
    return tuple(found)
