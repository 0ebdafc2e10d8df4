"""Reads which decisions are possible for an event, and why others are not."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from bridge.hub import arm_rules
from bridge.hub.config import HubConfig
from bridge.hub.store.current_event import EventBridges, current_event, event_bridges
from bridge.hub.store.deciding import arm_objection
from bridge.hub.targets import Target, Wishes, expected_answer, is_allowed, refusal_of
from bridge.hub.view_rows import (
    AddressOption,
    BridgeRow,
    OfferOption,
    Options,
    Situation,
)
from bridge.hub.voting import CurrentEvent


def options(
    connection: Connection, key: str, config: HubConfig, situation: Situation
) -> Options | None:
    """Return which decisions are possible for an event; None = it is not known."""
    current = current_event(connection, key)
    if current is None:
        return None
    if what := current.lacks():
        return Options(closed=f"Nothing can be decided: {what}.")
    bridges = event_bridges(connection, current, situation)
    found = bridges.choose_target(config, current, situation)
    objection = arm_objection(config, current, bridges, situation)
    is_local = config.access.mode == "loopback"
    more = 0 if is_local else arm_rules.more_persons(bridges.fleet, situation.now)
    return Options(
        bridge_why="" if found.is_open else found.why,
        is_contested=found.is_contested,
        is_refused=found.is_denied,
        addresses=_addresses(config, current, bridges, situation),
        arm_why=objection or "",
        arm_more=more,
        offers=_offers(current, bridges.fleet, situation.now) if config.arm else (),
    )


def _addresses(
    config: HubConfig,
    current: CurrentEvent,
    bridges: EventBridges,
    situation: Situation,
) -> tuple[AddressOption, ...]:
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
) -> AddressOption:
    return AddressOption(
        id=target.address.id,
        entity=target.address.entity,
        session=target.address.session,
        prefix=target.address.prefix,
        machines=tuple(sorted(bridge.name for bridge in target.bridges)),
        answers=target.answers,
        is_in_resources=target.rank == 0,
        is_older=target.is_older,
        contested=target.contested,
        refusal=refusal_of(target, current, now) or "",
        is_best=is_best,
    )


def _offers(
    current: CurrentEvent, fleet: Sequence[BridgeRow], now: datetime
) -> tuple[OfferOption, ...]:
    found = []
    for bridge in fleet:
        for offer in arm_rules.recent_offers(bridge, now):
            answer = expected_answer(offer.data, current, bridge.name, now)
            found.append(
                OfferOption(
                    id=offer.id,
                    machine=bridge.name,
                    vm_id=offer.vm_id,
                    first_heard=offer.first_heard,
                    heard=offer.heard,
                    answer=answer.verdict.value,
                    why=answer.why,
                )
            )
    return tuple(found)
