"""The pytest plugin, tested by running pytest."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import asyncio

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient


def test_sync(servicebus_emulator):
    text = servicebus_emulator.connection_string
    with ServiceBusClient.from_connection_string(text) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    assert servicebus_emulator.counts("orders").active == 1


async def _send(text):
    async with AsyncClient.from_connection_string(text) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("y"))


def test_async(servicebus_emulator):
    asyncio.run(_send(servicebus_emulator.connection_string))
    (message,) = servicebus_emulator.messages("orders")
    assert message.body == "y"


@pytest.mark.parametrize("number", range(5))
def test_each_has_its_own(servicebus_emulator, number):
    assert servicebus_emulator.counts("orders").active == 0
    servicebus_emulator.put("orders", b"x")
"""
CONFIG = """{"UserConfig": {"Namespaces": [
  {"Name": "ns", "Queues": [{"Name": "orders"}]}
]}}"""
OTHERS = """
import pytest
from bridge.simulator.servicebus.settings import Entities, QueueSettings


@pytest.fixture(scope="session")
def servicebus_emulator_entities():
    return Entities(queues=(QueueSettings(name="other"),))


def test_other(servicebus_emulator):
    assert servicebus_emulator.counts("other").active == 0
"""
ABSENT = """
import sys

sys.modules["aiohttp"] = None  # as if it were not installed


def test_nothing_of_it():
    pass


def test_it(servicebus_emulator):
    raise AssertionError
"""


def run(folder: Path, tests: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}")
    (folder / "Config.json").write_text(CONFIG)
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "bridge.simulator.pytest_plugin"]
    return subprocess.run(  # noqa: S603  # ourselves
        [*command, "-p", "no:cacheprovider", "-q"],
        cwd=folder,
        env={
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            # If the package is installed, the plugin would be registered twice.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_test_has_a_service_bus_of_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, "servicebus_emulator_config = Config.json\n")

    assert "7 passed" in done.stdout, done.stdout


def test_entities_may_be_others_in_some_tests(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, OTHERS).stdout


def test_plugin_loads_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    done = run(tmp_path, ABSENT)

    assert "1 passed, 1 error" in done.stdout
    assert "pip install 'scheduled-events-bridge[simulator]'" in done.stdout
    code = "import bridge.simulator.pytest_plugin, sys; print(*sys.modules)"
    loaded = subprocess.run(  # noqa: S603  # ourselves
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "pytest" in loaded
    assert {"aiohttp", "msgspec", "azure"}.isdisjoint(loaded)
