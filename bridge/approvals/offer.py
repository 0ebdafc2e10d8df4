"""Describes where this bridge receives approvals, and its rules. Pure.

``bridge.started`` has the description in ``data.approvals``, heartbeats have only its
digest. So a remote approver (the hub) knows which approvals this bridge would refuse,
and notices when the rules change.
"""

from collections.abc import Callable

import msgspec

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.rules import Rule
from bridge.foundation.hashing import hash32


def offer(config: ApprovalsConfig, expand: Callable[[str], str]) -> dict[str, object]:
    """Return ``data.approvals``: entity, session, rules, allowEventTypes and digest.

    If only signed approvals count, ``signed`` is true.

    Args:
        config: ``[approvals]``.
        expand: fills in the placeholders of a text.

    Raises:
        ValueError: a placeholder has no value on this machine.
    """
    entity, session = "", None
    if config.has_entity:
        address = config.address(expand)
        entity, session = address.entity, address.session
    found: dict[str, object] = {
        "entity": entity,
        "session": session,
        "rules": [_rule(rule) for rule in config.rules],
        "allowEventTypes": list(config.allow_event_types),
        **({"signed": True} if config.signed_by else {}),
    }
    return {**found, "digest": hash32(found)}


def _rule(rule: Rule) -> dict[str, object]:
    """Return the keys of a rule, without those that have their default value."""
    keys = dict[str, object]()
    for field in msgspec.structs.fields(Rule):
        value = getattr(rule, field.name)
        if field.required or value != field.default:
            keys[field.encode_name] = _plain(value)
    return keys


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return float(value) if isinstance(value, float) else value
