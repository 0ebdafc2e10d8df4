"""``[hub]``: the sections of ``hub.toml`` that only a hub has; see also ``access``."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Duration, Secret
from bridge.hub.access import AccessConfig
from bridge.hub.pins import listed
from bridge.net.addresses import (
    ListenAddress,
    is_loopback,
    listen_addresses,
    listen_faults,
    url_fault,
)
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig, entity_faults
from bridge.signing.approval import fault_of, signers

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


class ReportConfig(Section, frozen=True, kw_only=True):
    """``[hub.report]``: the digest of a week, for all sinks of the hub.

    Attributes:
        weekly: the day on which it is sent, at 06:00 UTC; "" is never. Example:
            ``"monday"``.
    """

    weekly: Literal[
        "",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ] = ""


# -- ``[hub]``: the address, the sources, the store, and how long data is kept ---------


_STORES = '"sqlite:/path/of/hub.db" or "postgresql://user@host/database"'
_POSTGRES = ("postgresql", "postgres")
_SQLITE = "sqlite:"
_VERIFIED = re.compile(r"(^|&)sslmode=verify-(ca|full)(&|$)")
_PUBLIC = "database.windows.net"
_CLOUDS = {
    ".database.usgovcloudapi.net": "database.usgovcloudapi.net",
    ".database.chinacloudapi.cn": "database.chinacloudapi.cn",
}


class HubConfig(Section, frozen=True, kw_only=True):
    """``[hub]``: the hub for a fleet of bridges.

    Attributes:
        listen: the address and port of the page and of the API, or a list of them.
            Example: ``"127.0.0.1:9470"``.
        public_url: how people reach the hub: the start of every link, and the only
            Origin whose browsers may decide. Example:
            ``"https://maintenance.contoso.com"``.
        store: the database: an SQLite file for one hub, or a PostgreSQL database that
            several hubs share. Example: ``"sqlite:/var/lib/sebridge-hub/hub.db"``.
        store_credential: how the hub signs in to PostgreSQL with a token of Entra ID;
            "none" is with the password in store.
        store_client_id: the id of the user-assigned managed identity for it; "" is the
            system-assigned one. Example: ``"00001111-aaaa-2222-bbbb-3333cccc4444"``.
        retention: how long events are kept after their end, and bridges that are gone
            after their last message; open events never expire.
        audit_retention: how long decisions are kept.
        forget_after: a bridge that was silent for this long counts as gone.
        token: the bearer token that requests for /metrics must have; left out: /metrics
            answers in loopback mode only.
        sources: the queues and subscriptions that the hub reads. Example: ``[{"name":
            "bridges", "type": "bridges", "connection_string": "env:BUS", "topic":
            "scheduled-events", "subscription": "hub"}]``.
        sign_key: the private key that signs approvals, as PEM or JWK; two in one file
            while one is replaced. All hubs have the same. Left out: they are not
            signed. Example: ``"file:/etc/sebridge-hub/sign.pem"``.
        keys: the keys of bridges, each pinned to its machine: a JWKS in which each key
            has ``vmId`` and ``resourceId``, and may have ``from`` and ``until``. It is
            read again when it changes. All hubs have the same. Example:
            ``"file:/etc/sebridge-hub/bridges.jwks"``.
        require_signed: globs of resource ids: what these machines say must be signed,
            also if they have no key yet. Example: ``["/subscriptions/*/prod/*"]``.
        arm: approving through Azure Resource Manager, where no bridge answers; left
            out: off. Example: ``{"credential": "managed-identity"}``.
        access: who may look, and who may decide. Example: ``{"mode": "loopback"}``.
        report: the digest of a week. Example: ``{"weekly": "monday"}``.
    """

    listen: str | tuple[str, ...] = "127.0.0.1:9470"
    public_url: str = ""
    store: Address = Address("sqlite:/var/lib/sebridge-hub/hub.db", {})
    store_credential: Literal[
        "none", "managed-identity", "default", "workload-identity"
    ] = "none"
    store_client_id: str = ""
    retention: Duration = Duration(90 * 86400)
    audit_retention: Duration = Duration(2 * 365 * 86400)
    forget_after: Duration = Duration(7 * 86400)
    token: Secret | None = None
    sources: tuple[SourceConfig, ...] = ()
    sign_key: Secret | None = None
    keys: Secret | None = None
    require_signed: tuple[str, ...] = ()
    arm: ArmConfig | None = None
    access: AccessConfig = AccessConfig()
    report: ReportConfig = ReportConfig()

    @property
    def store_scope(self) -> str:
        """The scope of a token for PostgreSQL, in the cloud of its host."""
        host = (urlsplit(self.store.reveal()).hostname or "").lower()
        cloud = next((to for end, to in _CLOUDS.items() if host.endswith(end)), _PUBLIC)
        return f"https://ossrdbms-aad.{cloud}/.default"

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """The addresses to listen on."""
        return listen_addresses(self.listen)

    @property
    def bridge_sources(self) -> tuple[BridgesSource, ...]:
        """The sources with messages of bridges."""
        return tuple(one for one in self.sources if isinstance(one, BridgesSource))

    @property
    def sqlite_file(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        text = self.store.reveal()
        is_file = text.startswith(_SQLITE)
        return Path(text.removeprefix(_SQLITE)) if is_file else None

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the addresses, the store, and that durations are more than 0."""
        yield from listen_faults(self.listen, '"127.0.0.1:9470"')
        if self.access.mode == "loopback" and not all(
            is_loopback(one.host) for one in self.addresses
        ):
            words = 'must be on loopback, since access.mode is "loopback"'
            yield "listen", words, "access"
        if self.public_url and (what := _origin_fault(self.public_url)):
            yield "public_url", what
        if what := _store_fault(self.store.reveal()):
            yield "store", what
        if self.sign_key is not None and (
            what := fault_of(partial(signers, self.sign_key))
        ):
            yield "sign_key", what
        if (keys := self.keys) is not None and (
            what := fault_of(lambda: listed(keys.reveal()))
        ):
            yield "keys", what
        yield from self._credential_faults()
        for key in ("retention", "audit_retention", "forget_after"):
            if not getattr(self, key):
                yield key, "must be more than 0"

    def _credential_faults(self) -> Iterator[tuple[str, ...]]:
        if self.store_credential == "none":
            if self.store_client_id:
                yield "store_client_id", "is for a store_credential"
            return
        try:
            parts = urlsplit(self.store.reveal())
        except ValueError:
            return  # told as a fault of store
        if parts.scheme not in _POSTGRES:
            yield "store_credential", "is for PostgreSQL alone", "store"
        elif parts.password:
            yield "store_credential", "needs a store without a password", "store"
        elif not (is_loopback(parts.hostname or "") or _VERIFIED.search(parts.query)):
            words = "needs sslmode=verify-full in store: a token opens the database"
            yield "store_credential", words, "store"

    def warnings(self) -> Iterator[str]:
        """Yield settings that are allowed, but probably a mistake."""
        can_approve = self.arm is not None or any(
            one.approvals is not None for one in self.bridge_sources
        )
        if can_approve and not self.access.approvers:
            yield "hub.access.approvers: is empty, so nobody can decide on an event"
        if self.access.approvers and not can_approve:
            yield (
                "hub.access.approvers: nothing can be approved: no source has "
                "approvals, and [hub.arm] is missing"
            )
        for proxy in self.access.loopback_proxies:
            yield (
                f"hub.access.trusted_proxies: {proxy} is this machine, so every "
                "program and every user on it can act as anybody; better a hub and a "
                "proxy on a network of their own (two containers)"
            )
        if self.store.is_literal and urlsplit(self.store.reveal()).password:
            yield "hub.store: a literal secret; better env:NAME or file:PATH"


def _origin_fault(url: str) -> str | None:
    """Return why a URL is not an Origin as browsers send it; None = it is one."""
    wanted = 'a URL without a path, such as "https://maintenance.contoso.com"'
    if what := url_fault(url, wanted):
        return what
    parts = urlsplit(url)
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return f"must be {wanted}"
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        return "must begin with https:// unless it is on loopback"
    return None


def _store_fault(text: str) -> str | None:
    """Return why a text is no address of a store; None = it is one.

    The fault does not repeat the text, which may contain a password.
    """
    if text.startswith(_SQLITE):
        path = text.removeprefix(_SQLITE)
        is_path = bool(path) and not path.startswith("//") and "\0" not in path
        return None if is_path else f"must be {_STORES}"
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in _POSTGRES and len(parts.path) > 1
        parts.port  # noqa: B018  raises ValueError if the port is invalid
    except ValueError:
        is_whole = False
    return None if is_whole else f"must be {_STORES}"
