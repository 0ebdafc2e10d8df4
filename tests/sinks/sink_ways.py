"""The sinks as tests reach them, found in ``tests/sinks/ways``."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from bridge.sinks.registry import SINK_TYPES
from tests.sinks.ways.way import SinkWay

_FOLDER = Path(__file__).parent / "ways"


def _found() -> Mapping[str, SinkWay]:
    names = sorted(path.stem for path in _FOLDER.glob("*.py"))
    modules = {n: import_module(f"tests.sinks.ways.{n}") for n in names if n != "way"}
    return {name: module.WAY for name, module in modules.items()}


WAYS = _found()


def wayless(kinds: Iterable[str] = SINK_TYPES) -> list[str]:
    """Return what is to be written for each type of sink that no test can reach."""
    return [
        f"write tests/sinks/ways/{kind}.py with WAY, as way.py describes it"
        for kind in kinds
        if kind not in WAYS
    ]
