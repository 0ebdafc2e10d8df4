"""Run the simulator in a container, in place of Microsoft's Service Bus emulator.

A compose file for the emulator needs only another image: the ports, the path of the
entity file, the health check and the environment variables are the same. The emulator's
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
_HIGHEST_PORT = 65535


def as_emulator(
    options: SimulatorOptions, environ: Mapping[str, str], *, config: Path = CONFIG
) -> SimulatorOptions:
    """Return the options with the addresses and the entity file of the emulator.

    Args:
        options: from the command line; a port or file that they name is kept.
        environ: the environment variables.
        config: the path of the entity file; without a file, the default entities exist.

    Raises:
        SimulatorError: EMULATOR_HTTP_PORT is not a port.
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
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _HIGHEST_PORT):
        raise SimulatorError(
            f"{HTTP_PORT} is {text[:50]!r}; allowed: a port from 1 to {_HIGHEST_PORT}"
        )
    return int(text)
