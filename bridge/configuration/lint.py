"""What is allowed in a configuration but hardly meant, and where its secrets are."""

from collections.abc import Iterator, Sequence

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.reply import unanswered
from bridge.approvals.rules import catch_all, label_of
from bridge.events.document import EVENT_SOURCES, EVENT_TYPES, misspelt
from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Secret
from bridge.servicebus.namespace import Entity
from bridge.sinks.base import SinkConfig

_STOP = 45.0  # TimeoutStopSec in infra/systemd/sebridge.service
_ENDING = 15.0  # of a command that does not heed SIGTERM
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


def odd_replies(
    approvals: ApprovalsConfig, targets: Sequence[Entity | None]
) -> Iterator[str]:
    """Tell of the entities in ``reply_to`` at which nobody is ever answered."""
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


def doubts_of(sinks: Sequence[SinkConfig]) -> Iterator[str]:
    """Tell of what sinks themselves say is hardly meant on this machine."""
    for sink in sinks:
        for key, what in sink.doubts():
            yield f"sinks.{sink.name}.{key}: {what}"


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
