"""``--watch``: read and show the same rows each second, until Ctrl-C is pressed."""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import click

from bridge.cli.common import echo_json
from bridge.cli.rows import Listing, Row
from bridge.foundation.clock import Clock

EVERY = 1.0  # seconds
MOST = 100  # rows
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"

T = TypeVar("T")


@dataclass(kw_only=True)
class Show(Generic[T]):
    """Displays deliveries or events, once or each time that they are read.

    A terminal gets a table that is redrawn; a pipe gets a line for each change.

    Attributes:
        listing: makes a table of a given width.
        rows: returns the rows of one delivery or event.
        record: returns the JSON value of one delivery or event.
        state: returns a key, and a value that differs after a change.
        as_json: whether to print JSON, one line for each delivery or event.
    """

    listing: Callable[[int | None], Listing]
    rows: Callable[[T], Sequence[Row]]
    record: Callable[[T], object]
    state: Callable[[T], tuple[Hashable, object]]
    as_json: bool
    _seen: dict[Hashable, object] = field(default_factory=dict)
    _lines: Listing | None = None

    def once(self, found: Sequence[T]) -> None:
        """Print all rows, one after another."""
        self._print(found)

    def again(self, found: Sequence[T]) -> None:
        """Redraw the table, or print what has changed since the last call."""
        if sys.stdout.isatty() and not self.as_json:
            self._draw(found)
        else:
            self._print([one for one in found if self._is_news(one)])

    def _is_news(self, one: T) -> bool:
        key, state = self.state(one)
        is_news = self._seen.get(key) != state
        self._seen[key] = state
        return is_news

    def _print(self, found: Sequence[T]) -> None:
        if self.as_json:
            for one in found:
                echo_json(self.record(one))
            return
        self._lines = self._lines or self.listing(None)
        for line in self._lines.lines([row for one in found for row in self.rows(one)]):
            click.echo(line, color=True)

    def _draw(self, found: Sequence[T]) -> None:
        size = shutil.get_terminal_size()
        rows = [row for one in found for row in self.rows(one)]
        heads, *lines = self.listing(size.columns).lines(rows) if rows else ["-"]
        shown = [heads, *lines[-max(1, size.lines - 3) :]]
        text = "\n".join(shown)
        click.echo(f"{_HOME_AND_CLEAR}{text}\n(Ctrl-C ends this)", color=True)


async def watching(
    look: Callable[[], Awaitable[Sequence[T]]],
    show: Callable[[Sequence[T]], None],
    *,
    clock: Clock,
    stop: asyncio.Event,
) -> None:
    """Call ``look`` and ``show`` each second, until ``stop`` is set."""
    while True:
        show(await look())
        if await clock.wait(stop, EVERY):
            return
