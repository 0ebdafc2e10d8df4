"""The configuration: the sections of all rooms, from one TOML file and environment.

All faults are found at once and raised as one ConfigError; nothing is opened here.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from bridge.advice import literal_secrets, misspelt_words, odd_rules, secrets_in
from bridge.approvals.listener import ApprovalsConfig
from bridge.errors import ConfigError
from bridge.events import EventsConfig
from bridge.health import HttpConfig
from bridge.identity import IdentityConfig
from bridge.imds.client import ImdsConfig
from bridge.options import Reader, Section, nearest
from bridge.overrides import keys_of, overridden, sinks_by_name, upper
from bridge.routing import Route, When
from bridge.sinks.base import SinkConfig
from bridge.sinks.registry import SINK_TYPES
from bridge.statefile import StateConfig
from bridge.telemetry import LogConfig
from bridge.values import Duration, Secret, placeholder_faults

_ENTITY_KEYS = ("queue", "topic", "subscription")
_NO_SINKS = "must be a list of tables: [[sinks]]"
_LOOP = "the bridge would take its own events for approvals"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Settings(Section, frozen=True, kw_only=True):
    """Everything but the sinks and approvals: those have types of their own."""

    shutdown_grace: Duration = Duration(10)
    imds: ImdsConfig = ImdsConfig()
    events: EventsConfig = EventsConfig()
    identity: IdentityConfig = IdentityConfig()
    state: StateConfig = StateConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()


class Config(Settings, frozen=True, kw_only=True):
    """A whole configuration, without a fault."""

    sinks: tuple[SinkConfig, ...] = ()
    approvals: ApprovalsConfig | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the names of entities, and that no sink feeds the approvals."""
        for place, section in self._parts():
            for key in _ENTITY_KEYS:
                for what in placeholder_faults(getattr(section, key, "")):
                    yield f"{place}.{key}", what
        yield from self._loops()
        yield from self._shared_files()
        for sink in self.sinks:
            if self.approvals is None and (needy := sink.needs_approvals):
                yield f"sinks.{sink.name}.{needy}", "needs [approvals]: where they go"

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
        if self.approvals is None:
            return
        inlet = self.approvals.target
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

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Yield every secret with its place, such as ``sinks.ops.webhook_url``."""
        for place, _, secret in secrets_in(self):
            yield place, secret

    def warnings(self) -> list[str]:
        """Return what is allowed but hardly meant."""
        found = [*literal_secrets(self), *misspelt_words(self.sinks, self.approvals)]
        if self.approvals is not None:
            found += odd_rules(self.approvals)
        if not self.sinks:
            found.append("sinks: there are none: events are observed and not sent")
        return found


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


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Read a configuration file.

    Args:
        path: a TOML file.
        environ: the environment, for ``env:`` references and overrides.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    return parse(_tables(path), file=str(path), environ=environ)


def load_settings(path: Path, environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read what a command needs that only looks at what a forwarder has done.

    A person at a shell has not the secrets of the service: sinks and approvals are
    not read.

    Returns:
        The settings, and the names of the sinks.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader = Reader(str(path), environ)
    root = overridden(_tables(path), Config, SINK_TYPES, reader)
    names = [table["name"] for table in sinks_by_name(root.get("sinks")).values()]
    settings = _settings(root, reader)
    if reader.faults:
        raise ConfigError(sorted(reader.faults))
    return settings, [str(name) for name in names]


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
    reader = Reader(str(path), environ)
    root = overridden(_tables(path), Config, SINK_TYPES, reader)
    found = dict(_routes(root.get("sinks", []), reader))
    kept = root.keys() & {"events", "identity", "state"}
    settings = _settings({key: root[key] for key in kept}, reader)
    if reader.faults:
        raise ConfigError(sorted(reader.faults))
    return settings, found


def _routes(tables: object, reader: Reader) -> Iterator[tuple[str, Route]]:
    if not isinstance(tables, list):
        reader.fault("sinks", _NO_SINKS)
        return
    for index, table in enumerate(tables):
        place = _place(index, table)
        kind = table.get("type") if isinstance(table, dict) else None
        if place == f"sinks[{index}]":
            reader.fault(place, "must be a table with a name: [[sinks]]")
        elif not isinstance(kind, str) or kind not in SINK_TYPES:
            _sink(table, place, reader)
        elif when := reader.section(When, table.get("when", {}), f"{place}.when"):
            yield str(table["name"]), SINK_TYPES[kind].routed(when)


def load_for_approver(path: Path, environ: Mapping[str, str]) -> Config:
    """Read what whoever approves needs: events, identity and approvals.

    He may have the forwarder's file, but not the secrets of its sinks: what else
    stands in it is not read.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader = Reader(str(path), environ)
    root = overridden(_tables(path), Config, SINK_TYPES, reader)
    unread = keys_of(Config).keys() - {"events", "identity", "approvals"}
    return _config({k: root[k] for k in root.keys() - unread}, reader)


def _tables(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Windows editors write a BOM
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read: {cause}"]) from error
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also of a number longer than Python reads
        raise ConfigError([f"{path}: no valid TOML: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{path}: no valid TOML: nested too deep"]) from error


def parse(
    tables: Mapping[str, object], *, file: str, environ: Mapping[str, str]
) -> Config:
    """Read a configuration from tables.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    reader = Reader(file, environ)
    return _config(overridden(tables, Config, SINK_TYPES, reader), reader)


def _config(root: dict[str, object], reader: Reader) -> Config:
    sinks = _sinks(root.pop("sinks", []), reader)
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
    if reader.faults:
        raise ConfigError(sorted(reader.faults))
    return config


def _settings(root: Mapping[str, object], reader: Reader) -> Settings:
    own = {key: value for key, value in root.items() if key in keys_of(Settings)}
    for key in root.keys() - keys_of(Config):
        reader.unknown("", key, keys_of(Config))
    return reader.section(Settings, own, "") or Settings()


def _sinks(tables: object, reader: Reader) -> tuple[SinkConfig, ...]:
    if not isinstance(tables, list):
        reader.fault("sinks", _NO_SINKS)
        return ()
    found, names = [], set[str]()
    for index, table in enumerate(tables):
        place = _place(index, table)
        if not isinstance(table, dict):
            reader.fault(place, "must be a table: [[sinks]]")
            continue
        if isinstance(name := table.get("name"), str):
            _check_name(name, place, names, reader)
        if (sink := _sink(table, place, reader)) is not None:
            found.append(sink)
    return tuple(found)


def _check_name(name: str, place: str, taken: set[str], reader: Reader) -> None:
    if not _NAME.fullmatch(name):
        reader.fault(
            f"{place}.name",
            "must be 1 to 63 letters, digits, hyphens and underscores, and begin "
            "with a letter or digit",
        )
    elif upper(name) in taken:
        reader.fault(f"{place}.name", f"{str(name)!r} is taken by another sink")
    taken.add(upper(name))


def _place(index: int, table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    is_plain = isinstance(name, str) and _NAME.fullmatch(name)
    return f"sinks.{name}" if is_plain else f"sinks[{index}]"


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
