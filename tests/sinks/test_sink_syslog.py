"""The syslog sink against a real rsyslog, and against receivers on bad days."""

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge import __version__
from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.foundation.errors import (
    ConfigError,
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import Resources
from bridge.sinks.syslog import wire as syslog_wire
from bridge.sinks.syslog.format import Style, render
from bridge.sinks.syslog.sink import SyslogSinkConfig
from bridge.sinks.syslog.wire import Acknowledged, Count, counted
from tests.sinks import rsyslog
from tests.sinks.rsyslog import Rsyslog
from tests.support.sink_fixtures import (
    EVENT_ID,
    LogReceiver,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)
from tests.support.strategies import cloud_events

NEEDED = ("imudp", "imtcp", "lmnsd_gtls", "mmnormalize", "mmpstrucdata")
needs_rsyslog = pytest.mark.skipif(
    bool(why := rsyslog.why_not(*NEEDED)), reason=why or "rsyslog is here"
)
NOWHERE = {"type": "syslog", "host": "127.0.0.1", "port": 9}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def receiver(
    authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rsyslog]:
    """One for all tests, with a certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("rsyslog")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(folder / "server.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    with rsyslog.running(folder) as running:
        yield running


def options(receiver: Rsyslog, name: str = "tcp", **more: object) -> dict[str, object]:
    """Return the options of a sink for one of rsyslog's ports."""
    tls = {"transport": "tls", "ca_file": str(receiver.folder / "ca.pem")}
    transport = {"transport": name} if name in {"udp", "tcp"} else tls
    port = {"port": receiver.ports[name]}
    return {"type": "syslog", "host": "127.0.0.1"} | transport | port | more


def certificate(authority: trustme.CA, folder: Path) -> dict[str, object]:
    """Make a client certificate, and return the options that name it."""
    client = authority.issue_cert("web-0.example")
    client.cert_chain_pems[0].write_to_path(folder / "client.pem")
    client.private_key_pem.write_to_path(folder / "client.key")
    return {
        "client_certificate": str(folder / "client.pem"),
        "client_key": str(folder / "client.key"),
    }


# -- what rsyslog reads --------------------------------------------------------


@needs_rsyslog
@pytest.mark.parametrize("name", ["udp", "tcp", "tls"])
async def test_rsyslog_reads_every_field(
    name: str, receiver: Rsyslog, resources: Resources
) -> None:
    event = cloud_event(description="naïve ☃ 😀\n\x1b[31m")
    async with opened_sink(resources, options(receiver, name)) as sink:
        await sink.deliver(event)

    (message,) = await asyncio.to_thread(receiver.received)

    assert json.loads(message.pop("msg")) == json.loads(event.to_json())
    assert message == {
        "pri": "27",
        "facility": "daemon",
        "severity": "err",
        "version": "1",
        "time": "2026-11-21T10:00:00Z",
        "host": "web-0",
        "app": "sebridge",
        "procid": "-",
        "msgid": "scheduled",
        "sd": f'[origin software="sebridge" swVersion="{__version__}"]',
        "tree": {
            "rfc5424-sd": {"origin": {"software": "sebridge", "swversion": __version__}}
        },
    }


@needs_rsyslog
async def test_rsyslog_reads_cef(receiver: Rsyslog, resources: Resources) -> None:
    """Older versions of liblognorm lose the first letter of the first key."""
    event = cloud_event("startrequest.denied", reason="a=b|c\\d\ne", outcome="denied")
    config = options(receiver, body="cef", facility="local3")
    async with opened_sink(resources, config) as sink:
        await sink.deliver(event)

    (message,) = await asyncio.to_thread(receiver.received)
    found = message["tree"]["cef"]

    assert (message["facility"], message["msgid"]) == ("local3", "startrequest.denied")
    assert {key: found[key] for key in found if key != "Extensions"} == {
        "DeviceVendor": "scheduled-events-bridge",
        "DeviceProduct": "sebridge",
        "DeviceVersion": __version__,
        "SignatureID": "startrequest.denied",
        "Name": "StartRequest denied",
        "Severity": "3",
    }
    extensions = found["Extensions"]
    extensions["rt"] = extensions.pop("t", None) or extensions["rt"]
    assert extensions == {
        "rt": "1795255200000",
        "externalId": event.id,
        "cat": "sebridge.startrequest.denied.v1",
        "act": "denied",
        "dhost": "web-0",
        "dvchost": "web-0",
        "deviceExternalId": "vm-1",
        "outcome": "denied",
        "reason": "a=b|c\\d\ne",
        "msg": "Host & guest <must> restart",
        "cs1": EVENT_ID,
        "cs1Label": "EventId",
        "cs2": "Reboot",
        "cs2Label": "EventType",
        "cs3": "Scheduled",
        "cs3Label": "EventStatus",
        "cs4": "web-0,web-1",
        "cs4Label": "Resources",
        "cs5": "Platform",
        "cs5Label": "EventSource",
        "cs6": event.source,
        "cs6Label": "Source",
        "cn1": "30",
        "cn1Label": "DurationInSeconds",
        "cn2": "840",
        "cn2Label": "NoticeSeconds",
        "deviceCustomDate1": "1795256040000",
        "deviceCustomDate1Label": "NotBefore",
    }


@needs_rsyslog
async def test_attributes_go_into_an_element_of_ones_own(
    receiver: Rsyslog, resources: Resources
) -> None:
    subject = 'a"b]c\\d'
    config = options(receiver, structured_data="sebridge@12345")
    async with opened_sink(resources, config) as sink:
        await sink.deliver(replace(cloud_event(), subject=subject))

    (message,) = await asyncio.to_thread(receiver.received)

    element = message["tree"]["rfc5424-sd"]["sebridge@12345"]
    assert element["subject"] == subject
    assert element["type"] == "sebridge.scheduledevent.scheduled.v1"


@needs_rsyslog
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(event=cloud_events())
def test_rsyslog_reads_whatever_an_event_may_hold(
    event: CloudEvent, receiver: Rsyslog
) -> None:
    """Sent as the sink frames it, without the sink: Hypothesis knows no event loop."""
    style = Style(
        facility=3,
        hostname="web-0",
        version="1",
        structured_data="sebridge@12345",
        max_size=60_000,
    )
    messages = [render(event, replace(style, body=body)) for body in ("json", "cef")]
    address = ("127.0.0.1", receiver.ports["tcp"])
    with socket.create_connection(address) as connection:
        for message in messages:
            connection.sendall(b"%d %b" % (len(message), message))

    in_json, in_cef = receiver.received(2)

    assert json.loads(in_json["msg"]) == json.loads(event.to_json())
    assert in_json["tree"]["rfc5424-sd"]["sebridge@12345"]["id"] == event.id
    assert in_cef["tree"]["cef"]["Extensions"]["externalId"] == event.id


@needs_rsyslog
async def test_messages_sent_at_once_do_not_mix(
    receiver: Rsyslog, resources: Resources
) -> None:
    events = [replace(cloud_event(), id=f"{number:032x}") for number in range(50)]
    async with opened_sink(resources, options(receiver)) as sink:
        await asyncio.gather(*(sink.deliver(event) for event in events))

    found = await asyncio.to_thread(receiver.received, 50)

    assert {json.loads(m["msg"])["id"] for m in found} == {e.id for e in events}


# -- TLS -----------------------------------------------------------------------


@needs_rsyslog
async def test_client_shows_its_certificate(
    receiver: Rsyslog, authority: trustme.CA, resources: Resources, tmp_path: Path
) -> None:
    config = options(receiver, "mtls", **certificate(authority, tmp_path))
    async with opened_sink(resources, config) as sink:
        await sink.deliver(cloud_event())

    assert await asyncio.to_thread(receiver.received)


async def test_client_without_a_certificate_is_not_told_that_it_was_heard(
    authority: trustme.CA, resources: Resources, tmp_path: Path
) -> None:
    """By TLS 1.3 the server refuses only after our side of the handshake is done."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    receiver = LogReceiver()
    async with receiver.serving(context) as where:
        tls = {**where, "transport": "tls", "ca_file": str(tmp_path / "ca.pem")}
        async with opened_sink(resources, tls) as sink:
            failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)
    assert receiver.data == b""


@needs_rsyslog
async def test_rsyslog_refuses_a_client_without_a_certificate(
    receiver: Rsyslog, resources: Resources
) -> None:
    async with opened_sink(resources, options(receiver, "mtls")) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)


@needs_rsyslog
async def test_server_of_an_unknown_authority_is_not_spoken_to(
    receiver: Rsyslog, resources: Resources, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    config = options(receiver, "tls", ca_file=str(tmp_path / "other.pem"))
    async with opened_sink(resources, config) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)
    assert "certificate" in str(failure)


@needs_rsyslog
async def test_server_of_another_name_is_not_spoken_to(
    receiver: Rsyslog, resources: Resources
) -> None:
    config = options(receiver, "tls", host="localhost")
    async with opened_sink(resources, config) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert "localhost" in str(failure)


async def test_certificate_that_is_gone_refuses(
    authority: trustme.CA, resources: Resources, tmp_path: Path
) -> None:
    files = certificate(authority, tmp_path)
    async with opened_sink(resources, {**NOWHERE, "transport": "tls", **files}) as sink:
        (tmp_path / "client.key").unlink()
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert "TLS cannot be used" in str(failure)
    assert "No such file or directory" in str(failure)


# -- receivers on bad days -----------------------------------------------------


async def failed(attempt: Awaitable[object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await attempt
    return caught.value


@needs_rsyslog
async def test_restarted_receiver_is_found_again(
    resources: Resources, tmp_path: Path
) -> None:
    with rsyslog.running(tmp_path) as receiver:
        async with opened_sink(resources, options(receiver)) as sink:
            await sink.deliver(cloud_event())
            await asyncio.to_thread(receiver.received)
            await asyncio.to_thread(receiver.kill)
            failure = await failed(sink.deliver(cloud_event()))
            await asyncio.to_thread(receiver.start)
            await sink.deliver(cloud_event())

        assert await asyncio.to_thread(receiver.received)
    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION


async def test_length_precedes_each_message(resources: Resources) -> None:
    receiver = LogReceiver()
    event = cloud_event()
    async with receiver.serving() as where:
        message = (await sink_config(where).preview(resources, event)).body
        async with opened_sink(resources, where) as sink:
            await sink.deliver(event)
            await sink.deliver(event)
            wanted = b"%d %b" % (len(message), message) * 2
            await receiver.arrived(len(wanted))

        assert receiver.data == wanted
        assert receiver.connections == 1


async def test_connection_that_was_closed_is_noticed_before_the_next_message(
    resources: Resources,
) -> None:
    receiver = LogReceiver()
    async with receiver.serving() as where, opened_sink(resources, where) as sink:
        await sink.deliver(cloud_event())
        await receiver.arrived(1)
        receiver.writers[0].close()
        await receiver.writers[0].wait_closed()
        await asyncio.sleep(0)
        size = len(receiver.data)
        await sink.deliver(cloud_event())
        await receiver.arrived(2 * size)

        assert (receiver.connections, len(receiver.data)) == (2, 2 * size)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells")
async def test_idle_connection_is_kept_alive(resources: Resources) -> None:
    """What stands between forgets it within minutes, and the next event is for then."""
    receiver = LogReceiver()
    async with receiver.serving() as where, opened_sink(resources, where) as sink:
        await sink.deliver(cloud_event())
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]

    timers = [row[5] for row in rows if row[2].endswith(f":{receiver.port:04X}")]
    (timer,) = [timer for timer in timers if timer.startswith("02:")]  # a keepalive
    assert int(timer.removeprefix("02:"), 16) <= 6000  # hundredths of a second


async def test_reset_connection_is_transient(resources: Resources) -> None:
    receiver = LogReceiver(resets=True)
    event = cloud_event(padding="x" * 10_000_000)
    async with (
        receiver.serving() as where,
        opened_sink(resources, {**where, "max_size": "20MB"}) as sink,
    ):
        failure = await failed(sink.deliver(event))

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION


@dataclass
class Far:
    """The kernel's count, as if the other side acknowledged when the test says so.

    Attributes:
        total: bytes that are in the socket, or were.
        reached: up to where they are acknowledged.
    """

    total: int = 0
    reached: int = 0

    def __call__(self, sock: socket.socket) -> Count:
        real = counted(sock)
        self.total = (real.acknowledged or 0) + real.held
        acknowledged = min(real.acknowledged or 0, self.reached)
        return Count(acknowledged=acknowledged, held=self.total - acknowledged)


async def has(receiver: LogReceiver, size: int) -> None:
    """Wait until a receiver has so many bytes."""
    async with asyncio.timeout(60):
        while len(receiver.data) < size:
            await asyncio.sleep(0.001)
    assert len(receiver.data) == size


tells_of_bytes = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says of each byte"
)


@tells_of_bytes
async def test_receiver_that_acknowledges_nothing_is_a_timeout() -> None:
    """An unplugged one cannot be had on loopback, so its silence is put in."""
    receiver, far = LogReceiver(), Far()
    async with receiver.serving():
        wire = syslog_wire.Stream(
            host="127.0.0.1", port=receiver.port, timeout=1, counting=far
        )
        failure = await failed(wire.send(b"first"))
        far.reached = sys.maxsize
        await wire.send(b"second")
        await wire.close()

        assert receiver.connections == 2  # the old one may hold half a message
    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.TIMEOUT


@pytest.fixture(params=["tcp", "tls"])
async def far_wire(
    request: pytest.FixtureRequest, authority: trustme.CA
) -> AsyncIterator[tuple[syslog_wire.Stream, LogReceiver, Far]]:
    """A way to a receiver that acknowledges when the test says so."""
    server: ssl.SSLContext | None = None
    client: Callable[[], ssl.SSLContext] | None = None
    if request.param == "tls":
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(server)
        context = ssl.create_default_context()
        authority.configure_trust(context)

        def client() -> ssl.SSLContext:
            return context

    receiver, far = LogReceiver(), Far()
    async with receiver.serving(server):
        wire = syslog_wire.Stream(
            host="127.0.0.1",
            port=receiver.port,
            timeout=20,
            make_context=client,
            counting=far,
        )
        yield wire, receiver, far
        await wire.close()


@tells_of_bytes
async def test_message_is_delivered_when_its_own_bytes_are_acknowledged(
    far_wire: tuple[syslog_wire.Stream, LogReceiver, Far],
) -> None:
    wire, receiver, far = far_wire
    sends, ends = [], []
    for number in range(1, 4):
        sends.append(asyncio.create_task(wire.send(b"x" * 100)))
        await has(receiver, 104 * number)
        ends.append(far.total)

    for number in range(3):
        far.reached = ends[number] - 1
        await asyncio.sleep(0.1)  # longer than between two looks
        assert [send.done() for send in sends] == [n < number for n in range(3)]
        far.reached = ends[number]
        await sends[number]


@tells_of_bytes
async def test_messages_that_do_not_fit_into_the_socket_are_counted_right(
    far_wire: tuple[syslog_wire.Stream, LogReceiver, Far],
) -> None:
    """What TLS holds back has no number yet; nor may it be taken for acknowledged."""
    wire, receiver, far = far_wire
    sends = [asyncio.create_task(wire.send(b"x" * 1_500_000)) for _ in range(4)]
    await has(receiver, 4 * 1_500_008)
    assert not any(send.done() for send in sends)

    far.reached = far.total - 1_500_000
    _, waiting = await asyncio.wait(sends, timeout=0.2)
    assert sends[3] in waiting
    far.reached = far.total
    await asyncio.gather(*sends)


class Full(asyncio.Transport):
    """What holds back all that is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.size += len(data)

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def test_message_that_left_tls_does_not_wait_for_one_that_is_held_back() -> None:
    """Between two looks the socket took all there was, and is full again."""
    tls, total = Full(), 0

    def counting(_: socket.socket) -> Count:
        return Count(acknowledged=total, held=0)

    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    loop = asyncio.get_running_loop()
    writer = asyncio.StreamWriter(tls, protocol, None, loop)
    stream = Acknowledged(writer, Full(), counting)
    first = asyncio.create_task(stream.send(b"first"))
    await asyncio.sleep(0)
    tls.size, total = 0, 5
    second = asyncio.create_task(stream.send(b"second"))

    async with asyncio.timeout(60):
        await first
    assert not second.done()
    tls.size, total = 0, 11
    await second
    writer.close()


async def test_where_bytes_are_not_counted_silence_says_that_all_are_taken() -> None:
    """As on systems other than Linux."""
    held = 1

    def counting(_: socket.socket) -> Count:
        return Count(acknowledged=None, held=held)

    receiver = LogReceiver()
    async with receiver.serving():
        wire = syslog_wire.Stream(
            host="127.0.0.1", port=receiver.port, timeout=20, counting=counting
        )
        send = asyncio.create_task(wire.send(b"message"))
        await has(receiver, len(b"7 message"))
        await asyncio.sleep(0.1)
        assert not send.done()
        held = 0
        await send
        await wire.close()


async def test_receiver_that_takes_no_more_is_a_timeout(resources: Resources) -> None:
    receiver = LogReceiver(is_deaf=True)
    event = cloud_event(padding="x" * 10_000_000)
    async with receiver.serving() as where:
        config = {**where, "timeout": "200ms", "max_size": "20MB"}
        async with opened_sink(resources, config) as sink:
            failure = await failed(sink.deliver(event))

    assert failure.reason is Reason.TIMEOUT


@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
async def test_port_that_is_closed_is_transient(
    transport: str, resources: Resources
) -> None:
    config = {**NOWHERE, "transport": transport}
    async with opened_sink(resources, config) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION
    assert str(failure).startswith(f"127.0.0.1:9/{transport} cannot be reached")


def placed(host: str, transport: str) -> SyslogSinkConfig:
    """Return a sink with a host that the configuration would refuse."""
    config = sink_config({**NOWHERE, "transport": transport})
    assert isinstance(config, SyslogSinkConfig)
    return with_fields(config, host=host)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "168.63.129.16"],
)
async def test_the_platforms_own_addresses_are_refused(
    host: str, transport: str, resources: Resources
) -> None:
    """Not either where a name leads there, which `check` cannot see."""
    config = placed(host, transport)
    async with config.open(resources) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert isinstance(await failed(config.reach(resources)), RefusedDeliveryError)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_host_that_no_name_server_can_be_asked_for_refuses(
    transport: str, resources: Resources
) -> None:
    config = placed("a..b", transport)
    async with config.open(resources) as sink:
        with pytest.raises(RefusedDeliveryError, match=r"a\.\.b:9") as caught:
            await sink.deliver(cloud_event())

    assert caught.value.reason is Reason.NOT_FOUND


async def test_name_that_is_not_known_is_transient(resources: Resources) -> None:
    config = {**NOWHERE, "host": "nowhere.invalid", "timeout": "5s"}
    async with opened_sink(resources, config) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)


async def test_message_that_is_too_long_is_refused_for_good(
    resources: Resources,
) -> None:
    config = {**NOWHERE, "transport": "udp", "max_size": 65507}
    async with opened_sink(resources, config) as sink:
        failure = await failed(sink.deliver(cloud_event(padding="x" * 65507)))

    assert isinstance(failure, PermanentDeliveryError)
    assert failure.reason is Reason.TOO_LARGE


async def test_no_datagram_is_that_long() -> None:
    """Some systems take less than the protocol does."""
    wire = syslog_wire.Datagrams(host="127.0.0.1", port=9, timeout=1)

    failure = await failed(wire.send(b"x" * 65508))

    assert isinstance(failure, PermanentDeliveryError)
    assert failure.reason is Reason.TOO_LARGE


# -- without a receiver --------------------------------------------------------


async def test_reach_sends_nothing(resources: Resources) -> None:
    receiver = LogReceiver()
    async with receiver.serving() as where:
        found = await sink_config(where).reach(resources)

    assert found == f"127.0.0.1:{receiver.port}/tcp accepts connections"
    assert receiver.data == b""


async def test_reach_says_what_udp_does_not(resources: Resources) -> None:
    found = await sink_config({**NOWHERE, "transport": "udp"}).reach(resources)

    assert found == (
        "127.0.0.1:9/udp has an address; UDP does not show whether it listens"
    )


@pytest.mark.parametrize(
    ("transport", "port"), [("udp", 514), ("tcp", 601), ("tls", 6514)]
)
async def test_preview_shows_the_message(
    transport: str, port: int, resources: Resources
) -> None:
    config = {"type": "syslog", "host": "siem.example", "transport": transport}
    preview = await sink_config(config).preview(resources, cloud_event())

    assert preview.head == (f"syslog siem.example:{port}/{transport}",)
    assert preview.body.startswith(b"<27>1 2026-11-21T10:00:00Z web-0 sebridge - ")


async def test_host_name_is_as_configured(resources: Resources) -> None:
    config = {**NOWHERE, "hostname": "{group}-{vm_name}.example"}
    preview = await sink_config(config).preview(resources, cloud_event())

    assert preview.body.split()[2] == b"web-web-0.example"


async def test_machine_that_has_no_name_has_none(resources: Resources) -> None:
    nameless = with_fields(resources, expand=Identity().expand)
    preview = await sink_config(NOWHERE).preview(nameless, cloud_event())

    assert preview.body.split()[2] == b"-"
    with pytest.raises(ConfigError, match=r"sinks\.it\.hostname"):
        await sink_config({**NOWHERE, "hostname": "{vm_id}"}).preview(
            nameless, cloud_event()
        )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"host": ""}, "host: must be a host name or an IP address"),
        ({"host": "tcp://a"}, "host: must be a host name or an IP address"),
        ({"port": 65536}, "port: must be 1 to 65535"),
        ({"port": -1}, "port: must be 1 to 65535"),
        ({"transport": "relp"}, 'transport: must be one of "udp", "tcp", "tls"'),
        ({"facility": "local8"}, "facility: must be one of "),
        ({"hostname": "{name}"}, "hostname: '{name}' is no placeholder"),
        ({"body": "text"}, 'body: must be one of "json", "cef"'),
        ({"structured_data": "sebridge"}, "structured_data: must be a name and your"),
        ({"structured_data": "a b@1"}, "structured_data: must be a name and your"),
        ({"structured_data": f"{'a' * 40}@1"}, "structured_data: must be a name and"),
        ({"max_size": 479}, "max_size: must be at least 480 bytes, or 0"),
        (
            {"max_size": 65508, "transport": "udp"},
            "max_size: must be at most 65507 bytes with udp",
        ),
        ({"timeout": 0}, "timeout: must be more than 0s"),
        ({"ca_file": "/ca"}, 'ca_file: needs transport = "tls"'),
        ({"client_key": "/k"}, "client_key: needs transport"),
        (
            {"transport": "tls", "ca_file": "/nowhere"},
            "ca_file: no certificates in PEM can be read (No such file or directory)",
        ),
        (
            {"transport": "tls", "ca_file": __file__},
            "ca_file: no certificates in PEM can be read (",
        ),
        (
            {"transport": "tls", "client_key": "/k"},
            "client_key: needs client_certificate",
        ),
    ],
)
def test_fault_is_reported(change: Mapping[str, object], fault: str) -> None:
    faults = config_faults({**NOWHERE, **change})

    assert any(found.startswith(fault) for found in faults), faults


def test_key_that_needs_a_password_is_a_fault_and_no_question(
    authority: trustme.CA, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow to load

    files = certificate(authority, tmp_path)
    key = serialization.load_pem_private_key(
        (tmp_path / "client.key").read_bytes(), password=None
    )
    (tmp_path / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"swordfish"),
        )
    )

    (fault,) = config_faults({**NOWHERE, "transport": "tls", **files})

    assert fault.startswith("client_certificate: no certificate and key in PEM")
    assert "encrypted" in fault
