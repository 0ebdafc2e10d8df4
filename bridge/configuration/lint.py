"""Find probable mistakes in a valid configuration, and all of its secrets."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.rules import Rule, catch_all, label_of
from bridge.events.document import EVENT_SOURCES, misspelt
from bridge.events.vocabulary import EVENT_TYPES
from bridge.foundation.sections import Section
from bridge.foundation.values import Address, PublicKeys, Secret
from bridge.net.addresses import is_loopback
from bridge.servicebus.namespace import Entity
from bridge.sinks.base import SinkConfig

_STOP = 45.0  # TimeoutStopSec in infra/systemd/sebridge.service
_ENDING = 15.0  # seconds to end a command that ignores SIGTERM
_BEFORE = {"scheduled", "updated"}  # the steps that come before the impact
_WORDS = {
    "event_types": EVENT_TYPES,
    "allow_event_types": EVENT_TYPES,
    "event_sources": EVENT_SOURCES,
}


def literal_secrets(whole: Section) -> Iterator[str]:
    """Yield a warning for each secret that is written in the file itself."""
    for place, key, secret in secrets_in(whole):
        may_be_open = isinstance(secret, Address) and not secret.holds_secret(key)
        if secret.is_literal and not (may_be_open or _is_for_a_trial(secret)):
            yield f"{place}: a literal secret; better env:NAME or file:PATH"


def _is_for_a_trial(secret: Secret) -> bool:
    """Whether a secret is the address of a simulator on this machine, if no more."""
    with suppress(ValueError):
        parts = urlsplit(secret.reference)
        is_bare = parts.scheme == "http" and not (parts.username or parts.query)
        return is_bare and is_loopback(parts.hostname or "")
    return False


def misspelt_words(
    sinks: Sequence[SinkConfig],
    approvals: ApprovalsConfig | None,
    traffic: Section | None = None,
) -> Iterator[str]:
    """Yield a warning for each value of a filter that no event has today."""
    for place, section in _limits(sinks, approvals, traffic):
        for key, known in _WORDS.items():
            for word in getattr(section, key, None) or ():
                if what := misspelt(word, known):
                    yield f"{place}.{key}: {what}"


def _limits(
    sinks: Sequence[SinkConfig],
    approvals: ApprovalsConfig | None,
    traffic: Section | None,
) -> Iterator[tuple[str, Section]]:
    for sink in sinks:
        yield f"sinks.{sink.name}.when", sink.when
    if approvals is not None:
        yield "approvals", approvals
        for index, rule in enumerate(approvals.rules):
            yield f"approvals.rules[{index}]", rule
    if traffic is not None:
        yield "traffic", traffic


def odd_rules(approvals: ApprovalsConfig) -> Iterator[str]:
    """Yield a warning for a rule that fits every event, and for unreachable rules."""
    rules = approvals.rules
    last = catch_all(rules)
    for index, rule in enumerate(rules[last:], start=last):
        place = f"approvals.rules[{index}]"
        if index > last:
            first = label_of(last, rules[last])
            yield f"{place}: is never reached: {first} fits every event"
        elif rule.action == "auto-approve":
            yield f"{place}: approves every event, whatever its impact"


def vain_waits(
    approvals: ApprovalsConfig, sinks: Sequence[SinkConfig]
) -> Iterator[tuple[str, str]]:
    """Yield the place of each ``after`` that can never be fulfilled, and why."""
    commands = {sink.name: sink for sink in sinks if sink.is_for_steps}
    for index, rule in enumerate(approvals.rules):
        for name in rule.after or ():
            place = f"approvals.rules[{index}].after"
            if (sink := commands.get(name)) is None:
                known = ", ".join(commands) or "none"
                yield place, f"{name!r} is not a command sink; there are: {known}"
            elif not (_BEFORE & {*(sink.route.when.transitions or _BEFORE)}):
                yield place, f"{name!r} never gets the steps scheduled and updated"
            else:
                yield from ((place, what) for what in _disjoint(rule, sink))


def _disjoint(rule: Rule, sink: SinkConfig) -> Iterator[str]:
    """Yield the reason why a sink gets no event that a rule fits."""
    for key, mine, others in _limits_of_both(rule, sink):
        if mine and others and not mine & others:
            yield f"{sink.name!r} gets none of the rule's {key}"


def odd_waits(approvals: ApprovalsConfig, sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Yield a warning for events that a rule holds forever: its command never runs."""
    commands = {sink.name: sink for sink in sinks if sink.is_for_steps}
    for index, rule in enumerate(approvals.rules):
        for sink in (commands[name] for name in rule.after or () if name in commands):
            for key, mine, others in _limits_of_both(rule, sink):
                if others and not (mine and mine <= others):
                    yield (
                        f"approvals.rules[{index}].{key}: {sink.name!r} gets only "
                        f"{', '.join(sorted(others))}: the rule holds every other "
                        "event until a person approves it"
                    )


def _limits_of_both(
    rule: Rule, sink: SinkConfig
) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the filters of both a rule and a sink; an empty set means no filter."""
    for key in ("event_types", "event_sources"):
        mine, others = getattr(rule, key), getattr(sink.route.when, key)
        yield key, {*map(str.casefold, mine or ())}, {*map(str.casefold, others or ())}


def odd_replies(
    approvals: ApprovalsConfig, targets: Sequence[Entity | None]
) -> Iterator[str]:
    """Yield a warning for each entity in ``reply_to`` that never gets a reply."""
    rules = approvals.reply_rules(targets)
    for name, entity in rules.named(approvals.reply_to).items():
        if entity is None:
            yield (
                f"approvals.reply_to: no reply is ever sent to {name!r}: it is the "
                "approval entity or a sink's, lies below one, or is not an entity name"
            )


def hidden_outcomes(sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Yield a warning for each sink to Service Bus that leaves outcomes out.

    A hub that reads this entity learns the result of an approval only from outcomes.
    """
    for sink in sinks:
        route = sink.route
        if sink.target is None:
            continue
        limits = ("event_types", "event_sources", "resources")
        found = [key for key in limits if getattr(route.when, key) is not None]
        if route.scope == "first":
            found.append("scope")
        if found:
            keys = ", ".join(found)
            yield (
                f"sinks.{sink.name}.when: {keys} also leaves out outcomes of "
                "approvals: a hub that reads there does not learn of them"
            )


def own_outcomes(sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Yield a note for each sink to Service Bus that gets only the events of this VM.

    If VMs share a session, a VM may receive an approval for an event of another VM.
    """
    for sink in sinks:
        if sink.target is not None and sink.route.scope == "own":
            yield (
                f"sinks.{sink.name}.when.scope: outcomes of approvals that this VM "
                "receives for events of other VMs are not sent there, so a hub does "
                "not learn of them"
            )


def assumptions(approvals: ApprovalsConfig) -> Iterator[str]:
    """Yield the assumptions about the approval entity that the bridge cannot check."""
    entity = approvals.queue or f"{approvals.topic}/{approvals.subscription}"
    yield (
        f"approvals.max_delivery_count: the bridge assumes that {entity} has "
        f"MaxDeliveryCount {approvals.max_delivery_count}: it has no right to read it"
    )


def doubts_of(sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Yield the warnings of the sinks themselves, about this machine."""
    for sink in sinks:
        for key, what in sink.doubts():
            yield f"sinks.{sink.name}.{key}: {what}"


def short_stops(sinks: Sequence[SinkConfig], grace: float) -> Iterator[str]:
    """Yield a warning if systemd would kill the bridge while it ends a command."""
    if any(sink.is_for_steps for sink in sinks) and grace > _STOP - _ENDING:
        least = grace + _ENDING
        yield (
            "shutdown_grace: running commands are ended after it, so TimeoutStopSec of "
            f"the service must be at least {least:g}s (the shipped unit has {_STOP:g}s)"
        )


def secrets_in(section: Section, prefix: str = "") -> Iterator[tuple[str, str, Secret]]:
    """Yield the place, the key and the value of every secret in a section."""
    for key in section.__struct_fields__:
        value = getattr(section, key)
        if key == "sinks":
            for sink in value:
                yield from secrets_in(sink, f"sinks.{sink.name}.")
        else:
            yield from _secrets_at(f"{prefix}{key}", key, value)


def _secrets_at(
    place: str, key: str, value: object
) -> Iterator[tuple[str, str, Secret]]:
    if isinstance(value, Secret) and not isinstance(value, PublicKeys):
        yield place, key, value
    elif isinstance(value, Section):
        yield from secrets_in(value, f"{place}.")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets_at(f"{place}.{name}", name, item)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _secrets_at(f"{place}[{index}]", key, item)
