"""What is allowed in a configuration but hardly meant, and where its secrets are."""

from collections.abc import Iterator, Sequence

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.rules import Rule, catch_all, label_of
from bridge.events.document import EVENT_SOURCES, EVENT_TYPES, misspelt
from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Secret
from bridge.servicebus.namespace import Entity
from bridge.sinks.base import SinkConfig

_STOP = 45.0  # TimeoutStopSec in infra/systemd/sebridge.service
_ENDING = 15.0  # of a command that does not heed SIGTERM
_BEFORE = {"scheduled", "updated"}  # the steps by which a command comes in time
_WORDS = {
    "event_types": EVENT_TYPES,
    "allow_event_types": EVENT_TYPES,
    "event_sources": EVENT_SOURCES,
}


def literal_secrets(whole: Section) -> Iterator[str]:
    """Tell of secrets that stand in the file itself."""
    for place, key, secret in secrets_in(whole):
        may_be_open = isinstance(secret, Address) and not secret.holds_secret(key)
        if secret.is_literal and not may_be_open:
            yield f"{place}: a literal secret; better env:NAME or file:PATH"


def misspelt_words(
    sinks: Sequence[SinkConfig],
    approvals: ApprovalsConfig | None,
    traffic: Section | None = None,
) -> Iterator[str]:
    """Tell of the words of limits that no event has today."""
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
    """Tell of a rule that approves all there is, and of those never reached."""
    rules = approvals.rules
    last = catch_all(rules)
    for index, rule in enumerate(rules[last:], start=last):
        place = f"approvals.rules[{index}]"
        if index > last:
            first = label_of(last, rules[last])
            yield f"{place}: is never reached: {first} fits every event"
        elif rule.action == "auto-approve":
            yield f"{place}: approves every event, whatever it does"


def vain_waits(
    approvals: ApprovalsConfig, sinks: Sequence[SinkConfig]
) -> Iterator[tuple[str, str]]:
    """Yield the place of each command that a rule waits for in vain, and why."""
    commands = {sink.name: sink for sink in sinks if sink.is_for_steps}
    for index, rule in enumerate(approvals.rules):
        for name in rule.after or ():
            place = f"approvals.rules[{index}].after"
            if (sink := commands.get(name)) is None:
                known = ", ".join(commands) or "none"
                yield place, f"{name!r} is no command sink; there are: {known}"
            elif not (_BEFORE & {*(sink.route.when.transitions or _BEFORE)}):
                yield place, f"{name!r} is never given scheduled or updated"
            else:
                yield from ((place, what) for what in _disjoint(rule, sink))


def _disjoint(rule: Rule, sink: SinkConfig) -> Iterator[str]:
    """Yield why a sink is given no event that a rule fits."""
    for key, mine, others in _limits_of_both(rule, sink):
        if mine and others and not mine & others:
            yield f"{sink.name!r} is given none of the rule's {key}"


def odd_waits(approvals: ApprovalsConfig, sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Tell of events that a rule holds for ever: its command is not given them."""
    commands = {sink.name: sink for sink in sinks if sink.is_for_steps}
    for index, rule in enumerate(approvals.rules):
        for sink in (commands[name] for name in rule.after or () if name in commands):
            for key, mine, others in _limits_of_both(rule, sink):
                if others and not (mine and mine <= others):
                    yield (
                        f"approvals.rules[{index}].{key}: {sink.name!r} is given "
                        f"{', '.join(sorted(others))} alone: the rule holds any other "
                        "event until a person approves it"
                    )


def _limits_of_both(
    rule: Rule, sink: SinkConfig
) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the limits that a rule and a sink may have; an empty set is no limit."""
    for key in ("event_types", "event_sources"):
        mine, others = getattr(rule, key), getattr(sink.route.when, key)
        yield key, {*map(str.casefold, mine or ())}, {*map(str.casefold, others or ())}


def odd_replies(
    approvals: ApprovalsConfig, targets: Sequence[Entity | None]
) -> Iterator[str]:
    """Tell of the entities in ``reply_to`` at which nobody is ever answered."""
    # Who has no approvals does without.
    from bridge.approvals.reply import unanswered  # noqa: PLC0415 - see above

    for name in unanswered(approvals.reply_to, approvals.reply_rules(targets)):
        yield (
            f"approvals.reply_to: nobody is answered at {name!r}: it is the approval "
            "entity or a sink's, lies below one, or is no name of an entity"
        )


def taken_for_granted(approvals: ApprovalsConfig) -> Iterator[str]:
    """Tell what the bridge believes of the approval entity, and cannot look up."""
    entity = approvals.queue or f"{approvals.topic}/{approvals.subscription}"
    yield (
        f"approvals.max_delivery_count: {entity} is taken to have MaxDeliveryCount "
        f"{approvals.max_delivery_count}; the bridge has no right to look it up"
    )


def short_stops(sinks: Sequence[SinkConfig], grace: float) -> Iterator[str]:
    """Tell of a stop that the shipped unit cuts short while a command is ended."""
    if any(sink.is_for_steps for sink in sinks) and grace > _STOP - _ENDING:
        least = grace + _ENDING
        yield (
            "shutdown_grace: a command is ended after it: TimeoutStopSec of the "
            f"service must be {least:g}s at least ({_STOP:g}s in the unit as shipped)"
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
    if isinstance(value, Secret):
        yield place, key, value
    elif isinstance(value, Section):
        yield from secrets_in(value, f"{place}.")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets_at(f"{place}.{name}", name, item)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _secrets_at(f"{place}[{index}]", key, item)
