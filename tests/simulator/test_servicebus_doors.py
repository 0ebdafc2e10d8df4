"""The broker over TLS and over WebSockets, as the unmodified SDKs meet it."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import azure.servicebus as sync_sdk
import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from bridge.simulator.errors import ListenError, SimulatorError
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker, Outlet
from bridge.simulator.servicebus.doors import Doors
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.tls import TlsFiles, server_context
from bridge.simulator.tls_certificate import make_certificate
from tests.simulator.servicebus_fixtures import SDK_ENTITIES, receive
from tests.support.ports import free_port
from tests.support.stopwatch import Stopwatch

WAYS = ["tls", "websocket", "websocket over tls"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def secure(files: TlsFiles) -> AsyncIterator[Broker]:
    doors = Doors(websocket_port=0, tls=files)
    async with Broker(SDK_ENTITIES, doors=doors) as running:
        yield running


@asynccontextmanager
async def broker_by(way: str, files: TlsFiles) -> AsyncIterator[Broker]:
    tls = files if way.endswith("tls") else None
    doors = Doors(websocket_port=0 if way.startswith("websocket") else None, tls=tls)
    async with Broker(SDK_ENTITIES, doors=doors) as running:
        yield running


def options(broker: Broker, way: str) -> dict[str, Any]:
    """Return how a client of the SDK reaches the broker."""
    at = broker.addresses
    is_socket = way.startswith("websocket")
    found: dict[str, Any] = {
        "conn_str": at.get("tlsConnectionString", at["connectionString"]),
        "custom_endpoint_address": at[
            "webSocketEndpoint" if is_socket else "tlsEndpoint"
        ],
        "transport_type": (
            TransportType.AmqpOverWebsocket if is_socket else TransportType.Amqp
        ),
        "retry_total": 0,
    }
    if "certificate" in at:
        found["connection_verify"] = at["certificate"]
    return found


# The SDK passes ssl=None to aiohttp when it uses no TLS.
SDK_HABIT = pytest.mark.filterwarnings("ignore:ssl=None is deprecated")


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Origin": "https://evil.example"}, "a page of another site"),
        ({"Origin": "http://localhost:1"}, "a page of another site"),
        ({"Origin": "null"}, "a page of another site"),
        ({"Sec-Fetch-Site": "same-site"}, "a page of another site"),
        ({"Host": "evil.example"}, "Host is 'evil.example'"),
    ],
)
async def test_page_of_another_site_opens_no_websocket(
    way: str, headers: dict[str, str], words: str, files: TlsFiles
) -> None:
    async with broker_by(way, files) as broker, aiohttp.ClientSession() as http:
        url = broker.addresses["webSocket"].replace("ws", "http", 1)
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Protocol": "AMQPWSB10",
        }
        context = ssl.create_default_context(cafile=files.authority)
        async with http.get(url, headers=upgrade | headers, ssl=context) as refused:
            assert refused.status == 403
            assert words in await refused.text()
        # Qpid JMS names http:// for a WebSocket over TLS, too.
        for site in {url.partition("/$")[0], f"http://{url.split('/')[2]}"}:
            own = {"Origin": site}
            async with http.get(url, headers=upgrade | own, ssl=context) as taken:
                assert taken.status == 101


@SDK_HABIT
@pytest.mark.parametrize("way", WAYS)
async def test_message_goes_and_comes(
    way: str, files: TlsFiles, brisk_sdk: None
) -> None:
    async with (
        broker_by(way, files) as broker,
        ServiceBusClient.from_connection_string(**options(broker, way)) as client,
        client.get_queue_sender("plain") as sender,
        client.get_queue_receiver("plain") as receiver,
    ):
        await sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(3)])
        found = await receive(receiver, 3)
        for message in found:
            await receiver.complete_message(message)

        assert [str(message) for message in found] == ["m0", "m1", "m2"]
        assert broker.snapshot()["plain"] == Counts()


@pytest.mark.parametrize("way", WAYS)
async def test_message_goes_and_comes_with_the_sync_sdk(
    way: str, files: TlsFiles
) -> None:
    async with broker_by(way, files) as broker:
        found = await asyncio.to_thread(_send_and_receive, options(broker, way))

        assert found == "hello"
        assert broker.snapshot()["plain"] == Counts()


def _send_and_receive(given: dict[str, Any]) -> str:
    with (
        sync_sdk.ServiceBusClient.from_connection_string(**given) as client,
        client.get_queue_sender("plain") as sender,
        client.get_queue_receiver("plain") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("hello"))
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        receiver.complete_message(message)
        return str(message)


@SDK_HABIT
@pytest.mark.parametrize("way", WAYS)
async def test_large_message_is_carried_whole(
    way: str, files: TlsFiles, brisk_sdk: None
) -> None:
    body = bytes(range(256)) * 800  # 200 KiB: several pieces of a WebSocket
    async with (
        broker_by(way, files) as broker,
        ServiceBusClient.from_connection_string(**options(broker, way)) as client,
        client.get_queue_sender("plain") as sender,
        client.get_queue_receiver("plain") as receiver,
    ):
        await sender.send_messages(ServiceBusMessage(body))
        (message,) = await receiver.receive_messages(1, max_wait_time=30)

        assert b"".join(message.body) == body


@pytest.mark.slow
# Neither SDK closes the socket of a WebSocket that was lost.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("way", WAYS)
async def test_dropped_connection_is_lost_and_the_next_one_works(
    way: str, files: TlsFiles
) -> None:
    async with broker_by(way, files) as broker:
        loop = asyncio.get_running_loop()

        def drop() -> None:
            asyncio.run_coroutine_threadsafe(_drop(broker), loop).result()

        await asyncio.to_thread(_send_and_drop, options(broker, way), drop)

        assert broker.snapshot()["plain"] == Counts(active=1)


async def _drop(broker: Broker) -> None:
    broker.faults.drop_connections()


def _send_and_drop(given: dict[str, Any], drop: Callable[[], None]) -> None:
    with (
        sync_sdk.ServiceBusClient.from_connection_string(**given) as client,
        client.get_queue_sender("plain") as sender,
    ):
        drop()
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("lost"))
        sender.send_messages(ServiceBusMessage("kept"))
    gc.collect()  # now, and not in another test


@SDK_HABIT
@pytest.mark.parametrize("way", WAYS)
async def test_frozen_broker_goes_on_when_it_is_thawed(
    way: str, files: TlsFiles, brisk_sdk: None
) -> None:
    async with (
        broker_by(way, files) as broker,
        ServiceBusClient.from_connection_string(**options(broker, way)) as client,
        client.get_queue_sender("plain") as sender,
    ):
        broker.faults.freeze()
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("late")))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 0.1)
        broker.faults.thaw()
        await sending

        assert broker.snapshot()["plain"] == Counts(active=1)


async def test_broker_comes_back_on_the_same_ports(
    files: TlsFiles, brisk_sdk: None
) -> None:
    broker = Broker(SDK_ENTITIES, doors=Doors(websocket_port=0, tls=files))
    async with broker:
        before = broker.addresses
    async with broker:
        assert broker.addresses == before
        async with (
            ServiceBusClient.from_connection_string(**options(broker, "tls")) as client,
            client.get_queue_sender("plain") as sender,
        ):
            await sender.send_messages(ServiceBusMessage("again"))

    assert len({before["tlsEndpoint"], before["webSocketEndpoint"]}) == 2


async def test_client_that_does_not_know_the_certificate_does_not_trust_it(
    secure: Broker, brisk_sdk: None
) -> None:
    given = options(secure, "tls")
    del given["connection_verify"]
    async with ServiceBusClient.from_connection_string(**given) as client:
        sender = client.get_queue_sender("plain")
        with pytest.raises(ServiceBusError, match="CERTIFICATE_VERIFY_FAILED"):
            await sender.send_messages(ServiceBusMessage("secret"))

    assert secure.snapshot()["plain"] == Counts()


async def test_certificate_is_for_this_machine_alone(files: TlsFiles) -> None:
    context = ssl.create_default_context(cafile=files.authority)
    async with Broker(SDK_ENTITIES, doors=Doors(tls=files)) as broker:
        port = int(broker.addresses["tlsEndpoint"].rpartition(":")[2])
        for name in ("localhost", "127.0.0.1", "::1"):
            await _shake_hands(port, name, context)
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await _shake_hands(port, "example.org", context)


async def _shake_hands(port: int, name: str, context: ssl.SSLContext) -> None:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name
    )
    writer.close()
    await writer.wait_closed()


async def test_certificate_has_the_address_with_its_port(files: TlsFiles) -> None:
    """The client of Go takes the endpoint of its connection string for a name."""
    async with Broker(doors=Doors(tls=files)) as broker:
        endpoint = broker.addresses["tlsEndpoint"].removeprefix("sb://")
        context = ssl.create_default_context(cafile=str(files.authority))
        _, writer = await asyncio.open_connection(
            *endpoint.split(":"), ssl=context, server_hostname="localhost"
        )
        shown: Any = writer.get_extra_info("peercert")
        writer.close()
        await writer.wait_closed()

    names = {value for kind, value in shown["subjectAltName"] if kind == "DNS"}
    assert endpoint.startswith("127.0.0.1:")
    assert {"localhost", endpoint, endpoint.replace("127.0.0.1", "localhost")} == names


def test_key_is_for_its_owner_alone_and_a_second_certificate_replaces_it(
    tmp_path: Path,
) -> None:
    first = make_certificate(tmp_path).key.read_bytes()
    files = make_certificate(tmp_path)

    assert files.key.stat().st_mode & 0o777 == 0o600
    assert files.key.read_bytes() != first
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("fault", ["absent", "no PEM", "another key"])
async def test_unusable_certificate_is_reported(
    fault: str, files: TlsFiles, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    if fault == "no PEM":
        key.write_text("secret-text")
    elif fault == "another key":
        key = make_certificate(tmp_path).key
    doors = Doors(tls=TlsFiles(certificate=files.certificate, key=key))

    with pytest.raises(SimulatorError, match=r"key\.pem") as error:
        await Broker(doors=doors).__aenter__()

    assert "secret-text" not in str(error.value)


@pytest.mark.parametrize("which", ["tls_port", "websocket_port"])
async def test_port_in_use_is_reported_and_nothing_stays_open(
    which: str, files: TlsFiles
) -> None:
    port = free_port()
    async with Broker(SDK_ENTITIES) as other:
        taken: dict[str, Any] = {which: other.port}
        broker = Broker(port=port, doors=Doors(tls=files, **taken))
        with pytest.raises(ListenError, match=f":{other.port}: Address already in use"):
            await broker.__aenter__()
    async with Broker(port=port):
        pass


async def test_stopping_does_not_wait_for_a_web_socket_that_does_not_answer() -> None:
    """It would get ten seconds to answer the close, and a frozen one for ever."""
    broker = Broker(SDK_ENTITIES, doors=Doors(websocket_port=0))
    async with aiohttp.ClientSession() as http:
        async with broker:
            at = broker.addresses["webSocket"]
            socket = await http.ws_connect(at, protocols=["AMQPWSB10"])
            broker.faults.freeze()
            await socket.send_bytes(b"AMQP\x03\x01\x00\x00")
            watch = Stopwatch()

        assert watch.seconds < 8


async def test_web_socket_takes_binary_messages_of_amqp_alone() -> None:
    async with (
        Broker(SDK_ENTITIES, doors=Doors(websocket_port=0)) as broker,
        aiohttp.ClientSession() as http,
    ):
        url = broker.addresses["webSocket"]
        async with http.ws_connect(url, protocols=["AMQPWSB10"]) as socket:
            assert socket.protocol == "AMQPWSB10"
            await socket.send_bytes(b"AMQP\x03\x01\x00\x00")
            answer = await socket.receive_bytes()
            await socket.send_str("hello")
            closed = await socket.receive()

    assert answer.startswith(b"AMQP\x03")
    assert closed.type in {aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.CLOSE}


class Held(asyncio.Protocol):
    """The broker's end of a connection, as far as it is broken."""

    def __init__(self, faults: Faults) -> None:
        self.outlet = Outlet(faults)
        self.made: asyncio.Future[asyncio.BaseTransport] = asyncio.Future()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outlet.open(transport)
        self.made.set_result(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def test_connection_that_is_just_gone_can_be_broken(files: TlsFiles) -> None:
    """A broker that stops breaks what is left, also what went at this moment.

    TLS knows it one turn of the loop before the broker is told, and has no socket then.
    """
    held = Held(Broker(SDK_ENTITIES).faults)
    server = await asyncio.get_running_loop().create_server(
        lambda: held, "127.0.0.1", 0, ssl=server_context(files)
    )
    context = ssl.create_default_context(cafile=files.authority)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        transport = await held.made
        writer.transport.abort()
        while transport.get_extra_info("socket") is not None:
            await asyncio.sleep(0)
        assert not held.lost.is_set()

        held.outlet.abort()

        await held.lost.wait()
    server.close()
