"""``[[hub.sources]]``: the topics of bridges, and Azure's own events."""

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
        """Check that at least one entity is named, and none is empty."""
        if not self.entities:
            yield "entities", 'names nothing: such as ["vm-approvals*"]'
        for index, glob in enumerate(self.entities):
            if not glob.strip():
                yield f"entities[{index}]", "must not be empty"

    def allows(self, entity: str) -> bool:
        """Whether approvals may be sent to an entity; names have no case."""
        name = entity.strip("/").lower()
        return any(fnmatchcase(name, glob.lower()) for glob in self.entities)


class SourceConfig(NamespaceConfig, frozen=True, kw_only=True):
    """One of ``[[hub.sources]]``.

    Attributes:
        name: how the source is called in logs, metrics and rows. Example:
            ``"bridges"``.
        type: who sends its messages: ``"bridges"`` or ``"azure"``.
        queue: the queue that is read. Example: ``"azure-events"``.
        topic: the topic that is read, with subscription. Example:
            ``"scheduled-events"``.
        subscription: of the topic: one of the hub's own. Example: ``"hub"``.
    """

    name: str
    type: str
    queue: str = ""
    topic: str = ""
    subscription: str = ""

    @property
    def origin(self) -> ApprovalSource:
        """What the receiver is to receive from."""
        return ApprovalSource(
            queue=self.queue,
            topic=self.topic,
            subscription=self.subscription,
            at_once=_AT_ONCE,
        )

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the namespace, and that there is one entity."""
        yield from super().faults()
        yield from entity_faults(self, self.queue, self.topic)
        if bool(self.topic) != bool(self.subscription):
            yield "subscription", "topic and subscription must be given together"
        for key in ("queue", "topic", "subscription"):
            if "{" in getattr(self, key):
                yield key, "holds a placeholder, and the hub fills in none"


class BridgesSource(SourceConfig, frozen=True, kw_only=True):
    """The CloudEvents of bridges, from a subscription or a queue of the hub's own.

    Attributes:
        approvals: where approvals may be sent; left out: the hub only shows. Example:
            ``{"entities": ["vm-approvals*"]}``.
    """

    approvals: ApprovalTargets | None = None


class AzureSource(SourceConfig, frozen=True, kw_only=True):
    """Event Grid's scheduled events, from a queue or a subscription.

    Attributes:
        missing_after: so long a bridge may take until an event of Azure's counts as
            unreported.
        expect: patterns for the resource ids whose events a bridge should report; [] is
            the machines of the bridges that the hub knows. Example:
            ``["/subscriptions/*/resourcegroups/web/*"]``.
    """

    missing_after: Duration = Duration(60)
    expect: tuple[str, ...] = ()

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the patterns too."""
        yield from super().faults()
        for index, glob in enumerate(self.expect):
            if not glob.startswith(("/", "*")):
                words = 'must be a pattern of resource ids: "/subscriptions/…" or "*"'
                yield f"expect[{index}]", words


SOURCE_TYPES: dict[str, type[SourceConfig]] = {
    "bridges": BridgesSource,
    "azure": AzureSource,
}
