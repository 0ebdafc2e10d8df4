"""Turns tables of the configuration into frozen sections: the only validation.

Every package declares its settings as a ``Section``. This file converts a table into
a section and collects *all* faults as ``place: what is wrong, what is allowed``. For
an unknown key it suggests the nearest valid one. It uses msgspec, because pydantic
would need a quarter of the forwarder's memory.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, field

from bridge.foundation.errors import ConfigError
from bridge.foundation.values import (
    Duration,
    FilePath,
    PublicKeys,
    Rate,
    Secret,
    Size,
    misspelt_reference,
)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one package. Field names are the keys of the file."""

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Yield ``(key, what is wrong)`` for each fault that a type cannot express.

        In place of an invalid value stands a placeholder, which counts as given. Faults
        of such a key are dropped. A fault that depends on two keys must name the second
        one, too, as ``(key, what is wrong, other key)``; it is dropped if either value
        is invalid.
        """
        return iter(())


S = TypeVar("S", bound=Section)


class FromEnvironment(str):
    """A value of an environment variable that replaces the value of the file."""

    __slots__ = ("variable",)
    variable: str

    @classmethod
    def of(cls, variable: str, text: str) -> Self:
        """Return the text together with the variable it came from."""
        value = cls(text)
        value.variable = variable
        return value


class Fault(str):
    """One fault of a configuration: ``file:line: place: what``.

    Attributes:
        line: the line in the file; None if the fault has no line there.
        place: the key or the variable; "" is the file itself.
        what: what is wrong, and what is allowed.
    """

    __slots__ = ("line", "place", "what")
    line: int | None
    place: str
    what: str

    @classmethod
    def of(cls, file: str, line: int | None, place: str, what: str) -> Self:
        """Return the fault with its text."""
        at = file if line is None else f"{file}:{line}"
        fault = cls(": ".join(part for part in (at, place, what) if part))
        fault.line, fault.place, fault.what = line, place, what
        return fault


class Reader(Struct):
    """Converts tables into sections, and collects the faults.

    Attributes:
        file: the name of the configuration file in faults.
        environ: the environment that ``env:`` references are read from.
        line_of: returns the line of a place in the file; None if it has no line.
        faults: all faults found so far.
    """

    file: str
    environ: Mapping[str, str] = field(default_factory=dict)
    line_of: Callable[[str], int | None] = lambda _place: None
    faults: list[Fault] = field(default_factory=list)

    def fault(self, place: str, what: str) -> None:
        """Record a fault at ``place``."""
        line = self.line_of(place)
        self.faults.append(Fault.of(self.file, line, place, what))

    def finish(self) -> None:
        """Raise the collected faults, if there are any.

        Raises:
            ConfigError: with all faults, in the order of the file.
        """
        in_order: list[Fault] = sorted(
            self.faults, key=lambda one: (one.line or 0, one)
        )
        if in_order:
            raise ConfigError(in_order)

    def section(self, kind: type[S], table: object, place: str) -> S | None:
        """Convert ``table`` into a ``kind``; None if it has faults."""
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
        """Return the section class of the field ``key``; None if it has none."""
        types = {f.name: f.type for f in msgspec.structs.fields(kind)}
        return _section_of(types.get(key))

    @staticmethod
    def part_type(kind: type[Section], key: str) -> type[Section] | None:
        """Return the section class of the items of the list ``key``; None if none."""
        types = {f.name: f.type for f in msgspec.structs.fields(kind)}
        return _section_of(_held(types.get(key), tuple))

    def unknown(self, place: str, key: str, valid: Mapping[str, object]) -> None:
        """Record an unknown key, with the key that was probably meant."""
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
        """Convert a value.

        If the value is invalid, record the fault and return a placeholder, so that
        validation goes on.

        Args:
            annotation: the type to convert to.
            value: the value in the table.
            where: the place of the value.
            unread: the places of invalid values; this one is added if it is invalid.
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
                what = _plain(str(error), annotation, value)
                self.fault(_origin(value, where), what)
        unread.add(where)
        return _stand_in(annotation)

    def _converted(self, annotation: Any, value: object) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise msgspec.ValidationError("must have no NUL character")
        is_text = isinstance(value, FromEnvironment)  # text, whatever type is needed
        if is_text and _SCALARS.issubset(_alternatives(annotation)):
            with suppress(msgspec.ValidationError):  # else it is text
                return msgspec.convert(str(value), bool | int | float, strict=False)
        return msgspec.convert(
            str(value) if is_text else value,
            annotation,
            strict=not is_text,
            dec_hook=self._decode,
        )

    def _decode(self, kind: type, value: object) -> object:
        if kind in {Duration, Rate, Size}:
            return kind.parse(value)
        if kind is FilePath:
            if not isinstance(value, str) or not value:
                raise ValueError("must be the path of a file")
            return FilePath(value, self.environ)
        if issubclass(kind, Secret):
            if not isinstance(value, str) or not value:
                raise ValueError('must be a string: "env:NAME", "file:PATH" or itself')
            if what := misspelt_reference(value):
                raise ValueError(what)
            if kind is PublicKeys and not value.startswith(("file:", "env:")):
                raise ValueError('must be "file:PATH" or "env:NAME"')
            secret = kind(value, self.environ)
            if kind is not PublicKeys:
                secret.reveal()  # a missing file or variable is a fault at the start
            return secret
        raise NotImplementedError(kind)


def _at(place: str, key: str) -> str:
    """Return the place of a key in the table at ``place``; "" is the root."""
    return f"{place}.{key}" if place else key


def _origin(value: object, where: str) -> str:
    """Return where a value comes from: its place in the file, or its variable."""
    return value.variable if isinstance(value, FromEnvironment) else where


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; for any other annotation, the annotation itself."""
    is_union = get_origin(annotation) in {Union, UnionType}
    return get_args(annotation) if is_union else (annotation,)


def _section_of(annotation: object) -> type[Section] | None:
    """Return the section class in an annotation such as ``X`` or ``X | None``."""
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _held(annotation: object, container: type) -> Any:
    """Return the item type of a dict or tuple, also in ``X | None``; else None."""
    for part in _alternatives(annotation):
        if get_origin(part) is container:
            return get_args(part)[container is dict]
    return None


def _stand_in(annotation: Any) -> Any:
    """Return a placeholder for a value that was given but is invalid."""
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


_SCALARS = {bool, int, float, str}
_EXPECTED = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _plain(message: str, annotation: object, value: object) -> str:
    """Rewrite an error text of msgspec in the words of the configuration file."""
    choices = [str(choice) for choice in _choices(annotation)]
    if allowed := ", ".join(f'"{choice}"' for choice in choices):
        near = nearest(value, choices) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        return f"must be one of {allowed}{hint}"
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


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word that was probably meant; None if no word is near."""
    import difflib  # noqa: PLC0415 - costs memory, and only faults need it

    return next(
        iter(difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)), None
    )
