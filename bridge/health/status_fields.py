"""Reads fields of the status, which may have any value; never raises. Pure."""

from collections.abc import Mapping

from bridge.foundation.printable import printable

_LONGEST = 500  # characters of one value


def text(found: Mapping[str, object], key: str) -> str:
    """Return a string, made printable; "" if the value is not a string."""
    value = found.get(key)
    return _cut(value) if isinstance(value, str) else ""


def _cut(text: str) -> str:
    shown = printable(text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}…"


def plain(value: object) -> str:
    """Return any value as printable text; "" for None."""
    return "" if value is None else _cut(str(value))


def texts(found: Mapping[str, object], key: str) -> list[str]:
    """Return the strings of a list, made printable; empty if there is no list."""
    return [_cut(value) for value in _list(found, key) if isinstance(value, str)]


def table(found: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return an object; empty if the value is not an object."""
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}


def objects(found: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    """Return the objects of a list; empty if there is no list."""
    return [value for value in _list(found, key) if isinstance(value, Mapping)]


def _list(found: Mapping[str, object], key: str) -> list[object]:
    value = found.get(key)
    return value if isinstance(value, list) else []
