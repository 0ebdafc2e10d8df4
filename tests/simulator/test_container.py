"""The simulator in a container, in place of Microsoft's emulator."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.errors import SimulatorError
from bridge.simulator.serve import CONFIG, SimulatorOptions, as_emulator
from tests.support.ports import free_port

SAMPLE = Path(__file__).parent / "servicebus-config.json"
# The environment variables of the emulator's compose file.
COMPOSE = {
    "SQL_SERVER": "sqlserver",
    "MSSQL_SA_PASSWORD": "unused",
    "ACCEPT_EULA": "Y",
    "SQL_WAIT_INTERVAL": "0",
}


def test_ports_and_addresses_are_those_of_the_emulator(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.touch()

    found = as_emulator(SimulatorOptions(), COMPOSE, config=config)

    assert (found.servicebus_port, found.servicebus_http_port) == (5672, 5300)
    assert found.servicebus_host == "0.0.0.0"  # noqa: S104 - what is compared
    assert found.servicebus_config == config
    # The rest of the simulator stays on loopback.
    assert found.host == "127.0.0.1"


def test_entity_file_is_where_compose_files_put_it() -> None:
    assert str(CONFIG) == "/ServiceBus_Emulator/ConfigFiles/Config.json"


def test_without_an_entity_file_there_are_the_default_ones(tmp_path: Path) -> None:
    found = as_emulator(SimulatorOptions(), {}, config=tmp_path / "absent")

    assert found.servicebus_config is None


def test_port_of_the_environment_is_taken(tmp_path: Path) -> None:
    environ = {"EMULATOR_HTTP_PORT": "5301"}

    assert as_emulator(SimulatorOptions(), environ).servicebus_http_port == 5301


def test_command_line_goes_before_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.touch()
    given = SimulatorOptions(
        servicebus_port=1, servicebus_http_port=2, servicebus_config=SAMPLE
    )

    found = as_emulator(given, {"EMULATOR_HTTP_PORT": "5301"}, config=config)

    assert (found.servicebus_port, found.servicebus_http_port) == (1, 2)
    assert found.servicebus_config == SAMPLE


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "٣"])
def test_invalid_port_in_the_environment_is_reported(port: str) -> None:
    with pytest.raises(SimulatorError, match=r"EMULATOR_HTTP_PORT is .*; allowed: a p"):
        as_emulator(SimulatorOptions(), {"EMULATOR_HTTP_PORT": port})


@asynccontextmanager
async def simulated(
    *arguments: str, environ: Mapping[str, str]
) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Run the command; yield the addresses that it prints when it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bridge",
        "simulate",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        yield json.loads(line)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.integration
async def test_client_of_the_emulator_works_unchanged() -> None:
    """The health path, entity file and connection string are the emulator's."""
    amqp, http = free_port(), free_port()
    arguments = ("--emulator", "--servicebus-port", str(amqp))
    config = ("--servicebus-config", str(SAMPLE))
    environ = {**COMPOSE, "EMULATOR_HTTP_PORT": str(http)}
    async with simulated(*arguments, *config, environ=environ) as addresses:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{http}/health") as reply,
        ):
            assert reply.status == 200
            assert (await reply.json())["status"] == "healthy"
        string = (
            f"Endpoint=sb://127.0.0.1:{amqp};"
            "SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        async with (
            ServiceBusClient.from_connection_string(string) as client,
            client.get_queue_sender("queue.1") as sender,
            client.get_queue_receiver("queue.1") as receiver,
        ):
            await sender.send_messages(ServiceBusMessage("hello"))
            assert [str(m) for m in await receiver.peek_messages()] == ["hello"]
        assert addresses["servicebus"]["administration"].endswith(f":{http}")
        assert addresses["imds"]["url"].startswith("http://127.0.0.1:")
