"""Shell completion of sink names and EventIds.

click completes commands and options. If the configuration or the state file cannot be
read, this module offers nothing: an error message at the TAB key would not help.

The shell inserts an offered word into the command line and later runs that line: in
bash, ``$(…)`` would be a command. Anybody who may send an approval can choose an
EventId, so only words of harmless characters are offered.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from bridge.cli import door
from bridge.cli.long_running import run
from bridge.configuration import load as configuration
from bridge.diagnostics.outbox_access import access
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError
from bridge.outbox.questions import EventIds

_MOST = 50
_PATIENCE = 0.5  # seconds; a person waits at the key
# No character that is special in a shell, and no hyphen first: that is an option.
_PLAIN = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")


def sinks(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the names of the sinks in the configuration file."""
    try:
        _, names = configuration.load_settings(_file(ctx), os.environ)
    except BridgeError:
        return []
    return _offer(name for name in names if name.startswith(incomplete))


def event_ids(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the EventIds in the state file, the newest first."""
    try:
        settings, _ = configuration.load_settings(_file(ctx), os.environ)
        door.enter(settings)
        state = Path(settings.state.path)
        known = run(_known(state))
    except BridgeError:
        return []
    start = incomplete.casefold()
    return _offer(one for one in known if one.casefold().startswith(start))


def _offer(words: Iterable[str]) -> list[CompletionItem]:
    """Return the words that are harmless in a shell, as completion items of click."""
    return [CompletionItem(word) for word in words if _PLAIN.fullmatch(word)]


def _file(ctx: click.Context) -> Path:
    """Return the file that ``-c`` names; without ``-c``, a path that cannot be read."""
    found = ctx.params.get("path")
    return found if isinstance(found, Path) else Path()


async def _known(state: Path) -> list[str]:
    async with access(state, SystemClock(), patience=_PATIENCE) as ledger:
        return await ledger.ask(EventIds(newest=_MOST))
