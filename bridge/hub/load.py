"""Reads ``hub.toml``: the hub's own sections, and those that a forwarder has as well.

All faults are found at once and raised as one ConfigError. Nothing is opened here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from bridge.configuration.environment import overridden
from bridge.configuration.json_schema import section
from bridge.configuration.load import read_sinks, typed
from bridge.configuration.schema_parts import DRAFT, Json
from bridge.configuration.toml_file import TomlFile
from bridge.events.routing import When
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Reader, Section
from bridge.foundation.values import Duration
from bridge.hub.config import SOURCE_TYPES, HubConfig, SourceConfig
from bridge.outbox.statefile import StateConfig
from bridge.sinks.base import SinkConfig
from bridge.sinks.registry import SINK_TYPES
from bridge.telemetry.metrics import LogConfig

_STATE = "/var/lib/sebridge-hub/hub-state.db"
_NO_SOURCES = "has no [[hub.sources]]: there would be nothing to show"
_OF_A_FORWARDER = {"approvals", "events", "http", "identity", "imds", "traffic"}
_VM_ALONE = "works only in the bridge.toml of a forwarder"


class HubFile(Section, frozen=True, kw_only=True):
    """A valid ``hub.toml``.

    Attributes:
        hub: the hub itself. Example: ``{"listen": "127.0.0.1:9470"}``.
        sinks: the receivers of alarms. Example: ``[{"name": "ops", "type": "slack",
            "webhook_url": "env:SLACK_WEBHOOK_URL"}]``.
        state: the file that stores alarms until they are delivered. Example: ``{"path":
            "/var/lib/sebridge-hub/hub-state.db"}``.
        log: how much is logged, and in which form. Example: ``{"level": "info"}``.
        shutdown_grace: how long a stop waits for deliveries in progress.
    """

    hub: HubConfig = HubConfig()
    sinks: tuple[SinkConfig, ...] = ()
    state: StateConfig = StateConfig(path=_STATE)
    log: LogConfig = LogConfig()
    shutdown_grace: Duration = Duration(10)

    @property
    def files(self) -> list[Path]:
        """The files that the hub writes: its store, if it is one, and its alarms'."""
        store = self.hub.sqlite_file
        alarms = [Path(self.state.path)] if self.sinks else []
        return alarms if store is None else [store, *alarms]

    def warnings(self) -> list[str]:
        """Return settings that are allowed, but probably a mistake."""
        return [*self.hub.warnings(), *self._idle_filters()]

    def _idle_filters(self) -> Iterator[str]:
        """Yield a warning for each filter of a sink: alarms ignore filters."""
        for sink in self.sinks:
            if sink.when != When():
                words = "limits nothing: a sink of a hub gets all alarms"
                yield f"sinks.{sink.name}.when: {words}"

    def notes(self) -> list[str]:
        """Return assumptions of this configuration that the hub cannot check."""
        globs = [
            glob
            for one in self.hub.bridge_sources
            if one.approvals is not None
            for glob in one.approvals.entities
        ]
        if not globs:
            return []
        words = f"that it alone decides for {', '.join(globs)}"
        other = "a Functions app there counts votes of its own"
        return [f"hub.sources.approvals: the hub assumes {words}: {other}"]


def is_hub_file(path: Path) -> bool:
    """Whether a configuration file is for a hub.

    Raises:
        ConfigError: the file cannot be read, or is no TOML.
    """
    return "hub" in TomlFile.read(path).tables


def load(path: Path, environ: Mapping[str, str]) -> HubFile:
    """Read a configuration file of the hub.

    Raises:
        ConfigError: the file is invalid; it lists all faults, each with its place.
    """
    file = TomlFile.read(path)
    if "hub" not in file.tables and _OF_A_FORWARDER & file.tables.keys():
        text = f"{path}: is the file of a forwarder, for it has no [hub]: "
        raise ConfigError([f"{text}`sebridge run -c {path}` runs it"])
    reader = Reader(str(path), environ, file.line_of)
    root = overridden(file.tables, HubFile, SINK_TYPES, reader)
    sinks = read_sinks(root.pop("sinks", []), reader)
    for place, what in _unsuitable_sinks(sinks):
        reader.fault(place, what)
    table = root.pop("hub", None)
    if table is None:
        reader.fault("hub", "is missing: [hub]")
    hub = _hub({} if table is None else table, reader)
    rest = reader.section(HubFile, root, "")
    reader.finish()
    assert hub is not None and rest is not None, "no faults"  # noqa: S101, PT018 - mypy  # nosec B101
    return replace(rest, hub=hub, sinks=sinks)


def _hub(table: object, reader: Reader) -> HubConfig | None:
    """Read ``[hub]``. The keys of each source depend on its type."""
    if not isinstance(table, Mapping):
        reader.fault("hub", "must be a table: [hub]")
        return None
    sources = tuple(_sources(table.get("sources", []), reader))
    rest = {key: value for key, value in table.items() if key != "sources"}
    hub = reader.section(HubConfig, rest, "hub")
    return None if hub is None else replace(hub, sources=sources)


def _sources(tables: object, reader: Reader) -> Iterator[SourceConfig]:
    if not isinstance(tables, list) or not all(isinstance(t, Mapping) for t in tables):
        reader.fault("hub.sources", "must be a list of tables: [[hub.sources]]")
        return
    if not tables:
        reader.fault("hub", _NO_SOURCES)
    names = set[object]()
    for index, table in enumerate(tables):
        place = f"hub.sources[{index}]"
        if (name := table.get("name")) in names:
            reader.fault(f"{place}.name", f"{name!r} is taken by another source")
        names.add(name)
        source = typed(table, place, reader, SOURCE_TYPES, SourceConfig)
        if source is not None:
            yield source


def _unsuitable_sinks(sinks: tuple[SinkConfig, ...]) -> Iterator[tuple[str, str]]:
    """Yield faults for settings of sinks that work only in a forwarder."""
    for sink in sinks:
        place = f"sinks.{sink.name}"
        if needy := sink.needs_approvals:
            yield f"{place}.{needy}", _VM_ALONE
        for key, name in sink.entities.items():
            if "{" in name:
                words = "holds a placeholder, and the hub fills in none"
                yield f"{place}.{key}", words
        if sink.is_for_steps:
            yield f"{place}.type", _VM_ALONE


# -- the JSON Schema of the file -------------------------------------------------------


def schema_text() -> str:
    """Return the JSON Schema of ``hub.toml`` as text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Json:
    """Return the JSON Schema of ``hub.toml``, as parsed from TOML."""
    sources = {
        "type": "array",
        "description": "The queues and subscriptions that the hub reads.",
        "items": {"anyOf": _of_types(SOURCE_TYPES)},
        "examples": [[]],
    }
    sinks = {
        "type": "array",
        "description": "The receivers of alarms.",
        "items": {"anyOf": _of_types(SINK_TYPES)},
        "examples": [[]],
    }
    hub = section(HubConfig, {"sources": sources})
    root = section(HubFile, {"hub": hub, "sinks": sinks})
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:hub:v1",
        **root,
        "required": ["hub"],
        "title": "Configuration of a hub of scheduled-events-bridge",
        "description": "The file hub.toml, as parsed from TOML.",
    }


def _of_types(types: Mapping[str, type[Section]]) -> list[Json]:
    kinds = {name: {"const": name, "examples": [name]} for name in types}
    return [section(types[name], {"type": kind}) for name, kind in kinds.items()]
