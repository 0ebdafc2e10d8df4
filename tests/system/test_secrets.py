"""No secret is ever shown, whoever answers whatever: a canary in every key."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.sinks.sink_ways import WAYS
from tests.sinks.ways.way import Place
from tests.support.builders import EVENT_ID
from tests.support.ports import free_port
from tests.system import canaries
from tests.system.canaries import Canary, Hiding, Table, World
from tests.system.echoing_relay import echoing_relay
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    simulator_here,
    started,
)

pytestmark = pytest.mark.integration

STATUSES = (200, 302, 400, 403, 503)
COMMANDS = (
    ("-m", "bridge", "check", "--connect"),
    ("-m", "bridge", "status"),
    ("-m", "bridge", "events"),
    ("-m", "bridge", "outbox", "show"),
    ("-m", "bridge", "send-test"),
)


# In one process: each would take as long to start as to render all of them.
PREVIEWS = """
import sys
from bridge.cli.main import main

*names, _, path = sys.argv[1:]
for name in names:
    try:
        main(["render", "--sink", name, "-c", path])
    except SystemExit as end:
        assert end.code in {0, 1}, end.code
"""


class Echo:
    """A receiver that gives back all that it was given, in every way there is."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.seen: set[str] = set()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.bodies.append(await request.read())
        self.seen.add(request.path)
        given_back = " ".join(
            [
                str(request.url),
                *(f"{key}: {value}" for key, value in request.headers.items()),
            ]
        )
        first, _, last = request.path.lstrip("/").partition("/")
        status = int(first) if first.isdigit() else 403
        return web.Response(
            status=status,
            reason=given_back,
            # bare, it looks like one of Slack's own words for a fault
            text=last if status in {400, 403} and last else given_back,
            headers={
                "Location": str(request.url),
                "WWW-Authenticate": given_back,
                "Retry-After": given_back if status == 503 else "1",
                "Set-Cookie": f"told={last}",
            },
        )


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, str]]:
    echo = Echo()
    runner = web.ServerRunner(web.Server(echo.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield echo, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration on disk, and what is hidden in it."""

    path: Path
    sinks: list[Table]
    listen: str
    token: str
    hiding: Hiding


def written(folder: Path, world: World, approvals: Place, *, with_sinks: bool) -> Case:
    """Write a configuration with a secret in every key, for approvals in one."""
    name, hiding = f"approvals-{approvals[-1]}", Hiding(folder)
    token = Canary.of(f"{name} http.token")
    settings: Table = {
        "imds": {"endpoint": world.imds, "poll_interval": "250ms"},
        "state": {"path": str(folder / f"{name}.db")},
        "log": {"level": "debug"},
        "http": {"listen": f"127.0.0.1:{free_port()}"},
    }
    assert canaries.of_settings() == [("http", "token")], "who else is to be asked?"
    settings["http"]["token"] = hiding.reference(token, token.text)
    settings["sinks"] = [
        hidden(hiding, kind, place, status, world)
        for kind, place in canaries.of_sinks()
        for status in STATUSES
        if with_sinks
    ]
    settings["approvals"] = asked(hiding, approvals, world)
    path = folder / f"{name}.toml"
    path.write_text(canaries.toml(settings))
    listen = str(settings["http"]["listen"])
    return Case(path, settings["sinks"], listen, token.text, hiding)


def hidden(hiding: Hiding, kind: str, place: Place, status: int, world: World) -> Table:
    canary = Canary.of(f"{kind} {place} {status}")
    shape = WAYS[kind].shapes.get(place)
    plain = canaries.shaped(place, canary, status, world)
    value = shape(canary.core) if shape is not None else plain
    reference = hiding.reference(canary, value)
    return canaries.sink(kind, place, status, world, reference)


def asked(hiding: Hiding, place: Place, world: World) -> Table:
    canary = Canary.of(f"approvals {place}")
    found: Table = {
        "connection_string": f"{world.bus}SharedAccessKey=plain;",
        "queue": "vm-approvals",
        "reply_to": ["replies"],
        **canaries.beside(place),
    }
    value = canaries.shaped(place, canary, 200, world)
    canaries.put(found, place, hiding.reference(canary, value))
    return found


async def asked_over_http(case: Case) -> dict[str, bytes]:
    """Return what the health port shows, to whoever may look and to others."""
    found = {}
    async with aiohttp.ClientSession(f"http://{case.listen}") as session:
        for path in ("/", "/livez", "/readyz", "/status", "/metrics"):
            for given in (case.token, f"{case.token}x"):
                headers = {"Authorization": f"Bearer {given}"}
                async with session.get(path, headers=headers) as answer:
                    head = str(answer.headers).encode()
                    text = await answer.read()
                    found[f"{path} {answer.status}"] = head + text
    return found


async def said(config: Path, environ: Mapping[str, str], *words: str) -> bytes:
    """Return what Python prints, with the configuration as its last argument."""
    process = await started(
        *(sys.executable, *words, "-c", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environ},
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode in {0, 1}, output
    return output


async def settled(case: Case) -> None:
    """Wait until every sink has delivered, or says what is wrong."""
    headers = {"Authorization": f"Bearer {case.token}"}
    url = f"http://{case.listen}/status"
    waiting: set[str] = {"the forwarder"}
    async with asyncio.timeout(4 * PATIENCE), aiohttp.ClientSession() as session:
        while waiting:
            await asyncio.sleep(0.2)
            try:
                async with session.get(url, headers=headers) as answer:
                    status: Any = await answer.json()
            except aiohttp.ClientError:
                continue
            waiting = {str(sink["name"]) for sink in case.sinks} - {
                one["name"]
                for one in status["sinks"]
                if one["lastError"] or not one["pending"]
            }
            if case.sinks and not status["approvals"]:
                waiting |= {"the approval"}


async def happen(at: Addresses) -> None:
    """Let there be an event, and approve it."""
    event = {"type": "Reboot", "resources": ["WestNO_0"], "eventId": EVENT_ID}
    await at.control("POST", "events", {**event, "notBefore": 900})
    body = json.dumps({"StartRequests": [{"EventId": EVENT_ID}]})
    client = ServiceBusClient.from_connection_string(at.connection_string)
    async with client, client.get_queue_sender("vm-approvals") as sender:
        await sender.send_messages(ServiceBusMessage(body, reply_to="replies"))


def process_list(pid: int, given: Mapping[str, str]) -> bytes:
    """Return what everybody on the machine sees of a process.

    Its environment is for its owner alone, and is what it was given.
    """
    proc = Path("/proc") / str(pid)
    environ = (proc / "environ").read_bytes().split(b"\0")
    allowed = {os.fsencode(f"{key}={value}") for key, value in given.items()}
    assert set(filter(None, environ)) <= allowed
    return (proc / "cmdline").read_bytes() + (proc / "comm").read_bytes()


async def lived(case: Case, commands: Sequence[Sequence[str]]) -> dict[str, bytes]:
    """Return everything that a forwarder shows in its life."""
    environ = case.hiding.environ
    process = await forwarder(case.path, environ)
    try:
        await settled(case)
        given = {**os.environ, **environ}
        shown = {"the process list": process_list(process.pid, given)}
        shown |= await asked_over_http(case)
        outputs = [said(case.path, environ, *words) for words in commands]
        said_all = await asyncio.gather(*outputs)
        shown |= dict(zip(map(str, commands), said_all, strict=True))
        for part in case.path.parent.glob("*.db*"):
            if part.is_file():  # beside it lies the socket for commands
                shown[part.name] = part.read_bytes()
    finally:
        await ended(process)
    log = case.path.with_suffix(".log").read_bytes()
    assert b"forwarder started" in log
    return shown | {f"the log of {case.path.stem}": log}


@pytest.mark.slow
async def test_no_secret_is_seen_anywhere(tmp_path: Path) -> None:
    async with (
        simulator_here() as at,
        echoing() as (echo, url),
        echoing_relay() as (relay, port),
    ):
        bus = at.connection_string.partition("SharedAccessKey=")[0]
        bus += "UseDevelopmentEmulator=true;"
        world = World(imds=at.imds, echo=url, bus=bus, relay=port)
        await happen(at)
        first, *others = canaries.of_approvals()
        case = written(tmp_path, world, first, with_sinks=True)
        names = [str(sink["name"]) for sink in case.sinks]
        previews = ["-c", PREVIEWS, *(n for n in names if n.endswith("-200"))]
        shown = await lived(case, [*COMMANDS, previews])
        hidden_there = [*case.hiding.canaries]
        for place in others:
            case = written(tmp_path, world, place, with_sinks=False)
            shown |= await lived(case, COMMANDS[:1])
            hidden_there += case.hiding.canaries

    shown |= {f"a body of {n}": body for n, body in enumerate(echo.bodies)}
    shown |= {f"mail {n}": mail for n, mail in enumerate(relay.mails)}
    assert canaries.found_in(hidden_there, shown) == []
    assert {int(path[1:4]) for path in echo.seen if path[1:4].isdigit()} == {*STATUSES}
    assert relay.logged_in == {*map(str, STATUSES)}
    assert relay.mails
