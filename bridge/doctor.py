"""``sebridge check --connect``: reaches what is configured, and publishes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bridge import __version__
from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import BridgeError
from bridge.identity import Identity
from bridge.imds.client import open_client
from bridge.sinks.base import Resources
from bridge.telemetry import Metrics
from bridge.transport import open_session

_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried, and whether it went well."""

    is_good: bool
    text: str


async def examine(config: Config, clock: Clock) -> list[Finding]:
    """Try everything once; what fails does not keep the rest from being tried."""
    return [finding async for finding in _findings(config, clock)]


async def _findings(config: Config, clock: Clock) -> AsyncIterator[Finding]:
    identity = Identity().overridden(config.identity)
    metrics = Metrics((), __version__)
    try:
        async with open_client(config.imds, clock, metrics) as client:
            compute = await client.instance()
        identity = Identity.from_metadata(compute).overridden(config.identity)
        yield Finding(True, f"imds: this VM is {identity.vm_name or 'unnamed'}")  # noqa: FBT003 - reads well with its field
    except BridgeError as error:
        yield Finding(False, f"imds: {error}")  # noqa: FBT003 - as above
    for sink in config.sinks:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                open_session(user_agent=f"scheduled-events-bridge/{__version__}")
            )
            resources = Resources(http=http, expand=identity.expand)
            try:
                async with asyncio.timeout(_PATIENCE):
                    reached = await sink.reach(resources)
                yield Finding(True, f"sinks.{sink.name}: {reached}")  # noqa: FBT003 - as above
            except (BridgeError, ValueError, TimeoutError) as error:
                text = str(error) or "no answer in time"
                yield Finding(False, f"sinks.{sink.name}: {text}")  # noqa: FBT003 - as above
