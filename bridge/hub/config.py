"""``[hub]``: the address, the sources, the store, and how long data is kept."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Address, Duration, Secret
from bridge.hub.arm_config import ArmConfig, AzureSource, BridgesSource, SourceConfig
from bridge.hub.pins import listed
from bridge.net.addresses import (
    ListenAddress,
    is_loopback,
    listen_addresses,
    listen_faults,
    url_fault,
)
from bridge.signing.approval import fault_of, signers

# -- ``[hub.access]``: who may look, who may decide, and how many people must agree ----


LOCAL = "local"  # the only person in loopback mode
ANYBODY = "*"
_ROLE = "role:"
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_MOST_PERSONS = 10
_LONGEST_ROLE = 86400.0  # seconds after a vote: then its role may be another person's
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1"))


class AccessRule(Section, frozen=True, kw_only=True):
    """One of ``[[hub.access.rules]]``. The first rule that matches an event applies.

    Attributes:
        event_types: the event types that the rule matches; [] is all. An event of an
            undocumented type needs the largest persons of all rules. Example:
            ``["Redeploy"]``.
        resource_groups: the resource groups that the rule matches: all machines of the
            event must be in one of them; [] is all. Example: ``["web"]``.
        persons: how many different people must approve.
    """

    event_types: tuple[str, ...] = ()
    resource_groups: tuple[str, ...] = ()
    persons: int = 1

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the number of people."""
        if not 1 <= self.persons <= _MOST_PERSONS:
            yield "persons", f"must be 1 to {_MOST_PERSONS}"


class AccessConfig(Section, frozen=True, kw_only=True):
    """``[hub.access]``: who may look, and who may decide.

    Attributes:
        mode: how people are identified: in mode "loopback" everybody on this machine is
            "local"; "easy-auth" reads X-MS-CLIENT-PRINCIPAL; "header" reads
            user_header, which a proxy sets.
        user_header: the header with the person's name, in mode "header". Example:
            ``"X-Forwarded-Email"``.
        trusted_proxies: the addresses or networks of the proxies whose identity headers
            are accepted. Example: ``["10.0.0.0/24"]``.
        viewers: who may look: "*" is everybody who is signed in. Example:
            ``["*"]``.
        approvers: who may decide: "local", "role:NAME", tenant id/object id, or the
            value of user_header; [] is nobody. Example: ``["role:operators"]``.
        rules: how many people must approve an event; if no rule matches, one person.
            Example: ``[{"event_types": ["Redeploy"], "persons": 2}]``.
    """

    mode: Literal["loopback", "easy-auth", "header"] = "loopback"
    user_header: str = "X-Forwarded-Email"
    trusted_proxies: tuple[str, ...] = ()
    viewers: tuple[str, ...] = (ANYBODY,)
    approvers: tuple[str, ...] = ()
    rules: tuple[AccessRule, ...] = ()

    def entry_of(self, who: str, roles: Sequence[str]) -> str:
        """Return the entry of ``approvers`` that names a person; "" = none does.

        An entry that names the person comes before one that names a role.
        """
        named = self.named_approvers
        mine = (who, *(f"{_ROLE}{role}" for role in roles))
        return next((one for one in mine if one in named), "")

    def lapse(self, entry: str, age: float) -> str:
        """Return why a vote does not count any more; "" = it counts.

        Args:
            entry: the entry of ``approvers`` that it was counted by.
            age: how many seconds ago the person voted. Their roles are those of then.
        """
        if entry not in self.named_approvers:
            return "the person is no longer an approver"
        if entry.startswith(_ROLE) and age > _LONGEST_ROLE:
            return "the role was known over 24 h ago: vote again"
        return ""

    @property
    def named_approvers(self) -> frozenset[str]:
        """The entries of ``approvers`` in the form that is compared."""
        return frozenset(as_compared(self.approvers))

    @property
    def loopback_proxies(self) -> list[str]:
        """The trusted proxies that stand for every program on this machine."""
        found = {text: network(text) for text in self.trusted_proxies}
        return [
            text
            for text, one in found.items()
            if one is not None and any(_overlap(one, near) for near in _LOOPBACK)
        ]

    @property
    def most_persons(self) -> int:
        """The largest number of people that a rule requires."""
        return max((rule.persons for rule in self.rules), default=1)

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the names of people, the proxies, and the numbers of the rules."""
        yield from self._proxy_faults()
        if not _HEADER.fullmatch(self.user_header):
            yield "user_header", 'must be the name of a header: "X-Forwarded-Email"'
        for key in ("viewers", "approvers"):
            for index, who in enumerate(getattr(self, key)):
                if what := self._person_fault(key, who):
                    yield f"{key}[{index}]", what, "mode"
        for index, rule in enumerate(self.rules):
            if self.mode == "loopback" and rule.persons > 1:
                words = "loopback mode has only one person: it must be 1"
                yield f"rules[{index}].persons", words, "mode"

    def _proxy_faults(self) -> Iterator[tuple[str, ...]]:
        for index, text in enumerate(self.trusted_proxies):
            if network(text) is None:
                words = 'must be an address or a network, such as "10.0.0.0/24"'
                yield f"trusted_proxies[{index}]", words
        if self.mode == "loopback" and self.trusted_proxies:
            yield (
                "trusted_proxies",
                "is not for loopback mode, which has no proxy",
                "mode",
            )
        if self.mode != "loopback" and not self.trusted_proxies:
            words = f'is empty: mode "{self.mode}" needs the addresses of its proxy'
            yield "trusted_proxies", words, "mode"

    def _person_fault(self, key: str, who: str) -> str | None:
        """Return why an entry can never match a person; None = it can."""
        if not who.strip() or who == _ROLE:
            return "names nobody"
        if who == ANYBODY:
            return None if key == "viewers" else "must name people: anybody is too many"
        if (who == LOCAL) != (self.mode == "loopback"):
            return f'"local" is the person of loopback mode only; this is {self.mode}'
        if who.startswith(_ROLE) and self.mode == "header":
            return 'mode "header" has no roles'
        return None


def network(text: str) -> Network | None:
    """Parse an address or network; None = it is neither."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def as_compared(named: Sequence[str]) -> list[str]:
    """Return entries in the form that is compared: ids of Entra in lower case."""
    return [
        one.lower() if "/" in one and not one.startswith(_ROLE) else one
        for one in named
    ]


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def is_named(who: str, roles: Sequence[str], named: Sequence[str]) -> bool:
    """Whether a list of names has a person, one of their roles, or "*"."""
    mine = {who, *(f"{_ROLE}{role}" for role in roles)}
    return ANYBODY in named or not mine.isdisjoint(named)


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
