"""All servers together, as `sebridge simulate` runs them."""

import asyncio
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.serve import (
    EntityFileError,
    Simulator,
    SimulatorError,
    SimulatorOptions,
    serve,
)
from bridge.simulator.tls_certificate import make_certificate
from tests.simulator.imds_client import EVENTS, METADATA, FakeClock, http_client
from tests.support.ports import free_port


class Output(io.StringIO):
    """A stream with an event that is set when a line is flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = asyncio.Event()

    def flush(self) -> None:
        self.flushed.set()


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[str]:
    stop, out = asyncio.Event(), Output()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(SimulatorOptions(**options), stop, out))
        await out.flushed.wait()
        try:
            yield out.getvalue()
        finally:
            stop.set()


async def test_one_line_of_json_has_the_addresses_of_all_servers() -> None:
    async with served() as text:
        assert text.endswith("\n")
        assert text.count("\n") == 1
        printed = json.loads(text)
        assert set(printed) == {"imds", "servicebus", "inbox", "slack", "teams", "arm"}

        async with http_client(printed["imds"]["url"]) as http:
            path = f"{EVENTS}?api-version=2020-07-01"
            assert (await http.send("GET", path, headers=METADATA)).status == 200
        async with http_client(printed["inbox"]["url"]) as http:
            assert (await http.send("GET", "/messages")).json == []
        async with http_client(printed["slack"]["apiUrl"]) as http:
            assert (await http.send("POST", "auth.test")).json["error"] == "not_authed"
        async with http_client(printed["slack"]["page"]) as http:
            assert (await http.send("GET", "")).status == 200
        await send_to(printed["servicebus"]["connectionString"], "vm-approvals")


async def send_to(connection_string: str, queue: str) -> None:
    async with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("hello"))


async def test_nothing_listens_any_more_after_the_stop() -> None:
    port = free_port()
    async with served(imds_port=port) as text:
        assert json.loads(text)["imds"]["url"].endswith(f":{port}")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


async def test_chosen_ports_are_taken() -> None:
    ports = [free_port() for _ in range(3)]
    options = SimulatorOptions(
        imds_port=ports[0], servicebus_port=ports[1], inbox_port=ports[2]
    )
    async with Simulator(options) as simulator:
        assert simulator.imds.url.endswith(f":{ports[0]}")
        assert simulator.broker.port == ports[1]
        assert simulator.inbox.url.endswith(f":{ports[2]}")


def with_port(which: str, port: int) -> SimulatorOptions:
    return SimulatorOptions(
        imds_port=port if which == "imds_port" else 0,
        servicebus_port=port if which == "servicebus_port" else 0,
        inbox_port=port if which == "inbox_port" else 0,
    )


@pytest.mark.parametrize("which", ["imds_port", "servicebus_port", "inbox_port"])
async def test_port_in_use_is_reported_and_leaves_nothing_open(which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        simulator = Simulator(with_port(which, port))

        with pytest.raises(SimulatorError, match=f"cannot listen on .*:{port}: Addr"):
            await simulator.__aenter__()

    if which != "imds_port":
        freed = int(simulator.imds.url.rpartition(":")[2])
        async with Simulator(SimulatorOptions(imds_port=freed)):
            pass


@pytest.mark.parametrize("which", ["imds_port", "servicebus_port", "inbox_port"])
async def test_port_out_of_range_is_reported(which: str) -> None:
    with pytest.raises(SimulatorError, match="65535"):
        async with Simulator(with_port(which, 70_000)):
            pass


async def test_entities_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    entities = {"Name": "sbemulatorns", "Queues": [{"Name": "mine"}]}
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [entities]}}))

    async with Simulator(SimulatorOptions(servicebus_config=file)) as simulator:
        async with http_client(simulator.imds.url) as http:
            state = (await http.send("GET", "/simulator/servicebus")).json
        assert list(state["entities"]) == ["mine"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [(None, "cannot be read: No such file"), (b"{", "not JSON"), (b"\xff", "UTF-8")],
)
def test_faulty_entity_file_is_reported_with_its_name(
    tmp_path: Path, text: bytes | None, fault: str
) -> None:
    file = tmp_path / "Config.json"
    if text is not None:
        file.write_bytes(text)

    with pytest.raises(SimulatorError, match=fault) as caught:
        Simulator(SimulatorOptions(servicebus_config=file))

    assert str(caught.value).startswith(str(file))


def test_every_fault_of_an_entity_file_has_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    queue = {"Name": "q", "Properties": {"LockDuration": "x", "RequiresSession": 1}}
    namespace = {"Name": "sbemulatorns", "Queues": [queue]}
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))

    with pytest.raises(EntityFileError) as caught:
        Simulator(SimulatorOptions(servicebus_config=file))

    places = [line.split(": ")[1] for line in caught.value.lines]
    assert places == [
        "Queues[0].Properties.LockDuration",
        "Queues[0].Properties.RequiresSession",
    ]


async def test_unknown_scenario_ends_it_before_it_says_anything() -> None:
    out = io.StringIO()

    with pytest.raises(SimulatorError, match="live-migration"):
        await serve(SimulatorOptions(scenario="nothing"), asyncio.Event(), out)

    assert out.getvalue() == ""


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
def test_speed_must_be_more_than_nothing(speed: float) -> None:
    with pytest.raises(SimulatorError, match="more than 0"):
        Simulator(SimulatorOptions(speed=speed))


async def test_scenario_is_played_to_its_end() -> None:
    clock = FakeClock()
    options = SimulatorOptions(scenario="user-reboot", speed=600)
    async with (
        Simulator(options, clock=clock) as simulator,
        http_client(simulator.imds.url) as http,
    ):
        path = f"{EVENTS}?api-version=2020-07-01"
        await http.send("GET", path, headers=METADATA)
        await simulator.play()

        reply = await http.send("GET", path, headers=METADATA)
        assert reply.json == {"DocumentIncarnation": 4, "Events": []}
        assert simulator.imds.vm_name == "WestNO_0"


async def test_nothing_to_play_is_over_at_once() -> None:
    async with Simulator(SimulatorOptions()) as simulator:
        await simulator.play()


async def test_made_certificate_is_printed_and_deleted_at_the_end() -> None:
    async with served(tls=True) as text:
        printed = json.loads(text)["servicebus"]
        certificate = Path(printed["certificate"])
        context = ssl.create_default_context(cafile=certificate)
        port = int(printed["tlsEndpoint"].rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.close()

    assert set(printed) == {
        "administration",
        "administrationConnectionString",
        "administrationTlsConnectionString",
        "certificate",
        "connectionString",
        "tlsConnectionString",
        "tlsEndpoint",
        "webSocket",
        "webSocketEndpoint",
    }
    assert printed["webSocket"].startswith("wss://")
    assert "UseDevelopmentEmulator" not in printed["tlsConnectionString"]
    assert not certificate.parent.exists()


async def test_resource_manager_speaks_https_with_tls() -> None:
    """ArmClient refuses http."""
    async with served(tls=True) as text:
        printed = json.loads(text)
        certificate = printed["servicebus"]["certificate"]
        context = ssl.create_default_context(cafile=certificate)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{printed['arm']['url']}/requests", ssl=context) as reply,
        ):
            assert reply.status == 200

    assert printed["arm"]["url"].startswith("https://127.0.0.1:")


async def test_own_certificate_is_served(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    async with served(tls_certificate=files.certificate, tls_key=files.key) as text:
        printed = json.loads(text)["servicebus"]

    assert printed["certificate"] == str(files.certificate)
    assert files.key.exists()


async def test_web_sockets_are_there_without_tls() -> None:
    async with served() as text:
        printed = json.loads(text)["servicebus"]

    assert set(printed) == {
        "administration",
        "administrationConnectionString",
        "connectionString",
        "webSocket",
        "webSocketEndpoint",
    }
    assert printed["webSocket"].startswith("ws://127.0.0.1:")


@pytest.mark.parametrize("given", ["tls_certificate", "tls_key"])
async def test_certificate_and_key_belong_together(given: str, tmp_path: Path) -> None:
    only: dict[str, Any] = {given: tmp_path / "x.pem"}

    with pytest.raises(SimulatorError, match="belong together"):
        await serve(SimulatorOptions(**only), asyncio.Event(), Output())


async def test_missing_certificate_is_reported(tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    options = SimulatorOptions(tls_certificate=absent, tls_key=absent)

    with pytest.raises(SimulatorError, match=r"absent\.pem cannot be read: No such"):
        await serve(options, asyncio.Event(), Output())


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("servicebus_tls_port", "--servicebus-tls-port"),
        ("servicebus_https_port", "--servicebus-https-port"),
    ],
)
async def test_port_of_tls_needs_tls(option: str, name: str) -> None:
    given: dict[str, Any] = {option: 5671}
    with pytest.raises(SimulatorError) as caught:
        await serve(SimulatorOptions(**given), asyncio.Event(), Output())

    assert str(caught.value) == (
        f"{name} 5671 has no effect without TLS: give --tls, or "
        "--tls-certificate and --tls-key"
    )
