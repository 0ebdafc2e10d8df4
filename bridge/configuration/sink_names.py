"""The names of sinks: what may be one, and which clash."""

import re

from bridge.configuration.environment import PREFIX, upper
from bridge.foundation.sections import Reader

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def place_of(index: int, table: object) -> str:
    """Return how faults name a sink: by its name, else by its number."""
    name = table.get("name") if isinstance(table, dict) else None
    is_plain = isinstance(name, str) and _NAME.fullmatch(name)
    return f"sinks.{name}" if is_plain else f"sinks[{index}]"


def check_name(name: str, place: str, taken: dict[str, str], reader: Reader) -> None:
    """Refuse a name that cannot be one, or that is another sink's.

    Args:
        name: of the sink.
        place: of the sink.
        taken: the names so far, by how variables spell them; this one is added.
        reader: takes the faults.
    """
    if not _NAME.fullmatch(name):
        reader.fault(
            f"{place}.name",
            "must be 1 to 63 letters, digits, hyphens and underscores, and begin "
            "with a letter or digit",
        )
    elif name in taken.values():
        reader.fault(f"{place}.name", f"{str(name)!r} is taken by another sink")
    elif (other := taken.get(upper(name))) is not None:
        reader.fault(
            f"{place}.name",
            f"clashes with sinks.{other}: {PREFIX}SINKS__{upper(name)}__… means both",
        )
    taken.setdefault(upper(name), name)
