"""The pytest plugin: a Service Bus for each test.

    def test_order_is_sent(servicebus_emulator):
        send_order(servicebus_emulator.connection_string)

        (message,) = servicebus_emulator.messages("orders")
        assert message.subject == "order"

pytest loads this module in every environment that has this package. So it
imports the simulator, which needs the extra [simulator], only when a test uses the
fixture.
"""

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from pathlib import Path

    from bridge.simulator.emulator import Emulator
    from bridge.simulator.servicebus.settings import Entities

_INI = "servicebus_emulator_config"
_ABSENT = (
    "the fixture servicebus_emulator needs the extra [simulator]: "
    "pip install 'scheduled-events-bridge[simulator]'"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the setting that names the file of entities."""
    parser.addini(
        _INI,
        "The entities of servicebus_emulator: a file in the format of Microsoft's "
        "emulator (Config.json), relative to the folder of pytest's configuration.",
    )


@pytest.fixture(scope="session")
def servicebus_emulator_entities(
    pytestconfig: pytest.Config,
) -> "Entities | Path | None":
    """Return the entities of the broker; tests may override this fixture."""
    named = str(pytestconfig.getini(_INI) or "")
    return pytestconfig.rootpath / named if named else None


@pytest.fixture(scope="session")
def _servicebus_emulator_loop() -> "Iterator[asyncio.AbstractEventLoop]":
    with _extra():
        from bridge.simulator.emulator import background_loop  # noqa: PLC0415 - an extra
    with background_loop() as loop:
        yield loop


@pytest.fixture
def servicebus_emulator(
    _servicebus_emulator_loop: "asyncio.AbstractEventLoop",
    servicebus_emulator_entities: "Entities | Path | None",
) -> "Iterator[Emulator]":
    """Yield a Service Bus for this test alone, with empty entities."""
    from bridge.simulator.emulator import emulator  # noqa: PLC0415 - an extra

    with ExitStack() as stack:
        with _extra():  # the first broker imports the AMQP engine
            begun = emulator(_servicebus_emulator_loop, servicebus_emulator_entities)
            running = stack.enter_context(begun)
        yield running


@contextmanager
def _extra() -> "Iterator[None]":
    """Fail the test with the name of the extra if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        pytest.fail(f"{_ABSENT} ({error.name or error} is missing)", pytrace=False)
