"""From tables of options to frozen sections: the house's one way of validating.

Every room declares its settings as a ``Section``; this file reads a table into
one, collects *all* faults as ``place: what is wrong, what is allowed`` and names
the nearest valid key for an unknown one. Built on msgspec because the forwarder
is to stay small: pydantic alone would cost a quarter of its memory.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 1e9  # thirty years: nobody means more, and clocks can still add it
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
PLACEHOLDERS = ("vm_id", "vm_name", "group")


class Duration(float):
    """A span of time in seconds, written ``1.5`` or ``"500ms"``, ``"24h"``."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a number of seconds or a string with a unit.

        Raises:
            ValueError: it is neither.
        """
        seconds: float = -1
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = value
        elif isinstance(value, str) and (m := _DURATION.fullmatch(value.strip())):
            seconds = float(m[1]) * _UNITS[m[2] or "s"]
        if 0 <= seconds <= _LONGEST:
            return cls(seconds)
        raise ValueError(
            "must be a number of seconds or a string with a unit, "
            'such as "500ms", "30s", "5m", "24h" or "7d"'
        )


class Secret:
    """A value that is never shown; ``env:NAME`` and ``file:PATH`` are followed.

    A file is read at each use, so that a rotated secret is found without a
    restart. No dataclass: msgspec would read a table into one.
    """

    __slots__ = ("environ", "reference")

    def __init__(self, reference: str, environ: Mapping[str, str]) -> None:
        self.reference = reference
        self.environ = environ

    def __repr__(self) -> str:
        return "<secret>"

    @property
    def is_literal(self) -> bool:
        """Whether the secret itself stands in the configuration."""
        return not self.reference.startswith(("env:", "file:"))

    def reveal(self) -> str:
        """Return the secret itself.

        Raises:
            ValueError: the variable is not set or the file cannot be read.
        """
        scheme, _, name = self.reference.partition(":")
        if scheme == "env":
            if not self.environ.get(name):
                raise ValueError(f"the environment variable {name} is not set")
            return self.environ[name]
        if scheme == "file":
            return _read_secret_file(Path(name))
        return self.reference


class Address(Secret):
    """A URL or header value: as a secret, but may stand in the file openly."""

    __slots__ = ()


def _read_secret_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ValueError(f"the file {path} cannot be read ({cause})") from error
    if not text:
        raise ValueError(f"the file {path} is empty")
    return text


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one room. Field names are the keys of the file."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield ``(key, what is wrong)`` for what one field alone cannot tell."""
        return iter(())


S = TypeVar("S", bound=Section)


class FromEnvironment(str):
    """A value that an environment variable gives in place of the file's."""

    __slots__ = ("variable",)
    variable: str

    @classmethod
    def of(cls, variable: str, text: str) -> Self:
        """Return the text together with the variable it came from."""
        value = cls(text)
        value.variable = variable
        return value


@dataclass(slots=True)
class Reader:
    """Reads tables into sections, and gathers what is wrong on the way.

    Attributes:
        file: how the configuration file is named in faults.
        environ: the environment that ``env:`` references are taken from.
        faults: everything found wrong so far, ``file: place: what``.
    """

    file: str
    environ: Mapping[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, place: str, what: str) -> None:
        """Note that something is wrong at ``place``."""
        self.faults.append(
            f"{self.file}: {place}: {what}" if place else f"{self.file}: {what}"
        )

    def section(self, kind: type[S], table: object, place: str) -> S | None:
        """Read ``table`` into a ``kind``; None where a fault forbids it."""
        if not isinstance(table, Mapping):
            self.fault(place, "must be a table")
            return None
        found = len(self.faults)
        fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
        for key in table:
            if key not in fields:
                self.unknown(place, str(key), fields)
        before = len(self.faults)
        values: dict[str, Any] = {}
        for key, spec in fields.items():
            where = f"{place}.{key}" if place else key
            if key in table:
                self._value(values, spec, table[key], where)
            elif spec.required:
                self.fault(where, "is missing")
        if len(self.faults) > before:
            return None
        result = kind(**values)
        for key, what in result.faults():
            self.fault(f"{place}.{key}" if place else key, what)
        return result if len(self.faults) == found else None

    @staticmethod
    def section_type(kind: type[Section], key: str) -> type[Section] | None:
        """Return the section that stands at ``key`` of ``kind``, if one does."""
        types = {f.name: f.type for f in msgspec.structs.fields(kind)}
        return _section_of(types.get(key))

    def unknown(self, place: str, key: str, valid: Mapping[str, object]) -> None:
        """Note an unknown key, and which one may have been meant."""
        where = f"{place}.{key}" if place else key
        near = difflib.get_close_matches(key, list(valid), n=1, cutoff=0.5)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else "allowed are " + ", ".join(sorted(valid))
        )
        self.fault(where, f"unknown key; {hint}")

    def _value(
        self,
        values: dict[str, Any],
        spec: msgspec.structs.FieldInfo,
        value: object,
        where: str,
    ) -> None:
        nested = _section_of(spec.type)
        if nested is not None and isinstance(value, Mapping):
            if (section := self.section(nested, value, where)) is not None:
                values[spec.name] = section
            return
        is_text = isinstance(value, FromEnvironment)  # whatever it is to be
        if isinstance(value, FromEnvironment):
            where, value = value.variable, str(value)
        try:
            values[spec.name] = msgspec.convert(
                value, spec.type, strict=not is_text, dec_hook=self._decode
            )
        except msgspec.ValidationError as error:
            if not self._wrong_items(spec.type, value, where):
                self.fault(*_plain(where, str(error), spec.type))

    def _wrong_items(self, annotation: object, value: object, where: str) -> bool:
        """Tell each wrong item of a list or table by its place; False if none is."""
        container, kind = _held(annotation)
        items: list[tuple[str, object]] = []
        if container is dict and isinstance(value, Mapping):
            items = [(f"{where}.{key}", item) for key, item in value.items()]
        elif container is tuple and isinstance(value, list):
            items = [(f"{where}[{i}]", item) for i, item in enumerate(value)]
        found = len(self.faults)
        for place, item in items:
            try:
                msgspec.convert(item, kind, dec_hook=self._decode)
            except msgspec.ValidationError as error:
                self.fault(*_plain(place, str(error), kind))
        return len(self.faults) > found

    def _decode(self, kind: type, value: object) -> object:
        if kind is Duration:
            return Duration.parse(value)
        if issubclass(kind, Secret):
            if not isinstance(value, str) or not value:
                raise ValueError('must be a string: "env:NAME", "file:PATH" or itself')
            secret = kind(value, self.environ)
            secret.reveal()  # so that what is missing is told before the start
            return secret
        raise NotImplementedError(kind)


def _section_of(annotation: object) -> type[Section] | None:
    """Return the section class that an annotation names, also as ``X | None``."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _held(annotation: object) -> tuple[object, Any]:
    """Return ``(dict or tuple, what it holds)``, also as ``X | None``; else Nones."""
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is tuple:
            return tuple, get_args(part)[0]
        if get_origin(part) is dict:
            return dict, get_args(part)[1]
    return None, None


_EXPECTED = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_AT = re.compile(r" - at `(?:\$|key in \$)(?P<path>[^`]*)`$")
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _plain(where: str, message: str, annotation: object) -> tuple[str, str]:
    """Turn msgspec's words into ours; returns the place and what is wrong."""
    if at := _AT.search(message):
        where, message = where + at["path"], message[: at.start()]
    if match := _EXPECTED.fullmatch(message):
        kinds = [w for w in match["want"].split(" | ") if w != "null"]
        want = " or ".join(_TYPES.get(kind, kind) for kind in kinds)
        return where, f"must be {want}, not {_TYPES.get(match['got'], match['got'])}"
    if message.startswith("Invalid enum value"):
        allowed = ", ".join(f'"{value}"' for value in _choices(annotation))
        return where, f"must be one of {allowed}"
    return where, message


def _choices(annotation: object) -> Iterator[str]:
    """Yield the texts that a Literal, a StrEnum or a list of them allows."""
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        yield from annotation
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def unknown_placeholders(text: str) -> tuple[str, ...]:
    """Return the placeholders in ``text`` that nobody can fill in."""
    return tuple(
        name for name in re.findall(r"\{([^{}]*)\}", text) if name not in PLACEHOLDERS
    )
