"""A hub behind PgBouncer in transaction mode: no session is its own."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store.store import open_store
from bridge.hub.store.tables import decisions, events
from tests.hub.test_sources import rows, until
from tests.support.fleet import event, step
from tests.support.hub import HubWorld, config, received
from tests.support.ports import free_port
from tests.support.postgres import Cluster

_PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path(_PROGRAM).exists(), reason="there is no pgbouncer: apt-get install it"
    ),
]


@pytest.fixture
def pooled(cluster: Cluster) -> Iterator[str]:
    """Yield the address of a PgBouncer that has two connections to the database."""
    cluster.forget()
    port, file = free_port(), cluster.folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        "auth_type = trust\npool_mode = transaction\ndefault_pool_size = 2\n"
        "unix_socket_dir =\nlogfile =\n" + f"auth_file = {cluster.folder / 'users'}\n"
    )
    (cluster.folder / "users").write_text('"postgres" ""\n')
    for path in (file, cluster.folder / "users"):
        path.chmod(0o644)
    user = "postgres" if os.getuid() == 0 else None
    running = subprocess.Popen(  # noqa: S603 - our own arguments
        [_PROGRAM, str(file)],
        user=user,
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        running.kill()
        running.wait()


async def answers(url: str) -> bool:
    def ask() -> bool:
        try:
            with psycopg.connect(url, connect_timeout=2):
                return True
        except psycopg.Error:
            return False

    return await asyncio.to_thread(ask)


async def test_two_hubs_share_a_database_behind_pgbouncer(pooled: str) -> None:
    await until(lambda: answers(pooled))
    given = HubConfig(store=Address(pooled, {}))
    async with open_store(given) as one, open_store(given) as other:
        for number in range(12):  # a statement is prepared at its sixth time
            batches = [
                [received(step("scheduled", event(f"E-{number}-{n}")))]
                for n in range(6)
            ]
            await asyncio.gather(
                *((one, other)[n % 2].keep(batch) for n, batch in enumerate(batches)),
                *(rows(store, events) for store in (one, other, one, other)),
            )
        async with HubWorld(one, config()).open() as world:
            await world.scheduled()
            await world.post()

        assert len(await rows(other, events)) == 12 * 6 + 1
        assert len(await rows(other, decisions)) == 1
        limit = await one.read(
            lambda c: c.exec_driver_sql("SHOW statement_timeout").scalar()
        )
        assert limit == "15s"
    with psycopg.connect(pooled) as plain:
        (left,) = plain.execute("SHOW statement_timeout").fetchone() or ("",)
        assert left == "0", "nothing is left in a session"
