"""``[hub.arm]``: approving through Azure Resource Manager, where no bridge answers."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.net.addresses import is_loopback, url_fault
from bridge.servicebus.namespace import NamespaceConfig, entity_faults
from bridge.servicebus.source import ApprovalSource

_VERSION = re.compile(r"\d{4}-\d\d-\d\d(-preview)?")


class ArmConfig(Section, frozen=True, kw_only=True):
    """``[hub.arm]``: approving through Azure, for events that no bridge answers for.

    Attributes:
        endpoint: the URL of Azure Resource Manager. Example:
            ``"https://management.azure.com"``.
        api_version: the API version of Microsoft.Maintenance. Example:
            ``"2025-11-01"``.
        credential: how the hub authenticates to Azure; "none" sends no token, and is
            allowed only for an endpoint on loopback.
        client_id: the id of a user-assigned managed identity; "" is the system-assigned
            one. Example: ``"00001111-aaaa-2222-bbbb-3333cccc4444"``.
        unknown_rules: whether an event may be approved if the rules of the bridge of
            one of its machines are not known.
        seen_within: an event can be approved this way only if Azure published it at
            most this long ago.
    """

    endpoint: str = "https://management.azure.com"
    api_version: str = "2025-11-01"
    credential: Literal["managed-identity", "default", "workload-identity", "none"] = (
        "managed-identity"
    )
    client_id: str = ""
    unknown_rules: Literal["deny", "allow"] = "deny"
    seen_within: Duration = Duration(60)

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on this machine."""
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the endpoint, and that tokens are sent, and only over TLS."""
        if what := url_fault(self.endpoint):
            yield "endpoint", what
            return
        if urlsplit(self.endpoint).scheme != "https" and not self.is_local:
            yield "endpoint", "must begin with https:// unless it is on loopback"
        if self.credential == "none" and not self.is_local:
            words = '"none" is for an endpoint on loopback alone: the simulator'
            yield "credential", words, "endpoint"
        if self.credential == "none" and self.client_id:
            yield "client_id", "is for a credential"
        if not _VERSION.fullmatch(self.api_version):
            yield "api_version", 'must be a date, such as "2025-11-01"'


# -- ``[[hub.sources]]``: the events of bridges, and the events of Azure ---------------


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
