"""The hub as a process: from a message on the topic to its API."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import install_command
from bridge.foundation.values import Address, Secret
from bridge.hub import hub
from bridge.hub.config import AzureSource, BridgesSource, HubConfig
from bridge.hub.housekeeping import Housekeeping
from bridge.hub.hub import Parts
from bridge.hub.load import HubFile
from bridge.hub.store.store import Store
from bridge.simulator.servicebus.broker import Broker
from tests.hub.test_sources import send, until
from tests.support.fakes import FakeClock
from tests.support.fleet import at, step


def file_of(path: Path, connection_string: str, **fields: Any) -> HubFile:
    source = BridgesSource(
        name="bridges",
        type="bridges",
        connection_string=Secret(connection_string, {}),
        topic="scheduled-events",
        subscription="consumer",
    )
    found = HubConfig(
        listen="127.0.0.1:0",
        store=Address(f"sqlite:{path / 'hub.db'}", {}),
        sources=(source,),
    )
    return HubFile(hub=found, **fields)


@pytest.fixture
async def address(broker: Broker, tmp_path: Path) -> AsyncIterator[str]:
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    file = file_of(tmp_path, broker.connection_string)

    def listening(host: str, port: int) -> None:
        address.set_result(f"http://{host}:{port}")

    async with asyncio.TaskGroup() as group:
        group.create_task(hub.run(file, stop, SystemClock(), listening))
        yield await address
        stop.set()


async def test_what_a_bridge_publishes_is_answered(
    broker: Broker, address: str
) -> None:
    await send(broker, "scheduled-events", step("scheduled"))

    async def get(path: str) -> tuple[int, Any]:
        async with aiohttp.request("GET", f"{address}{path}") as found:
            return found.status, await found.json()

    async def is_there() -> bool:
        return bool((await get("/api/v1/events"))[1]["events"])

    await until(is_there)
    assert await get("/readyz") == (200, [])
    assert (await get("/api/v1/bridges"))[1]["bridges"][0]["vmName"] == "web-0"


@pytest.mark.slow  # 5.7 s of waiting
async def test_ready_and_page_say_why_nothing_is_stored(
    broker: Broker, address: str, tmp_path: Path
) -> None:
    """The page can be read, but no message can be stored."""

    async def get(path: str) -> tuple[int, str]:
        asked = aiohttp.request(
            "GET", f"{address}{path}", headers={"Accept": "text/html"}
        )
        async with asked as found:
            return found.status, await found.text()

    async def is_back() -> bool:
        return (await get("/readyz"))[0] == 200

    with closing(sqlite3.connect(tmp_path / "hub.db", isolation_level=None)) as db:
        db.execute(
            "CREATE TRIGGER refuses BEFORE INSERT ON unreadable"
            " BEGIN INSERT INTO away VALUES (1); END"
        )
        await send(broker, "scheduled-events", b"no JSON")

        async def is_said() -> bool:
            status, why = await get("/readyz")
            page = (await get("/"))[1]
            words = "the store is away (OperationalError: no such table"
            return status == 503 and words in why and words in page

        await until(is_said)
        db.execute("DROP TRIGGER refuses")
    await until(is_back)
    assert "The hub can store nothing" not in (await get("/"))[1]


async def test_hub_that_is_stopped_before_its_store_is_there_ends(
    tmp_path: Path, clock: FakeClock
) -> None:
    file = file_of(tmp_path, "")
    away = Address("postgresql://u@127.0.0.1:1/d", {})
    file = HubFile(hub=HubConfig(store=away, sources=file.hub.sources))
    stop = asyncio.Event()
    running = asyncio.create_task(hub.run(file, stop, clock))

    async def waits() -> bool:
        return bool(clock.waits)

    await until(waits)
    stop.set()
    await running


async def test_situation_is_what_the_sources_say(store: Store, tmp_path: Path) -> None:
    file = file_of(tmp_path, "Endpoint=sb://x.example")
    azure = AzureSource(name="a", type="azure", namespace="n", expect=("/x",))
    found = HubConfig(sources=(*file.hub.sources, azure))
    sources = Parts.of(HubFile(hub=found), store, SystemClock()).sources

    now = sources.situation()
    assert (now.listening, now.drained) == ({"bridges": None}, None)
    assert (now.missing_after, now.expect) == (60, ("/x",))
    assert len(sources.missing()) == 2


async def test_long_absence_is_remembered(store: Store, clock: FakeClock) -> None:
    housekeeping = Housekeeping(store, HubConfig(), clock)

    async def comes_back(after: timedelta) -> object:
        clock.pass_by(after.total_seconds())
        return await housekeeping.begin()

    assert await comes_back(timedelta()) is None
    assert await comes_back(timedelta(hours=24)) is None
    assert await comes_back(timedelta(hours=25)) == at(49 * 3600)
    assert await comes_back(timedelta(hours=1)) == at(49 * 3600)


async def test_housekeeping_goes_on_while_the_store_is_away(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    housekeeping, stop = Housekeeping(store, HubConfig(), clock), asyncio.Event()
    await store.write(lambda c: c.exec_driver_sql("DROP TABLE alarms"))
    running = asyncio.create_task(housekeeping.run(stop))

    async def has_reported() -> bool:
        await clock.advance(30)
        return "store cannot be looked after" in caplog.text

    await until(has_reported)
    stop.set()
    await running


@pytest.mark.integration
def test_missing_extra_is_one_sentence(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(
        '[hub]\n[[hub.sources]]\nname = "b"\ntype = "bridges"\n'
        'namespace = "n.servicebus.windows.net"\nqueue = "q"\n'
        '[hub.access]\napprovers = ["local"]'
    )
    code = "import sys; sys.modules['sqlalchemy'] = None; from bridge.cli.main import"
    command = [sys.executable, "-c", f"{code} main; main()", "hub", "-c", str(path)]

    found = subprocess.run(  # noqa: S603 - our own arguments
        command, capture_output=True, text=True, check=False, timeout=60
    )

    assert found.returncode == 1
    assert install_command("hub") in found.stderr
    assert "nothing can be approved" in found.stderr
