"""The configuration: the sections of all rooms, from one TOML file and environment.

All faults are found at once and raised as one ConfigError; nothing is opened here.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.environment import (
    keys_of,
    no_such_sink,
    overridden,
    sinks_by_name,
    upper,
)
from bridge.configuration.lint import (
    doubts_of,
    literal_secrets,
    misspelt_words,
    odd_replies,
    odd_rules,
    odd_waits,
    secrets_in,
    short_stops,
    taken_for_granted,
    vain_waits,
)
from bridge.configuration.secret_standins import StandIns
from bridge.configuration.sink_names import check_name, place_of
from bridge.configuration.sink_targets import sink_targets
from bridge.configuration.toml_file import TomlFile
from bridge.events.config import EventsConfig
from bridge.events.identity import IdentityConfig
from bridge.events.routing import Route, When
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Reader, Section, nearest
from bridge.foundation.values import Duration, Secret, placeholder_faults
from bridge.health.config import HttpConfig
from bridge.imds.client import ImdsConfig
from bridge.outbox.statefile import StateConfig
from bridge.servicebus.namespace import Entity
from bridge.sinks.base import SinkConfig
from bridge.sinks.registry import SINK_TYPES
from bridge.telemetry.metrics import LogConfig
from bridge.traffic.config import TrafficConfig

_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared with  # nosec B104
_ENTITY_KEYS = ("queue", "topic", "subscription")
_NO_SINKS = "must be a list of tables: [[sinks]]"
_NO_APPROVALS = "needs [approvals]: where they go"
_NO_ENTITY = "needs a queue or topic in [approvals]: where they go"
_EMPTY = (
    "has neither [[sinks]] nor [approvals] nor [traffic]: nothing would be sent, "
    "received or answered (--allow-empty takes it all the same)"
)
_USES = ("approvals", "traffic")
_LOOP = "the bridge would take its own events for approvals"


class Settings(Section, frozen=True, kw_only=True):
    """Everything but the sinks and approvals: those have types of their own.

    Attributes:
        shutdown_grace: how long a stop waits for what is in flight; the rest stays in
            the outbox.
        imds: where and how often the document of scheduled events is read. Example:
            ``{"poll_interval": "1s"}``.
        events: what the events are called, and which are told. Example: ``{"scope":
            "own"}``.
        identity: who this VM is, in place of what instance metadata says. Example:
            ``{"vm_name": "web-1"}``.
        state: where, and how long, things are remembered. Example: ``{"path":
            "/var/lib/sebridge/state.db"}``.
        http: where the health port listens. Example: ``{"listen": "127.0.0.1:9465"}``.
        log: how much is logged, and in which form. Example: ``{"level": "info"}``.
        traffic: the probe that says whether a balancer may send this VM work; left out:
            there is none. Example: ``{"listen": "0.0.0.0:9466"}``.
    """

    shutdown_grace: Duration = Duration(10)
    imds: ImdsConfig = ImdsConfig()
    events: EventsConfig = EventsConfig()
    identity: IdentityConfig = IdentityConfig()
    state: StateConfig = StateConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    traffic: TrafficConfig | None = None


class Config(Settings, frozen=True, kw_only=True):
    """A whole configuration, without a fault.

    Attributes:
        sinks: where events go. Example: ``[{"name": "ops", "type": "slack",
            "webhook_url": "env:SLACK_WEBHOOK_URL"}]``.
        approvals: where approvals come from, and what is allowed; left out: nothing is
            approved through this bridge. Example: ``{"namespace":
            "contoso.servicebus.windows.net", "queue": "vm-approvals"}``.
    """

    sinks: tuple[SinkConfig, ...] = ()
    approvals: ApprovalsConfig | None = None

    @property
    def approval_entity(self) -> ApprovalsConfig | None:
        """Where approvals are received from; None where nothing is received."""
        approvals = self.approvals
        return approvals if approvals and approvals.has_entity else None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the names of entities, and that no sink feeds the approvals."""
        for place, section in self._parts():
            for key in _ENTITY_KEYS:
                for what in placeholder_faults(getattr(section, key, "")):
                    yield f"{place}.{key}", what
        yield from self._loops()
        yield from self._shared_files()
        yield from self._shared_port()

    def filled_in(self, expand: Callable[[str], str]) -> Self:
        """Return the configuration with the names of entities as they are here.

        Args:
            expand: fills in ``{vm_id}``, ``{vm_name}``, ``{group}``; ValueError.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        sinks = tuple(_named(s, f"sinks.{s.name}", expand) for s in self.sinks)
        approvals = self.approvals and _named(self.approvals, "approvals", expand)
        return replace(self, sinks=sinks, approvals=approvals)

    def _parts(self) -> Iterator[tuple[str, Section]]:
        for sink in self.sinks:
            yield f"sinks.{sink.name}", sink
        if self.approvals is not None:
            yield "approvals", self.approvals

    def _loops(self) -> Iterator[tuple[str, str]]:
        """Refuse a sink that sends to where approvals come from."""
        if self.approval_entity is None:
            return
        inlet = self.approval_entity.target
        for sink in self.sinks:
            if (target := sink.target) == inlet:
                place = f"sinks.{sink.name}.{target.key}"
                yield place, f"must not be approvals.{inlet.key}: {_LOOP}"

    def _shared_files(self) -> Iterator[tuple[str, str]]:
        """Refuse a file that somebody else writes to."""
        owners = {str(Path(self.state.path).resolve()): "the state file"}
        for sink in self.sinks:
            if (file := sink.file) is None:
                continue
            if file in owners:
                yield f"sinks.{sink.name}.path", f"is that of {owners[file]}"
            owners.setdefault(file, f"sinks.{sink.name}")

    def _shared_port(self) -> Iterator[tuple[str, str]]:
        """Refuse a port that two are to listen on."""
        if self.traffic is None or not self.http.listen:
            return
        (host, port), (other, taken) = self.traffic.address, self.http.address
        if port == taken != 0 and (host == other or {host, other} & _EVERYWHERE):
            yield "traffic.listen", "must not be that of http.listen"

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Yield every secret with its place, such as ``sinks.ops.webhook_url``."""
        for place, _, secret in secrets_in(self):
            yield place, secret

    def warnings(self) -> list[str]:
        """Return what is allowed but hardly meant."""
        found = [
            *literal_secrets(self),
            *misspelt_words(self.sinks, self.approvals, self.traffic),
        ]
        if self.approvals is not None:
            found += odd_rules(self.approvals)
            found += odd_waits(self.approvals, self.sinks)
        if self.approval_entity is not None:
            targets = [sink.target for sink in self.sinks]
            found += odd_replies(self.approval_entity, targets)
        if not self.sinks:
            found.append("sinks: there are none: events are observed and not sent")
        found += short_stops(self.sinks, self.shutdown_grace)
        found += doubts_of(self.sinks)
        return found

    def notes(self) -> list[str]:
        """Return what the bridge believes of its surroundings, and cannot look up."""
        entity = self.approval_entity
        return [] if entity is None else list(taken_for_granted(entity))


S = TypeVar("S", bound=Section)


def _named(part: S, place: str, expand: Callable[[str], str]) -> S:
    """Return a section with the placeholders in its entity's name filled in."""
    names = {}
    for key in _ENTITY_KEYS:
        if text := getattr(part, key, ""):
            try:
                names[key] = expand(text)
            except ValueError as error:
                raise ConfigError([f"{place}.{key}: {error}"]) from error
    return replace(part, **names)


def load(
    path: Path, environ: Mapping[str, str], *, allow_empty: bool = False
) -> Config:
    """Read a configuration file.

    Args:
        path: a TOML file.
        environ: the environment, for ``env:`` references and overrides.
        allow_empty: whether it may have neither sinks nor approvals.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    if not allow_empty:
        _refuse_empty(root, reader)
    return _config(root, reader)


def _opened(path: Path, environ: Mapping[str, str]) -> tuple[Reader, dict[str, object]]:
    """Read a file, and what the environment puts in its place."""
    file = TomlFile.read(path)
    reader = Reader(str(path), environ, file.line_of)
    return reader, overridden(file.tables, Config, SINK_TYPES, reader)


def _refuse_empty(root: Mapping[str, object], reader: Reader) -> None:
    """Refuse a file by which nothing is sent nor received."""
    is_empty = root.get("sinks", []) == [] and not root.keys() & {
        "approvals",
        "traffic",
    }
    misspelt = {nearest(key, keys_of(Config)) for key in root.keys() - keys_of(Config)}
    if is_empty and misspelt.isdisjoint({"sinks", *_USES}):
        reader.fault("", _EMPTY)


def load_settings(path: Path, environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read what a command needs that only looks at what a forwarder has done.

    A person at a shell has not the secrets of the service: sinks and approvals are
    not read.

    Returns:
        The settings, and the names of the sinks.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    names = [table["name"] for table in sinks_by_name(root.get("sinks")).values()]
    settings = _settings(root, reader)
    reader.finish()
    return settings, [str(name) for name in names]


def load_state(path: Path, environ: Mapping[str, str]) -> StateConfig:
    """Read where the state file is, and nothing else.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    settings = _settings({key: root[key] for key in root.keys() & {"state"}}, reader)
    reader.finish()
    return settings.state


def load_routes(
    path: Path, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, Route]]:
    """Read what says who is told of what; no secret is needed for that.

    Of the sinks only ``name``, ``type`` and ``when`` are read, and of the rest
    ``[events]``, ``[identity]`` and ``[state]``.

    Returns:
        The settings, and the routes by the names of the sinks.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    found = dict(_routes(root.get("sinks", []), reader))
    kept = root.keys() & {"events", "identity", "state"}
    settings = _settings({key: root[key] for key in kept}, reader)
    reader.finish()
    return settings, found


def _routes(tables: object, reader: Reader) -> Iterator[tuple[str, Route]]:
    if not isinstance(tables, list):
        reader.fault("sinks", _NO_SINKS)
        return
    for index, table in enumerate(tables):
        place = place_of(index, table)
        kind = table.get("type") if isinstance(table, dict) else None
        if place == f"sinks[{index}]":
            reader.fault(place, "must be a table with a name: [[sinks]]")
        elif not isinstance(kind, str) or kind not in SINK_TYPES:
            _sink(table, place, reader)
        elif when := reader.section(When, table.get("when", {}), f"{place}.when"):
            yield str(table["name"]), SINK_TYPES[kind].routed(when)


def load_for_sink(
    path: Path, environ: Mapping[str, str], name: str
) -> tuple[Config, list[tuple[str, str]]]:
    """Read what shows the messages of one sink; a secret that is missing is replaced.

    Besides it, ``[approvals]``, ``[events]``, ``[identity]`` and ``[state]`` are read.

    Returns:
        The configuration with that sink alone, and the place of each secret that is
        missing, with the reason.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    tables = sinks_by_name(root.get("sinks"))
    known = [str(table["name"]) for table in tables.values()]
    if name not in known:
        reader.fault("", no_such_sink(name, known))
        raise ConfigError(reader.faults)
    stand_ins = StandIns(dict(environ))
    kept = {
        key: stand_ins.lent(root[key], key)
        for key in root.keys() & {"approvals", "events", "identity", "state"}
    }
    kept["sinks"] = [stand_ins.lent(tables[upper(name)], f"sinks.{name}")]
    reader.environ = stand_ins.environ
    return _config(kept, reader, is_whole=False), stand_ins.missing


def load_for_approver(
    path: Path, environ: Mapping[str, str]
) -> tuple[Config, list[Entity]]:
    """Read what whoever approves needs: events, identity and approvals.

    He may have the forwarder's file, but not the secrets of its sinks: of what else
    stands in it, only where sinks send to is read.

    Returns:
        The configuration, and the Service Bus entities that sinks send to.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader, root = _opened(path, environ)
    unread = keys_of(Config).keys() - {"events", "identity", "approvals"}
    kept = {k: root[k] for k in root.keys() - unread}
    config = _config(kept, reader, is_whole=False)
    return config, list(sink_targets(root.get("sinks"), environ))


def parse(
    tables: Mapping[str, object], *, file: str, environ: Mapping[str, str]
) -> Config:
    """Read a configuration from tables, which may be empty.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader = Reader(file, environ)
    return _config(overridden(tables, Config, SINK_TYPES, reader), reader)


def _config(
    root: dict[str, object], reader: Reader, *, is_whole: bool = True
) -> Config:
    """Read a configuration.

    Args:
        root: its tables.
        reader: notes the faults.
        is_whole: whether all sinks are among them.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    tables = root.pop("sinks", [])
    sinks = _sinks(tables, reader)
    approvals = root.pop("approvals", None)
    approvals_config = (
        None
        if approvals is None
        else reader.section(ApprovalsConfig, approvals, "approvals")
    )
    settings = _settings(root, reader)
    values = {name: getattr(settings, name) for name in keys_of(Settings)}
    config = Config(**values, sinks=sinks, approvals=approvals_config)
    for place, what in config.faults():
        reader.fault(place, what)
    is_read = isinstance(tables, list) and len(sinks) == len(tables)
    if is_whole and is_read and approvals_config is not None:
        for place, what in vain_waits(approvals_config, sinks):
            reader.fault(place, what)
    if approvals is None:  # where they are and have faults, those are told
        _refuse_needy(sinks, _NO_APPROVALS, reader)
    elif approvals_config is not None and not approvals_config.has_entity:
        _refuse_needy(sinks, _NO_ENTITY, reader)
    reader.finish()
    return config


def _refuse_needy(sinks: tuple[SinkConfig, ...], what: str, reader: Reader) -> None:
    for sink in sinks:
        if needy := sink.needs_approvals:
            reader.fault(f"sinks.{sink.name}.{needy}", what)


def _settings(root: Mapping[str, object], reader: Reader) -> Settings:
    own = {key: value for key, value in root.items() if key in keys_of(Settings)}
    for key in root.keys() - keys_of(Config):
        reader.unknown("", key, keys_of(Config))
    return reader.section(Settings, own, "") or Settings()


def _sinks(tables: object, reader: Reader) -> tuple[SinkConfig, ...]:
    if not isinstance(tables, list):
        reader.fault("sinks", _NO_SINKS)
        return ()
    found, names = [], dict[str, str]()
    for index, table in enumerate(tables):
        place = place_of(index, table)
        if not isinstance(table, dict):
            reader.fault(place, "must be a table: [[sinks]]")
            continue
        if isinstance(name := table.get("name"), str):
            check_name(name, place, names, reader)
        if (sink := _sink(table, place, reader)) is not None:
            found.append(sink)
    return tuple(found)


def _sink(table: Mapping[str, object], place: str, reader: Reader) -> SinkConfig | None:
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in SINK_TYPES:
        allowed = ", ".join(f'"{name}"' for name in sorted(SINK_TYPES))
        near = nearest(str(kind), SINK_TYPES)
        hint = f"; did you mean {near!r}?" if near else ""
        what = "is missing" if kind is None else f"{kind!r} is no type of sink"
        reader.fault(f"{place}.type", f"{what}{hint}; allowed are {allowed}")
        shared = {key: table[key] for key in keys_of(SinkConfig) if key in table}
        reader.section(SinkConfig, {**shared, "type": ""}, place)
        return None
    return reader.section(SINK_TYPES[kind], table, place)
