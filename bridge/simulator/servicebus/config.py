"""Read the entity file of Microsoft's Service Bus emulator.

The same Config.json works for the emulator and for this broker. Its defaults are those
of the emulator's schema. What the emulator ignores is ignored here, too, with a warning
that names its place. Everything else that this broker does not support is a fault.

Shapes:  Config.json (with comments and trailing commas) → Entities
Source:  github.com/Azure/azure-service-bus-emulator-installer,
         ServiceBus-Emulator/Schema/Config-schema.json
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from msgspec.structs import asdict

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.config_fields import ConfigError, Fields, Findings
from bridge.simulator.servicebus.entities import subscription_path
from bridge.simulator.servicebus.rules.row import SYSTEM_TEXTS
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.sql.operators import SqlSyntaxError

log = logging.getLogger(__name__)

__all__ = ["ConfigError", "default_entities", "load_entities", "parse_entities"]

_MOST_DIGITS = 40
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[]}])', re.DOTALL)


def default_entities() -> Entities:
    """Return the entities that a bridge and its consumers expect."""
    topic = TopicSettings(
        name="scheduled-events",
        duplicate_window=timedelta(minutes=10),
        subscriptions=(SubscriptionSettings(name="consumer"),),
    )
    queues = (
        QueueSettings(name="vm-approvals"),
        QueueSettings(name="vm-approvals-sessions", requires_session=True),
        QueueSettings(name="replies"),
        QueueSettings(name="azure-events"),
    )
    return Entities(queues=queues, topics=(topic,))


def load_entities(path: Path) -> Entities:
    """Read an entity file.

    Raises:
        ConfigError: the file is invalid, or requests something that is not supported.
        OSError: the file cannot be read.
    """
    return parse_entities(path.read_text(encoding="utf-8-sig"))


def parse_entities(text: str) -> Entities:
    """Read the text of an entity file.

    Raises:
        ConfigError: the text is invalid, or requests something that is not supported.
    """
    findings = Findings()
    bare = _STRING_OR_COMMENT.sub(_string_alone, text)
    plain = _STRING_OR_COMMA.sub(_string_alone, bare)
    if plain != bare:
        findings.warnings.append("a comma before } or ] is no JSON, and has no effect")
    document = _parse_json(plain)
    entities = _read_document(Fields.of(document, "", findings))
    faults = [*findings.faults, *_forwarding_faults(entities)]
    if faults:
        raise ConfigError(faults)
    for warning in findings.warnings:
        log.warning("a part of the entity file is ignored", extra={"why": warning})
    return entities


def _parse_json(text: str) -> object:
    """Return the decoded JSON.

    This does not use orjson, which silently changes whole numbers beyond 64 bits.

    Raises:
        ConfigError: the text is not JSON, or contains half of a surrogate pair.
    """
    try:
        found: object = json.loads(
            text, parse_int=_read_int, parse_constant=_refuse_constant
        )
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"this is not JSON: {error}"]) from error
    return found


def _read_int(text: str) -> int:
    return int(text[:_MOST_DIGITS])  # a longer number is out of range even when cut


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _string_alone(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else ""


def _read_document(document: Fields) -> Entities:
    user = document.section("UserConfig")
    # The section says where the emulator writes its log; this broker does not use it.
    user.ignore("Logging")
    namespaces = list(user.items("Namespaces"))
    if len(namespaces) != 1:
        user.fault("there should be one namespace in Namespaces")
    user.close()
    document.close()
    # Faults give places without "UserConfig.Namespaces[0]": there is one namespace.
    namespace = (
        namespaces[0].renamed("") if namespaces else Fields.of({}, "", Findings())
    )
    return _read_namespace(namespace)


def _read_namespace(namespace: Fields) -> Entities:
    namespace.text("Name")
    queues = tuple(_read_queue(queue) for queue in namespace.items("Queues"))
    topics = tuple(_read_topic(topic) for topic in namespace.items("Topics"))
    access = read_access(namespace)
    namespace.close()
    _check_names(namespace, _names(queues, topics))
    return Entities(queues=queues, topics=topics, access=access)


def _read_queue(queue: Fields, properties: Fields | None = None) -> QueueSettings:
    name = queue.text("Name", required=True)
    properties = properties or queue.section("Properties")
    read = QueueSettings(
        name=name,
        duplicate_window=_duplicate_window(properties),
        lock_duration=properties.duration("LockDuration", "PT1M"),
        max_delivery_count=properties.integer("MaxDeliveryCount", 3),
        requires_session=properties.flag("RequiresSession"),
        default_time_to_live=properties.duration("DefaultMessageTimeToLive", "PT1H"),
        dead_letter_expired=properties.flag("DeadLetteringOnMessageExpiration"),
        forward_to=properties.text("ForwardTo") or None,
        forward_dead_letters_to=properties.text("ForwardDeadLetteredMessagesTo")
        or None,
        access=read_access(queue),
    )
    properties.close()
    queue.close()
    return read


def _read_topic(topic: Fields) -> TopicSettings:
    properties = topic.section("Properties")
    read = TopicSettings(
        name=topic.text("Name", required=True),
        subscriptions=tuple(
            _read_subscription(item) for item in topic.items("Subscriptions")
        ),
        duplicate_window=_duplicate_window(properties),
        default_time_to_live=properties.duration("DefaultMessageTimeToLive", "PT1H"),
        access=read_access(topic),
    )
    properties.close()
    topic.close()
    _check_names(topic, [subscription.name for subscription in read.subscriptions])
    return read


def _read_subscription(subscription: Fields) -> SubscriptionSettings:
    rules = [_read_rule(rule) for rule in subscription.items("Rules")]
    properties = subscription.section("Properties")
    for name in ("RequiresDuplicateDetection", "DuplicateDetectionHistoryTimeWindow"):
        properties.refuse(name, "a topic detects duplicates, not its subscriptions")
    subscription.refuse(
        "AuthorizationRules", "a topic has rules of access, not its subscriptions"
    )
    queue = _read_queue(subscription, properties)
    _check_names(subscription, [rule.name for rule in rules])
    return SubscriptionSettings(
        **asdict(queue),
        rules=tuple(rules) or (Rule(),),
    )


def _read_rule(rule: Fields) -> Rule:
    name = rule.text("Name", required=True)
    properties = rule.section("Properties")
    kind = _filter_type(properties)
    found: Filter = TrueFilter()
    if kind == "Correlation":
        found = _read_correlation(properties.section("CorrelationFilter"))
    elif kind == "Sql":
        found = _read_sql(properties.section("SqlFilter"))
    elif kind:
        properties.fault(f"FilterType {kind!r} is not one of 'Correlation', 'Sql'")
    properties.ignore("CorrelationFilter", "SqlFilter")
    action = _read_action(properties.section("Action"))
    properties.close()
    rule.close()
    return Rule(name=name, filter=found, action=action)


def _filter_type(properties: Fields) -> str:
    """Return the type of a rule's filter: that of the only filter, if there is one."""
    kind = properties.text("FilterType", required=True)
    other = {"Sql": "Correlation", "Correlation": "Sql"}.get(kind)
    if other is None or properties.has(f"{kind}Filter"):
        return kind
    if not properties.has(f"{other}Filter"):
        return kind
    properties.warn(f"FilterType is {kind!r}, but there is only a {other}Filter")
    return other


def _read_correlation(correlation: Fields) -> CorrelationFilter:
    system = {name: correlation.text(name) for name in SYSTEM_TEXTS}
    application = correlation.mapping("Properties")
    correlation.close()
    if not application and not any(system.values()):
        correlation.fault("names no property to compare")
    return CorrelationFilter(
        properties={name: value for name, value in system.items() if value},
        application_properties=application,
    )


def _read_sql(sql: Fields) -> Filter:
    expression = sql.text("SqlExpression", required=True)
    sql.close()
    try:
        return SqlFilter.of(expression) if expression else TrueFilter()
    except SqlSyntaxError as error:
        sql.fault(f"the SQL filter {expression!r} cannot be read: {error}")
        return TrueFilter()


def _read_action(sql: Fields) -> SqlAction | None:
    expression = sql.text("SqlExpression")
    sql.close()
    try:
        return SqlAction.of(expression) if expression else None
    except SqlSyntaxError as error:
        sql.fault(f"the SQL action {expression!r} cannot be read: {error}")
        return None


def _duplicate_window(properties: Fields) -> timedelta | None:
    window = properties.duration("DuplicateDetectionHistoryTimeWindow", "PT20S")
    return window if properties.flag("RequiresDuplicateDetection") else None


def _names(
    queues: Sequence[QueueSettings], topics: Sequence[TopicSettings]
) -> list[str]:
    return [queue.name for queue in queues] + [topic.name for topic in topics]


def _check_names(place: Fields, names: list[str]) -> None:
    lowered = [name.lower() for name in names]
    for name in sorted({name for name in lowered if lowered.count(name) > 1}):
        place.fault(f"the name {name!r} is given more than once")


def _forwarding_faults(entities: Entities) -> Iterator[str]:
    known = {name.lower() for name in _names(entities.queues, entities.topics)}
    for place, (path, queue) in _queues_by_place(entities).items():
        for field, target in (
            ("ForwardTo", queue.forward_to),
            ("ForwardDeadLetteredMessagesTo", queue.forward_dead_letters_to),
        ):
            if target is not None and target.lower() not in known:
                yield f"{place}.Properties.{field}: no queue or topic {target!r}"
            elif target is not None and target.lower() == path.lower():
                yield f"{place}.Properties.{field}: an entity cannot forward to itself"


def _queues_by_place(entities: Entities) -> Mapping[str, tuple[str, QueueSettings]]:
    """Return the queues and subscriptions with their paths, by their places."""
    queues: dict[str, tuple[str, QueueSettings]] = {
        f"Queues[{index}]": (queue.name, queue)
        for index, queue in enumerate(entities.queues)
    }
    for outer, topic in enumerate(entities.topics):
        for inner, subscription in enumerate(topic.subscriptions):
            path = subscription_path(topic.name, subscription.name)
            queues[f"Topics[{outer}].Subscriptions[{inner}]"] = path, subscription
    return queues


# -- Read the rules of shared access in an entity file: an extension of its format -----
#
# AuthorizationRules stands beside Name of a namespace, a queue or a topic: a list of
# objects with Name, PrimaryKey, SecondaryKey and Rights (names of rights). Microsoft's
# emulator has only one key, which gives all rights, and refuses this field.


_FIELD = "AuthorizationRules"


def read_access(place: Fields) -> tuple[AccessRule, ...]:
    """Return the rules of a namespace, queue or topic, and report their faults."""
    rules = tuple(_read_access_rule(rule) for rule in place.items(_FIELD))
    names = [rule.name for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        place.fault(f"{_FIELD} has the name {name!r} more than once")
    return rules


def _read_access_rule(rule: Fields) -> AccessRule:
    keys = (rule.text("PrimaryKey", required=True), rule.text("SecondaryKey"))
    read = AccessRule(
        name=rule.text("Name", required=True),
        keys=tuple(key for key in keys if key),
        rights=frozenset(
            Right(right) for right in rule.choices("Rights", tuple(Right))
        ),
    )
    rule.close_strictly()
    return read
