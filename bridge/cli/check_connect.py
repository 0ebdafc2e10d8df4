"""``check --connect``: tests every connection of a forwarder, or of a hub."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bridge.cli import door
from bridge.cli.long_running import run, shown
from bridge.configuration.config import Config
from bridge.diagnostics import doctor, host_checks, status_query
from bridge.diagnostics.finding import Finding
from bridge.events.cloudevent import rfc3339
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import ApprovalQueueError, HubStoreError
from bridge.hub.config import HubConfig, SourceConfig
from bridge.hub.load import HubFile
from bridge.servicebus.receiver import open_queue
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.sinks.command.unit import path_unit_fault
from bridge.telemetry.metrics import LogConfig, configure_logging

if TYPE_CHECKING:
    from bridge.hub.store.lists import OtherApprover


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
        Finding("fault", fault)
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
        return await examine_hub(config.hub, SystemClock())
    heard = await status_query.running(config)
    running = heard.report
    missing = None if running is None else running.missing or []
    found = await doctor.examine(config, SystemClock())
    found += status_query.examine_sinks(running, (one.name for one in config.sinks))
    found += host_checks.examine(config, os.environ, missing=missing)
    found += [Finding("warning", f"http: {one}") for one in heard.others]
    return found + await status_query.examine_traffic(
        config.traffic, is_running=running is not None
    )


# -- For a hub: its store and sources, and other approvers. Nothing is sent ------------


_MOST_NAMED = 5
_ADVICE = (
    "let only one hub or app decide for an approval entity: each counts only its own "
    "votes"
)


async def examine_hub(config: HubConfig, clock: Clock) -> list[Finding]:
    """Test the store and all sources of a hub."""
    found = await _of_store(config)
    return [*found, *[await _of_source(one, clock) for one in config.sources]]


async def _of_store(config: HubConfig) -> list[Finding]:
    from bridge.cli.hub import needs_extra  # noqa: PLC0415 - only for a hub

    with needs_extra():
        from bridge.hub.store.lists import other_approvers  # noqa: PLC0415 - an extra
        from bridge.hub.store.store import glance  # noqa: PLC0415 - an extra

    try:
        others = await glance(config, other_approvers)
    except HubStoreError as error:
        path = config.sqlite_file
        is_new = path is not None and path.parent.is_dir() and not path.exists()
        return [Finding("warning" if is_new else "fault", str(error))]
    return [Finding("ok", "the store answers"), *_of_others(others)]


def _of_others(others: "list[OtherApprover]") -> Iterator[Finding]:
    """Yield a warning for each approver who does not use this hub's store."""
    for one in others[:_MOST_NAMED]:
        who, heard = one.name or "an approver without a name", rfc3339(one.heard)
        text = f"{who} approved {one.event_id} without this hub, reported at {heard}"
        yield Finding("warning", text, _ADVICE)


async def _of_source(source: SourceConfig, clock: Clock) -> Finding:
    name = f"hub.sources {source.name}: {source.origin}"
    async with open_queue(source, source.origin, clock) as queue:
        try:
            await queue.reach()
        except ApprovalQueueError as error:
            return Finding("fault", f"{name}: {error}")
    return Finding("ok", f"{name} can be read")
