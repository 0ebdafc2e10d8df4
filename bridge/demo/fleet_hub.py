"""What the demo of a fleet looks at and presses: the API of the hub."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

PATIENCE = 90.0  # seconds for each step, also on a slow machine
_LOOK_SECONDS = 0.2

Look = Callable[[], Awaitable[bool]]


class FleetError(Exception):
    """The demo cannot go on."""


@dataclass(slots=True)
class HubPage:
    """The API of the hub; each method returns a look at it.

    Attributes:
        url: of the hub; "" before it listens.
    """

    http: aiohttp.ClientSession
    url: str = ""

    def has(self, count: int, state: str) -> Look:
        """Look whether so many bridges are in a state."""

        async def look() -> bool:
            rows = (await self._get("/api/v1/bridges"))["bridges"]
            return [one["state"] for one in rows].count(state) == count

        return look

    def shows(self, event_id: str, status: str) -> Look:
        """Look whether an event has a status."""

        async def look() -> bool:
            return (await self._event(event_id)).get("status") == status

        return look

    def approves(self, event_id: str, via: str, reason: str) -> Look:
        """Ask for an approval, and look whether it is taken."""

        async def look() -> bool:
            content = (await self._event(event_id))["content"]
            wish = {"decision": "approve", "via": via, "content": content}
            path = f"{self.url}/api/v1/events/{event_id}/approval"
            given = {**wish, "reason": reason}
            headers = {"X-Sebridge": "1"}
            async with self.http.post(path, json=given, headers=headers) as found:
                return found.status == HTTPStatus.OK

        return look

    def has_done(self, event_id: str) -> Look:
        """Look whether an approval of an event was carried out."""

        async def look() -> bool:
            decided = (await self._event(event_id))["decisions"]
            return any(one["state"] == "done" for one in decided)

        return look

    async def _event(self, event_id: str) -> Mapping[str, Any]:
        return await self._get(f"/api/v1/events/{event_id}")

    async def _get(self, path: str) -> Mapping[str, Any]:
        async with self.http.get(f"{self.url}{path}") as found:
            return dict(await found.json())

    async def until(self, what: str, look: Look) -> None:
        """Look until something is so.

        Raises:
            FleetError: it is not in time.
        """
        end = time.monotonic() + PATIENCE
        while not await look():
            if time.monotonic() > end:
                raise FleetError(f"the hub did not show in time: {what}")
            await asyncio.sleep(_LOOK_SECONDS)
