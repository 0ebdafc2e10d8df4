"""``check --connect``: tests every connection of a forwarder, or of a hub."""

import os

from bridge.cli import door
from bridge.cli.long_running import run
from bridge.cli.progress import shown
from bridge.configuration.config import Config
from bridge.diagnostics import doctor, host_checks, status_query
from bridge.diagnostics.finding import Finding
from bridge.foundation.clock import SystemClock
from bridge.hub.load import HubFile
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.sinks.command.unit import path_unit_fault
from bridge.telemetry.metrics import LogConfig, configure_logging


def examined(config: Config | HubFile) -> list[Finding]:
    """Test all connections; on a terminal, show which tests are running."""
    if isinstance(config, HubFile):
        door.enter_for(config, *config.files)
        return run(shown(_every_finding(config), SystemClock()))
    # Where there is no D-Bus, systemd answers root only: so it is asked first.
    unheard = run(_unheard_hooks(config))
    door.enter(config)
    found = run(shown(_every_finding(config), SystemClock()))
    return found + [
        Finding(is_good=False, text=fault)
        for fault in unheard
        if not any(fault in one.text for one in found)
    ]


async def _unheard_hooks(config: Config) -> list[str]:
    """Return why requests of hooks that are units would not be taken."""
    units = [s.unit for s in config.sinks if isinstance(s, CommandSinkConfig)]
    faults = [await path_unit_fault(unit) for unit in units if unit]
    return [fault for fault in faults if fault is not None]


async def _every_finding(config: Config | HubFile) -> list[Finding]:
    configure_logging(LogConfig(level="error", format="text"))  # the SDK logs a lot
    if isinstance(config, HubFile):
        from bridge.cli.hub import needs_extra  # noqa: PLC0415 - only for a hub

        with needs_extra():
            from bridge.cli import hub_check  # noqa: PLC0415 - an extra
        return await hub_check.examine(config.hub, SystemClock())
    is_running = await status_query.running(config) is not None
    found = await doctor.examine(config, SystemClock())
    found += host_checks.examine(config, os.environ, is_running=is_running)
    return found + await host_checks.examine_traffic(
        config.traffic, is_running=is_running
    )
