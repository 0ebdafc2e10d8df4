"""Compares two records of the same story, and prints a table of the differences.

    python -m acceptance.compare AZURE SIMULATOR

Exit code 0: nothing differs; 3: something does; 1: the records are not whole.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from acceptance.records import Record, RecordError, facts, times

DIFFERENT = 3
_WIDTH = 200
_LEAST_SECONDS = 60.0
_ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        what: document, header, message or time, and the place in it.
    """

    what: str
    azure: str
    simulator: str


def differences(
    azure: Mapping[str, str], simulator: Mapping[str, str]
) -> list[Difference]:
    """Return what differs; what is only in one of them differs, too."""
    return [
        Difference(what, azure.get(what, _ABSENT), simulator.get(what, _ABSENT))
        for what in {**azure, **simulator}
        if azure.get(what) != simulator.get(what)
    ]


def is_far(azure: float | None, simulator: float | None) -> bool:
    """Return whether two durations differ by over a minute, and by over a half."""
    if azure is None or simulator is None:
        return azure is not simulator
    return abs(azure - simulator) > max(_LEAST_SECONDS, max(azure, simulator) / 2)


def show(azure: Record, simulator: Record, console: Console) -> bool:
    """Print both tables; return whether something differs."""
    there, here = facts(azure), facts(simulator)
    found = differences(there, here)
    timed = {**times(azure), **times(simulator)}
    rows = [
        (what, times(azure).get(what), times(simulator).get(what)) for what in timed
    ]
    far = [what for what, one, other in rows if is_far(one, other)]
    table = _table("Times", "what", "Azure", "simulator", "")
    for what, one, other in rows:
        table.add_row(what, _seconds(one), _seconds(other), _mark(what in far))
    console.print(table)
    if found:
        table = _table("Differences", "what", "Azure", "simulator")
        for one_found in found:
            table.add_row(one_found.what, one_found.azure, one_found.simulator)
        console.print(table)
    total = len({**there, **here}) + len(rows)
    console.print(f"{total} things compared, {len(found) + len(far)} differ.")
    return bool(found or far)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "what")
    return table


def _seconds(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.0f} s"


def _mark(is_different: bool) -> str:  # noqa: FBT001 - one word for a cell
    return "differs" if is_different else ""


def main(arguments: list[str] | None = None) -> int:
    """Compare; return the exit code."""
    words = argparse.ArgumentParser(description="Compare two records of a story.")
    words.add_argument("azure", type=Path, help="the folder with the records of Azure")
    words.add_argument("simulator", type=Path, help="that with those of the simulator")
    given = words.parse_args(arguments)
    try:
        azure, simulator = Record.load(given.azure), Record.load(given.simulator)
        console = Console(width=_WIDTH, highlight=False, markup=False)
        return DIFFERENT if show(azure, simulator, console) else 0
    except RecordError as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
