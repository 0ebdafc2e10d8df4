"""Takes the pictures of the pages.

    PYTHONPATH=infra:infra/functions python -m tests.docs.pictures.screenshots [NAME …]

One function for each, which returns the picture; ``PICTURES`` has the name of the file
under ``.github``. Wanted beside Chromium, for the look: Debian's
fonts-noto-color-emoji and fonts-lato.
"""

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, Final

import aiohttp
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.serve import Simulator, SimulatorOptions
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.http_control import broker_routes
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import Condition
from tests.docs.pictures import discord_picture, hub_picture
from tests.docs.pictures.screenshot_texts import (
    CARD,
    REBOOT_OF_IMDS,
)
from tests.infra import dashboards
from tests.infra.teams_world import ALICE, CHANNEL, teams_stage
from tests.sinks.test_webhook_alerts import firing_at, running, until_ready
from tests.support.browser import find
from tests.support.builders import imds_event, not_before
from tests.support.configurations import (
    Table,
    approvals,
    config_text,
    webhook,
)
from tests.support.configurations import (
    servicebus as servicebus_sink,
)
from tests.support.fakes import START
from tests.support.ports import free_port
from tests.system.processes import PATIENCE, ended, forwarder

FOLDER: Final = Path(__file__).parents[3] / ".github"
_WIDTH: Final = 960
_COLUMNS: Final = 100

_LISTEN: Final = "127.0.0.1:19465"
SECRETS: Final = {"SLACK_BOT_TOKEN": "xoxb-simulated", "BUTTON_SECRET": "b" * 32}
ME: Final = {"vm_name": "web-1"}
MAIL: Final = {
    "name": "mail",
    "type": "email",
    "host": "localhost",
    "security": "none",
    "sender": "sebridge@contoso.com",
    "recipients": ["ops@contoso.com"],
}
REBOOT: Final = EventLife(
    event_type="Reboot",
    resources=("web-1",),
    source="User",
    notice_seconds=900,
    started_seconds=60,
    description="Virtual machine is being restarted as requested by authorized user.",
)
FREEZE: Final = EventLife(
    event_type="Freeze",
    resources=("web-1", "web-2"),
    notice_seconds=840,
    duration_seconds=9,
    description="Virtual machine is being paused because of a memory-preserving Live"
    " Migration operation.",
)


def _slack_bot(api_url: str) -> Table:
    return {
        "name": "ops",
        "type": "slack",
        "token": "env:SLACK_BOT_TOKEN",
        "channel": "ops",
        "api_url": api_url,
        "buttons": True,
        "button_secret": "env:BUTTON_SECRET",
    }


def _two_sinks(imds: str, bus: str, folder: Path) -> str:
    """Return the configuration of a forwarder one of whose sinks is not there."""
    return config_text(
        servicebus_sink(bus),
        webhook("http://127.0.0.1:9/ingest"),
        imds={"endpoint": imds},
        state=folder / "state.db",
        listen=_LISTEN,
        approvals=approvals(bus),
    )


async def slack() -> bytes:
    """Return the page of the local Slack: a reboot approved, a freeze to decide on."""
    async with Simulator(SimulatorOptions(vm_name="web-1")) as simulator:
        with tempfile.TemporaryDirectory() as name:
            config = Path(name) / "bridge.toml"
            at = simulator.addresses()
            config.write_text(
                config_text(
                    _slack_bot(at["slack"]["apiUrl"]),
                    imds=at["imds"]["url"],
                    state=config.parent / "state.db",
                    approvals=approvals(at["servicebus"]["connectionString"]),
                )
            )
            bridge = await forwarder(config, SECRETS)
            try:
                await _live(simulator, config)
            finally:
                await ended(bridge)
        return await _picture(at["slack"]["page"], 1200)


@asynccontextmanager
async def _in_the_middle() -> AsyncIterator[Path]:
    """Lend the file of a forwarder that runs: one event under way, one to come."""
    async with Simulator(SimulatorOptions(vm_name="web-1")) as simulator:
        with tempfile.TemporaryDirectory() as name:
            config = Path(name) / "bridge.toml"
            at = simulator.addresses()
            bus = at["servicebus"]["connectionString"]
            config.write_text(_two_sinks(at["imds"]["url"], bus, config.parent))
            bridge = await forwarder(config)
            try:
                await _until(lambda status: status["missing"] == [])
                reboot = simulator.imds.schedule(REBOOT)
                await _until(lambda status: len(status["document"]["events"]) == 1)
                await _approve(config, reboot.event_id)
                await _until(lambda status: len(status["approvals"]) == 1)
                simulator.imds.schedule(FREEZE)
                await _until(lambda status: len(status["document"]["events"]) == 2)
                yield config
            finally:
                await ended(bridge)


async def page() -> bytes:
    """Return the page of a forwarder."""
    async with _in_the_middle():
        return await _picture(f"http://{_LISTEN}/", 935, width=1000)


async def status() -> bytes:
    """Return what ``sebridge status`` says of a forwarder."""
    async with _in_the_middle() as config:
        said = await asyncio.to_thread(_in_a_terminal, config, {}, "status")
        return await _terminal("status -c bridge.toml", said, config.parent, 890)


async def teams() -> bytes:
    """Return the card that Teams is sent, drawn by Microsoft's own renderer."""
    with tempfile.TemporaryDirectory() as name:
        config, event, page = (
            Path(name) / each for each in ("c", "event", "page.html")
        )
        sink = webhook("https://teams.example/workflow", "teams", preset="teams")
        config.write_text(config_text(sink, state=Path(name) / "state.db", identity=ME))
        event.write_text(json.dumps(REBOOT_OF_IMDS))
        command = (sys.executable, "-m", "bridge", "render", "-c", str(config))
        said = await asyncio.to_thread(
            subprocess.check_output,
            [*command, "--sink", "teams", "--event", str(event)],
        )
        card = json.loads(said.split(b"\n\n", 1)[1])["attachments"][0]["content"]
        page.write_text(
            CARD.format(library=_renderer().as_uri(), card=json.dumps(card))
        )
        return await _picture(page.as_uri(), 236, width=760)


async def teams_bot() -> bytes:
    """Return the page of the local Teams: a reboot approved, a freeze to decide on."""
    async with teams_stage() as stage:
        stage.inbox.teams.team.conversation(CHANNEL).name = "Operations"
        notice = not_before(900, stage.now)
        reboot = imds_event(
            "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
            EventType="Reboot",
            Resources=["web-1"],
            NotBefore=notice,
            Description=REBOOT.description,
            EventSource="User",
            DurationInSeconds=-1,
        )
        freeze = imds_event(
            "602D9444-D2CD-49C7-8624-8643E7171297",
            Resources=["web-1", "web-2"],
            NotBefore=notice,
            Description=FREEZE.description,
            DurationInSeconds=9,
        )
        late = (stage.now - START).total_seconds()
        await stage.tell("scheduled", reboot, after=late - 90)
        await stage.click(ALICE, "approve", stage.card(reboot))
        (message,) = await stage.host.approvals()
        await stage.settle("relayed", reboot, message.message_id, after=late - 60)
        begun = {**reboot, "EventStatus": "Started", "NotBefore": ""}
        await stage.tell("started", begun, after=late - 45)
        await stage.tell("scheduled", freeze, after=late)
        return await _picture(stage.page_of(ALICE), 790, width=1060)


async def servicebus() -> bytes:
    """Return the page of the local Service Bus: sessions, and a dead letter."""
    entities = Entities(
        queues=(
            QueueSettings(name="orders", requires_session=True),
            QueueSettings(name="invoices"),
        ),
        topics=(
            TopicSettings(
                name="news", subscriptions=(SubscriptionSettings(name="shop"),)
            ),
        ),
    )
    async with (
        Broker(entities) as broker,
        ImdsSimulator(control=broker_routes(broker)) as imds,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
    ):
        async with client.get_queue_sender("orders") as sender:
            for number in range(1, 7):
                await sender.send_messages(
                    ServiceBusMessage(
                        json.dumps({"order": number, "apples": 2 * number}),
                        subject="order",
                        message_id=f"order-{number}",
                        session_id=f"shop-{number % 2 + 1}",
                    )
                )
        for number in range(3):
            broker.put("invoices", b"%d" % number)
            broker.put("news", b"%d" % number)
        async with client.get_queue_receiver("orders", session_id="shop-1") as worker:
            first, *_ = await worker.receive_messages(1, max_wait_time=30)
            await worker.dead_letter_message(
                first, reason="OutOfStock", error_description="no apples are left"
            )
            await worker.session.set_state(b"2")
            await worker.receive_messages(1, max_wait_time=30)
            return await _picture(f"{imds.url}/?entity=orders", 940, width=1200)


async def email() -> bytes:
    """Return the HTML of a mail, as a mail program shows it."""
    with tempfile.TemporaryDirectory() as name:
        config, event, page = (
            Path(name) / each for each in ("c", "event", "page.html")
        )
        config.write_text(config_text(MAIL, state=Path(name) / "state.db", identity=ME))
        event.write_text(json.dumps(REBOOT_OF_IMDS))
        command = (sys.executable, "-m", "bridge", "render", "-c", str(config))
        said = await asyncio.to_thread(
            subprocess.check_output,
            [*command, "--sink", "mail", "--event", str(event)],
        )
        mail = message_from_bytes(said.split(b"\n\n", 1)[1], policy=policy.SMTP)
        body = mail.get_body(("html",))
        page.write_text(body.get_content() if body else "", encoding="utf-8")
        return await _picture(page.as_uri(), 300, width=760)


def _renderer() -> Path:
    """Return the file of adaptivecards, which tests/sinks/node names."""
    for folder in os.environ.get("NODE_PATH", "").split(os.pathsep):
        found = Path(folder) / "adaptivecards" / "dist" / "adaptivecards.min.js"
        if found.exists():
            return found
    sys.exit("adaptivecards is not in NODE_PATH")


async def dashboard() -> bytes:
    """Return the dashboard, with what a real Prometheus found."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "dashboard.png"
        await dashboards.picture(path)
        return path.read_bytes()


async def doctor() -> bytes:
    """Return what ``check --connect`` says: one refuses, one is not there."""
    async with Simulator(SimulatorOptions(vm_name="web-1")) as simulator:
        simulator.broker.faults.refuse_attach(
            "scheduled-events", Condition.UNAUTHORIZED
        )
        with tempfile.TemporaryDirectory() as name:
            config = Path(name) / "bridge.toml"
            at = simulator.addresses()
            config.write_text(_two_sinks(at["imds"]["url"], "env:BUS", config.parent))
            bus = {"BUS": at["servicebus"]["connectionString"], "PATH": ""}
            said = await asyncio.to_thread(
                _in_a_terminal, config, bus, "check", "--connect"
            )
            title = "check --connect -c bridge.toml"
            return await _terminal(title, said, config.parent, 385)


async def alertmanager() -> bytes:
    """Return what a real Alertmanager has of two events, as its command shows it."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        url = f"http://127.0.0.1:{port}"
        rules, config = folder / "alertmanager.yml", folder / "bridge.toml"
        rules.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
        with running(rules, folder / "data", port):
            await until_ready(url)
            async with Simulator(SimulatorOptions(vm_name="web-1")) as simulator:
                config.write_text(
                    config_text(
                        webhook(
                            f"{url}/api/v2/alerts",
                            "alertmanager",
                            preset="alertmanager",
                        ),
                        imds=simulator.addresses()["imds"]["url"],
                        state=folder / "state.db",
                        listen=_LISTEN,
                    )
                )
                bridge = await forwarder(config)
                try:
                    await _until(lambda status: status["missing"] == [])
                    for life in (REBOOT, FREEZE):
                        simulator.imds.schedule(life)
                    async with asyncio.timeout(PATIENCE):
                        while len(await firing_at(url)) < 2:
                            await asyncio.sleep(0.1)
                finally:
                    await ended(bridge)
            said = await asyncio.to_thread(_amtool, url)
        title = "$ amtool alert query --output=json | jq '.[] | {labels, annotations}'"
        return await _text(title, said, folder, 760)


def _amtool(url: str) -> str:
    """Return labels and annotations of all alerts, as JSON."""
    command = ("amtool", "alert", "query", "--output=json", f"--alertmanager.url={url}")
    found = json.loads(subprocess.check_output(command))  # noqa: S603 - Alertmanager's
    kept = [{key: one[key] for key in ("labels", "annotations")} for one in found]
    return "\n".join(json.dumps(one, indent=2) for one in kept)


async def _terminal(title: str, said: str, folder: Path, height: int) -> bytes:
    """Return what a command wrote to a terminal as a picture."""
    shown = said.replace(str(folder), "/var/lib/sebridge")
    return await _text(f"$ sebridge {title}", shown, folder, height)


async def _text(title: str, said: str, folder: Path, height: int) -> bytes:
    """Return text as a terminal shows it, below the command that was typed."""
    page = folder / "page.html"
    page.write_text(_as_html(title, said))
    return await _picture(page.as_uri(), height, width=1000)


def _in_a_terminal(config: Path, environ: Mapping[str, str], *words: str) -> str:
    """Return what a command writes to a terminal, colours and all."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = (sys.executable, "-X", "utf8", "-m", "bridge", *words)
        subprocess.run(  # noqa: S603  ourselves
            [*command, "-c", str(config)],
            env={"COLUMNS": str(_COLUMNS), **environ},
            stdout=theirs,
            check=False,
        )
        os.close(theirs)
        said = bytearray()
        with suppress(OSError):  # Linux's end of a terminal
            while part := terminal.read(65536):
                said += part
    return said.decode().replace("\r\n", "\n")


def _as_html(title: str, ansi: str) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text(title, style="bold"))
    console.print(Text.from_ansi(ansi))
    return console.export_html(theme=MONOKAI, inline_styles=True)


async def _until(holds: Callable[[Any], bool]) -> None:
    """Wait until something holds of the status."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError, KeyError):
                async with session.get(f"http://{_LISTEN}/status") as response:
                    if holds(await response.json()):
                        return
            await asyncio.sleep(0.2)


async def _live(simulator: Simulator, config: Path) -> None:
    """Let things happen, and the bridge tell of them."""
    reboot = simulator.imds.schedule(REBOOT)
    await _said(simulator, 2)
    await _approve(config, reboot.event_id)
    await _said(simulator, 4)
    simulator.imds.schedule(FREEZE)
    await _said(simulator, 6)


async def _approve(config: Path, event_id: str) -> None:
    reason = ("--reason", "connections are drained", "--approved-by", "alice")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "approve", "-c", str(config), event_id),
        *reason,
        env={**SECRETS, "PATH": ""},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0


async def _said(simulator: Simulator, count: int) -> None:
    """Wait until there are so many messages, and all is quiet."""
    channels = simulator.inbox.slack.workspace.channels
    async with asyncio.timeout(PATIENCE):
        while sum(len(each.posts) for each in channels.values()) < count:
            await asyncio.sleep(0.1)
    await asyncio.sleep(3)  # a change of a message may still come


async def _picture(url: str, height: int, width: int = _WIDTH) -> bytes:
    browser = find()
    if browser is None:
        sys.exit("there is no Chromium here")
    # Twice as many pixels, so that it can be read where a page shows it smaller.
    fine = replace(browser, flags=("--force-device-scale-factor=2",))
    return await fine.picture(url, width, height)


PICTURES: Final[Mapping[str, Callable[[], Awaitable[bytes]]]] = {
    "alertmanager": alertmanager,
    "dashboard": dashboard,
    "discord": discord_picture.picture,
    "doctor": doctor,
    "email": email,
    "hub": hub_picture.picture,
    "page": page,
    "servicebus": servicebus,
    "slack": slack,
    "status": status,
    "teams": teams,
    "teams-bot": teams_bot,
    "why": hub_picture.why,
}


async def main(names: list[str]) -> None:
    """Take the pictures of these names, or all."""
    for name in names or PICTURES:
        (FOLDER / f"{name}.png").write_bytes(await PICTURES[name]())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
