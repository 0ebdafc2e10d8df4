"""Checks the health of the application, for the answer of the probe.

A balancer has only one probe for each rule. So one answer must cover both: the rotation
of this VM, and the health of the application.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import aiohttp

from bridge.foundation.clock import Clock
from bridge.foundation.workers import cancel_all
from bridge.net.http_client import open_session

_FAULTS = (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError)

log = logging.getLogger(__name__)


class App(Protocol):
    """The application whose health also decides the answer of the probe."""

    async def unwell_since(self) -> datetime | None:
        """Return since when the application is not healthy; None = it is healthy."""
        ...


@dataclass(slots=True)
class AppCheck:
    """Requests the application's health URL; callers at the same time share a request.

    Attributes:
        timeout: how many seconds one request may take.
    """

    session: aiohttp.ClientSession
    url: str
    timeout: float
    clock: Clock
    _asking: "asyncio.Task[bool] | None" = None
    _unwell_since: datetime | None = field(default=None)

    async def unwell_since(self) -> datetime | None:
        """Return since when the application does not answer 2xx; None = it does."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="traffic:app")
        is_well = await asyncio.shield(self._asking)
        if is_well:
            self._unwell_since = None
        elif self._unwell_since is None:
            self._unwell_since = self.clock.now()
        return self._unwell_since

    async def close(self) -> None:
        """Cancel the request in flight."""
        if self._asking is not None:
            await cancel_all(self._asking)

    async def _ask(self) -> bool:
        limit = aiohttp.ClientTimeout(total=self.timeout)
        try:
            async with self.session.get(
                self.url, allow_redirects=False, timeout=limit
            ) as response:
                return 200 <= response.status < 300
        except _FAULTS as error:
            log.debug("the application does not answer", extra={"fault": str(error)})
            return False


@asynccontextmanager
async def open_app(url: str, timeout: float, clock: Clock) -> AsyncIterator[App | None]:  # noqa: ASYNC109 - of one request
    """Open a check of the application; None if ``url`` is empty."""
    if not url:
        yield None
        return
    async with open_session(user_agent="scheduled-events-bridge-probe") as session:
        check = AppCheck(session, url, timeout, clock)
        try:
            yield check
        finally:
            await check.close()
