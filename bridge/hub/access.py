"""Finds out who sends a request, by ``[hub.access]``, which says what they may. Pure.

    loopback    everybody is "local"; Host must be loopback, without headers of a proxy
    easy-auth   X-MS-CLIENT-PRINCIPAL, from a trusted proxy
    header      the user header, from a trusted proxy

An identity header counts as forged if it comes from another peer, occurs twice, or has
an underscore (some servers take it for a hyphen): the answer is 400. A request without
an identity gets 401.

Source: learn.microsoft.com/azure/app-service/configure-authentication-user-identities
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import clean
from bridge.events.vocabulary import EVENT_TYPES
from bridge.foundation.sections import Section
from bridge.hub.facts import table, text
from bridge.net.addresses import is_loopback

# -- ``[hub.access]``: who may look, who may decide, and how many people must agree ----


LOCAL = "local"  # the only person in loopback mode
ANYBODY = "*"
_ROLE = "role:"
_TYPES = {name.casefold() for name in EVENT_TYPES}
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_MOST_PERSONS = 10
_LONGEST_ROLE = 86400.0  # seconds after a vote: then its role may be another person's
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1"))


def known_type(event_type: str) -> str:
    """Return an EventType in small letters; "" = it is not documented."""
    kind = event_type.casefold()
    return kind if kind in _TYPES else ""


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

    def fits(self, kind: str, groups: set[str]) -> bool:
        """Whether it is for an EventType, in small letters, and for these groups."""
        kinds = {name.casefold() for name in self.event_types}
        places = {name.lower() for name in self.resource_groups}
        return (not kinds or kind in kinds) and (not places or groups <= places)


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

    def wanted(self, event_type: str, groups: set[str]) -> tuple[int, str]:
        """Return how many people must approve, and by which rule.

        If the type is not documented, or a resource group is not known, the largest
        number of all rules is required.

        Args:
            event_type: the EventType, as received.
            groups: the resource groups of its machines; "" stands for an unknown one.
        """
        kind = known_type(event_type)
        by_group = any(rule.resource_groups for rule in self.rules)
        if not kind or (by_group and (not groups or "" in groups)):
            return self.most_persons, "the largest number of all rules"
        for index, rule in enumerate(self.rules):
            if rule.fits(kind, groups):
                return rule.persons, f"rules[{index}]"
        return 1, "no rule fits: one person"

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
        for index, proxy in enumerate(self.trusted_proxies):
            if network(proxy) is None:
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


# -- Identifies the person who sends a request -----------------------------------------


_PRINCIPAL = "x-ms-client-principal"
_ENTRA = "aad"  # auth_typ: other providers may fill the claims as they like
_PROXY_HEADERS = frozenset(("forwarded", "via", "x-real-ip", "true-client-ip"))
_PROXY_PREFIXES = (
    *("x-forwarded-", "x-auth-request-", "x-original-", "x-client-", "x-envoy-"),
    *("remote-", "x-remote-", "cf-", "x-azure-", _PRINCIPAL, "x-ms-token-"),
)
_CLAIMS = "http://schemas.microsoft.com/identity/claims/"
_OID = ("oid", f"{_CLAIMS}objectidentifier")
_TID = ("tid", f"{_CLAIMS}tenantid")
_ROLES = ("roles", "http://schemas.microsoft.com/ws/2008/06/identity/claims/role")
_LONGEST = 256

Headers = Sequence[tuple[str, str]]


class Person(Struct, frozen=True, kw_only=True):
    """The person who sends a request.

    Attributes:
        id: "local", tenant id/object id, or the value of the user header.
        name: the name to display.
        roles: the app roles.
        is_application: whether an application has signed in, not a human being.
        may_decide: whether they may decide.
    """

    id: str
    name: str
    roles: tuple[str, ...] = ()
    is_application: bool = False
    may_decide: bool = False


class Refusal(Struct, frozen=True, kw_only=True):
    """The HTTP status and the reason of a refused request."""

    status: int
    words: str


class RequestInfo(Struct, frozen=True, kw_only=True):
    """The parts of a request that identify its sender.

    Attributes:
        peer: the address of the TCP peer.
        host: the Host header; None = there is none.
        headers: all headers, unchanged and in order.
    """

    peer: str
    host: str | None
    headers: Headers

    def values(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


def identify(config: AccessConfig, request: RequestInfo) -> Person | Refusal:
    """Return the person who sends a request, or why the request is refused."""
    if config.mode == "loopback":
        return _local(config, request)
    wanted = _PRINCIPAL if config.mode == "easy-auth" else config.user_header.lower()
    if what := _identity_fault(config, request, wanted):
        return Refusal(status=400, words=what)
    values = request.values(wanted)
    if not values or not values[0].strip():
        return Refusal(status=401, words="nobody is signed in")
    if config.mode == "easy-auth":
        return _principal(config, values[0])
    name = clean(values[0].strip()[:_LONGEST])
    return _allowed(config, Person(id=name, name=name))


def _local(config: AccessConfig, request: RequestInfo) -> Person | Refusal:
    if not is_this_machine(request.host):
        words = "only localhost and loopback addresses are answered"
        return Refusal(status=421, words=words)
    names = {name.lower().replace("_", "-") for name, _ in request.headers}
    if any(n in _PROXY_HEADERS or n.startswith(_PROXY_PREFIXES) for n in names):
        words = "loopback mode is for no proxy: its headers are refused"
        return Refusal(status=400, words=words)
    return _allowed(config, Person(id=LOCAL, name=LOCAL))


def is_this_machine(host: str | None) -> bool:
    """Whether a Host header names this machine; a request without one is accepted.

    Browsers always send Host, so a page of another site cannot leave it out.
    """
    if host is None:
        return True
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name)


def _identity_fault(
    config: AccessConfig, request: RequestInfo, wanted: str
) -> str | None:
    """Return why an identity header is refused; None = it is valid, or missing."""
    ours = (_PRINCIPAL, wanted)
    for name, _ in request.headers:
        spelt = name.lower().replace("_", "-")
        is_identity = spelt.startswith(ours)
        if is_identity and "_" in name:
            return "an identity header has an underscore"
        if is_identity and not is_trusted(config, request.peer):
            return "an identity header comes from no trusted proxy"
    if len(request.values(wanted)) > 1:
        return "the identity header comes twice"
    return None


def is_trusted(config: AccessConfig, peer: str) -> bool:
    """Whether an address belongs to a trusted proxy."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    networks = (network(text) for text in config.trusted_proxies)
    return any(mapped in found for found in networks if found is not None)


def _principal(config: AccessConfig, value: str) -> Person | Refusal:
    """Parse X-MS-CLIENT-PRINCIPAL of Easy Auth.

    ``auth_typ`` names the identity provider. Only Microsoft Entra ID is accepted: the
    operator of another one could choose the tenant, the object id and the roles.
    """
    try:
        claims = table(orjson.loads(base64.b64decode(value, validate=True)))
    except (binascii.Error, ValueError):
        return Refusal(status=400, words="the identity header cannot be read")
    if claims and text(claims.get("auth_typ")).lower() != _ENTRA:
        words = 'the identity is not of Microsoft Entra ID (auth_typ is not "aad")'
        return Refusal(status=401, words=words)
    listed = claims.get("claims")
    found: dict[str, list[str]] = {}
    for claim in listed if isinstance(listed, list) else ():
        kind, content = (
            text(table(claim).get("typ")),
            text(table(claim).get("val")),
        )
        found.setdefault(kind, []).append(content)
    tenant, oid = _first(found, _TID), _first(found, _OID)
    if not tenant or not oid:
        return Refusal(status=401, words="the identity names no tenant and object id")
    name = _first(found, ("preferred_username", "name")) or oid
    person = Person(
        id=f"{tenant}/{oid}".lower(),
        name=name[:_LONGEST],
        roles=tuple(role for key in _ROLES for role in found.get(key, ())),
        is_application=_is_application(found),
    )
    return _allowed(config, person)


def _first(found: Mapping[str, list[str]], keys: Sequence[str]) -> str:
    return next((found[key][0] for key in keys if found.get(key)), "")


def _is_application(found: Mapping[str, list[str]]) -> bool:
    """Whether an application got the token by its own secret, for no user.

    Source: learn.microsoft.com/entra/identity-platform/access-token-claims-reference
    """
    if _first(found, ("idtyp",)).lower() == "app":
        return True
    proof = _first(found, ("azpacr", "appidacr"))
    is_delegated = bool(_first(found, ("scp", f"{_CLAIMS}scope")))
    return proof in {"1", "2"} and not is_delegated


def _allowed(config: AccessConfig, person: Person) -> Person | Refusal:
    """Add the permissions of a person; refuse with 403 if they may not look."""
    may_decide = bool(config.entry_of(person.id, person.roles))
    viewers = as_compared(config.viewers)
    if not may_decide and not is_named(person.id, person.roles, viewers):
        return Refusal(status=403, words="you may not look at this")
    return replace(person, may_decide=may_decide)


def origin_fault(
    origins: Sequence[str], public_url: str, host: str | None
) -> str | None:
    """Return why a POST from an Origin is refused; None = it is accepted.

    Args:
        origins: the Origin headers; () = there is none, as from a program.
        public_url: the URL of the hub for people; "" = the address it listens on.
        host: the Host header.
    """
    allowed = public_url or f"http://{host}"
    if len(origins) > 1:
        return "the Origin comes twice"
    if origins and origins[0].lower() != allowed.lower().rstrip("/"):
        return "this page may not decide here: it has another Origin"
    return None
