"""Who a webhook says it is: each way of auth, and what its configuration refuses."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from bridge.foundation.errors import (
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import Resources
from bridge.sinks.webhook.auth import (
    AuthConfig,
    AuthDefaults,
    auth_faults,
    is_safe_for_token,
    settled,
)
from tests.support.configurations import webhook
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import (
    SECRET,
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
)

SCOPE = "https://monitor.azure.com/.default"


def with_auth(
    url: str = "https://siem.example/in", **auth: object
) -> dict[str, object]:
    return webhook(url, auth=auth)


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"type": "bearer", "token": "env:IT"}, "Authorization", f"Bearer {SECRET}"),
        (
            {"type": "bearer", "token": "env:IT", "scheme": "Splunk"},
            "Authorization",
            f"Splunk {SECRET}",
        ),
        (
            {"type": "basic", "username": "jörg", "password": "env:IT"},
            "Authorization",
            "Basic " + b64encode(f"jörg:{SECRET}".encode()).decode(),
        ),
        ({"type": "header", "name": "x-key", "value": "env:IT"}, "x-key", SECRET),
    ],
)
async def test_what_is_configured_is_sent(
    resources: Resources,
    inbox: Inbox,
    auth: Mapping[str, object],
    name: str,
    value: str,
) -> None:
    async with opened_sink(resources, with_auth(inbox.url, **auth), IT=SECRET) as sink:
        await sink.deliver(cloud_event())

        assert SECRET not in repr(sink)
    assert inbox.received[0].headers[name] == value


async def test_rotated_token_is_sent_at_the_next_delivery(
    resources: Resources, inbox: Inbox, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    options = with_auth(inbox.url, type="bearer", token=f"file:{token}")
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())
        token.write_text("new")
        await sink.deliver(cloud_event())
        token.write_text("newer\r\nx-evil: 1")
        with pytest.raises(
            RefusedDeliveryError, match=r"auth\.token holds line breaks"
        ):
            await sink.deliver(cloud_event())

    sent = [request.headers["Authorization"] for request in inbox.received]
    assert sent == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("auth", "faults"),
    [
        (
            {},
            [
                (
                    "auth.type: is missing; "
                    'allowed are "bearer", "basic", "header", "body", "entra"'
                )
            ],
        ),
        (
            {"type": "ntlm"},
            ['auth.type: must be one of "bearer", "basic", "header", "body", "entra"'],
        ),
        (
            {"type": "bearer"},
            ['auth.token: is missing: type = "bearer" needs it'],
        ),
        (
            {"type": "basic"},
            [
                'auth.username: is missing: type = "basic" needs it',
                'auth.password: is missing: type = "basic" needs it',
            ],
        ),
        (
            {"type": "header", "name": "x", "value": "v", "token": "t"},
            ['auth.token: is for type = "bearer", but type is "header"'],
        ),
        (
            {"type": "bearer", "token": "t", "client_id": "c"},
            ['auth.client_id: is for type = "entra", but type is "bearer"'],
        ),
        (
            {"type": "bearer", "token": "a\nb"},
            ["auth.token: must not hold line breaks or other control characters"],
        ),
        (
            {"type": "bearer", "token": "t", "scheme": "a\nb"},
            ["auth.scheme: must not hold line breaks or other control characters"],
        ),
        (
            {"type": "basic", "username": "a\nb", "password": "p"},
            ["auth.username: must not hold line breaks or other control characters"],
        ),
        (
            {"type": "basic", "username": "a:b", "password": "p"},
            ["auth.username: must not hold a colon: a colon ends the name"],
        ),
        (
            {"type": "header", "name": "Content-Type", "value": "v"},
            ["auth.name: is set by the sink itself"],
        ),
        (
            {"type": "entra", "scope": SCOPE, "credential": "password"},
            [
                (
                    "auth.credential: must be one of "
                    '"managed-identity", "default", "workload-identity"'
                )
            ],
        ),
        ({"typ": "bearer"}, ["auth.typ: unknown key; did you mean 'type'?"]),
    ],
)
def test_wrong_key_gets_one_clear_fault(
    auth: Mapping[str, object], faults: list[str]
) -> None:
    assert config_faults(with_auth() | {"auth": auth}) == faults


def test_header_that_auth_sets_may_not_be_given_as_well() -> None:
    options = with_auth(type="bearer", token="t") | {"headers": {"authorization": "x"}}
    assert config_faults(options) == [
        "headers.authorization: is set by auth: remove one of them"
    ]

    options = with_auth(type="header", name="x-a", value="v") | {
        "headers": {"X-A": "x"}
    }
    assert config_faults(options) == ["headers.X-A: is set by auth: remove one of them"]


@pytest.mark.parametrize(
    "more",
    [{"auth": {"type": "bearer", "token": "t"}}, {"headers": {"authorization": "x"}}],
)
def test_url_with_a_password_leaves_no_room_for_another(
    more: Mapping[str, object],
) -> None:
    """What speaks HTTP for us refuses to choose between the two."""
    for url, faults in (
        ("https://u:p@siem.example", 1),
        ("https://siem.example/@", 0),
        ("https://[bad", 1),
    ):
        options = {"type": "webhook", "url": url, **more}
        assert len(config_faults(options)) == faults

    alone = {"type": "webhook", "url": "https://u:p@siem.example"}
    assert config_faults(alone) == []


# -- what a preset knows ---------------------------------------------------------


def test_preset_may_know_the_type_and_what_belongs_to_it() -> None:
    known = AuthDefaults(type="bearer", scheme="Splunk", name="x-key")

    assert settled(AuthConfig(), known) == AuthConfig(type="bearer", scheme="Splunk")
    assert settled(AuthConfig(scheme="Bearer"), known) == AuthConfig(
        type="bearer", scheme="Bearer"
    )


def test_preset_has_no_say_once_another_type_is_chosen() -> None:
    known = AuthDefaults(type="header", name="x-key")
    basic = AuthConfig(type="basic", username="u")

    found = settled(basic, known)

    assert found == basic
    assert [key for key, _ in auth_faults(basic)] == ["password"]


def test_no_table_is_no_auth_unless_a_preset_implies_it() -> None:
    known = AuthDefaults(type="entra", scope=SCOPE)

    assert settled(None, known) is None
    implied = settled(None, replace(known, is_implied=True))
    assert implied == AuthConfig(type="entra", scope=SCOPE)


# -- Entra -----------------------------------------------------------------------


@dataclass
class IdentityEndpoint:
    """The managed identity endpoint of a VM, which keeps to its protocol.

    Source: learn.microsoft.com, "How to use managed identities … to get a token".
    """

    lifetime: float = 86400
    status: int = 200
    asked: list[Mapping[str, str]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        is_right = (
            request.method == "GET"
            and request.path == "/metadata/identity/oauth2/token"
            and request.headers.get("Metadata") == "true"
            and "X-Forwarded-For" not in request.headers
            and request.query.get("api-version") == "2018-02-01"
            and request.query.get("resource") == "https://monitor.azure.com"
        )
        self.asked.append(dict(request.query))
        if not is_right:
            return web.json_response({"error": "invalid_request"}, status=400)
        if self.status != 200:
            return web.json_response({"error": "identity"}, status=self.status)
        ends = FakeClock().now().timestamp() + self.lifetime
        return web.json_response(
            {
                "access_token": f"{SECRET}-{len(self.asked)}",
                "expires_in": str(int(self.lifetime)),
                "expires_on": str(int(ends)),
                "resource": request.query["resource"],
                "token_type": "Bearer",
            }
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["IdentityEndpoint"]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def identity(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[IdentityEndpoint]:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with IdentityEndpoint().serving() as running:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", running.url)
        yield running


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lent(resources: Resources, clock: FakeClock) -> Resources:
    return replace(resources, clock=clock)


async def test_token_of_the_machine_is_fetched_once_and_sent(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    options = with_auth(inbox.url, type="entra", scope=SCOPE, client_id="c-1")
    async with opened_sink(lent, options) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

        assert SECRET not in repr(sink)
    sent = [request.headers["Authorization"] for request in inbox.received]
    assert sent == [f"Bearer {SECRET}-1"] * 2
    assert [query["client_id"] for query in identity.asked] == ["c-1"]


async def test_many_who_need_a_token_at_once_fetch_one(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    options = with_auth(inbox.url, type="entra", scope=SCOPE)
    async with opened_sink(lent, options) as sink:
        await asyncio.gather(*(sink.deliver(cloud_event()) for _ in range(4)))

    assert len(inbox.received) == 4
    assert len(identity.asked) == 1


async def test_token_that_ends_soon_is_fetched_anew(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint, clock: FakeClock
) -> None:
    options = with_auth(inbox.url, type="entra", scope=SCOPE)
    async with opened_sink(lent, options) as sink:
        await sink.deliver(cloud_event())
        clock.pass_by(86400 - 299)
        await sink.deliver(cloud_event())

    assert len(identity.asked) == 2


async def test_token_is_used_to_its_end_when_no_other_is_to_be_had(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint, clock: FakeClock
) -> None:
    options = with_auth(inbox.url, type="entra", scope=SCOPE)
    async with opened_sink(lent, options) as sink:
        await sink.deliver(cloud_event())
        identity.status = 403
        clock.pass_by(86400 - 200)
        await sink.deliver(cloud_event())
        clock.pass_by(200)
        with pytest.raises(RefusedDeliveryError, match="no token was issued"):
            await sink.deliver(cloud_event())

    assert len(inbox.received) == 2


async def test_token_that_is_refused_is_fetched_anew(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    options = with_auth(inbox.url, type="entra", scope=SCOPE)
    async with opened_sink(lent, options) as sink:
        inbox.status = 401
        with pytest.raises(RefusedDeliveryError):
            await sink.deliver(cloud_event())
        inbox.status = 200
        await sink.deliver(cloud_event())

    sent = [request.headers["Authorization"] for request in inbox.received]
    assert sent == [f"Bearer {SECRET}-1", f"Bearer {SECRET}-2"]


async def test_machine_without_an_identity_refuses_the_sink(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    identity.status = 400
    options = with_auth(inbox.url, type="entra", scope=SCOPE)
    async with opened_sink(lent, options) as sink:
        with pytest.raises(RefusedDeliveryError, match="no token was issued") as error:
            await sink.deliver(cloud_event())

    assert error.value.reason is Reason.UNAUTHORIZED
    assert inbox.received == []


async def test_credential_that_lacks_what_it_needs_refuses_the_sink(
    lent: Resources, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_FEDERATED_TOKEN_FILE", raising=False)
    kind = "workload-identity"
    options = with_auth(inbox.url, type="entra", scope=SCOPE, credential=kind)
    async with opened_sink(lent, options) as sink:
        with pytest.raises(RefusedDeliveryError, match="Entra token for"):
            await sink.deliver(cloud_event())

    assert inbox.received == []


async def test_endpoint_that_is_busy_is_asked_again_later(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    identity.status = 429
    options = with_auth(inbox.url, type="entra", scope=SCOPE) | {"timeout": 0.2}
    async with opened_sink(lent, options) as sink:
        with pytest.raises(TransientDeliveryError, match="no answer in time"):
            await sink.deliver(cloud_event())

    assert inbox.received == []


async def test_token_never_goes_where_it_can_be_read(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint, tmp_path: Path
) -> None:
    url = tmp_path / "url"
    url.write_text(inbox.url)
    async with opened_sink(
        lent, with_auth(f"file:{url}", type="entra", scope=SCOPE)
    ) as sink:
        url.write_text("http://siem.example/in")
        with pytest.raises(RefusedDeliveryError, match="is not https"):
            await sink.deliver(cloud_event())

    assert identity.asked == []


async def test_token_does_not_follow_a_redirect(
    lent: Resources, inbox: Inbox, identity: IdentityEndpoint
) -> None:
    async with Inbox().serving() as elsewhere:
        inbox.status, inbox.headers = 307, {"Location": elsewhere.url}
        options = with_auth(inbox.url, type="entra", scope=SCOPE)
        async with opened_sink(lent, options) as sink:
            with pytest.raises(Exception, match="answered 307"):
                await sink.deliver(cloud_event())

        assert elsewhere.received == []


def test_token_needs_https_but_on_this_machine() -> None:
    faults = config_faults(with_auth("http://siem.example", type="entra", scope=SCOPE))

    assert faults == ["url: must be https: an Entra ID token is sent there"]


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://siem.example", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]/", True),
        ("http://localhost/", True),
        ("http://localhost.example/", False),
        ("http://127.example/", False),
        ("http://siem.example", False),
        ("http://[bad", False),
    ],
)
def test_what_is_safe_for_a_token(url: str, *, is_safe: bool) -> None:
    assert is_safe_for_token(url) is is_safe
