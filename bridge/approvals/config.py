"""The section ``[approvals]``: where approvals come from, and what is allowed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import msgspec

from bridge.approvals.rules import ReplyRules, Rule
from bridge.events.cloudevent import hash32
from bridge.foundation.errors import ConfigError
from bridge.foundation.values import Duration, PublicKeys, placeholder_faults
from bridge.servicebus.namespace import (
    UNKNOWN_HOST,
    Entity,
    NamespaceConfig,
    entity_faults,
    entity_in,
)
from bridge.sinks.base import ApprovalAddress

_MOST_DELIVERIES = 2000  # the highest MaxDeliveryCount of Service Bus


@contextmanager
def connection_faults(place: str) -> Iterator[None]:
    """Turn the ValueError of an unreadable connection string into a ConfigError.

    Raises:
        ConfigError: names the key of the connection string.
    """
    try:
        yield
    except ValueError as error:
        raise ConfigError([f"{place}.connection_string: {error}"]) from error


class ApprovalsConfig(NamespaceConfig, frozen=True, kw_only=True):
    """``[approvals]``: where approvals come from, and what is allowed.

    With rules only, and no queue or topic, no message is received: the bridge approves
    by its rules.

    Attributes:
        queue: the queue that approvals come from. Use either this key, or topic and
            subscription. Example: ``"vm-approvals"``.
        topic: the topic that approvals come from, with subscription. Example:
            ``"vm-approvals"``.
        subscription: the subscription of the topic. Use one for each VM if a VM must
            not read messages for another VM. Example: ``"web-1"``.
        sessions: the sessions to accept. [] is for an entity without sessions; then all
            bridges on it must see the same document. Example:
            ``["{vm_id}", "group-7"]``.
        reply_to: patterns for the entities to which replies may be sent; [] means no
            replies. Example: ``["replies"]``.
        on_unknown: what to do with an approval of an event that is not known here. Use
            "abandon" if another VM on the same queue may know the event.
        max_delivery_count: the MaxDeliveryCount of the entity: how often it delivers a
            message. On the last delivery, a message about an unknown event is no longer
            abandoned. Example: ``10``.
        unknown_grace: how long to wait for an unknown event, since IMDS may show it to
            another VM first.
        allow_event_types: the EventTypes that may be approved; [] is all. Example:
            ``["Freeze", "Reboot"]``.
        max_age: an approval that has waited longer than this in the queue is refused as
            expired.
        signed_by: the public keys of those whose approvals count, as JWKS or PEM; [] =
            everybody who may send to the entity can approve. Example:
            ``["file:/etc/sebridge/approvers.jwks"]``.
        rules: the rules, in order: the first rule that fits the event decides. Example:
            ``[{"resources": ["web-*"], "max_duration": "30s", "action": "allow"}]``.
    """

    queue: str = ""
    topic: str = ""
    subscription: str = ""
    sessions: tuple[str, ...] = ()
    reply_to: tuple[str, ...] = ()
    on_unknown: Literal["dead-letter", "abandon"] = "dead-letter"
    max_delivery_count: int = 10
    unknown_grace: Duration = Duration(15)
    allow_event_types: tuple[str, ...] = ()
    max_age: Duration = Duration(86400)
    signed_by: tuple[PublicKeys, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def has_entity(self) -> bool:
        """Whether messages are received; if not, there are only rules."""
        own = (self.queue, self.topic, self.subscription, self.sessions, self.reply_to)
        namespace = (self.namespace, self.connection_string, self.http_proxy)
        more = (self.client_id, self.ca_file)
        return not self.rules or any((*own, *namespace, *more))

    @property
    def target(self) -> Entity:
        """The queue or topic that approvals are sent to, for comparisons."""
        return entity_in(self, self.queue, self.topic)

    @property
    def entities(self) -> Mapping[str, str]:
        """The names of the entity by their keys; see ``SinkConfig.entities``."""
        keys = ("queue", "topic", "subscription")
        return {key: getattr(self, key) for key in keys}

    @property
    def entity_path(self) -> str:
        """The name of the approval entity in ids and status; "" without an entity."""
        if not self.has_entity:
            return ""
        return self.queue or f"{self.topic}/Subscriptions/{self.subscription}"

    def address(self, expand: Callable[[str], str]) -> ApprovalAddress:
        """Return where to send an approval of an event.

        A session that several VMs accept is preferred. With duplicate detection, one
        message is enough for all of them, and it should not depend on a VM that may go
        down.

        Args:
            expand: fills in the placeholders of a text.

        Raises:
            ConfigError: the connection string cannot be read any more.
            ValueError: a placeholder has no value on this machine.
        """
        shared = [session for session in self.sessions if "{vm_" not in session]
        session = next(iter([*shared, *self.sessions]), None)
        with connection_faults("approvals"):
            host = self.host
        return ApprovalAddress(
            namespace=host,
            entity=self.queue or self.topic,
            session=None if session is None else expand(session),
        )

    def reply_rules(self, targets: Iterable[Entity | None]) -> ReplyRules:
        """Return the rules for reply entities; bridge and approver use the same rules.

        Args:
            targets: the entities that sinks send to. No reply is sent to those in this
                namespace or in an unknown namespace.

        Raises:
            ValueError: the connection string cannot be read any more.
        """
        others = [t.name for t in targets if t and t.host in {self.host, UNKNOWN_HOST}]
        return ReplyRules.of(self.reply_to, [self.target.name, *others])

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the namespace, that there is one entity, and the placeholders."""
        if self.has_entity:
            yield from super().faults()
            yield from self._entity_faults()
        if not self.max_age:
            yield "max_age", "must be more than 0, or every request is too old"
        if not 0 < self.max_delivery_count <= _MOST_DELIVERIES:
            yield "max_delivery_count", f"must be 1 to {_MOST_DELIVERIES}"
        yield from self._session_faults()
        yield from self._rule_faults()

    def _entity_faults(self) -> Iterator[tuple[str, str]]:
        yield from entity_faults(self, self.queue, self.topic)
        if bool(self.topic) != bool(self.subscription):
            yield "subscription", "topic and subscription must be given together"

    def _session_faults(self) -> Iterator[tuple[str, str]]:
        for index, session in enumerate(self.sessions):
            place = f"sessions[{index}]"
            if not session:
                yield place, "must not be empty"
            for what in placeholder_faults(session):
                yield place, what

    def _rule_faults(self) -> Iterator[tuple[str, str]]:
        names = [rule.name for rule in self.rules]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                yield f"rules[{index}].name", f"{name!r} is taken by another rule"


# -- Describes where this bridge receives approvals, and its rules. Pure ---------------
#
# ``bridge.started`` has the description in ``data.approvals``, heartbeats have only its
# digest. So a remote approver (the hub) knows which approvals this bridge would refuse,
# and notices when the rules change.


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
    found = msgspec.json.decode(msgspec.json.encode(rule, enc_hook=float))
    return {
        key.encode_name: found[key.encode_name]
        for key in msgspec.structs.fields(Rule)
        if key.required or getattr(rule, key.name) != key.default
    }
