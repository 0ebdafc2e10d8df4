"""``[hub]``: the address, the sources, the store, and how long data is kept."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Duration, Secret
from bridge.health.config import is_loopback
from bridge.hub.access_config import AccessConfig
from bridge.hub.arm_config import ArmConfig
from bridge.hub.source_config import AzureSource, BridgesSource, SourceConfig
from bridge.net.addresses import is_listen_address, split_address, url_fault

_STORES = '"sqlite:/path/of/hub.db" or "postgresql://user@host/database"'
_POSTGRES = ("postgresql", "postgres")
_SQLITE = "sqlite:"


class HubConfig(Section, frozen=True, kw_only=True):
    """``[hub]``: the hub for a fleet of bridges.

    Attributes:
        listen: the address and port of the page and of the API. Example:
            ``"127.0.0.1:9470"``.
        public_url: how people reach the hub: the start of every link, and the only
            Origin whose browsers may decide. Example:
            ``"https://maintenance.contoso.com"``.
        store: the database: an SQLite file for one hub, or a PostgreSQL database that
            several hubs share. Example: ``"sqlite:/var/lib/sebridge-hub/hub.db"``.
        retention: how long events are kept after their end, and bridges that are gone
            after their last message; open events never expire.
        audit_retention: how long decisions are kept.
        forget_after: a bridge that was silent for this long counts as gone.
        token: the bearer token that requests for /metrics must have; left out: /metrics
            answers in loopback mode only.
        sources: the queues and subscriptions that the hub reads. Example: ``[{"name":
            "bridges", "type": "bridges", "connection_string": "env:BUS", "topic":
            "scheduled-events", "subscription": "hub"}]``.
        arm: approving through Azure Resource Manager, where no bridge answers; left
            out: off. Example: ``{"credential": "managed-identity"}``.
        access: who may look, and who may decide. Example: ``{"mode": "loopback"}``.
    """

    listen: str = "127.0.0.1:9470"
    public_url: str = ""
    store: Address = Address("sqlite:/var/lib/sebridge-hub/hub.db", {})
    retention: Duration = Duration(90 * 86400)
    audit_retention: Duration = Duration(2 * 365 * 86400)
    forget_after: Duration = Duration(7 * 86400)
    token: Secret | None = None
    sources: tuple[SourceConfig, ...] = ()
    arm: ArmConfig | None = None
    access: AccessConfig = AccessConfig()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return split_address(self.listen)

    @property
    def bridge_sources(self) -> tuple[BridgesSource, ...]:
        """The sources with messages of bridges."""
        return tuple(one for one in self.sources if isinstance(one, BridgesSource))

    @property
    def azure_sources(self) -> tuple[AzureSource, ...]:
        """The sources with messages of Azure (Event Grid)."""
        return tuple(one for one in self.sources if isinstance(one, AzureSource))

    @property
    def sqlite_file(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        text = self.store.reveal()
        is_file = text.startswith(_SQLITE)
        return Path(text.removeprefix(_SQLITE)) if is_file else None

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the addresses, the store, and that durations are more than 0."""
        if not is_listen_address(self.listen):
            yield "listen", 'must be host:port, such as "127.0.0.1:9470"'
        elif self.access.mode == "loopback" and not is_loopback(
            self.listen.rpartition(":")[0]
        ):
            words = 'must be on loopback, since access.mode is "loopback"'
            yield "listen", words, "access"
        if self.public_url and (what := _origin_fault(self.public_url)):
            yield "public_url", what
        if what := _store_fault(self.store.reveal()):
            yield "store", what
        for key in ("retention", "audit_retention", "forget_after"):
            if not getattr(self, key):
                yield key, "must be more than 0"

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
