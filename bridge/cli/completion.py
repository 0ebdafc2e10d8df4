"""What a shell offers beyond commands and options: sinks and EventIds.

Completion itself is click's. Where something cannot be read, nothing is offered: a
person who presses TAB wants no error.

What is offered goes into the command line as it is, and the shell runs that line: in
bash ``$(…)`` would be a command. An EventId comes from whoever may send an approval, so
only plain words are offered.
"""

import asyncio
import os
import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from bridge.configuration import load as configuration
from bridge.foundation.errors import BridgeError
from bridge.outbox.admin import Ledger
from bridge.outbox.statefile import is_there
from bridge.outbox.storage.database import Database

_MOST = 50
# No letter that means something to a shell, and no hyphen first: that is an option.
_PLAIN = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")


def sinks(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the sinks of the file after ``-c``."""
    try:
        _, names = configuration.load_settings(_file(ctx), os.environ)
    except BridgeError:
        return []
    return _offer(name for name in names if name.startswith(incomplete))


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
    return _offer(one for one in known if one.casefold().startswith(start))


def _offer(words: Iterable[str]) -> list[CompletionItem]:
    """Return the plain ones among ``words`` as click wants them."""
    return [CompletionItem(word) for word in words if _PLAIN.fullmatch(word)]


def _file(ctx: click.Context) -> Path:
    """Return the file after ``-c``; one that is not there, if there is none."""
    found = ctx.params.get("path")
    return found if isinstance(found, Path) else Path()


async def _known(state: Path) -> list[str]:
    async with Database.open(state) as database:
        return await Ledger(database).event_ids(newest=_MOST)
