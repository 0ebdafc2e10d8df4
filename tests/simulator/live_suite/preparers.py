"""The suite's preparers, which make what a test needs in Azure: here, in a broker.

Each test is decorated with one for each thing that it needs. The outermost starts a
broker with all of them, behind TLS, and the test talks to it as to the cloud.
"""

import base64
import functools
import inspect
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.config_fields import parse_duration
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.simulator.live_suite import place

SERVICEBUS_ENDPOINT_SUFFIX = ""
ROOT_NAME = "RootManageSharedAccessKey"

Test = Callable[..., Any]


@dataclass(slots=True)
class Wanted:
    """What a test needs so far, and what it gets for it."""

    root: AccessRule
    queues: list[QueueSettings] = field(default_factory=list)
    topics: list[TopicSettings] = field(default_factory=list)
    access: list[AccessRule] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)

    def entities(self) -> Entities:
        """Return what the broker begins with."""
        return Entities(
            queues=tuple(self.queues),
            topics=tuple(self.topics),
            access=(self.root, *self.access),
        )


class _Preparer:
    """Decorates a test with one thing that it needs."""

    def __init__(self, name_prefix: str = "", **options: Any) -> None:
        self._prefix = name_prefix
        self.options = options

    def __call__(self, test: Test) -> Test:
        inner: list[_Preparer] = getattr(test, "preparers", [])
        bare: Test = getattr(test, "bare", test)
        return _prepared(bare, [self, *inner], test)

    def prepare(self, wanted: Wanted) -> None:
        """Add what is needed, and what the test is told of it."""

    def name(self) -> str:
        """Return a new name."""
        return f"{self._prefix}{secrets.token_hex(4)}"


def _prepared(bare: Test, preparers: list[_Preparer], test: Test) -> Test:
    def start(values: Mapping[str, Any]) -> dict[str, Any]:
        wanted = Wanted(root=_rule(ROOT_NAME, [Right.MANAGE]))
        for preparer in preparers:
            preparer.prepare(wanted)
        place.HERE.begin(wanted.entities())
        return {**values, **wanted.given}

    if inspect.iscoroutinefunction(bare):

        @functools.wraps(bare)
        async def prepared(self: Any, **values: Any) -> None:
            try:
                await bare(self, **start(values))
            finally:
                place.HERE.end()

    else:

        @functools.wraps(bare)
        def prepared(self: Any, **values: Any) -> None:
            try:
                bare(self, **start(values))
            finally:
                place.HERE.end()

    prepared.__dict__.update(test.__dict__)
    prepared.preparers, prepared.bare = preparers, bare  # type: ignore[attr-defined]  # for the next one
    prepared.__signature__ = _without_rest(bare)  # type: ignore[attr-defined]  # pytest reads it
    return prepared


def _without_rest(test: Test) -> inspect.Signature:
    """Return what pytest is to give: the suite's parameters, and no ``**kwargs``."""
    kept = [
        each.replace(default=inspect.Parameter.empty)
        for each in inspect.signature(test).parameters.values()
        if each.name in {"self", "test_class", "uamqp_transport", "socket_transport"}
    ]
    return inspect.Signature(kept)


def _rule(name: str, rights: list[Right]) -> AccessRule:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    return AccessRule(name=name, keys=(key,), rights=frozenset(rights))


def _connection_string(rule: AccessRule, entity: str = "") -> str:
    path = f";EntityPath={entity}" if entity else ""
    return (
        f"Endpoint=sb://{place.HOST}/;SharedAccessKeyName={rule.name};"
        f"SharedAccessKey={rule.keys[0]}{path}"
    )


def _rights(named: list[str] | None) -> list[Right]:
    return list(Right) if named is None else [Right(each) for each in named]


class ServiceBusResourceGroupPreparer(_Preparer):
    """Needs nothing here."""


class ServiceBusNamespacePreparer(_Preparer):
    """The broker, and its root key."""

    def prepare(self, wanted: Wanted) -> None:
        parameter = self.options.get("parameter_name", "servicebus_namespace")
        place.HERE.credential = (ROOT_NAME, wanted.root.keys[0])
        wanted.given |= {
            parameter: SimpleNamespace(name=place.HOST),
            f"{parameter}_connection_string": _connection_string(wanted.root),
            f"{parameter}_key_name": ROOT_NAME,
            f"{parameter}_primary_key": wanted.root.keys[0],
        }


class ServiceBusQueuePreparer(_Preparer):
    """A queue, with the options that the suite uses."""

    def prepare(self, wanted: Wanted) -> None:
        given = self.options
        lock = parse_duration(given.get("lock_duration") or "PT30S")
        queue = QueueSettings(
            name=self.name(),
            lock_duration=lock or timedelta(seconds=30),
            requires_session=bool(given.get("requires_session")),
            is_partitioned=bool(given.get("enable_partitioning")),
            dead_letter_expired=bool(given.get("dead_lettering_on_message_expiration")),
            duplicate_window=(
                timedelta(minutes=10)
                if given.get("requires_duplicate_detection")
                else None
            ),
        )
        wanted.queues.append(queue)
        parameter = given.get("parameter_name", "servicebus_queue")
        wanted.given[parameter] = SimpleNamespace(name=queue.name)


class ServiceBusTopicPreparer(_Preparer):
    """A topic."""

    def prepare(self, wanted: Wanted) -> None:
        topic = TopicSettings(name=self.name())
        wanted.topics.append(topic)
        parameter = self.options.get("parameter_name", "servicebus_topic")
        wanted.given[parameter] = SimpleNamespace(name=topic.name)


class ServiceBusSubscriptionPreparer(_Preparer):
    """A subscription of the topic before it."""

    def prepare(self, wanted: Wanted) -> None:
        given = self.options
        lock = parse_duration(given.get("lock_duration") or "PT60S")
        own = SubscriptionSettings(
            name=self.name(),
            lock_duration=lock or timedelta(minutes=1),
            requires_session=bool(given.get("requires_session")),
        )
        topic = wanted.topics.pop()
        both = (*topic.subscriptions, own)
        wanted.topics.append(replace(topic, subscriptions=both))
        parameter = given.get("parameter_name", "servicebus_subscription")
        wanted.given[parameter] = SimpleNamespace(name=own.name)


class ServiceBusNamespaceAuthorizationRulePreparer(_Preparer):
    """A rule of the namespace."""

    def prepare(self, wanted: Wanted) -> None:
        rule = _rule(self.name(), _rights(self.options.get("access_rights")))
        wanted.access.append(rule)
        wanted.given["servicebus_authorization_rule"] = SimpleNamespace(name=rule.name)
        wanted.given["servicebus_authorization_rule_connection_string"] = (
            _connection_string(rule)
        )


class ServiceBusQueueAuthorizationRulePreparer(_Preparer):
    """A rule of the queue before it."""

    def prepare(self, wanted: Wanted) -> None:
        rule = _rule(self.name(), _rights(self.options.get("access_rights")))
        queue = wanted.queues.pop()
        wanted.queues.append(replace(queue, access=(rule,)))
        name = "servicebus_queue_authorization_rule"
        wanted.given[name] = SimpleNamespace(name=rule.name)
        wanted.given[f"{name}_connection_string"] = _connection_string(rule, queue.name)


CachedServiceBusResourceGroupPreparer = ServiceBusResourceGroupPreparer
CachedServiceBusNamespacePreparer = ServiceBusNamespacePreparer
CachedServiceBusQueuePreparer = ServiceBusQueuePreparer
CachedServiceBusTopicPreparer = ServiceBusTopicPreparer
CachedServiceBusSubscriptionPreparer = ServiceBusSubscriptionPreparer
