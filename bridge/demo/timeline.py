"""The output of the demo: one line for each arrival, and a table at the end."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field
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
    "simulator": "white",
    "hub": "bright_green",
}


class Line(Struct, frozen=True, kw_only=True):
    """One row of the final table: what was expected on a channel, and what arrived."""

    channel: str
    expected: Sequence[str]
    seen: Sequence[str]
    latencies: Sequence[float]

    @property
    def missing(self) -> list[str]:
        """The expected arrivals that did not come."""
        return [what for what in self.expected if what not in self.seen]


def _console() -> Console:
    """Return a console that records; its width is fixed without a terminal."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(record=True, highlight=False, width=width)


class Timeline(Struct):
    """The console, and the time at which the demo began."""

    console: Console = field(default_factory=_console)
    began: float = field(default_factory=time.monotonic)

    def save(self, path: Path) -> None:
        """Save the output as an SVG picture that loads nothing from the network."""
        form = re.sub(
            r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL
        )
        self.console.save_svg(str(path), title="sebridge demo", code_format=form)

    def headline(self, title: str, text: str) -> None:
        """Show what will be played."""
        self.console.print(Text.assemble((title, "bold"), "  ", text))

    def happened(self, channel: str, what: str, millis: float | None = None) -> None:
        """Show that something arrived, ``millis`` after the bridge observed it."""
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
        """Show the table: expected and seen, and the slowest latency, by channel."""
        # No vertical lines: in the picture, another font could leave gaps in them.
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
        """Show the result."""
        self.console.print(Text(text, "bold green" if is_good else "bold red"))

    def note(self, text: str) -> None:
        """Show a sentence that belongs to no channel."""
        self.console.print(Text(text, "dim"))

    def commands(self, title: str, commands: Sequence[tuple[str, str]]) -> None:
        """Show commands to run next, each with its purpose."""
        self.console.print(Text(title), soft_wrap=True)
        wide = max(len(command) for command, _ in commands)
        for command, meaning in commands:
            # Without line breaks, so that a command can be copied.
            line = Text.assemble("  ", (f"{command:<{wide}}", "bold"), f"  {meaning}")
            self.console.print(line, soft_wrap=True)


# -- How a person ends a demo: by Ctrl-C (SIGINT) or SIGTERM ---------------------------


@contextmanager
def undone_by_signal() -> Iterator[asyncio.Event]:
    """Cancel the block at the first signal; no further signal interrupts its cleanup.

    Yields:
        An event that each signal sets: after the block, a signal does only this.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    asked, is_undone = asyncio.Event(), False

    def ask() -> None:
        nonlocal is_undone
        if task is not None and not is_undone:
            is_undone = True
            task.cancel()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    try:
        yield asked
    finally:
        is_undone = True
