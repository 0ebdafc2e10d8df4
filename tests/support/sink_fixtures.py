"""What the contract tests share: an event, a server that answers as told, a reader."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.sections import Reader
from bridge.simulator.servicebus.broker import Broker
from bridge.sinks.base import Resources, Sink, SinkConfig
from bridge.sinks.registry import SINK_TYPES

EVENT_ID = "602D9444-D2CD-49C7-8624-8643E7171297"
SECRET = "T0K3N-5EC12E7"


def cloud_event(what: str = "scheduledevent.scheduled", **data: object) -> CloudEvent:
    """An event as the poller publishes it; ``data`` replaces what is given."""
    return CloudEvent(
        id="0f" * 16,
        source="/subscriptions/s/resourcegroups/g/providers/microsoft.compute",
        type=f"sebridge.{what}.v1",
        subject=EVENT_ID,
        time="2026-11-21T10:00:00Z",
        dataschema="urn:sebridge:schema:scheduledevent:v1",
        extensions={"correlationid": EVENT_ID, "severitynumber": 17},
        data={
            "transition": what.rpartition(".")[2],
            "event": {
                "EventId": EVENT_ID,
                "EventType": "Reboot",
                "EventStatus": "Scheduled",
                "Resources": ["web-0", "web-1"],
                "Description": "Host & guest <must> restart",
                "EventSource": "Platform",
                "DurationInSeconds": 30,
            },
            "notBefore": "2026-11-21T10:14:00Z",
            "noticeSeconds": 840,
            "reporter": {"vmName": "web-0", "vmId": "vm-1"},
            **data,
        },
    )


def sink_config(
    options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> SinkConfig:
    """Read the options of a sink as the configuration would."""
    reader = Reader(file="bridge.toml", environ=environ or {})
    table = {"name": "it", **options}
    config = reader.section(SINK_TYPES[str(options["type"])], table, "sinks[0]")
    assert config is not None, reader.faults
    return config


def config_faults(options: Mapping[str, object], **environ: str) -> list[str]:
    """Return what is wrong with the options of a sink, without the file's name."""
    reader = Reader(file="bridge.toml", environ=environ)
    table = {"name": "it", **options}
    reader.section(SINK_TYPES[str(options["type"])], table, "sinks[0]")
    return [fault.removeprefix("bridge.toml: sinks[0].") for fault in reader.faults]


@asynccontextmanager
async def opened_sink(
    resources: Resources, options: Mapping[str, object], **environ: str
) -> AsyncIterator[Sink]:
    async with sink_config(options, environ).open(resources) as sink:
        yield sink


@dataclass(slots=True)
class Received:
    """A request that the inbox got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Inbox:
    """A real HTTP server on loopback that answers as it is told."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"ok"
    is_silent: bool = False
    hangs_up: bool = False
    received: list[Received] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append(
            Received(request.method, request.path_qs, request.headers, body)
        )
        if self.is_silent:
            await self.released.wait()
        if self.hangs_up and request.transport is not None:
            request.transport.abort()
        return web.Response(status=self.status, headers=self.headers, body=self.answer)

    @asynccontextmanager
    async def serving(
        self, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator["Inbox"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        address: Any = runner.addresses[0]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{address[1]}"
        try:
            yield self
        finally:
            self.released.set()
            await runner.cleanup()


@dataclass(slots=True)
class LogReceiver:
    """A TCP receiver that keeps what it is sent, unless it is told not to."""

    port: int = 0
    is_deaf: bool = False
    resets: bool = False
    connections: int = 0
    data: bytes = b""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        self.writers.append(writer)
        if self.is_deaf:
            return
        if self.resets:
            await reader.read(1)
            writer.transport.abort()  # with data unread: the kernel resets
            return
        while chunk := await reader.read(65536):
            self.data += chunk

    async def arrived(self, size: int) -> None:
        """Wait until it has read so many bytes."""
        async with asyncio.timeout(60):
            while len(self.data) < size:
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def serving(
        self, context: ssl.SSLContext | None = None
    ) -> AsyncIterator[dict[str, object]]:
        server = await asyncio.start_server(
            self.handle, "127.0.0.1", self.port, limit=1024, ssl=context
        )
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield {"type": "syslog", "host": "127.0.0.1", "port": self.port}
        finally:
            for writer in self.writers:
                writer.transport.abort()
            server.close()
            await server.wait_closed()


async def drained(
    broker: Broker, queue: str = "", *, session: str | None = None, count: int = 1
) -> list[ServiceBusReceivedMessage]:
    """Receive ``count`` messages with the SDK, from the subscription by default."""
    messages: list[ServiceBusReceivedMessage] = []
    async with ServiceBusClient.from_connection_string(
        broker.connection_string
    ) as client:
        receiver = (
            client.get_queue_receiver(queue, session_id=session)
            if queue
            else client.get_subscription_receiver("scheduled-events", "consumer")
        )
        async with receiver, asyncio.timeout(60):
            while len(messages) < count:
                found = await receiver.receive_messages(count, max_wait_time=1)
                for message in found:
                    await receiver.complete_message(message)
                messages += found
    return messages
