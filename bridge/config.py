"""The configuration: the sections of all rooms, from one TOML file and environment.

All faults are found at once and raised as one ConfigError; nothing is opened here.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from bridge.approvals.listener import ApprovalsConfig
from bridge.approvals.rules import catch_all, label_of
from bridge.errors import ConfigError
from bridge.events import EventsConfig
from bridge.health import HttpConfig
from bridge.identity import IdentityConfig
from bridge.imds.client import ImdsConfig
from bridge.imds.document import EVENT_SOURCES, EVENT_TYPES
from bridge.options import (
    Address,
    Duration,
    FromEnvironment,
    Reader,
    Secret,
    Section,
    nearest,
    placeholder_faults,
)
from bridge.routing import Route, When
from bridge.sinks.base import SinkConfig
from bridge.sinks.registry import SINK_TYPES
from bridge.statefile import StateConfig
from bridge.telemetry import LogConfig

PREFIX = "SEBRIDGE__"
_ENTITY_KEYS = ("queue", "topic", "subscription")
_WORDS = {
    "event_types": EVENT_TYPES,
    "allow_event_types": EVENT_TYPES,
    "event_sources": EVENT_SOURCES,
}
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
        for place, _, secret in _secrets(self):
            yield place, secret

    def warnings(self) -> list[str]:
        """Return what is allowed but hardly meant."""
        found = [
            f"{place}: a literal secret; better env:NAME or file:PATH"
            for place, key, secret in _secrets(self)
            if secret.is_literal
            and (not isinstance(secret, Address) or secret.holds_secret(key))
        ]
        found += self._misspelt()
        found += self._odd_rules()
        if not self.sinks:
            found.append("sinks: there are none: events are observed and not sent")
        return found

    def _misspelt(self) -> Iterator[str]:
        """Yield the words of limits that no event has today."""
        for place, section in self._limits():
            for key, known in _WORDS.items():
                for word in getattr(section, key, None) or ():
                    if what := misspelt(word, known):
                        yield f"{place}.{key}: {what}"

    def _limits(self) -> Iterator[tuple[str, Section]]:
        for sink in self.sinks:
            yield f"sinks.{sink.name}.when", sink.when
        if self.approvals is not None:
            yield "approvals", self.approvals
            for index, rule in enumerate(self.approvals.rules):
                yield f"approvals.rules[{index}]", rule

    def _odd_rules(self) -> Iterator[str]:
        """Tell of a rule that approves all there is, and of those never reached."""
        rules = self.approvals.rules if self.approvals else ()
        last = catch_all(rules)
        for index, rule in enumerate(rules[last:], start=last):
            place = f"approvals.rules[{index}]"
            if index > last:
                first = label_of(last, rules[last])
                yield f"{place}: is never reached: {first} fits every event"
            elif rule.action == "auto-approve":
                yield f"{place}: approves every event, whatever it does"


def misspelt(word: str, known: Sequence[str]) -> str | None:
    """Return what is odd about a word that is none of ``known``; None if it is one.

    It is allowed: Azure may have more words by now.
    """
    if word.casefold() in {name.casefold() for name in known}:
        return None
    near = nearest(word.capitalize(), known)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
    return f"{word!r} is not documented by Azure; {hint}"


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
    root = _overridden(_copied(_tables(path)), reader)
    names = [table["name"] for table in _sinks_by_name(root.get("sinks")).values()]
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
    root = _overridden(_copied(_tables(path)), reader)
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
    root = _overridden(_copied(_tables(path)), reader)
    unread = _keys(Config).keys() - {"events", "identity", "approvals"}
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
    return _config(_overridden(_copied(tables), reader), reader)


def _config(root: dict[str, object], reader: Reader) -> Config:
    sinks = _sinks(root.pop("sinks", []), reader)
    approvals = root.pop("approvals", None)
    approvals_config = (
        None
        if approvals is None
        else reader.section(ApprovalsConfig, approvals, "approvals")
    )
    settings = _settings(root, reader)
    values = {name: getattr(settings, name) for name in _keys(Settings)}
    config = Config(**values, sinks=sinks, approvals=approvals_config)
    for place, what in config.faults():
        reader.fault(place, what)
    if reader.faults:
        raise ConfigError(sorted(reader.faults))
    return config


def _settings(root: Mapping[str, object], reader: Reader) -> Settings:
    own = {key: value for key, value in root.items() if key in _keys(Settings)}
    for key in root.keys() - _keys(Config):
        reader.unknown("", key, _keys(Config))
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
    elif _upper(name) in taken:
        reader.fault(f"{place}.name", f"{str(name)!r} is taken by another sink")
    taken.add(_upper(name))


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
        shared = {key: table[key] for key in _keys(SinkConfig) if key in table}
        reader.section(SinkConfig, {**shared, "type": ""}, place)
        return None
    return reader.section(SINK_TYPES[kind], table, place)


# -- overrides from the environment ------------------------------------------


def _overridden(root: dict[str, object], reader: Reader) -> dict[str, object]:
    """Put the ``SEBRIDGE__…`` variables in the place of what the file says."""
    sinks = _sinks_by_name(root.get("sinks"))
    for variable in sorted(reader.environ):
        if variable.upper().startswith(PREFIX):
            rest = variable.upper().removeprefix(PREFIX)
            text = FromEnvironment.of(variable, reader.environ[variable])
            if rest == "SINKS" or rest.startswith("SINKS__"):
                _override_sink(sinks, rest, text, reader)
            else:
                _override(root, Config, rest, text, reader)
    return root


def _override_sink(
    sinks: Mapping[str, dict[str, object]],
    rest: str,
    value: FromEnvironment,
    reader: Reader,
) -> None:
    named = rest.removeprefix("SINKS").removeprefix("__")
    names = [name for name in sinks if f"{named}__".startswith(f"{name}__")]
    if not names:
        if "__" in named:
            what, known = named.partition("__")[0], [name.lower() for name in sinks]
            _unknown(value.variable, what, known, "no such sink", reader)
        else:
            _no_key(value.variable, f"{PREFIX}SINKS__<NAME>", reader)
        return
    name = max(names, key=len)  # names may hold two underscores themselves
    kind = SINK_TYPES.get(str(sinks[name].get("type")))
    if kind is None:
        return  # a fault of its own
    if named == name:
        _no_key(value.variable, value.variable, reader)
        return
    _override(sinks[name], kind, named.removeprefix(f"{name}__"), value, reader)


def _override(
    table: dict[str, object],
    kind: type[Section],
    rest: str,
    value: FromEnvironment,
    reader: Reader,
) -> None:
    part, is_deeper, rest = rest.partition("__")
    key, nested = part.lower(), _section_at(kind, part)
    if key == "sinks" or key not in _keys(kind):
        _unknown(value.variable, part, list(_keys(kind)), "no such key", reader)
    elif nested is None and is_deeper:
        what = f"unknown variable: {part} has no keys of its own to override"
        reader.fault(value.variable, what)
    elif nested is None:
        table[key] = value
    elif not is_deeper:
        _no_key(value.variable, value.variable, reader)
    elif isinstance(child := table.setdefault(key, {}), dict):
        _override(child, nested, rest, value, reader)


def _no_key(variable: str, table: str, reader: Reader) -> None:
    reader.fault(variable, f"is a table: its keys are {table}__<KEY>")


def _unknown(
    variable: str, part: str, valid: list[str], otherwise: str, reader: Reader
) -> None:
    near = nearest(part.lower(), valid)
    hint = f"did you mean {_upper(near)}?" if near else otherwise
    reader.fault(variable, f"unknown variable: {part}; {hint}")


def _section_at(kind: type[Section], key: str) -> type[Section] | None:
    for field in kind.__struct_fields__:
        if field == key.lower():
            return Reader.section_type(kind, field)
    return None


def _sinks_by_name(sinks: object) -> dict[str, dict[str, object]]:
    """Return the tables of sinks by their names as variables spell them."""
    tables = sinks if isinstance(sinks, list) else ()
    return {
        _upper(table["name"]): table
        for table in tables
        if isinstance(table, dict) and isinstance(table.get("name"), str)
    }


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def _keys(kind: type[Section]) -> dict[str, None]:
    return dict.fromkeys(kind.__struct_fields__)


def _copied(value: Mapping[str, object]) -> dict[str, object]:
    """Copy tables as deep as overrides reach."""
    return {
        key: _copied(item)
        if isinstance(item, dict)
        else [_copied(part) if isinstance(part, dict) else part for part in item]
        if isinstance(item, list)
        else item
        for key, item in value.items()
    }


def _secrets(section: Section, prefix: str = "") -> Iterator[tuple[str, str, Secret]]:
    """Yield the place, the key and the value of every secret in a section."""
    for key in section.__struct_fields__:
        value = getattr(section, key)
        if key == "sinks":
            for sink in value:
                yield from _secrets(sink, f"sinks.{sink.name}.")
        else:
            yield from _secrets_at(f"{prefix}{key}", key, value)


def _secrets_at(
    place: str, key: str, value: object
) -> Iterator[tuple[str, str, Secret]]:
    if isinstance(value, Secret):
        yield place, key, value
    elif isinstance(value, Section):
        yield from _secrets(value, f"{place}.")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets_at(f"{place}.{name}", name, item)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _secrets_at(f"{place}[{index}]", key, item)
