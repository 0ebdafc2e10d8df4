"""The commands of ``sebridge``: arguments in, text and exit codes out.

Exit codes: 0 done, or stopped as requested; 1 failed at run time; 2 wrong usage or
configuration. Only this package prints, reads argv and handles signals.
"""

import importlib
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from bridge import __version__
from bridge.cli.common import Suggesting, allow_empty_option, config_option
from bridge.cli.ending import errors_reported, open_streams

# Loaded only when called, so that the other commands start sooner: the module of this
# package, and the first sentence of the help, which the list of all commands shows.
ELSEWHERE = {
    "approve": ("approve", "Approve an event, so that Azure starts it now."),
    "check": ("check", "Validate the configuration: report all faults."),
    "demo": ("simulate", "Show the way of one event through the bridge."),
    "events": ("events", "List events and their deliveries, oldest first."),
    "hub": ("hub", "Run the hub until it is asked to stop."),
    "init": ("init", "Write a first configuration."),
    "key": ("key", "Show keys for signatures, and replace the key of a bridge."),
    "outbox": ("outbox", "List, retry or discard deliveries."),
    "render": ("dry_run", "Print what a sink would send for an event."),
    "route": ("dry_run", "Print which sinks would get an event, and why."),
    "schema": ("init", "Print the JSON Schema of one kind of document."),
    "send-test": ("dry_run", "Send a test event and print what each sink answered."),
    "simulate": ("simulate", "Run a local IMDS, Service Bus and webhook inbox."),
    "verify": ("verify", "Check the signatures of events in files of a receiver."),
    "status": ("status", "Show the state of the bridge: events, deliveries, sinks."),
}


class Commands(Suggesting):
    """The group of all commands; reports a ``BridgeError`` with an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; load its module if needed."""
        if cmd_name in ELSEWHERE:
            name, _ = ELSEWHERE[cmd_name]
            module = importlib.import_module(f"bridge.cli.{name}")
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of all commands, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._short_helps(ctx).items()))

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the names of the commands, without loading any."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [
            CompletionItem(name, help=text)
            for name, text in self._short_helps(ctx).items()
            if name.startswith(incomplete)
        ]
        return [*names, *options]

    def _short_helps(self, ctx: click.Context) -> dict[str, str]:
        here = {name: one.get_short_help_str() for name, one in self.commands.items()}
        helps = here | {name: text for name, (_, text) in ELSEWHERE.items()}
        return {name: helps[name] for name in self.list_commands(ctx)}

    def main(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments, and run the command."""
        with errors_reported():
            return super().main(*args, **extra)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="sebridge")
def main() -> None:
    """Forward Azure Scheduled Events to Slack, webhooks, Service Bus and more.

    Approvals travel the other way: the bridge relays them to Azure.

    Example: sebridge run -c bridge.toml
    """
    open_streams()


@main.command()
@config_option
@allow_empty_option
def run(path: Path, *, allow_empty: bool) -> None:
    """Run the forwarder until Ctrl-C or SIGTERM.

    Example: sebridge run -c bridge.toml
    """
    from bridge.cli.process import forward  # noqa: PLC0415 - the whole forwarder

    forward(path, allow_empty=allow_empty)
