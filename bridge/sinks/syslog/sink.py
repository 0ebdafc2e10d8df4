"""CloudEvents to a syslog receiver, as RFC 5424 over UDP, TCP or TLS.

Source: RFC 5424 (format), 5426 (UDP), 6587 section 3.4.1 (TCP), 5425 (TLS)
"""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Literal

from msgspec import Struct

from bridge import __version__
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import ConfigError
from bridge.foundation.values import Size, placeholder_faults
from bridge.net.tls import Tls
from bridge.sinks.base import Preview, Resources
from bridge.sinks.host import HostKeys
from bridge.sinks.syslog.format import FACILITIES, SD_ID, Body, Facility, Style, render
from bridge.sinks.syslog.wire import Datagrams, Stream, Wire

Transport = Literal["udp", "tcp", "tls"]

# syslog-ng listens at 601 for this framing; RFC 6587 names no port.
_PORTS = {"udp": 514, "tcp": 601, "tls": 6514}
# Sizes that receivers should accept: RFC 5424 section 6.1, RFC 5425 section 4.3.1.
_SIZES = {"udp": 2048, "tcp": 8192, "tls": 8192}
_LARGEST_DATAGRAM = 65507
_LEAST_SIZE = 480  # every receiver must accept this size


class SyslogSinkConfig(HostKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "syslog"``.

    Attributes:
        host: the name or the address of the receiver. Example: ``"siem.example"``.
        port: the port of the receiver; 0 is 514 for udp, 601 for tcp, 6514 for tls.
            Example: ``6514``.
        transport: how messages are sent; with "udp" it is never known whether a message
            has arrived.
        facility: the syslog facility of every message.
        hostname: the host name in every message; "" is the name of the VM. {vm_id},
            {vm_name} and {group} are filled in. Example: ``"{vm_name}"``.
        body: "json" is the event, in ASCII; "cef" is for ArcSight and similar systems.
        bom: whether CEF that is not ASCII begins with a byte order mark, as RFC 5424
            requires.
        structured_data: the id under which the attributes are also sent as structured
            data; "" is none. Example: ``"sebridge@12345"``.
        max_size: the longest message; 0 is 2KiB for udp, 8KiB for tcp and tls. A
            longer event loses its less important parts.
    """

    transport: Transport = "tcp"
    facility: Facility = "daemon"
    hostname: str = ""
    body: Body = "json"
    bom: bool = False
    structured_data: str = ""
    max_size: Size = Size(0)

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check what the types cannot check, and that the certificates exist."""
        yield from self.host_faults(_PORTS)
        for what in placeholder_faults(self.hostname):
            yield "hostname", what
        if self.structured_data and not SD_ID.fullmatch(self.structured_data):
            yield (
                "structured_data",
                'must be a name and your enterprise number, such as "sebridge@12345"',
            )
        if self.max_size and self.max_size < _LEAST_SIZE:
            yield "max_size", f"must be at least {_LEAST_SIZE} bytes, or 0"
        if self.transport == "udp" and self.max_size > _LARGEST_DATAGRAM:
            what = f"must be at most {_LARGEST_DATAGRAM} bytes with udp"
            yield "max_size", what, "transport"
        unused = "" if self.transport == "tls" else 'needs transport = "tls"'
        yield from self.tls_faults(unused, "transport")

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["SyslogSink"]:
        """Fill in the host name; nothing is connected before the first delivery.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        sink = SyslogSink(style=self._style(resources), wire=self._wire())
        try:
            yield sink
        finally:
            await sink.wire.close()

    async def reach(self, resources: Resources) -> str:
        """Connect, but send nothing; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.wire.reach()

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return the message, without its length prefix; see ``SinkConfig.preview``."""
        head = f"syslog {self.host}:{self._port}/{self.transport}"
        return Preview(head=(head,), body=render(event, self._style(resources)))

    @property
    def _port(self) -> int:
        return self.port or _PORTS[self.transport]

    def _wire(self) -> Wire:
        if self.transport == "udp":
            return Datagrams(host=self.host, port=self._port, timeout=self.timeout)
        return Stream(
            host=self.host,
            port=self._port,
            timeout=self.timeout,
            make_context=self._contexts() if self.transport == "tls" else None,
        )

    def _contexts(self) -> Callable[[], ssl.SSLContext]:
        tls = Tls(self.tls_files)
        return lambda: tls.context() or ssl.create_default_context()

    def _style(self, resources: Resources) -> Style:
        try:
            hostname = resources.expand(self.hostname or "{vm_name}")
        except ValueError as error:
            if self.hostname:
                place = f"sinks.{self.name}.hostname"
                raise ConfigError([f"{place}: {error}"]) from error
            hostname = ""
        return Style(
            facility=FACILITIES.index(self.facility),
            hostname=hostname,
            version=__version__,
            body=self.body,
            structured_data=self.structured_data,
            with_bom=self.bom,
            max_size=self.max_size or _SIZES[self.transport],
        )


class SyslogSink(Struct, frozen=True, kw_only=True):
    """Sends each event as one message."""

    style: Style
    wire: Wire

    async def deliver(self, event: CloudEvent) -> None:
        """Send the event; see ``Sink.deliver`` and ``bridge.sinks.syslog.wire``.

        Raises:
            DeliveryError: as ``bridge.sinks.syslog.wire`` maps it.
        """
        await self.wire.send(render(event, self.style))
