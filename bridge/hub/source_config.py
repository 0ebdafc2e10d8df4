"""``[[hub.sources]]``: the events of bridges, and the events of Azure."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.servicebus.namespace import NamespaceConfig, entity_faults
from bridge.servicebus.source import ApprovalSource

_AT_ONCE = 200  # messages in one transaction


class ApprovalTargets(Section, frozen=True, kw_only=True):
    """``[hub.sources.approvals]``: where approvals may be sent.

    Attributes:
        entities: patterns for the queues and topics of this namespace that the hub may
            send approvals to. Example: ``["vm-approvals*"]``.
    """

    entities: tuple[str, ...]

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check that there is at least one pattern, and that none is empty."""
        if not self.entities:
            yield "entities", 'names nothing: such as ["vm-approvals*"]'
        for index, glob in enumerate(self.entities):
            if not glob.strip():
                yield f"entities[{index}]", "must not be empty"

    def allows(self, entity: str) -> bool:
        """Whether approvals may be sent to an entity; case does not matter."""
        name = entity.strip("/").lower()
        return any(fnmatchcase(name, glob.lower()) for glob in self.entities)


class SourceConfig(NamespaceConfig, frozen=True, kw_only=True):
    """One of ``[[hub.sources]]``.

    Attributes:
        name: the name of the source in logs, metrics and rows. Example:
            ``"bridges"``.
        type: who sends its messages: ``"bridges"`` or ``"azure"``.
        queue: the queue to read. Example: ``"azure-events"``.
        topic: the topic to read, together with subscription. Example:
            ``"scheduled-events"``.
        subscription: a subscription of the topic that only hubs read. Example:
            ``"hub"``.
    """

    name: str
    type: str
    queue: str = ""
    topic: str = ""
    subscription: str = ""

    @property
    def origin(self) -> ApprovalSource:
        """The queue or subscription, as the receiver needs it."""
        return ApprovalSource(
            queue=self.queue,
            topic=self.topic,
            subscription=self.subscription,
            at_once=_AT_ONCE,
        )

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the namespace, and that exactly one entity is named."""
        yield from super().faults()
        yield from entity_faults(self, self.queue, self.topic)
        if bool(self.topic) != bool(self.subscription):
            yield "subscription", "topic and subscription must be given together"
        for key in ("queue", "topic", "subscription"):
            if "{" in getattr(self, key):
                yield key, "holds a placeholder, and the hub fills in none"


class BridgesSource(SourceConfig, frozen=True, kw_only=True):
    """The CloudEvents of bridges, from a subscription or queue that only hubs read.

    Attributes:
        approvals: where approvals may be sent; left out: the hub only shows events.
            Example: ``{"entities": ["vm-approvals*"]}``.
    """

    approvals: ApprovalTargets | None = None


class AzureSource(SourceConfig, frozen=True, kw_only=True):
    """Event Grid's scheduled events, from a queue or a subscription.

    Attributes:
        missing_after: an event of Azure counts as unreported, if no bridge has reported
            it within this time.
        expect: patterns for the resource ids whose events a bridge should report; []
            means the machines of the bridges that the hub knows. Example:
            ``["/subscriptions/*/resourcegroups/web/*"]``.
    """

    missing_after: Duration = Duration(60)
    expect: tuple[str, ...] = ()

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the entity and the patterns."""
        yield from super().faults()
        for index, glob in enumerate(self.expect):
            if not glob.startswith(("/", "*")):
                words = 'must be a pattern of resource ids: "/subscriptions/…" or "*"'
                yield f"expect[{index}]", words


SOURCE_TYPES: dict[str, type[SourceConfig]] = {
    "bridges": BridgesSource,
    "azure": AzureSource,
}
