"""A TOML file: its tables, and the line number of each key.

``tomllib`` gives a line for invalid TOML, but not for the keys of a valid file. So a
second, simpler scan finds the lines; it may rely on the file being valid TOML. It runs
only when a fault is to be reported.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from bridge.foundation.errors import ConfigError
from bridge.foundation.values import text_of

Keys = tuple[str | int, ...]


@cache
def _of_pipe(path: Path) -> bytes:
    """Return what a pipe held: it can be read once, and a command may read it twice."""
    return path.read_bytes()


@dataclass(frozen=True)
class TomlFile:
    """The content of a TOML file, with line numbers.

    Attributes:
        tables: the result of ``tomllib``.
        text: the text of the file.
    """

    tables: Mapping[str, object]
    text: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "TomlFile":
        """Read a file.

        Raises:
            ConfigError: the file cannot be read, or is not valid TOML.
        """
        try:
            text = text_of(_of_pipe(path) if path.is_fifo() else path.read_bytes())
        except OSError as error:
            raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
        except ValueError as error:
            raise ConfigError([f"{path}: cannot be read: it is {error}"]) from error
        try:
            return cls(tomllib.loads(text), text)
        except ValueError as error:  # also for an integer that is too long for Python
            what = f"{path}: no valid TOML: {error}{_hint(str(error), text)}"
            raise ConfigError([what]) from error
        except RecursionError as error:
            raise ConfigError([f"{path}: no valid TOML: nested too deep"]) from error

    def line_of(self, place: str) -> int | None:
        """Return the line of a key, such as ``sinks.ops.when.scope``.

        Returns:
            The line of its table, if the key is not in the file; None if the table is
            missing, too.
        """
        while place and place not in self._lines:
            cut = max(place.rfind("."), place.rfind("["), 0)
            place = place[:cut]
        return self._lines.get(place)

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        lines = dict[str, int]()
        with suppress(ValueError):  # without lines, a fault is still reported
            for keys, line in key_lines(self.text):
                for place in self._places(keys):
                    lines.setdefault(place, line)
        return lines

    def _places(self, keys: Keys) -> Iterator[str]:
        """Yield the places by which faults name a key: a sink by number and by name."""
        yield _joined("", keys)
        name = self._name_of_sink(keys[:2])
        if name is not None:
            yield _joined(f"sinks.{name}", keys[2:])

    def _name_of_sink(self, keys: Keys) -> str | None:
        found: object = self.tables
        for key in (*keys, "name"):
            if isinstance(found, dict):
                found = found.get(str(key))
            elif isinstance(found, list) and isinstance(key, int):
                found = found[key] if key < len(found) else None
            else:
                return None
        is_sink = len(keys) == 2 and keys[0] == "sinks"
        return found if is_sink and isinstance(found, str) else None


_PLACE = re.compile(r"\(at line (\d+), column \d+\)")
_BARE = re.compile(r"""\s*[\w."'-]+\s*=\s*(?P<value>[^\s"'#\[{][^"'#]*?)\s*(#.*)?""")
_OF_SHELL = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def _hint(fault: str, text: str) -> str:
    """Return what was probably meant by a value without quotes; "" = not known."""
    lines, place = text.splitlines(), _PLACE.search(fault)
    number = int(place[1]) if place else 0
    if not 0 < number <= len(lines) or not (
        found := _BARE.fullmatch(lines[number - 1])
    ):
        return ""
    value = found["value"]
    if variable := _OF_SHELL.fullmatch(value):
        return f'; did you mean "env:{variable[1]}"?'
    return '; text needs quotation marks: "…"'


def _joined(place: str, keys: Keys) -> str:
    for key in keys:
        if isinstance(key, int):
            place += f"[{key}]"
        else:
            place += f".{key}" if place else key
    return place


def key_lines(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield every key of a valid TOML text with its line, in the order of the text.

    Tables and items of lists count as keys; a key may be yielded more than once.

    Raises:
        ValueError: the text is not TOML.
    """
    return _Scanner(text.replace("\r\n", "\n")).keys()


_BLANK = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")
_PART = re.compile(r"""([A-Za-z0-9_-]+)|("(?:\\.|[^"\\\n])*")|'([^'\n]*)'""")
_SCALAR = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}(?!")'
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|[^,\]}\n#]+",
    re.DOTALL,
)


class _Scanner:
    """Scans a text that is known to be valid TOML."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [found.end() for found in re.finditer("\n", text)]
        self._counts = dict[Keys, int]()  # the number of tables in each [[list]]

    def keys(self) -> Iterator[tuple[Keys, int]]:
        """Yield the keys with their lines."""
        table: Keys = ()
        while self._skip(_BETWEEN) < len(self._text):
            if self._text[self._at] == "[":
                line = self._line
                table = self._header()
                yield table, line
            else:
                yield from self._pair(table)

    @property
    def _line(self) -> int:
        return bisect_right(self._ends, self._at) + 1

    def _skip(self, pattern: re.Pattern[str]) -> int:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return self._at

    def _take(self, sign: str) -> bool:
        """Skip a character if it is the next one; return whether it was."""
        if self._skip(_BLANK) == len(self._text):
            return False
        is_here = self._text.startswith(sign, self._at)
        self._at += len(sign) * is_here
        return is_here

    def _header(self) -> Keys:
        is_list = self._take("[[")
        if not is_list:
            self._take("[")
        *parents, last = self._key()
        self._take("]]" if is_list else "]")
        table: Keys = ()
        for part in parents:
            table = self._newest((*table, part))
        table = (*table, last)
        if is_list:
            self._counts[table] = self._counts.get(table, 0) + 1
        return self._newest(table)

    def _newest(self, table: Keys) -> Keys:
        """Return the last table of a [[list]]; any other table unchanged."""
        count = self._counts.get(table)
        return table if count is None else (*table, count - 1)

    def _key(self) -> list[str]:
        """Read a key, which may have several parts: ``a.b."c"``."""
        parts = list[str]()
        while True:
            self._skip(_BLANK)
            found = _PART.match(self._text, self._at)
            if found is None:
                raise ValueError(f"no key at {self._at}")
            self._at = found.end()
            bare, quoted, literal = found.groups()
            if quoted is not None:
                bare = tomllib.loads(f"k = {quoted}")["k"]
            parts.append(literal if bare is None else bare)
            if not self._take("."):
                return parts

    def _pair(self, table: Keys) -> Iterator[tuple[Keys, int]]:
        """Read ``key = value``."""
        self._skip(_BLANK)
        line = self._line
        place = table
        for part in self._key():
            place = (*place, part)
            yield place, line
        self._take("=")
        yield from self._value(place)

    def _value(self, place: Keys) -> Iterator[tuple[Keys, int]]:
        """Read a value; yield the keys and items in it."""
        if self._take("["):
            index = 0
            self._skip(_BETWEEN)
            while not self._take("]"):
                yield (*place, index), self._line
                yield from self._value((*place, index))
                self._skip(_BETWEEN)
                index += 1
        elif self._take("{"):
            self._skip(_BETWEEN)
            while not self._take("}"):
                yield from self._pair(place)
                self._skip(_BETWEEN)
        elif self._at == self._skip(_SCALAR):
            raise ValueError(f"no value at {self._at}")
