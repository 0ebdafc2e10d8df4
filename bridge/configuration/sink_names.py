"""The names of sinks: the allowed form, and clashes."""

import re

from bridge.configuration.environment import PREFIX, upper
from bridge.foundation.sections import Reader

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
