"""What is allowed in a configuration but hardly meant, and where its secrets are."""

from collections.abc import Iterator, Sequence

from bridge.approvals.listener import ApprovalsConfig
from bridge.approvals.rules import catch_all, label_of
from bridge.imds.document import EVENT_SOURCES, EVENT_TYPES
from bridge.options import Section, nearest
from bridge.sinks.base import SinkConfig
from bridge.values import Address, Secret

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
    sinks: Sequence[SinkConfig], approvals: ApprovalsConfig | None
) -> Iterator[str]:
    """Tell of the words of limits that no event has today."""
    for place, section in _limits(sinks, approvals):
        for key, known in _WORDS.items():
            for word in getattr(section, key, None) or ():
                if what := misspelt(word, known):
                    yield f"{place}.{key}: {what}"


def _limits(
    sinks: Sequence[SinkConfig], approvals: ApprovalsConfig | None
) -> Iterator[tuple[str, Section]]:
    for sink in sinks:
        yield f"sinks.{sink.name}.when", sink.when
    if approvals is not None:
        yield "approvals", approvals
        for index, rule in enumerate(approvals.rules):
            yield f"approvals.rules[{index}]", rule


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


def misspelt(word: str, known: Sequence[str]) -> str | None:
    """Return what is odd about a word that is none of ``known``; None if it is one.

    It is allowed: Azure may have more words by now.
    """
    if word.casefold() in {name.casefold() for name in known}:
        return None
    near = nearest(word.capitalize(), known)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
    return f"{word!r} is not documented by Azure; {hint}"


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
