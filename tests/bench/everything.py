"""The memory of a forwarder with every kind of sink, a command and the traffic probe.

The bare script has the same imports and the same connections. Both send one message on
each of them at the start: the forwarder the event ``bridge.started``.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.idle import WITH_BUS, measured_side_by_side
from tests.support.mail import Relay
from tests.support.ports import free_port
from tests.system.processes import simulator

BARE = """
import aiohttp, aiosmtplib, asyncio, slack_sdk.models.blocks
from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from email.message import EmailMessage
async def main():
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, syslog = await asyncio.open_connection("127.0.0.1", {syslog})
    syslog.write(b"2 ok")
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@x.example", "b@x.example", "up"
    await aiosmtplib.send(mail, hostname="127.0.0.1", port={smtp}, start_tls=False)
    async with aiohttp.ClientSession() as session:
        client = ServiceBusClient.from_connection_string("{bus}")
        sender = client.get_topic_sender("scheduled-events")
        receiver = client.get_queue_receiver("vm-approvals")
        async with client, sender, receiver:
            await sender.send_messages(ServiceBusMessage("up"))
            for path in ("siem", "slack"):
                async with session.post("{inbox}/" + path, json={{"blocks": []}}) as r:
                    await r.read()
            while True:
                await receiver.receive_messages(max_wait_time=1)
                async with session.get("{imds}/metadata/scheduledevents"
                        "?api-version=2020-07-01", headers={{"Metadata": "true"}}) as r:
                    await r.read()
asyncio.run(main())
"""
OURS = (
    WITH_BUS
    + """
[traffic]
listen = "127.0.0.1:{traffic}"
[[sinks]]
name = "ops"
type = "slack"
webhook_url = "{inbox}/slack"
when.lifecycle = true
[[sinks]]
name = "mail"
type = "email"
host = "127.0.0.1"
port = {smtp}
security = "none"
sender = "a@x.example"
recipients = ["b@x.example"]
when.lifecycle = true
[[sinks]]
name = "log"
type = "syslog"
host = "127.0.0.1"
port = {syslog}
[[sinks]]
name = "lines"
type = "file"
path = "{folder}/events.jsonl"
[[sinks]]
name = "hook"
type = "command"
command = ["/bin/true"]
"""
)


async def figures(seconds: float, turns: int) -> list[Figure]:
    """Measure ours and two bare scripts side by side, started anew for each turn."""
    found = []
    async with simulator() as at, receivers() as ports:
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                names = {
                    **ports,
                    "imds": at.imds,
                    "bus": at.connection_string,
                    "inbox": at.inbox,
                    "folder": folder,
                    "state": f"{folder}/state.db",
                    "traffic": str(free_port()),
                }
                found.append(
                    await measured_side_by_side(
                        BARE, OURS, names, Path(folder), seconds
                    )
                )
    return [
        Figure(
            what="idle memory, every kind of sink, a command, traffic",
            ours=tuple(ours[0] for ours, _, _ in found),
            bare=tuple(bare[0] for _, bare, _ in found),
            again=tuple(again[0] for _, _, again in found),
            unit="MiB",
            wanted="<= 1.35",
        )
    ]


@asynccontextmanager
async def receivers() -> AsyncIterator[dict[str, str]]:
    """Serve mail and syslog, and yield the ports."""

    async def read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass

    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(Relay().serving())
        syslog = await asyncio.start_server(read, "127.0.0.1", 0)
        stack.callback(syslog.close)
        port = syslog.sockets[0].getsockname()[1]
        yield {"smtp": str(mail.port), "syslog": str(port)}
