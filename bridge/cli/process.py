"""The forwarder as a process."""

import logging
import os
from pathlib import Path

from bridge.app import forwarder as app
from bridge.app.supervisor import supervisor_of
from bridge.cli import door
from bridge.cli.long_running import raise_file_limit, until_stopped
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import ForeignFolderError
from bridge.telemetry.metrics import configure_logging

log = logging.getLogger(__name__)


def forward(path: Path, *, allow_empty: bool = False) -> None:
    """Run the forwarder until it is asked to stop.

    Args:
        path: the configuration file.
        allow_empty: whether a configuration without sinks and approvals is accepted.

    Raises:
        BridgeError: the forwarder cannot run.
    """
    config = configuration.load(path, os.environ, allow_empty=allow_empty)
    configure_logging(config.log)
    for warning in config.warnings():
        log.warning("configuration", extra={"warning": warning})
    raise_file_limit()
    _give_up_root(config)
    supervisor = supervisor_of(os.environ)
    until_stopped(lambda stop: app.run(config, stop, SystemClock(), supervisor))


def _give_up_root(config: Config) -> None:
    """Become the account of the state file, if root has started this process."""
    try:
        uid = door.enter(config)
    except ForeignFolderError as error:  # opening the file reports it as well
        log.error("state file is not opened by root", extra={"fault": str(error)})  # noqa: TRY400 - no traceback
    else:
        if uid is not None:
            log.warning("root's rights are given up", extra={"uid": uid})
