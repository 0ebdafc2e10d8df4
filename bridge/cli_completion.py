"""What a shell offers beyond commands and options: sinks and EventIds.

Completion itself is click's. Where something cannot be read, nothing is offered: a
person who presses TAB wants no error.
"""

import asyncio
import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from bridge import config as configuration
from bridge.errors import BridgeError
from bridge.outbox.database import Database
from bridge.outbox.ledger import Ledger
from bridge.statefile import is_there

_MOST = 50


def sinks(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the sinks of the file after ``-c``."""
    try:
        _, names = configuration.load_settings(_file(ctx), os.environ)
    except BridgeError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def event_ids(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the EventIds that the state file knows, the newest first."""
    try:
        settings, _ = configuration.load_settings(_file(ctx), os.environ)
        state = Path(settings.state.path)
        known = asyncio.run(_known(state)) if is_there(state) else []
    except BridgeError:
        return []
    start = incomplete.casefold()
    return [CompletionItem(one) for one in known if one.casefold().startswith(start)]


def _file(ctx: click.Context) -> Path:
    """Return the file after ``-c``; one that is not there, if there is none."""
    found = ctx.params.get("path")
    return found if isinstance(found, Path) else Path()


async def _known(state: Path) -> list[str]:
    async with Database.open(state) as database:
        return await Ledger(database).event_ids(newest=_MOST)
