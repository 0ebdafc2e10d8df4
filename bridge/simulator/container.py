"""The simulator in the place of Microsoft's Service Bus emulator, in its container.

A compose file that was written for the emulator changes only its image: the ports, the
place of the entity file, the health check and the environment are the emulator's. Its
database is not needed: SQL_SERVER, MSSQL_SA_PASSWORD, SQL_WAIT_INTERVAL and
ACCEPT_EULA have no effect.

Source: github.com/Azure/azure-service-bus-emulator-installer: README.md,
        Docker-Compose-Template.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from bridge.simulator.errors import SimulatorError
from bridge.simulator.serve import SimulatorOptions

CONFIG = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
HTTP_PORT = "EMULATOR_HTTP_PORT"

_AMQP = 5672
_HTTP = 5300
_MOST_PORT = 65535


def as_emulator(
    options: SimulatorOptions, environ: Mapping[str, str], *, config: Path = CONFIG
) -> SimulatorOptions:
    """Return the options with which the simulator stands in for the emulator.

    Args:
        options: what is given on the command line goes before.
        environ: the environment.
        config: the entity file; without it, there are the default entities.

    Raises:
        SimulatorError: the environment names no port.
    """
    entities = options.servicebus_config
    if entities is None and config.exists():
        entities = config
    return replace(
        options,
        servicebus_host="0.0.0.0",  # noqa: S104 - a container's own network  # nosec B104
        servicebus_port=options.servicebus_port or _AMQP,
        servicebus_http_port=options.servicebus_http_port or _http_port(environ),
        servicebus_config=entities,
    )


def _http_port(environ: Mapping[str, str]) -> int:
    text = environ.get(HTTP_PORT, "").strip() or str(_HTTP)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_PORT):
        raise SimulatorError(
            f"{HTTP_PORT} is {text[:50]!r}; allowed: a port from 1 to {_MOST_PORT}"
        )
    return int(text)
