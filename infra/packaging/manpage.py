"""Writes the manual page sebridge(1) from the help of the commands.

    python manpage.py >sebridge.1

The date is that of SOURCE_DATE_EPOCH, so that the page is the same each time.
"""

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from bridge import __version__
from bridge.cli.main import main

FILES = {
    "/etc/sebridge/bridge.toml": "the configuration",
    "/etc/sebridge/secrets/NAME": "a secret: one file each, which only root reads",
    "/var/lib/sebridge": "the state file",
}
CODES = {
    "0": "done, or stopped as asked",
    "1": "failed at run time",
    "2": "wrong usage or configuration",
}


def escaped(text: str) -> str:
    """Return a text that roff shows as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def listed(rows: dict[str, str]) -> Iterator[str]:
    """Yield a list of terms, each with what it means."""
    for term, meaning in rows.items():
        yield f".TP\n.B {escaped(term)}\n{escaped(meaning)}"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield each command's usage and help, those of a group after it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, inner)
        else:
            yield inner.command_path, command.get_help(inner)


def described(path: str, text: str) -> Iterator[str]:
    """Yield a command: its name, and its help as the terminal shows it."""
    yield f".SS {escaped(path)}\n.nf"
    yield escaped(text)
    yield ".fi"


def page(day: datetime) -> Iterator[str]:
    """Yield the lines of the manual page."""
    context = click.Context(main, info_name="sebridge", max_content_width=76)
    yield f'.TH SEBRIDGE 1 {day:%Y-%m-%d} "sebridge {__version__}" "User Commands"'
    yield ".SH NAME\nsebridge \\- Azure Scheduled Events to where they are acted on"
    yield ".SH SYNOPSIS\n.B sebridge\n.I COMMAND\n[\\fIOPTION\\fR]..."
    yield f".SH DESCRIPTION\n{escaped(str(main.help))}"
    yield ".SH COMMANDS"
    for path, text in commands(main, context):
        yield from described(path, text)
    yield from (".SH FILES", *listed(FILES), ".SH EXIT STATUS", *listed(CODES))


if __name__ == "__main__":
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    sys.stdout.write("\n".join(page(datetime.fromtimestamp(seconds, UTC))) + "\n")
