"""Parts that all commands share: shared options, colours, JSON output, usage errors."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import click

CONFIG_VARIABLE = "SEBRIDGE_CONFIG"


def echo_json(value: object, indent: int | None = None) -> None:
    """Print JSON, as plain ASCII if standard output is not UTF-8."""
    is_plain = not is_unicode(sys.stdout)
    click.echo(json.dumps(value, indent=indent, ensure_ascii=is_plain))


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream can encode every character (UTF-8)."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


_COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """Return a function that colours a text: only if the terminal supports colours.

    Source: https://no-color.org
    """
    is_wanted = stream.isatty() and not os.environ.get("NO_COLOR")
    is_wanted = is_wanted and os.environ.get("TERM") != "dumb"

    def paint(text: str, mood: str) -> str:
        colour = _COLOURS.get(mood) if is_wanted else None
        return click.style(text, fg=colour) if colour else text

    return paint


def default_config(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the path that is used if no configuration file is named."""
    if platform == "win32":
        data = environ.get("PROGRAMDATA") or r"C:\ProgramData"
        return Path(data) / "sebridge" / "bridge.toml"
    return Path("/etc/sebridge/bridge.toml")


def _or_default(
    default: Path, advice: str = ""
) -> Callable[[click.Context, click.Parameter, Path | None], Path]:
    """Return what chooses the configuration file: the named one, or the default one.

    Args:
        default: a usage error is reported if it is needed and does not exist.
        advice: a part of that report.
    """

    def chosen(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path:
        if path is not None or is_remote(ctx):
            return path or Path()
        try:
            default.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if not ctx.resilient_parsing:
                other = f"-c FILE or {CONFIG_VARIABLE} names a file in another place."
                text = f"There is no {default}{advice}; {other}"
                raise click.UsageError(text, ctx) from error
        except OSError:  # for example no right to the directory: reading reports it
            pass
        return default

    return chosen


def is_remote(ctx: click.Context) -> bool:
    """Whether a command asks a hub or Azure: then it needs no configuration file."""
    return bool(ctx.params.get("hub")) or ctx.params.get("via") == "arm"


# Whether it can be read, reading it shows: click would ask for the rights of the user
# alone, and a service may have that of a capability.
_FILE = click.Path(path_type=Path, dir_okay=False, readable=False)

config_option = click.option(
    "-c",
    "--config",
    "path",
    envvar=CONFIG_VARIABLE,
    type=_FILE,
    callback=_or_default(
        default_config(os.environ), ". 'sebridge init' writes a first configuration"
    ),
    show_default=f"${CONFIG_VARIABLE}, else {default_config(os.environ)}",
    help="The configuration file (TOML).",
)


HUB_CONFIG = Path("/etc/sebridge-hub/hub.toml")  # where sebridge-hub.service has it
hub_config_option = click.option(
    "-c",
    "--config",
    "path",
    envvar=CONFIG_VARIABLE,
    type=_FILE,
    callback=_or_default(HUB_CONFIG),
    show_default=f"${CONFIG_VARIABLE}, else {HUB_CONFIG}",
    help="The configuration file of the hub (TOML).",
)


class Span(click.ParamType[object]):
    """A duration in the format of the configuration: seconds, or ``90s``, ``5m``."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return a ``Duration``; click reports an invalid one as a usage error."""
        from bridge.foundation.values import Duration  # noqa: PLC0415 - not for --help

        try:
            return Duration.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


sign_key_option = click.option(
    "--sign-key",
    metavar="FILE",
    envvar="SEBRIDGE_SIGN_KEY",
    help="The private key that signs the approval (PEM or JWK), for bridges with "
    "approvals.signed_by; needs --from-event, or the event in the state file here.",
)
hub_option = click.option(
    "--hub",
    metavar="URL",
    is_eager=True,  # parsed before -c, because --hub makes a configuration needless
    help="Use the hub at this address instead of the configuration on this machine.",
)
hub_scope_option = click.option(
    "--hub-scope",
    metavar="SCOPE",
    envvar="SEBRIDGE_HUB_SCOPE",
    help="Scope of the Entra token that the hub's proxy requires, such as "
    "api://CLIENT-ID/.default.",
)


allow_empty_option = click.option(
    "--allow-empty",
    is_flag=True,
    help="Accept a configuration that has no sinks, no approvals and no probe.",
)


class Suggesting(click.Group):
    """A group that suggests the nearest command name after a misspelt one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was called, and the arguments after it.

        Raises:
            click.UsageError: there is no such command. click's own suggestion knows
                only the commands that are already loaded.
        """
        word = args[0]
        is_known = ctx.resilient_parsing or word.startswith("-")
        if is_known or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        from bridge.foundation.sections import nearest  # noqa: PLC0415 - only for a word that is misspelt

        near = nearest(word.lower(), self.list_commands(ctx))
        hint = f" Did you mean {near!r}?" if near else ""
        raise click.UsageError(f"No such command {word!r}.{hint}", ctx)
