"""Load the configuration of all packages from one TOML file and the environment.

All faults are raised together as one ConfigError. Nothing is opened or connected here.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Config, Settings
from bridge.configuration.environment import (
    PREFIX,
    keys_of,
    no_such_sink,
    overridden,
    sinks_by_name,
    upper,
)
from bridge.configuration.lint import vain_waits
from bridge.configuration.toml_file import TomlFile
from bridge.events.routing import Route, When
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Reader, Section, nearest
from bridge.foundation.values import Secret
from bridge.outbox.statefile import StateConfig
from bridge.servicebus.namespace import UNKNOWN_HOST, Entity
from bridge.sinks.base import SinkConfig
from bridge.sinks.registry import SINK_TYPES

_NO_SINKS = "must be a list of tables: [[sinks]]"
_NO_APPROVALS = "needs [approvals]: the approvals go there"
_NO_ENTITY = "needs a queue or topic in [approvals]: the approvals go there"
_EMPTY = (
    "has neither [[sinks]] nor [approvals] nor [traffic]: nothing would be sent, "
    "received or answered (--allow-empty accepts it)"
)
_USES = ("approvals", "traffic")

K = TypeVar("K", bound=Section)


def load(
    path: Path, environ: Mapping[str, str], *, allow_empty: bool = False
) -> Config:
    """Read a configuration file.

    Args:
        path: a TOML file.
        environ: the environment, for ``env:`` references and overrides.
        allow_empty: whether a file without sinks, approvals and traffic is accepted.

    Raises:
        ConfigError: holds every fault with its place.
    """
    reader, root = _opened(path, environ)
    if not allow_empty:
        _refuse_empty(root, reader)
    return _config(root, reader)


def _opened(path: Path, environ: Mapping[str, str]) -> tuple[Reader, dict[str, object]]:
    """Read the tables of a file of a forwarder, overridden by environment variables."""
    file = TomlFile.read(path)
    if "hub" in file.tables:
        runs = f"`sebridge hub -c {path}` runs it; `status --hub URL` asks it"
        raise ConfigError([f"{path}: is the file of a hub, for it has [hub]: {runs}"])
    reader = Reader(str(path), environ, file.line_of)
    return reader, overridden(file.tables, Config, SINK_TYPES, reader)


def _refuse_empty(root: Mapping[str, object], reader: Reader) -> None:
    """Refuse a file with which the bridge would do nothing."""
    is_empty = root.get("sinks", []) == [] and not root.keys() & {
        "approvals",
        "traffic",
    }
    misspelt = {nearest(key, keys_of(Config)) for key in root.keys() - keys_of(Config)}
    if is_empty and misspelt.isdisjoint({"sinks", *_USES}):
        reader.fault("", _EMPTY)


def load_settings(path: Path, environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings for a command that only shows what a forwarder has done.

    Sinks and approvals are not read, because they may need secrets, which a person at
    a shell cannot read. A token of [http] that is missing is replaced.

    Returns:
        The settings, and the names of the sinks.

    Raises:
        ConfigError: holds every fault with its place.
    """
    reader, root = _opened(path, environ)
    stand_ins = StandIns(dict(environ))
    root["http"] = stand_ins.replaced(root.get("http", {}), "http")
    reader.environ = stand_ins.environ
    settings, tables = _settings(root, reader), sinks_by_name(root.get("sinks"))
    reader.finish()
    return settings, [str(table["name"]) for table in tables.values()]


def load_state(path: Path, environ: Mapping[str, str]) -> StateConfig:
    """Read only the section ``[state]``, which says where the state file is.

    Raises:
        ConfigError: holds every fault with its place.
    """
    reader, root = _opened(path, environ)
    settings = _settings({key: root[key] for key in root.keys() & {"state"}}, reader)
    reader.finish()
    return settings.state


def load_routes(
    path: Path, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, Route]]:
    """Read the routes, which decide which sink gets which event; needs no secret.

    Only ``name``, ``type`` and ``when`` of the sinks are read, and of the other tables
    only ``[events]``, ``[identity]`` and ``[state]``.

    Returns:
        The settings, and the routes by the names of the sinks.

    Raises:
        ConfigError: holds every fault with its place.
    """
    reader, root = _opened(path, environ)
    found = dict(_routes(root.get("sinks", []), reader))
    kept = {key: root[key] for key in root.keys() & {"events", "identity", "state"}}
    settings = _settings(kept, reader)
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
            typed(table, place, reader, SINK_TYPES, SinkConfig)
        elif when := reader.section(When, table.get("when", {}), f"{place}.when"):
            yield str(table["name"]), SINK_TYPES[kind].routed(when)


def load_for_sink(
    path: Path, environ: Mapping[str, str], name: str
) -> tuple[Config, list[tuple[str, str]]]:
    """Read the configuration for rendering an event; missing secrets are replaced.

    Only this sink and ``[approvals]``, ``[events]``, ``[identity]`` and ``[state]`` are
    read.

    Returns:
        The configuration with this sink alone, and for each missing secret its place
        and the reason.

    Raises:
        ConfigError: holds every fault with its place.
    """
    reader, root = _opened(path, environ)
    tables = sinks_by_name(root.get("sinks"))
    known = [str(table["name"]) for table in tables.values()]
    if name not in known:
        reader.fault("", no_such_sink(name, known))
        raise ConfigError(reader.faults)
    stand_ins = StandIns(dict(environ))
    kept = {
        key: stand_ins.replaced(root[key], key)
        for key in root.keys() & {"approvals", "events", "identity", "state"}
    }
    kept["sinks"] = [stand_ins.replaced(tables[upper(name)], f"sinks.{name}")]
    reader.environ = stand_ins.environ
    return _config(kept, reader, is_whole=False), stand_ins.missing


def load_for_approver(
    path: Path, environ: Mapping[str, str]
) -> tuple[Config, list[Entity]]:
    """Read the sections that an approver needs: events, identity and approvals.

    An approver may have the forwarder's file, but not the secrets of its sinks. So only
    the entities that the sinks send to are read besides these sections.

    Returns:
        The configuration, and the Service Bus entities that sinks send to.

    Raises:
        ConfigError: holds every fault with its place.
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
        ConfigError: holds every fault with its place.
    """
    reader = Reader(file, environ)
    return _config(overridden(tables, Config, SINK_TYPES, reader), reader)


def _config(
    root: dict[str, object], reader: Reader, *, is_whole: bool = True
) -> Config:
    """Read a configuration.

    Args:
        root: its tables.
        reader: records the faults.
        is_whole: whether ``root`` holds all sinks.

    Raises:
        ConfigError: holds every fault with its place.
    """
    tables = root.pop("sinks", [])
    sinks = read_sinks(tables, reader)
    approvals = root.pop("approvals", None)
    approvals_config: ApprovalsConfig | None = None
    if approvals is not None:
        approvals_config = reader.section(ApprovalsConfig, approvals, "approvals")
    settings = _settings(root, reader)
    values = {name: getattr(settings, name) for name in keys_of(Settings)}
    config = Config(**values, sinks=sinks, approvals=approvals_config)
    for place, what in config.faults():
        reader.fault(place, what)
    is_read = isinstance(tables, list) and len(sinks) == len(tables)
    if is_whole and is_read and approvals_config is not None:
        for place, what in vain_waits(approvals_config, sinks):
            reader.fault(place, what)
    if approvals is None:  # faults of a table that exists are reported already
        _refuse_needy(sinks, _NO_APPROVALS, reader)
    elif approvals_config is not None and not approvals_config.has_entity:
        _refuse_needy(sinks, _NO_ENTITY, reader)
    reader.finish()
    return config


def _refuse_needy(sinks: tuple[SinkConfig, ...], what: str, reader: Reader) -> None:
    """Record a fault for each sink with a key that works only with approvals."""
    for sink in sinks:
        if key := sink.needs_approvals:
            reader.fault(f"sinks.{sink.name}.{key}", what)


def _settings(root: Mapping[str, object], reader: Reader) -> Settings:
    own = {key: value for key, value in root.items() if key in keys_of(Settings)}
    for key in root.keys() - keys_of(Config):
        reader.unknown("", key, keys_of(Config))
    return reader.section(Settings, own, "") or Settings()


def read_sinks(tables: object, reader: Reader) -> tuple[SinkConfig, ...]:
    """Read ``[[sinks]]``; record each fault with its place."""
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
        sink = typed(table, place, reader, SINK_TYPES, SinkConfig)
        if sink is not None:
            found.append(sink)
    return tuple(found)


def typed(
    table: Mapping[str, object],
    place: str,
    reader: Reader,
    types: Mapping[str, type[K]],
    shared: type[Section],
) -> K | None:
    """Read a table whose ``type`` decides which keys it has; None = it has faults.

    Args:
        table: the table.
        place: its place, for faults.
        reader: reads it.
        types: the sections by ``type``.
        shared: the section of the keys that all of them have.
    """
    kind = table.get("type")
    if isinstance(kind, str) and kind in types:
        return reader.section(types[kind], table, place)
    allowed = ", ".join(f'"{name}"' for name in sorted(types))
    near = nearest(str(kind), types)
    hint = f"; did you mean {near!r}?" if near else ""
    noun = shared.__name__.removesuffix("Config").lower()
    what = "is missing" if kind is None else f"{kind!r} is no type of {noun}"
    reader.fault(f"{place}.type", f"{what}{hint}; allowed are {allowed}")
    given = {key: table[key] for key in keys_of(shared) if key in table}
    reader.section(shared, {**given, "type": ""}, place)  # reports its faults
    return None


# -- The names of sinks: the allowed form, and clashes ---------------------------------


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def place_of(index: int, table: object) -> str:
    """Return the place of a sink in faults: by its name, or else by its number."""
    name = table.get("name") if isinstance(table, dict) else None
    is_plain = isinstance(name, str) and _NAME.fullmatch(name)
    return f"sinks.{name}" if is_plain else f"sinks[{index}]"


def check_name(name: str, place: str, taken: dict[str, str], reader: Reader) -> None:
    """Refuse an invalid name, and the name of another sink.

    Args:
        name: the name of the sink.
        place: the place of the sink.
        taken: the names so far, keyed as written in variables; this one is added.
        reader: records the faults.
    """
    if not _NAME.fullmatch(name):
        reader.fault(
            f"{place}.name",
            "must be 1 to 63 letters, digits, hyphens and underscores, and begin "
            "with a letter or digit",
        )
    elif name in taken.values():
        reader.fault(f"{place}.name", f"{str(name)!r} is the name of another sink")
    elif (other := taken.get(upper(name))) is not None:
        reader.fault(
            f"{place}.name",
            f"clashes with sinks.{other}: {PREFIX}SINKS__{upper(name)}__… means both",
        )
    taken.setdefault(upper(name), name)


# -- The Service Bus entities that sinks send to, found without the sinks' secrets -----


def sink_targets(tables: object, environ: Mapping[str, str]) -> Iterator[Entity]:
    """Yield the Service Bus entities that sinks send to.

    Args:
        tables: the sinks of the file; from a faulty one, what can be read is used.
        environ: the environment, for secrets that are present.
    """
    for table in tables if isinstance(tables, list) else ():
        kind = table.get("type") if isinstance(table, dict) else None
        if not isinstance(kind, str) or kind not in SINK_TYPES:
            continue
        sink = Reader("", environ).section(SINK_TYPES[kind], table, "")
        if (target := sink.target if sink else _written(table)) is not None:
            yield target


def _written(table: Mapping[str, object]) -> Entity | None:
    """Return the entity as far as it is known without the connection string."""
    for key in ("queue", "topic"):
        if (name := table.get(key)) and isinstance(name, str):
            host = str(table.get("namespace") or UNKNOWN_HOST).lower()
            return Entity(key=key, host=host, name=name.strip("/").lower())
    return None


# -- Placeholders for secrets that cannot be read here ---------------------------------
#
# A person at a shell, or a build server, cannot read the secrets of the service. A dry
# run (``sebridge render``) works with placeholders in their place.


_HOST = "unknown.invalid"
_VARIABLE = "a stand-in for "  # with blanks: no real environment variable has them
_ANY_SECRET = f"whsec_{'A' * 32}"  # valid for every key that takes a secret
_BY_KEY = {
    "connection_string": (
        f"Endpoint=sb://{_HOST};SharedAccessKeyName=none;SharedAccessKey=none"
    ),
    "http_proxy": f"https://{_HOST}",
    "proxy": f"https://{_HOST}",
    "url": f"https://{_HOST}",
    "webhook_url": f"https://{_HOST}",
}
# Files that are needed only for a connection, and that only the service may read.
_FOR_TLS = frozenset({"ca_file", "client_certificate", "client_key"})
_SHOWN = "<secret>"


class StandIns(Struct):
    """Replaces the missing secrets in tables of a configuration.

    Attributes:
        environ: the environment of the process; the placeholders are added to it.
        missing: the place of each replaced secret, and why it cannot be read.
    """

    environ: dict[str, str]
    missing: list[tuple[str, str]] = field(default_factory=list)

    def replaced(self, value: object, place: str, key: str = "") -> object:
        """Return a value of the configuration with its missing secrets replaced."""
        if isinstance(value, Mapping):
            return {
                name: self.replaced(part, f"{place}.{name}", name)
                for name, part in value.items()
                if name not in _FOR_TLS
            }
        if isinstance(value, list):
            return [
                self.replaced(part, f"{place}[{index}]", key)
                for index, part in enumerate(value)
            ]
        return self._replaced(value, place, key) if isinstance(value, str) else value

    def _replaced(self, reference: str, place: str, key: str) -> str:
        secret = Secret(reference, self.environ)
        if secret.is_literal:
            return reference
        try:
            secret.reveal()
        except ValueError as error:
            self.missing.append((place, str(error)))
            variable = f"{_VARIABLE}{key}"
            self.environ[variable] = _BY_KEY.get(key, _ANY_SECRET)
            return f"env:{variable}"
        return reference


def hidden(line: str) -> str:
    """Return a line with the placeholder of an address replaced by ``<secret>``."""
    return line.replace(f"https://{_HOST}", _SHOWN).replace(_HOST, _SHOWN)
