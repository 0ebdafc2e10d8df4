"""The hub signs in to PostgreSQL with a token of Entra ID as its password."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from aiohttp import web

from bridge.foundation.errors import HubStoreAwayError
from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store.store import open_store
from tests.support.fleet import event, step
from tests.support.hub import received
from tests.support.postgres import Cluster

ROLE, DATABASE = "signed_in", "of_tokens"
CLIENT = "00001111-aaaa-2222-bbbb-3333cccc4444"
LONG = "t" * 1500  # a token is that long, and a password may be


@dataclass
class Endpoint:
    """The identity endpoint of a machine, whose tokens end at once.

    Attributes:
        token: what it gives out.
        status: its answer.
        asked: the queries of its requests.
    """

    token: str = f"first-{LONG}"
    status: int = 200
    asked: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(dict(request.query))
        if self.status != 200:
            return web.json_response({"error": "unknown"}, status=self.status)
        body = {
            "access_token": self.token,
            "expires_in": "1",
            "expires_on": "1",
            "resource": request.query.get("resource", ""),
            "token_type": "Bearer",
        }
        return web.json_response(body, status=self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    found = Endpoint()
    async with found.serving() as url:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        yield found


def tell(cluster: Cluster, *statements: str) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        for one in statements:
            connection.execute(one.encode())


@pytest.fixture
def database(cluster: Cluster) -> Iterator[HubConfig]:
    """Make a database whose role must give its password, as with Azure in clear."""
    rules = cluster.folder / "data/pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {ROLE} 127.0.0.1/32 password\n{before}")
    tell(
        cluster,
        "SELECT pg_reload_conf()",
        f"CREATE ROLE {ROLE} LOGIN",
        f"CREATE DATABASE {DATABASE} OWNER {ROLE}",
    )
    url = f"postgresql://{ROLE}@127.0.0.1:{cluster.port}/{DATABASE}"
    try:
        yield HubConfig(
            store=Address(url, {}),
            store_credential="managed-identity",
            store_client_id=CLIENT,
        )
    finally:
        rules.write_text(before)
        tell(
            cluster,
            "SELECT pg_reload_conf()",
            f"DROP DATABASE {DATABASE} WITH (FORCE)",
            f"DROP ROLE {ROLE}",
        )


def accept(cluster: Cluster, token: str) -> None:
    """Let the database take this token, and no other, from now on."""
    tell(cluster, f"ALTER ROLE {ROLE} PASSWORD '{token}'")


def cut_off(cluster: Cluster) -> None:
    """End all connections of the hub."""
    tell(
        cluster,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "  # noqa: S608 - ours
        f"WHERE usename = '{ROLE}'",
    )


async def test_hub_signs_in_with_a_token_at_each_connection(
    cluster: Cluster, database: HubConfig, endpoint: Endpoint
) -> None:
    accept(cluster, endpoint.token)
    async with open_store(database) as store:
        await store.keep([received(step("scheduled", event("E-1")))])
        before = len(endpoint.asked)

        endpoint.token = f"second-{LONG}"
        accept(cluster, endpoint.token)
        await store.keep([received(step("scheduled", event("E-2")))])
        assert len(endpoint.asked) == before  # the old connection is as good as ever
        cut_off(cluster)
        await store.keep([received(step("scheduled", event("E-3")))])

    assert len(endpoint.asked) > before
    assert {one["client_id"] for one in endpoint.asked} == {CLIENT}
    assert {one["resource"] for one in endpoint.asked} == {
        "https://ossrdbms-aad.database.windows.net"
    }


@pytest.mark.parametrize(
    ("status", "words"),
    [(200, "password authentication failed"), (400, "no token for the database")],
)
async def test_hub_that_is_not_let_in_says_why_and_tells_no_token(
    cluster: Cluster, database: HubConfig, endpoint: Endpoint, status: int, words: str
) -> None:
    accept(cluster, "another")
    endpoint.status = status

    with pytest.raises(HubStoreAwayError, match=words) as caught:
        async with open_store(database):
            pass

    assert endpoint.asked
    assert LONG not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("h.postgres.database.azure.com", "database.windows.net"),
        ("h.postgres.database.usgovcloudapi.net", "database.usgovcloudapi.net"),
        ("h.postgres.database.chinacloudapi.cn", "database.chinacloudapi.cn"),
        ("db.contoso.com", "database.windows.net"),
    ],
)
def test_token_is_for_the_cloud_of_the_database(host: str, scope: str) -> None:
    config = HubConfig(store=Address(f"postgresql://u@{host}/hub", {}))

    assert config.store_scope == f"https://ossrdbms-aad.{scope}/.default"
