"""What the demo shows: a line per thing that happens, and a table at the end."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 100
_STYLES = {
    "IMDS": "magenta",
    "Service Bus": "cyan",
    "webhook": "blue",
    "Slack": "green",
    "approver": "yellow",
    "command": "bright_yellow",
    "balancer": "bright_blue",
    "forwarder": "white",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the table at the end: what was expected on a channel, and seen."""

    channel: str
    expected: Sequence[str]
    seen: Sequence[str]
    latencies: Sequence[float]

    @property
    def missing(self) -> list[str]:
        """What was expected and did not come."""
        return [what for what in self.expected if what not in self.seen]


def _console() -> Console:
    """Return a console that records; plain lines of a fixed width off a terminal."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(record=True, highlight=False, width=width)


@dataclass(slots=True)
class Timeline:
    """The console, and when the demo began."""

    console: Console = field(default_factory=_console)
    began: float = field(default_factory=time.monotonic)

    def save(self, path: Path) -> None:
        """Save what was shown as a picture that fetches nothing from elsewhere."""
        form = re.sub(
            r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL
        )
        self.console.save_svg(str(path), title="sebridge demo", code_format=form)

    def headline(self, title: str, text: str) -> None:
        """Show what is going to be played."""
        self.console.print(Text.assemble((title, "bold"), "  ", text))

    def happened(self, channel: str, what: str, millis: float | None = None) -> None:
        """Show that something happened; ``millis`` after the bridge observed it."""
        at = f"{time.monotonic() - self.began:6.2f} s"
        line = Text.assemble(
            (at, "dim"),
            "  ",
            (f"{channel:<12}", _STYLES.get(channel, "")),
            what,
            (f"  +{millis:.0f} ms" if millis is not None else "", "dim"),
        )
        self.console.print(line)

    def summary(self, lines: Sequence[Line]) -> None:
        """Show the table: expected and seen per channel, and how fast."""
        # No vertical lines: in the picture they have gaps where a font is shorter.
        table = Table(
            title="Expected and seen", title_justify="left", box=box.SIMPLE_HEAD
        )
        for column in ("channel", "expected", "seen", "slowest", ""):
            table.add_column(column)
        for line in lines:
            verdict = ("missing: " + ", ".join(line.missing)) if line.missing else "ok"
            slowest = f"{max(line.latencies):.0f} ms" if line.latencies else ""
            table.add_row(
                line.channel,
                ", ".join(line.expected),
                str(len(line.seen)),
                slowest,
                Text(verdict, "red" if line.missing else "green"),
            )
        self.console.print(table)

    def verdict(self, text: str, *, is_good: bool) -> None:
        """Show how it ended."""
        self.console.print(Text(text, "bold green" if is_good else "bold red"))

    def files(self, names: dict[str, str]) -> None:
        """Show where to look further."""
        for what, path in names.items():
            self.console.print(Text.assemble((f"{what:<14}", "dim"), path))
