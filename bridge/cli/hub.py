"""``sebridge hub``: run the hub, which shows a fleet of bridges and approves for it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from bridge.cli import door
from bridge.cli.common import hub_config_option
from bridge.cli.long_running import raise_file_limit, until_stopped
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import (
    MissingExtraError,
)
from bridge.hub import load
from bridge.hub.load import HubFile
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


def load_extra() -> None:
    """Import the optional packages that the hub needs.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    with needs_extra():
        for name in ("alembic", "jinja2", "psycopg", "sqlalchemy"):
            import_module(name)


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
