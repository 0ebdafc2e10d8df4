"""Identifies the person who sends a request, and checks their permissions. Pure.

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
from collections.abc import Mapping, Sequence

import orjson
from msgspec import Struct

from bridge.events.build import clean
from bridge.hub.config import LOCAL, AccessConfig, as_compared, is_named, network
from bridge.hub.facts import table, text
from bridge.net.addresses import is_loopback

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
        may_view: whether they may look.
        may_decide: whether they may decide.
    """

    id: str
    name: str
    roles: tuple[str, ...] = ()
    is_application: bool = False
    may_view: bool = False
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
    return Person(
        id=person.id,
        name=person.name,
        roles=person.roles,
        is_application=person.is_application,
        may_view=True,
        may_decide=may_decide,
    )


def origin_fault(origin: str | None, public_url: str, host: str | None) -> str | None:
    """Return why a POST from an Origin is refused; None = it is accepted.

    Args:
        origin: the Origin header; None = there is none, as from a program.
        public_url: the URL of the hub for people; "" = the address it listens on.
        host: the Host header.
    """
    if origin is None:
        return None
    allowed = public_url or f"http://{host}"
    if origin.lower() != allowed.lower().rstrip("/"):
        return "this page may not decide here: it has another Origin"
    return None
