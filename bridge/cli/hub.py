"""``sebridge hub``: run the hub, which shows a fleet of bridges and approves for it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bridge.cli import door
from bridge.cli.common import hub_config_option
from bridge.cli.long_running import raise_file_limit, until_stopped
from bridge.diagnostics.finding import Finding
from bridge.events.build import rfc3339
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import (
    ApprovalQueueError,
    HubStoreError,
    MissingExtraError,
)
from bridge.hub import load
from bridge.hub.arm_config import SourceConfig
from bridge.hub.config import HubConfig
from bridge.hub.load import HubFile
from bridge.hub.store.other_approvers import OtherApprover, other_approvers
from bridge.hub.store.store import glance
from bridge.servicebus.receiver import open_queue
from bridge.telemetry.metrics import configure_logging

_EXTRA = {"alembic", "jinja2", "mako", "markupsafe", "psycopg", "sqlalchemy"}


@click.command()
@hub_config_option
def hub(path: Path) -> None:
    """Run the hub until it is asked to stop.

    The hub prints its address as soon as it listens.

    Example: sebridge hub -c hub.toml
    """
    config = load.load(path, os.environ)
    configure_logging(config.log)
    for warning in config.warnings():
        click.echo(f"warning: {warning}", err=True)
    raise_file_limit()
    door.enter_for(config, *config.files)
    _run(config)


def _run(config: HubFile) -> None:
    with needs_extra():
        from bridge.hub import hub as process  # noqa: PLC0415 - an extra
    until_stopped(
        lambda stop: process.run(config, stop, SystemClock(), listening=_print_address)
    )


def _print_address(host: str, port: int) -> None:
    name = f"[{host}]" if ":" in host else host
    click.echo(f"http://{name}:{port}")
    sys.stdout.flush()


@contextmanager
def needs_extra() -> Iterator[None]:
    """Turn a failed import into a message that says how to install the extra."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        raise MissingExtraError("the hub", "hub") from error


# -- ``check --connect`` for a hub: tests its store and sources, finds other
#    approvers
#
# Nothing is sent, received or written.


_MOST_NAMED = 5
_ADVICE = (
    "let only one hub or app decide for an approval entity: each counts only its own "
    "votes"
)


async def examine(config: HubConfig, clock: Clock) -> list[Finding]:
    """Test the store and all sources of a hub."""
    found = await _of_store(config)
    return [*found, *[await _of_source(one, clock) for one in config.sources]]


async def _of_store(config: HubConfig) -> list[Finding]:
    try:
        others = await glance(config, other_approvers)
    except HubStoreError as error:
        path = config.sqlite_file
        is_new = path is not None and path.parent.is_dir() and not path.exists()
        return [Finding(is_good=is_new, text=str(error), is_warning=is_new)]
    return [Finding(is_good=True, text="the store answers"), *_of_others(others)]


def _of_others(others: list[OtherApprover]) -> Iterator[Finding]:
    """Yield a warning for each approver who does not use this hub's store."""
    for one in others[:_MOST_NAMED]:
        who, heard = one.name or "an approver without a name", rfc3339(one.heard)
        text = f"{who} approved {one.event_id} without this hub, reported at {heard}"
        yield Finding(is_good=True, is_warning=True, text=text, advice=_ADVICE)


async def _of_source(source: SourceConfig, clock: Clock) -> Finding:
    name = f"hub.sources {source.name}: {source.origin}"
    async with open_queue(source, source.origin, clock) as queue:
        try:
            await queue.reach()
        except ApprovalQueueError as error:
            return Finding(is_good=False, text=f"{name}: {error}")
    return Finding(is_good=True, text=f"{name} can be read")
