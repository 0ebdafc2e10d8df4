"""The broker as @azure/service-bus meets it: one Node.js script per scenario.

Needs Node.js and the package that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.servicebus.administration.server import (
    Administration,
    AdministrationPorts,
)
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.doors import Doors
from bridge.simulator.servicebus.http_control import broker_routes
from bridge.simulator.tls_certificate import make_certificate
from tests.simulator.servicebus_fixtures import SDK_ENTITIES

NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "node"
# These are no scenarios of a ServiceBusClient.
OTHERS = {"administration", "common"}
SCENARIOS = sorted(
    path.stem for path in SCRIPTS.glob("*.js") if path.stem not in OTHERS
)
LIMIT_SECONDS = 60


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the package it needs; without either: skipped."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    probe = [NODE, "--eval", "require('@azure/service-bus')"]
    found = subprocess.run(probe, cwd=SCRIPTS, capture_output=True, check=False)  # noqa: S603  # nothing from outside
    if found.returncode != 0:
        pytest.skip(
            "@azure/service-bus is not installed: npm ci in tests/simulator/node"
        )
    return NODE


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenario_plays_with_the_javascript_sdk(
    broker: Broker, node: str, scenario: str
) -> None:
    async with ImdsSimulator(control=broker_routes(broker)) as imds:
        await play([node], scenario, broker.connection_string, imds.url)


@pytest.mark.parametrize("way", ["tls", "websocket over tls"])
async def test_javascript_sdk_comes_in_by_tls(
    node: str, way: str, tmp_path: Path
) -> None:
    doors = Doors(websocket_port=0, tls=make_certificate(tmp_path))
    async with Broker(SDK_ENTITIES, doors=doors) as broker:
        at = broker.addresses
        more = {"NODE_EXTRA_CA_CERTS": at["certificate"]}
        connection, command = at["tlsConnectionString"], [node]
        if way.startswith("websocket"):
            ports = at["tlsEndpoint"], at["webSocketEndpoint"]
            connection = connection.replace(*ports)
            command.append("--experimental-websocket")
            more["OVER_WEBSOCKET"] = "1"
        await play(command, "send", connection, "", more=more)


async def test_javascript_client_administers(
    broker: Broker, node: str, tmp_path: Path
) -> None:
    files = make_certificate(tmp_path)
    ports = AdministrationPorts(tls=files)
    async with Administration(broker, ports=ports) as door:
        string = door.addresses()["administrationTlsConnectionString"]
        more = {"NODE_EXTRA_CA_CERTS": str(files.authority)}
        await play([node], "administration", string, more=more)


async def play(
    command: Sequence[str],
    scenario: str,
    *arguments: str,
    more: Mapping[str, str] | None = None,
) -> None:
    """Run a scenario, with ``more`` in its environment; it has to succeed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        str(SCRIPTS / f"{scenario}.js"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(more or {})},
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            found, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 0, found.decode(errors="replace")


def test_there_are_scenarios() -> None:
    assert {"send", "settle", "sessions", "topic"} <= set(SCENARIOS)
