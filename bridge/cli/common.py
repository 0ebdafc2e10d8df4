"""What every command shares: the ``-c`` option, colours, JSON, and how it ends."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

from bridge.cli.process import FAILED, WRONG, fail, until_stopped
from bridge.foundation.sections import nearest

__all__ = ["FAILED", "WRONG", "fail", "until_stopped"]  # of ``process``, for all others


def echo_json(value: object, indent: int | None = None) -> None:
    """Print JSON that is JSON whatever standard output can spell."""
    is_plain = not is_unicode(sys.stdout)
    click.echo(json.dumps(value, indent=indent, ensure_ascii=is_plain))


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream can spell everything."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


_COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """Return what colours a text by its mood: only for a terminal that wants it.

    Source: https://no-color.org
    """
    is_wanted = stream.isatty() and not os.environ.get("NO_COLOR")
    is_wanted = is_wanted and os.environ.get("TERM") != "dumb"

    def paint(text: str, mood: str) -> str:
        colour = _COLOURS.get(mood) if is_wanted else None
        return click.style(text, fg=colour) if colour else text

    return paint


config_option = click.option(
    "-c",
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file (TOML).",
)


allow_empty_option = click.option(
    "--allow-empty", is_flag=True, help="Take a file without sinks and approvals, too."
)


class Suggesting(click.Group):
    """Names the command that was meant, where one is called that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, and what follows it.

        Raises:
            click.UsageError: there is none; click itself does not know of those that
                are loaded when they are called.
        """
        word = args[0]
        is_known = ctx.resilient_parsing or word.startswith("-")
        if is_known or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        near = nearest(word.lower(), self.list_commands(ctx))
        hint = f" Did you mean {near!r}?" if near else ""
        raise click.UsageError(f"No such command {word!r}.{hint}", ctx)
