"""Who asks is known, or they are not answered."""

import base64
from typing import Any

import orjson
import pytest

from bridge.hub.access import (
    AccessConfig,
    Person,
    Refusal,
    RequestInfo,
    identify,
    is_trusted,
    origin_fault,
)

LOOPBACK = AccessConfig(approvers=("local",))
PROXY = "10.0.0.7"
EASY = AccessConfig(
    mode="easy-auth",
    trusted_proxies=("10.0.0.0/24",),
    viewers=("role:viewers", "TID/other"),
    approvers=("role:operators", "TID/OID"),
)
HEADER = AccessConfig(mode="header", trusted_proxies=(PROXY,), approvers=("ann",))
PRINCIPAL = "X-MS-CLIENT-PRINCIPAL"
NAME = "X-Forwarded-Email"


def ask(
    config: AccessConfig,
    *headers: tuple[str, str],
    peer: str = PROXY,
    host: str | None = "hub.example",
) -> Person | Refusal:
    return identify(config, RequestInfo(peer=peer, host=host, headers=headers))


def principal(*claims: tuple[str, str], provider: str = "aad") -> tuple[str, str]:
    listed = [{"typ": typ, "val": val} for typ, val in claims]
    body = orjson.dumps({"auth_typ": provider, "claims": listed})
    return PRINCIPAL, base64.b64encode(body).decode()


def status(found: Person | Refusal) -> int:
    return found.status if isinstance(found, Refusal) else 200


def person(found: Person | Refusal) -> Person:
    assert isinstance(found, Person), found
    return found


@pytest.mark.parametrize("host", ["localhost:9470", "127.0.0.1", "[::1]:1", None])
def test_everybody_on_this_machine_is_local(host: str | None) -> None:
    found = person(ask(LOOPBACK, host=host))

    assert (found.id, found.may_decide) == ("local", True)


def test_name_that_was_bent_to_this_machine_is_refused() -> None:
    """DNS rebinding: anybody's name server may say 127.0.0.1."""
    assert status(ask(LOOPBACK, host="evil.example:9470")) == 421


@pytest.mark.parametrize(
    "name",
    [
        *("Forwarded", "X-Forwarded-For", "X_Forwarded_Email"),
        *(PRINCIPAL, f"{PRINCIPAL}-ID", "X-Real-IP", "Via", "X-Auth-Request-Email"),
        *("Remote-User", "X_Remote_User", "CF-Connecting-IP", "True-Client-IP"),
    ],
)
def test_headers_of_a_proxy_are_refused_in_loopback_mode(name: str) -> None:
    assert status(ask(LOOPBACK, (name, "x"), host="localhost")) == 400


def test_headers_that_only_begin_like_a_proxy_s_are_none() -> None:
    assert status(ask(LOOPBACK, ("Viable", "x"), host="localhost")) == 200


def test_easy_auth_tells_the_person_and_the_app_roles() -> None:
    claims = ("tid", "TID"), ("oid", "OID"), ("roles", "x"), ("name", "Ann")

    found = person(ask(EASY, principal(*claims, ("groups", "operators"))))
    assert (found.id, found.name, found.roles) == ("tid/oid", "Ann", ("x",))
    assert found.may_decide
    assert not found.is_application
    other = person(ask(EASY, principal(("tid", "TID"), ("oid", "OTHER"))))
    assert not other.may_decide


@pytest.mark.parametrize("provider", ["google", "my-oidc", ""])
def test_identity_of_another_provider_is_none(provider: str) -> None:
    """Whoever runs it may write any tenant, object id and role into its claims."""
    claims = ("tid", "TID"), ("oid", "OID"), ("roles", "operators")

    assert status(ask(EASY, principal(*claims, provider=provider))) == 401


def test_long_names_of_claims_are_known() -> None:
    schema = "http://schemas.microsoft.com/identity/claims"
    role = "http://schemas.microsoft.com/ws/2008/06/identity/claims/role"
    claims = (
        (f"{schema}/tenantid", "t"),
        (f"{schema}/objectidentifier", "o"),
        (role, "operators"),
    )

    assert person(ask(EASY, principal(*claims))).may_decide


@pytest.mark.parametrize(
    ("claims", "is_so"),
    [
        ([("idtyp", "app")], True),
        ([("azpacr", "2")], True),
        ([("appidacr", "1")], True),
        ([("azpacr", "1"), ("scp", "user_impersonation")], False),
        ([("azpacr", "0")], False),
    ],
)
def test_application_is_no_person(claims: list[Any], *, is_so: bool) -> None:
    who = principal(("tid", "TID"), ("oid", "OID"), *claims)

    assert person(ask(EASY, who)).is_application is is_so


def test_whoever_is_named_nowhere_may_not_look() -> None:
    assert status(ask(EASY, principal(("tid", "t"), ("oid", "o")))) == 403


@pytest.mark.parametrize(
    ("headers", "peer", "expected"),
    [
        ([], PROXY, 401),
        ([(NAME, " ")], PROXY, 401),
        ([(NAME, "ann")], PROXY, 200),
        ([(NAME, "ann")], "::ffff:10.0.0.7", 200),
        ([(NAME, "ann")], "10.0.0.8", 400),
        ([], "10.0.0.8", 401),
        ([(NAME, "ann"), (NAME.lower(), "bob")], PROXY, 400),
        ([("X_Forwarded_Email", "ann")], PROXY, 400),
        ([(PRINCIPAL, "x")], "10.0.0.8", 400),
    ],
)
def test_identity_is_believed_from_a_trusted_proxy_alone(
    headers: list[tuple[str, str]], peer: str, expected: int
) -> None:
    assert status(ask(HEADER, *headers, peer=peer)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("not base64!", 400),
        (base64.b64encode(b"no JSON").decode(), 400),
        (base64.b64encode(b"[]").decode(), 401),
        (base64.b64encode(b'{"auth_typ": "aad", "claims": [1]}').decode(), 401),
    ],
)
def test_identity_that_cannot_be_read_is_none(value: str, expected: int) -> None:
    assert status(ask(EASY, (PRINCIPAL, value))) == expected


def test_control_characters_of_a_name_are_replaced() -> None:
    assert person(ask(HEADER, (NAME, "a\x1bb"))).id == "a\ufffdb"


def test_peer_without_an_address_is_not_trusted() -> None:
    assert not is_trusted(HEADER, "")


@pytest.mark.parametrize(
    ("origins", "public_url", "is_good"),
    [
        ([], "", True),
        (["http://localhost:9470"], "", True),
        (["http://evil.example"], "", False),
        (["https://hub.example"], "https://hub.example", True),
        (["https://hub.example"] * 2, "https://hub.example", False),
        (["http://localhost:9470"], "https://hub.example", False),
        (["null"], "https://hub.example", False),
    ],
)
def test_only_the_hub_s_own_pages_may_post(
    origins: list[str], public_url: str, *, is_good: bool
) -> None:
    fault = origin_fault(origins, public_url, "localhost:9470")

    assert (fault is None) is is_good
