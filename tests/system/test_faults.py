"""Bad days, caused for real: a full disk, power loss, sinks that are all down."""

import asyncio
import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.outbox.questions import Selection
from bridge.outbox.records import CHECKPOINT, Checkpoint
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.disks import Disk
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
    written_config,
)

pytestmark = pytest.mark.integration


def freeze(number: int) -> dict[str, object]:
    return {
        "type": "Freeze",
        "resources": ["WestNO_0"],
        "eventId": f"00000000-0000-0000-0000-{number:012}",
        "notBefore": 900,
    }


async def received_by(at: Addresses, *kinds: str) -> list[dict[str, object]]:
    """Return what the webhook got, as soon as the last things are of these kinds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            bodies = [one["body"] for one in await at.messages("/siem")]
            found = [one for one in bodies if isinstance(one, dict)]
            if {*kinds} <= {str(one["type"]).split(".", 1)[1] for one in found}:
                return found
            await asyncio.sleep(0.1)


def one_of(found: list[dict[str, object]], kind: str) -> dict[str, object]:
    (one,) = {str(e["id"]): e for e in found if kind in str(e["type"])}.values()
    return one


async def approve(at: Addresses, event_id: object) -> None:
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    async with (
        ServiceBusClient.from_connection_string(at.connection_string) as client,
        client.get_queue_sender("vm-approvals") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(body, message_id="approval"))


async def readiness(config: Path) -> tuple[int, str]:
    port = int(config.read_text().split('listen = "127.0.0.1:')[1].split('"')[0])
    url = f"http://127.0.0.1:{port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.slow
async def test_full_disk_an_approval_a_kill_and_room_again(
    disk: Disk, tmp_path: Path, unused_tcp_port: int
) -> None:
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        text = config.read_text().replace("bridge.db", "disk/state.db")
        text = text.replace('listen = ""', f'listen = "127.0.0.1:{unused_tcp_port}"')
        config.write_text(text)
        process = await forwarder(config)
        await settled(config, 0)
        await at.control("POST", "events", freeze(1))
        await received_by(at, "scheduledevent.scheduled.v1")
        with looking_at(disk.state):  # so that no room within the log is used again
            disk.fill()
            await at.control("POST", "events", freeze(2))
            async with asyncio.timeout(PATIENCE):
                while len(await scheduled(at)) < 2:
                    await asyncio.sleep(0.1)
        first, second = await scheduled(at)
        assert data(first).get("durable", True) is True
        assert data(second)["durable"] is False
        status, missing = await readiness(config)
        assert (status, "state: cannot be written" in missing) == (503, True)
        await approve(at, second["subject"])
        found = await received_by(at, "startrequest.relayed.v1")
        assert data(one_of(found, "relayed"))["eventId"] == second["subject"]

        process.kill()
        await process.wait()
        disk.clear()
        logged = config.with_suffix(".log").stat().st_size
        process = await forwarder(config)
        await settled(config, logged)
        found = await received_by(at, "scheduledevent.started.v1")
        assert one_of(found, "event.started")["subject"] == second["subject"]
        assert {str(one["id"]) for one in await scheduled(at)} == {
            str(first["id"]),
            str(second["id"]),
        }
        async with asyncio.timeout(PATIENCE):
            while (await readiness(config))[0] != 200:
                await asyncio.sleep(0.2)
        assert await ended(process) == 0


@contextmanager
def looking_at(state: Path) -> Iterator[None]:
    """Read a state file as it is now, for as long as it takes."""
    with closing(sqlite3.connect(state, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchone()
        yield


def data(event: dict[str, object]) -> dict[str, object]:
    found = event["data"]
    assert isinstance(found, dict)
    return found


async def scheduled(at: Addresses) -> list[dict[str, object]]:
    """Return what the webhook received of events that appeared, each id once."""
    bodies = [one["body"] for one in await at.messages("/siem")]
    found = [one for one in bodies if isinstance(one, dict)]
    wanted = [one for one in found if ".scheduled.v1" in str(one["type"])]
    return list({str(one["id"]): one for one in wanted}.values())


class PowerLossError(Exception):
    """What was under way is not committed."""


async def test_power_loss_at_random_moments_keeps_what_was_promised(
    tmp_path: Path,
) -> None:
    """What is on disk between or within transactions is what a dead machine keeps."""
    chance = random.Random(20261121)  # noqa: S311 - when the power goes
    state, copies = tmp_path / "state.db", list[tuple[Path, int]]()
    promised = 0

    def lose_power(db: sqlite3.Connection) -> None:
        db.execute(
            """INSERT OR REPLACE INTO meta (key, value)
               VALUES ('torn', zeroblob(20000))"""
        )
        kept = tmp_path / f"copy-{len(copies)}.db"
        for suffix in ("", "-wal"):
            if Path(f"{state}{suffix}").exists():
                shutil.copy(f"{state}{suffix}", f"{kept}{suffix}")
        copies.append((kept, promised))
        raise PowerLossError

    async with patient_outbox(state, router()) as outbox:
        for number in range(400):
            await outbox.commit(
                [outgoing(f"{number}", key=f"K{number % 7}")],
                now=float(number),
                checkpoint=Checkpoint(body=b"%d" % number),
            )
            promised = number + 1
            found, _ = await outbox.deliveries.due(SINK, now=1e9, limit=9)
            if found and chance.random() < 0.8:
                await outbox.deliveries.delivered(found[0], now=float(number))
            if chance.random() < 0.1:
                with pytest.raises(PowerLossError):
                    await outbox.database.run(lose_power)

    assert len(copies) > 20
    for kept, count in copies:
        await holds(kept, count)


async def holds(kept: Path, promised: int) -> None:
    """Check that a copy is sound, and holds all that had been promised by then."""
    with sqlite3.connect(kept) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    async with patient_outbox(kept, router()) as outbox:
        found = await Book(outbox).find(Selection())
        names = [one.cloud_event_id for one in found]
        assert names == [f"{number}" for number in range(promised)]
        assert await outbox.observations.load(CHECKPOINT) == b"%d" % (promised - 1)
        assert await outbox.observations.load("torn") is None


@pytest.mark.slow
async def test_machine_that_froze_goes_on_where_it_was(tmp_path: Path) -> None:
    """The process is stopped as a live migration stops a VM, approval and all."""
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        process = await forwarder(config)
        await settled(config, 0)
        await at.control("POST", "events", freeze(1))
        found = await received_by(at, "scheduledevent.scheduled.v1")
        process.send_signal(signal.SIGSTOP)
        await approve(at, one_of(found, "scheduled")["subject"])
        await at.control("POST", "events", freeze(2))
        await asyncio.sleep(3)
        process.send_signal(signal.SIGCONT)
        found = await received_by(
            at, "startrequest.relayed.v1", "scheduledevent.started.v1"
        )
        async with asyncio.timeout(PATIENCE):
            while len(await scheduled(at)) < 2:
                await asyncio.sleep(0.1)
        code = await ended(process)

    assert code == 0
    assert one_of(found, "relayed")["subject"] == freeze(1)["eventId"]


@pytest.mark.slow
async def test_sinks_that_are_all_down_hold_up_no_stop_and_lose_nothing(
    tmp_path: Path,
) -> None:
    """A stop in the middle of it; a webhook that resets each connection after it."""
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        config.write_text(config.read_text().replace("[imds]", BRIEF, 1))
        fault = {"reset": True, "untilCleared": True, "takesEffect": False}
        async with aiohttp.ClientSession() as session:
            url = f"{at.inbox}/faults"
            async with session.post(url, json=fault) as answer:
                assert answer.status == 204, await answer.text()
            process = await forwarder(config)
            await settled(config, 0)
            await at.control("POST", "events", freeze(1))
            await asyncio.sleep(1.5)
            watch = Stopwatch()
            code = await ended(process)
            took = watch.seconds
            async with session.delete(url) as answer:
                assert answer.status == 204
        assert not await at.messages("/siem")
        process = await forwarder(config)
        found = await received_by(
            at, "scheduledevent.scheduled.v1", "bridge.stopped.v1"
        )
        await ended(process)

    assert (code, took < 4.0) == (0, True)
    kinds = {str(one["type"]).split(".", 1)[1] for one in found}
    assert kinds >= {"scheduledevent.scheduled.v1", "bridge.stopped.v1"}


BRIEF = 'shutdown_grace = "2s"\n[imds]'
