"""Commands and a forwarder that runs: real processes, a real socket, real kills."""

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.net.local_socket import address_of, is_answered
from tests.support import root_world
from tests.support.configurations import config_text, webhook
from tests.system.processes import PATIENCE, ended, forwarder, started

pytestmark = [pytest.mark.slow, pytest.mark.integration]

EVENT_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


@dataclass
class Around:
    """IMDS and a webhook.

    Attributes:
        answer: the status with which the webhook answers.
        holds: while it is set, a request about a scheduled event waits for ``gate``.
        came: the types of the events that have come.
    """

    answer: int = 200
    holds: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    events: list[dict[str, object]] = field(default_factory=list)
    came: list[str] = field(default_factory=list)

    def announce(self) -> None:
        """Let an event be in the document from now on."""
        resources = {"ResourceType": "VirtualMachine", "Resources": ["vm"]}
        what = {"EventId": EVENT_ID, "EventType": "Reboot", "EventStatus": "Scheduled"}
        when = {"NotBefore": "Mon, 19 Sep 2033 18:29:47 GMT", "EventSource": "Platform"}
        self.events.append({**what, **when, **resources})

    async def document(self, _: web.Request) -> web.Response:
        number = 1 + len(self.events)
        found = {"DocumentIncarnation": number, "Events": self.events}
        return web.json_response(found)

    async def compute(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    async def siem(self, request: web.Request) -> web.Response:
        kind = str((await request.json())["type"])
        self.came.append(kind)
        if self.holds and ".scheduledevent." in kind:
            await self.gate.wait()
        return web.Response(status=self.answer)

    async def until_came(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.came) < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(folder: Path, answer: int) -> AsyncIterator[tuple[Around, Path]]:
    around = Around(answer)
    app = web.Application()
    app.router.add_get("/metadata/scheduledevents", around.document)
    app.router.add_get("/metadata/instance/compute", around.compute)
    app.router.add_post("/siem", around.siem)
    async with TestServer(app) as server:
        config = folder / "bridge.toml"
        url = f"http://127.0.0.1:{server.port}"
        sink = webhook(f"{url}/siem")
        text = config_text(sink, imds=url, state=folder / "state.db", listen="")
        config.write_text(text)
        yield around, config
        around.gate.set()


async def sebridge(config: Path, *words: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed."""
    command = (sys.executable, "-m", "bridge", *words, "-c", str(config))
    pipe = asyncio.subprocess.PIPE
    process = await started(*command, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode or 0, out.decode(), err.decode()


async def found(config: Path, *words: str) -> list[dict[str, object]]:
    """Return what a command prints as JSON."""
    code, out, err = await sebridge(config, *words, "--json")
    assert code == 0, err
    rows: list[dict[str, object]] = json.loads(out)
    return rows


async def states(config: Path) -> list[object]:
    return [row["state"] for row in await found(config, "outbox", "list")]


async def until(config: Path, wanted: list[str]) -> None:
    """Wait until the deliveries are in these states; it may be starting."""
    async with asyncio.timeout(PATIENCE):
        while True:
            code, out, _ = await sebridge(config, "outbox", "list", "--json")
            if code == 0 and [row["state"] for row in json.loads(out)] == wanted:
                return
            await asyncio.sleep(0.05)


async def until_started(config: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(is_answered, config.with_name("state.db")):
            await asyncio.sleep(0.05)


async def test_command_acts_at_once_while_a_delivery_is_under_way(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, answer=400) as (around, config):
        process = await forwarder(config)
        await around.until_came(1)
        await until(config, ["dead"])
        around.answer, around.holds = 200, True
        around.announce()
        await around.until_came(2)

        sent = await found(config, "outbox", "retry")
        await around.until_came(3)
        gone = await found(config, "outbox", "discard", "--state", "pending")
        around.gate.set()
        await until(config, ["delivered", "discarded"])
        code, out, _ = await sebridge(config, "events")
        live, report, _ = await sebridge(config, "status", "--live")
        assert await ended(process) == 0

    assert [row["state"] for row in sent] == ["dead"]
    assert [row["state"] for row in gone] == ["pending"]
    assert [kind.split(".")[-2] for kind in around.came[:3]] == [
        *("started", "scheduled", "started")
    ]
    assert (code, live) == (0, 0), report
    assert EVENT_ID in out
    assert not Path(address_of(tmp_path / "state.db")).exists()


async def test_forwarder_that_hangs_is_one_error(tmp_path: Path) -> None:
    async with serving(tmp_path, answer=400) as (around, config):
        process = await forwarder(config)
        await around.until_came(1)
        await until(config, ["dead"])
        process.send_signal(signal.SIGSTOP)
        code, out, err = await sebridge(config, "outbox", "retry")
        process.send_signal(signal.SIGCONT)
        assert await ended(process) == 0

    assert (code, out) == (1, "")
    assert "has not answered for 10 s: is it stopped?" in err
    assert len(err.splitlines()) == 1


async def test_commands_read_and_change_the_file_of_a_killed_forwarder(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, answer=400) as (around, config):
        process = await forwarder(config)
        await around.until_came(1)
        await until(config, ["dead"])
        process.kill()
        await process.wait()
        assert Path(address_of(tmp_path / "state.db")).is_socket()

        assert await states(config) == ["dead"]
        both = await asyncio.gather(
            *(found(config, "outbox", "retry") for _ in range(2)),
            return_exceptions=True,
        )
        assert await states(config) == ["pending"]
        around.answer = 200
        process = await forwarder(config)
        await around.until_came(3)
        await until(config, ["delivered", "delivered"])
        assert await ended(process) == 0

    sent = [row["id"] for rows in both if isinstance(rows, list) for row in rows]
    assert sent == [1]


async def test_two_commands_at_once_do_each_thing_once(tmp_path: Path) -> None:
    async with serving(tmp_path, answer=400) as (around, config):
        process = await forwarder(config)
        await around.until_came(1)
        await until(config, ["dead"])
        around.answer = 200
        both = await asyncio.gather(
            *(found(config, "outbox", "retry") for _ in range(3))
        )
        await until(config, ["delivered"])
        assert await ended(process) == 0

    assert [row["id"] for rows in both for row in rows] == [1]


@pytest.mark.parametrize("held", [True, False])
async def test_retry_survives_a_kill(tmp_path: Path, *, held: bool) -> None:
    """The command is answered when its change is on the disk."""
    async with serving(tmp_path, answer=400) as (around, config):
        process = await forwarder(config)
        await around.until_came(1)
        await until(config, ["dead"])
        around.answer = 200 if held else 503
        await found(config, "outbox", "retry")
        process.kill()
        await process.wait()
        around.answer = 200
        process = await forwarder(config)
        await until_started(config)
        await until(config, ["delivered", "delivered"])
        assert await ended(process) == 0


async def test_commands_of_root_and_of_the_account_ask_alike() -> None:
    if (why := root_world.why_not()) is not None:
        pytest.skip(why)
    setpriv = shutil.which("setpriv") or pytest.skip("setpriv is needed")
    with root_world.world() as machine:
        machine.give_away()
        async with serving(machine.folder, answer=200) as (around, config):
            state = machine.state / "state.db"
            here = str(machine.folder / "state.db")
            config.write_text(config.read_text().replace(here, str(state)))
            run = partial(machine.sebridge, "run", "-c", config, seconds=20)
            runs = threading.Thread(target=run)
            runs.start()
            await around.until_came(1)
            words = (sys.executable, "-m", "bridge", "outbox", "list", "-c", config)

            def ids(uid: int) -> tuple[str, ...]:
                return (setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups")

            account = state.stat().st_uid
            of_root, of_account, of_another = await asyncio.gather(
                asyncio.to_thread(machine.run, *words),
                asyncio.to_thread(machine.run, *ids(account), *words),
                asyncio.to_thread(machine.run, *ids(account - 1), *words),
            )
            owners = machine.owners()
            await asyncio.to_thread(runs.join)

    assert of_root.returncode == of_account.returncode == 0, of_root.stderr
    assert of_root.stdout == of_account.stdout
    assert of_another.returncode == 1
    assert "run this as the user of the service" in of_another.stderr
    assert owners == {root_world.ACCOUNT}
    assert os.geteuid() == 0
