"""What every command shares: the ``-c`` option, exit codes, signals."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

import click

from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.sections import nearest
from bridge.telemetry.metrics import printable

FAILED = 1
WRONG = 2
CONFIG_VARIABLE = "SEBRIDGE_CONFIG"


def fail(*lines: str, code: int = FAILED) -> NoReturn:
    """End the process with lines on standard error."""
    for line in lines:
        click.echo(f"sebridge: {printable(line)}", err=True)
    sys.exit(code)


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


def raise_file_limit() -> None:
    """Let this process open as many files and sockets as the system lets it.

    The soft limit is often 1024 for the sake of programs that use select().
    """
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has another limit behind this one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``work`` until it ends or a signal asks it to stop."""
    try:
        asyncio.run(_until_signal(work))
    except* BridgeError as errors:
        first = first_of(errors)
        if isinstance(first, ConfigError):
            fail(*first.faults, code=WRONG)
        fail(str(first))


def first_of(errors: BaseExceptionGroup[BridgeError]) -> BaseException:
    """Return the first error that is no group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]

    def ask() -> None:
        for number in signals:  # so that a second signal kills
            if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
                signal.signal(number, signal.SIG_DFL)
            else:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # SIGINT would be a traceback
        stop.set()

    for number in signals:
        if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))
        else:
            loop.add_signal_handler(number, ask)
    await work(stop)
