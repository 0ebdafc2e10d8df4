"""What every command shares: the ``-c`` option, colours, JSON, and how it ends."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import click

from bridge.cli.process import FAILED, WRONG, fail, until_stopped
from bridge.foundation.sections import nearest

__all__ = ["FAILED", "WRONG", "fail", "until_stopped"]  # of ``process``, for all others

CONFIG_VARIABLE = "SEBRIDGE_CONFIG"


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


def default_config(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return where the configuration is, unless it is said."""
    if platform == "win32":
        data = environ.get("PROGRAMDATA") or r"C:\ProgramData"
        return Path(data) / "sebridge" / "bridge.toml"
    return Path("/etc/sebridge/bridge.toml")


def _config_or_default(
    ctx: click.Context, _parameter: click.Parameter, path: Path | None
) -> Path:
    """Return the file that is named, else the default one.

    Raises:
        click.UsageError: none is named, and the default one is not there.
    """
    if path is not None:
        return path
    default = default_config(os.environ)
    try:
        default.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not ctx.resilient_parsing:
            raise click.UsageError(_nothing_there(default), ctx) from error
    except OSError:  # such as a directory of others: reading it says so
        pass
    return default


def _nothing_there(default: Path) -> str:
    return (
        f"There is no {default}: 'sebridge init' writes a first configuration; "
        f"-c FILE or {CONFIG_VARIABLE} names one that is elsewhere."
    )


config_option = click.option(
    "-c",
    "--config",
    "path",
    envvar=CONFIG_VARIABLE,
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_config_or_default,
    show_default=f"${CONFIG_VARIABLE}, else {default_config(os.environ)}",
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
