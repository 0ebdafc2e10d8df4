"""The whole simulator: IMDS, Service Bus, inbox and ARM, opened together."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, TextIO

import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.arm import Arm
from bridge.simulator.clock import Clock
from bridge.simulator.errors import EntityFileError, ListenError, SimulatorError
from bridge.simulator.event_grid import EventGrid, Place, Schema
from bridge.simulator.imds.scenario import load
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.inbox import Inbox
from bridge.simulator.servicebus.administration.server import (
    Administration,
    AdministrationPorts,
)
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import (
    ConfigError,
    default_entities,
    load_entities,
)
from bridge.simulator.servicebus.doors import Doors
from bridge.simulator.servicebus.http_control import broker_routes
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.slack.server import API, PAGE
from bridge.simulator.tls import TlsFiles

__all__ = [
    "EntityFileError",
    "Simulator",
    "SimulatorError",
    "SimulatorOptions",
    "serve",
]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_AZURE_EVENTS = "azure-events"


class SimulatorOptions(Struct, frozen=True, kw_only=True):
    """Which servers to open, at which addresses, and which scenario to play.

    Attributes:
        imds_port: the port of the IMDS; 0, here and for each other port: a free port.
        servicebus_config: a file of entities in the format of Microsoft's emulator;
            None: the default entities.
        scenario: the name of a built-in scenario, or a file; None: no events.
        speed: divides all durations of the scenario.
        least_phase: the shortest duration of a phase in seconds, whatever the speed, so
            that a consumer that polls each second misses nothing.
        vm_name: compute.name of the VM; None: the first resource of the scenario.
        seed: makes the same EventIds each time; None: random ones.
        tls: serve AMQP also over TLS, and WebSockets over TLS only. If no certificate
            and key are given, new ones are made for localhost.
        servicebus_http_port: the port of the broker's administration API and health
            check.
        servicebus_https_port: the port of the same API over TLS.
        servicebus_host: the address of the broker and its administration API; None:
            ``host``, as for all other servers.
        event_grid: the schema of Event Grid's messages about the events, which are sent
            to the queue ``azure-events``; None: no messages.
    """

    imds_port: int = 0
    servicebus_port: int = 0
    inbox_port: int = 0
    servicebus_config: Path | None = None
    scenario: str | None = None
    speed: float = 1.0
    least_phase: float = 2.5
    host: str = "127.0.0.1"
    vm_name: str | None = None
    seed: int | None = None
    arm_port: int = 0
    event_grid: Schema | None = None
    servicebus_websocket_port: int = 0
    servicebus_tls_port: int = 0
    tls: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    servicebus_http_port: int = 0
    servicebus_https_port: int = 0
    servicebus_host: str | None = None


class Simulator:
    """IMDS, broker, inbox and ARM, used as an async context manager.

    Args:
        options: what to open.
        clock: the clock of IMDS, inbox and ARM; None: the system's.
        tls: the files that `serve` has made or found for the options; None: no TLS.

    Attributes:
        imds: the metadata service.
        broker: the Service Bus.
        administration: the API that changes the entities of the broker.
        inbox: the receiver of webhooks, Slack and Teams messages.
        arm: Azure Resource Manager.

    Raises:
        SimulatorError: an option, the entity file or the scenario is faulty.
    """

    def __init__(
        self,
        options: SimulatorOptions,
        *,
        clock: Clock | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._options = options
        host = options.host
        broker_host = options.servicebus_host or host
        self.broker = Broker(
            _entities(options),
            host=broker_host,
            port=options.servicebus_port,
            doors=Doors(
                websocket_port=options.servicebus_websocket_port,
                tls=tls,
                tls_port=options.servicebus_tls_port,
            ),
        )
        self.administration = Administration(
            self.broker,
            host=broker_host,
            ports=AdministrationPorts(
                port=options.servicebus_http_port,
                tls_port=options.servicebus_https_port,
                tls=tls,
            ),
        )
        self.imds = ImdsSimulator(
            _settings(options),
            host=host,
            port=options.imds_port,
            clock=clock,
            control=broker_routes(self.broker),
        )
        self.inbox = Inbox(host, options.inbox_port, clock=clock)
        self.arm = Arm([self.imds], host, options.arm_port, clock=clock, tls=tls)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all servers.

        Raises:
            SimulatorError: a server cannot listen; then no server stays open.
        """
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.imds)
            await self._open_broker(opening)
            await opening.enter_async_context(self.administration)
            await opening.enter_async_context(self.inbox)
            await opening.enter_async_context(self.arm)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _open_broker(self, opening: AsyncExitStack) -> None:
        try:
            await opening.enter_async_context(self.broker)
        except (OSError, OverflowError) as error:
            host = self._options.servicebus_host or self._options.host
            port = self._options.servicebus_port
            raise ListenError("the broker", host, port, error) from error

    async def play(self) -> None:
        """Wait until the scenario is over; it plays by itself."""
        while not self.imds.is_over:
            await self.imds.clock.sleep(_LOOK_SECONDS)

    async def run_event_grid(self, stop: asyncio.Event) -> None:
        """Publish Event Grid's messages, if they are wanted, until ``stop`` is set."""
        if self._options.event_grid is None:
            await stop.wait()
            return
        grid = EventGrid(
            document=self.imds,
            place=Place(vm_name=self.imds.vm_name),
            publish=lambda body: self.broker.put(_AZURE_EVENTS, body),
            schema=self._options.event_grid,
            copies=2,
            with_foreign=True,
        )
        await grid.run(stop)

    def addresses(self) -> dict[str, dict[str, str]]:
        """Return the addresses that `sebridge simulate` prints."""
        return {
            "imds": {"url": self.imds.url},
            "servicebus": {
                **self.broker.addresses,
                **self.administration.addresses(),
            },
            "inbox": {"url": self.inbox.url},
            "arm": {"url": self.arm.url},
            "slack": {
                "apiUrl": f"{self.inbox.url}{API}",
                "page": f"{self.inbox.url}{PAGE}",
            },
            "teams": self.inbox.teams.addresses(),
        }


Addresses = dict[str, dict[str, str]]


def as_json(addresses: Addresses) -> str:
    """Return the addresses as one line of JSON, for programs."""
    return orjson.dumps(addresses).decode()


def as_lines(addresses: Addresses) -> str:
    """Return the addresses as lines, for people."""
    rows = [(f"{s} {k}", v) for s, found in addresses.items() for k, v in found.items()]
    size = max(len(name) for name, _ in rows)
    lines = (f"  {name:<{size}}  {value}" for name, value in rows)
    return "\n".join(("The simulator listens; Ctrl-C ends it.", *lines))


async def serve(
    options: SimulatorOptions,
    stop: asyncio.Event,
    out: TextIO,
    *,
    shown: Callable[[Addresses], str] = as_json,
) -> None:
    """Run the simulator until ``stop`` is set.

    Args:
        options: what to open.
        stop: ends the simulator.
        out: receives the addresses when all servers listen.
        shown: converts the addresses to text.

    Raises:
        SimulatorError: it cannot start; one sentence says why.
    """
    with _tls_files(options) as tls:
        async with Simulator(options, tls=tls) as simulator:
            out.write(f"{shown(simulator.addresses())}\n")
            out.flush()
            log.info("simulator listens")
            await simulator.run_event_grid(stop)


@contextmanager
def _tls_files(options: SimulatorOptions) -> Iterator[TlsFiles | None]:
    """Yield the certificate files for the options; delete them later if made here.

    Raises:
        SimulatorError: only one of certificate and key is given, or a TLS port is given
            without TLS.
    """
    certificate, key = options.tls_certificate, options.tls_key
    if (certificate is None) != (key is None):
        raise SimulatorError("--tls-certificate and --tls-key belong together")
    if certificate is None and not options.tls:
        _check_no_tls_port(options)
    if certificate is not None and key is not None:
        yield TlsFiles(certificate=certificate, key=key)
    elif options.tls:
        from bridge.simulator.tls_certificate import make_certificate  # noqa: PLC0415 - 10 MiB, for --tls only

        with TemporaryDirectory(prefix="simulator-tls-") as folder:
            yield make_certificate(Path(folder))
    else:
        yield None


def _check_no_tls_port(options: SimulatorOptions) -> None:
    ports = {
        "--servicebus-tls-port": options.servicebus_tls_port,
        "--servicebus-https-port": options.servicebus_https_port,
    }
    for name, port in ports.items():
        if port:
            raise SimulatorError(
                f"{name} {port} has no effect without TLS: give --tls, or "
                "--tls-certificate and --tls-key"
            )


def _settings(options: SimulatorOptions) -> ImdsSettings:
    if not (math.isfinite(options.speed) and options.speed > 0):
        raise SimulatorError(f"the speed must be more than 0, not {options.speed:g}")
    return ImdsSettings(
        scenario=load(options.scenario) if options.scenario else None,
        speed=options.speed,
        least_phase=options.least_phase,
        vm_name=options.vm_name,
        seed=options.seed,
    )


def _entities(options: SimulatorOptions) -> Entities:
    path = options.servicebus_config
    if path is None:
        return default_entities()
    try:
        return load_entities(path)
    except ConfigError as error:
        lines = [f"{path}: {fault}" for fault in error.faults]
        raise EntityFileError(lines) from error
    except UnicodeDecodeError as error:
        raise SimulatorError(f"{path} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror}") from error


# -- Run the simulator in a container, in place of Microsoft's Service Bus emulator ----
#
# A compose file for the emulator needs only another image: the ports, the path of the
# entity file, the health check and the environment variables are the same. The
# emulator's database is not needed: SQL_SERVER, MSSQL_SA_PASSWORD, SQL_WAIT_INTERVAL
# and ACCEPT_EULA have no effect.
#
# Source: github.com/Azure/azure-service-bus-emulator-installer: README.md,
#         Docker-Compose-Template.


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
