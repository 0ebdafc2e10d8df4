"""From tables of options to frozen sections: the house's one way of validating.

Every room declares its settings as a ``Section``; this file reads a table into
one, collects *all* faults as ``place: what is wrong, what is allowed`` and names
the nearest valid key for an unknown one. Built on msgspec because the forwarder
is to stay small: pydantic alone would cost a quarter of its memory.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

import msgspec

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_RAREST, _MOST_OFTEN = 1e-4, 1e5
_LONGEST = 1e9  # thirty years: nobody means more, and clocks can still add it
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"([0-9]{1,15})\s*(B|[KMG]i?B)?")
_SECRETIVE = re.compile(
    r"auth|code|cookie|credential|key|passw|secret|\bsig\b|signature|token",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
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


class Size(int):
    """A number of bytes, written ``1000000`` or ``"256MB"``, ``"1GiB"``."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a number of bytes or a string with a unit.

        Raises:
            ValueError: it is neither.
        """
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (m := _SIZE.fullmatch(value.strip())):
            return cls(int(m[1]) * _BYTES[m[2] or "B"])
        raise ValueError(
            "must be a number of bytes or a string with a unit, "
            'such as "500KB", "256MB" or "1GB"'
        )


class Rate(float):
    """How often something may happen, in times a second."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a number, also one that a variable of the environment holds.

        Raises:
            ValueError: it is none, or not more than 0.
        """
        is_written = isinstance(value, str) and _NUMBER.fullmatch(value.strip())
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_written or is_number:
            rate = float(value)  # type: ignore[arg-type]
            if _RAREST <= rate <= _MOST_OFTEN:
                return cls(rate)
        raise ValueError(
            "must be a number, times a second: from 0.0001 to 100000, such as 1 or 0.5"
        )


class Secret:
    """A value that is never shown; ``env:NAME`` and ``file:PATH`` are followed.

    A path may hold ``${NAME}`` of the environment, such as systemd's
    ``${CREDENTIALS_DIRECTORY}``. A file is read at each use, so that a rotated secret
    is found without a restart. No dataclass: msgspec would read a table into one.
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

    @property
    def file(self) -> Path | None:
        """The file it is read from; None for any other.

        Raises:
            ValueError: a variable in its path is not set.
        """
        scheme, _, name = self.reference.partition(":")
        if scheme != "file":
            return None
        return Path(_VARIABLE.sub(lambda found: self._variable(found[1]), name))

    def reveal(self) -> str:
        """Return the secret itself.

        Raises:
            ValueError: the variable is not set or the file cannot be read.
        """
        scheme, _, name = self.reference.partition(":")
        if scheme == "env":
            return self._variable(name)
        if (path := self.file) is not None:
            return _read_secret_file(path)
        return self.reference

    def _variable(self, name: str) -> str:
        if not self.environ.get(name):
            raise ValueError(f"the environment variable {name} is not set")
        return self.environ[name]


class Address(Secret):
    """A URL or header value: as a secret, but may stand in the file openly."""

    __slots__ = ()

    def holds_secret(self, key: str) -> bool:
        """Whether it seems so, by its key or by what stands in a URL."""
        return bool(_SECRETIVE.search(key)) or _holds_secret(self.reference)


def _holds_secret(url: str) -> bool:
    """Whether there are credentials in a URL, or in its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    names = [name for name, _ in parse_qsl(parts.query)]
    return "@" in parts.netloc or any(map(_SECRETIVE.search, names))


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

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Yield ``(key, what is wrong)`` for what a type alone cannot tell.

        A value that could not be read has a stand-in that counts as given. Nothing is
        told of its own key; a fault that also depends on what another key holds
        names that one too, as ``(key, what is wrong, other key)``.
        """
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
        unread: set[str] = set()
        values: dict[str, Any] = {}
        for key, spec in fields.items():
            where = _at(place, key)
            if key in table:
                values[spec.name] = self._value(spec.type, table[key], where, unread)
            elif spec.required:
                self.fault(where, "is missing")
                unread.add(where)
                values[spec.name] = _stand_in(spec.type)
        result = kind(**values)
        for key, what, *others in result.faults():
            if unread.isdisjoint(_at(place, part) for part in (key, *others)):
                self.fault(_origin(table.get(key), _at(place, key)), what)
        return result if len(self.faults) == found else None

    @staticmethod
    def section_type(kind: type[Section], key: str) -> type[Section] | None:
        """Return the section that stands at ``key`` of ``kind``, if one does."""
        types = {f.name: f.type for f in msgspec.structs.fields(kind)}
        return _section_of(types.get(key))

    @staticmethod
    def part_type(kind: type[Section], key: str) -> type[Section] | None:
        """Return the section that the list at ``key`` of ``kind`` holds, if it does."""
        types = {f.name: f.type for f in msgspec.structs.fields(kind)}
        return _section_of(_held(types.get(key), tuple))

    def unknown(self, place: str, key: str, valid: Mapping[str, object]) -> None:
        """Note an unknown key, and which one may have been meant."""
        near = nearest(key, valid)
        hint = (
            f"did you mean {near!r}?"
            if near
            else "allowed are " + ", ".join(sorted(valid))
        )
        self.fault(_at(place, key), f"unknown key; {hint}")

    def _value(
        self, annotation: Any, value: object, where: str, unread: set[str]
    ) -> Any:
        """Read a value; one that cannot be read is told, and a stand-in returned.

        Args:
            annotation: the type that is wanted.
            value: as it stands in the table.
            where: its place.
            unread: to which the places of what cannot be read are added.
        """
        nested = _section_of(annotation)
        if nested is not None and isinstance(value, Mapping):
            if (section := self.section(nested, value, where)) is not None:
                return section
        elif isinstance(value, Mapping) and (kind := _held(annotation, dict)):
            return {
                key: self._value(kind, item, f"{where}.{key}", unread)
                for key, item in value.items()
            }
        elif isinstance(value, list) and (kind := _held(annotation, tuple)):
            return tuple(
                self._value(kind, item, f"{where}[{index}]", unread)
                for index, item in enumerate(value)
            )
        else:
            try:
                return self._converted(annotation, value)
            except msgspec.ValidationError as error:
                self.fault(_origin(value, where), _plain(str(error), annotation))
        unread.add(where)
        return _stand_in(annotation)

    def _converted(self, annotation: Any, value: object) -> Any:
        is_text = isinstance(value, FromEnvironment)  # whatever it is to be
        return msgspec.convert(
            str(value) if is_text else value,
            annotation,
            strict=not is_text,
            dec_hook=self._decode,
        )

    def _decode(self, kind: type, value: object) -> object:
        if kind in {Duration, Rate, Size}:
            return kind.parse(value)
        if issubclass(kind, Secret):
            if not isinstance(value, str) or not value:
                raise ValueError('must be a string: "env:NAME", "file:PATH" or itself')
            secret = kind(value, self.environ)
            secret.reveal()  # so that what is missing is told before the start
            return secret
        raise NotImplementedError(kind)


def _at(place: str, key: str) -> str:
    """Return the place of a key in the table at ``place``; "" is the root."""
    return f"{place}.{key}" if place else key


def _origin(value: object, where: str) -> str:
    """Return where a value comes from: its place in the file, or a variable."""
    return value.variable if isinstance(value, FromEnvironment) else where


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; of any other annotation, itself."""
    is_union = get_origin(annotation) in {Union, UnionType}
    return get_args(annotation) if is_union else (annotation,)


def _section_of(annotation: object) -> type[Section] | None:
    """Return the section class that an annotation names, also as ``X | None``."""
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _held(annotation: object, container: type) -> Any:
    """Return what a dict or tuple holds, also as ``X | None``; None if it is none."""
    for part in _alternatives(annotation):
        if get_origin(part) is container:
            return get_args(part)[container is dict]
    return None


def _stand_in(annotation: Any) -> Any:
    """Return what takes the place of a value that was given but cannot be read."""
    parts = _alternatives(annotation)
    for part in parts:
        if part is str:
            return "?"
        if isinstance(part, type) and issubclass(part, Secret):
            return part("?", {})
    if NoneType in parts:
        return None
    if (section := _section_of(annotation)) is not None:
        fields = msgspec.structs.fields(section)
        return section(**{f.name: _stand_in(f.type) for f in fields if f.required})
    choices = _choices(annotation)
    return next(choices, None) or (get_origin(annotation) or annotation)()


_EXPECTED = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _plain(message: str, annotation: object) -> str:
    """Turn msgspec's words into ours."""
    if allowed := ", ".join(f'"{value}"' for value in _choices(annotation)):
        return f"must be one of {allowed}"
    if match := _EXPECTED.fullmatch(message):
        kinds = [w for w in match["want"].split(" | ") if w != "null"]
        want = " or ".join(_TYPES.get(kind, kind) for kind in kinds)
        return f"must be {want}, not {_TYPES.get(match['got'], match['got'])}"
    return message


def _choices(annotation: object) -> Iterator[str]:
    """Yield the texts that a Literal or a StrEnum allows, also as ``X | None``."""
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, StrEnum):
            yield from part
        elif get_origin(part) is Literal:
            yield from get_args(part)


_BRACES = re.compile(r"\{[^{}]*\}?|\}")


def unknown_placeholders(text: str) -> tuple[str, ...]:
    """Return what stands in braces and nobody can fill in, and braces left over."""
    known = {f"{{{name}}}" for name in PLACEHOLDERS}
    return tuple(part for part in _BRACES.findall(text) if part not in known)


def placeholder_faults(text: str) -> Iterator[str]:
    """Yield what is wrong with each placeholder that nobody can fill in."""
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for part in unknown_placeholders(text):
        yield f"{part!r} is no placeholder; allowed are {known}"


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return which valid word may have been meant; None if none is near."""
    import difflib  # noqa: PLC0415 - costs memory, and only faults want it

    return next(
        iter(difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)), None
    )
