"""A client of the hub's API, for the demo of a fleet."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from msgspec import Struct

PATIENCE = 90.0  # seconds for each step, also on a slow machine
_POLL_SECONDS = 0.2

Condition = Callable[[], Awaitable[bool]]


class FleetError(Exception):
    """The demo cannot go on."""


class HubPage(Struct):
    """A client of the hub's API; ``until`` polls it until a condition is met.

    Attributes:
        patience: how many seconds a condition may take.
        url: the URL of the hub; "" before it listens.
    """

    http: aiohttp.ClientSession
    patience: float
    url: str = ""

    def has(self, count: int, state: str) -> Condition:
        """Return a condition: exactly ``count`` bridges are in a state."""

        async def is_met() -> bool:
            rows = (await self._get("/api/v1/bridges")).get("bridges", ())
            return [one["state"] for one in rows].count(state) == count

        return is_met

    def shows(self, event_id: str, status: str) -> Condition:
        """Return a condition: an event has a status."""

        async def is_met() -> bool:
            return (await self._event(event_id)).get("status") == status

        return is_met

    def approves(self, event_id: str, via: str, reason: str) -> Condition:
        """Return a condition: the hub accepts an approval, which each check posts."""

        async def is_met() -> bool:
            content = (await self._event(event_id)).get("content")
            wish = {"decision": "approve", "via": via, "content": content}
            path = f"{self.url}/api/v1/events/{event_id}/approval"
            given = {**wish, "reason": reason}
            headers = {"X-Sebridge": "1"}
            async with self.http.post(path, json=given, headers=headers) as found:
                return found.status == HTTPStatus.OK

        return is_met

    def has_done(self, event_id: str) -> Condition:
        """Return a condition: an approval of an event was carried out."""

        async def is_met() -> bool:
            decided = (await self._event(event_id)).get("decisions", ())
            return any(one["state"] == "done" for one in decided)

        return is_met

    def reports(self, down: float, paused: float) -> Condition:
        """Return a condition: the report of the last week has these seconds."""

        async def is_met() -> bool:
            found = (await self._get("/api/v1/report")).get("totals", {})
            told = (found.get(f"{kind}Seconds", -9.0) for kind in ("down", "paused"))
            wanted = zip(told, (down, paused), strict=True)
            return all(abs(one - other) < 1 for one, other in wanted)

        return is_met

    async def _event(self, event_id: str) -> Mapping[str, Any]:
        return await self._get(f"/api/v1/events/{event_id}")

    async def _get(self, path: str) -> Mapping[str, Any]:
        """Return the answer; empty if the hub refuses, or does not know the event."""
        async with self.http.get(f"{self.url}{path}") as found:
            is_good = found.status == HTTPStatus.OK
            return dict(await found.json()) if is_good else {}

    async def until(self, what: str, is_met: Condition) -> None:
        """Wait until a condition is met.

        Raises:
            FleetError: the condition is not met in time, or the hub does not answer.
        """
        try:
            async with asyncio.timeout(self.patience):
                while not await is_met():  # noqa: ASYNC110 - it asks another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise FleetError(f"the hub did not show in time: {what}") from None
        except aiohttp.ClientError as error:
            text = f"the hub does not answer: {what} ({type(error).__name__})"
            raise FleetError(text) from error
