"""The operations of the administration API: create, change, delete, show and list.

Source: Azure Service Bus, REST: entities, and Resource Manager exceptions for the
        statuses. For a GET of an unknown queue or topic, the service returns an empty
        list, which the clients convert to "not found".
"""

import re
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from msgspec import Struct

from bridge.simulator.servicebus.administration.atom import (
    AdministrationError,
    Entry,
    bad,
    child,
    conflict,
    description,
    missing,
    read_description,
)
from bridge.simulator.servicebus.administration.descriptions import (
    Record,
    queue_settings,
    shape_of,
    topic_settings,
    values_of,
    written_description,
)
from bridge.simulator.servicebus.administration.fields import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Shape,
    Values,
    read_values,
)
from bridge.simulator.servicebus.administration.rule_descriptions import (
    RULE,
    read_rule,
    written_rule,
)
from bridge.simulator.servicebus.entities import subscription_path
from bridge.simulator.servicebus.entity_actions import Changes
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.rule import DEFAULT_NAME, Rule
from bridge.simulator.servicebus.rules.ruleset import MOST_NAME
from bridge.simulator.servicebus.settings import (
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import Condition, RefusedError

_NAME = re.compile(r"[A-Za-z0-9](?:[\w./~-]*[\w~-])?", re.ASCII)
_INNER_NAME = re.compile(r"[A-Za-z0-9$](?:[\w.~-]*[\w~-])?", re.ASCII)


class Place(Struct, frozen=True, kw_only=True):
    """The entity or rule that a request is about.

    Attributes:
        entity: the path of a queue or topic.
        subscription: the name of a subscription of the topic; None: the request is
            about the queue or topic.
        rule: the name of a rule of the subscription; None: the request is not about a
            rule.
    """

    entity: str
    subscription: str | None = None
    rule: str | None = None

    @property
    def path(self) -> str:
        """The path of the queue, topic or subscription."""
        if self.subscription is None:
            return self.entity
        return subscription_path(self.entity, self.subscription)


class Operations:
    """The operations on one broker.

    Args:
        changes: changes and deletes the broker's entities.
        clock: returns seconds since the epoch.
    """

    def __init__(self, changes: Changes, clock: Callable[[], float]) -> None:
        self._changes = changes
        self._clock = clock
        self._started_at = clock()
        self._records: WeakKeyDictionary[Queue | Topic, Record] = WeakKeyDictionary()

    def put(self, place: Place, body: bytes, *, is_change: bool) -> Entry:
        """Create or change an entity or a rule.

        Args:
            place: the place of the entity or rule.
            body: an Atom entry with the description.
            is_change: whether to change an existing entity or rule, instead of creating
                one.

        Raises:
            AdministrationError: the request is invalid, or the broker refuses it.
        """
        try:
            if place.rule is not None:
                return self._put_rule(place, place.rule, body, is_change=is_change)
            if is_change:
                return self._change(place, body)
            return self._make(place, body)
        except RefusedError as error:
            raise _administration_error(error) from error

    def delete(self, place: Place) -> None:
        """Delete an entity or a rule.

        Raises:
            AdministrationError: the entity or rule does not exist.
        """
        try:
            if place.rule is not None:
                self._subscription(place).rules.remove(place.rule)
            else:
                self._changes.remove(self._entity(place))
        except RefusedError as error:
            raise _administration_error(error) from error

    def show(self, place: Place) -> Entry | None:
        """Return an entity or a rule; None: it does not exist."""
        try:
            if place.rule is None:
                return self._entry(self._entity(place))
            subscription = self._subscription(place)
            return self._rule_entry(subscription, subscription.rules.find(place.rule))
        except (AdministrationError, RefusedError):
            return None

    def queues(self) -> Sequence[Entry]:
        """Return all queues, by name."""
        found = (e for e in self._all() if shape_of(e) is QUEUE)
        return [self._entry(queue) for queue in found]

    def topics(self) -> Sequence[Entry]:
        """Return all topics, by name."""
        return [self._entry(e) for e in self._all() if isinstance(e, Topic)]

    def subscriptions(self, topic: str) -> Sequence[Entry]:
        """Return the subscriptions of a topic, by name.

        Raises:
            AdministrationError: the topic does not exist.
        """
        found = self._topic(topic).subscriptions
        return [self._entry(queue) for queue in sorted(found, key=_name_key)]

    def rules(self, place: Place) -> Sequence[Entry]:
        """Return the rules of a subscription, in their order.

        Raises:
            AdministrationError: the subscription does not exist.
        """
        queue = self._subscription(place)
        return [self._rule_entry(queue, rule) for rule in queue.rules]

    def _make(self, place: Place, body: bytes) -> Entry:
        entity = self._make_inner(place, body)
        return self._entry(entity)

    def _make_inner(self, place: Place, body: bytes) -> Queue | Topic:
        namespace = self._changes.namespace
        if place.subscription is not None:
            topic, name = self._topic(place.entity), place.subscription
            given, values = _read(SUBSCRIPTION, name, body)
            rules = (_default_rule(given),)
            made = SubscriptionSettings(name=name, rules=rules)
            queue = namespace.add_subscription(topic, queue_settings(values, made))
            return self._keep(queue, values)
        if f"<{TOPIC.name}".encode() in _without_prefixes(body):
            _, values = _read(TOPIC, place.entity, body)
            settings = topic_settings(values, TopicSettings(name=place.entity))
            return self._keep(namespace.add_topic(settings), values)
        _, values = _read(QUEUE, place.entity, body)
        found = queue_settings(values, QueueSettings(name=place.entity))
        return self._keep(namespace.add_queue(found), values)

    def _change(self, place: Place, body: bytes) -> Entry:
        entity = self._entity(place)
        shape, record = shape_of(entity), self._record(entity)
        given = read_description(body, shape.name)
        values = read_values(shape, given, record.values)
        if isinstance(entity, Topic):
            self._changes.change(entity, topic_settings(values, entity.settings))
        else:
            self._changes.change(entity, queue_settings(values, entity.settings))
        self._records[entity] = record.changed(values, self._clock())
        return self._entry(entity)

    def _put_rule(
        self, place: Place, name: str, body: bytes, *, is_change: bool
    ) -> Entry:
        _check_name("rule", name, MOST_NAME, _INNER_NAME)
        queue = self._subscription(place)
        rule = read_rule(read_description(body, RULE), name)
        if is_change:
            queue.rules.change(rule)
        else:
            queue.rules.add(rule)
        queue.use.touch()
        return self._rule_entry(queue, queue.rules.find(name))

    def _all(self) -> Iterator[Queue | Topic]:
        yield from sorted(self._changes.namespace.entities(), key=_name_key)

    def _entity(self, place: Place) -> Queue | Topic:
        found = self._changes.namespace.find(place.path)
        if isinstance(found, Queue) and found.dead_letters is None:
            raise missing(f"{place.path!r} is not an entity of its own.")
        return found

    def _topic(self, name: str) -> Topic:
        try:
            found = self._changes.namespace.find(name)
        except RefusedError as error:
            raise _administration_error(error) from error
        if not isinstance(found, Topic):
            raise missing(f"There is no topic {name!r}.")
        return found

    def _subscription(self, place: Place) -> Queue:
        self._topic(place.entity)
        try:
            found = self._changes.namespace.find(place.path)
        except RefusedError as error:
            raise _administration_error(error) from error
        assert isinstance(found, Queue), "below a topic"  # noqa: S101 - for mypy  # nosec B101
        return found

    def _keep(self, entity: Queue | Topic, values: Values) -> Queue | Topic:
        now = self._clock()
        self._records[entity] = Record(values=values, created_at=now, updated_at=now)
        return entity

    def _record(self, entity: Queue | Topic) -> Record:
        found = self._records.get(entity)
        if found is None:
            at = self._started_at
            found = Record(values=values_of(entity), created_at=at, updated_at=at)
            self._records[entity] = found
        return found

    def _entry(self, entity: Queue | Topic) -> Entry:
        record = self._record(entity)
        is_inner = shape_of(entity) is SUBSCRIPTION
        return Entry(
            path=entity.name,
            title=entity.name.rpartition("/")[2] if is_inner else entity.name,
            content=written_description(entity, record),
            created_at=record.created_at,
            updated_at=record.updated_at,
        )

    def _rule_entry(self, queue: Queue, rule: Rule) -> Entry:
        return Entry(
            path=f"{queue.name}/Rules/{rule.name}",
            title=rule.name,
            content=description(RULE, written_rule(rule)),
            created_at=rule.created_at,
            updated_at=rule.created_at,
        )


def _read(shape: Shape, name: str, body: bytes) -> tuple[Element, Values]:
    pattern = _INNER_NAME if shape is SUBSCRIPTION else _NAME
    _check_name(shape.kind, name, shape.most_name, pattern)
    given = read_description(body, shape.name)
    return given, read_values(shape, given, None)


def _default_rule(given: Element) -> Rule:
    rule = child(given, "DefaultRuleDescription")
    if rule is None:
        return Rule()
    name = child(rule, "Name")
    text = (name.text if name is not None else None) or DEFAULT_NAME
    _check_name("rule", text, MOST_NAME, _INNER_NAME)
    return read_rule(rule, text)


def _check_name(kind: str, name: str, most: int, pattern: re.Pattern[str]) -> None:
    if len(name) > most or pattern.fullmatch(name) is None:
        raise bad(
            f"{name[:300]!r} is not a name of a {kind}: letters, digits, '.', '-', '_' "
            f"and '~', {most} characters at most, the first a letter or digit."
        )


def _without_prefixes(body: bytes) -> bytes:
    return re.sub(rb"<[A-Za-z_][\w.-]*:", b"<", body)


def _name_key(entity: Queue | Topic) -> str:
    return entity.name.lower()


def _administration_error(error: RefusedError) -> AdministrationError:
    what = f"{error.description[:1].upper()}{error.description[1:]}."
    match error.condition:
        case Condition.ENTITY_ALREADY_EXISTS:
            return conflict(what)
        case Condition.NOT_FOUND:
            return missing(what)
        case _:
            return bad(what)
