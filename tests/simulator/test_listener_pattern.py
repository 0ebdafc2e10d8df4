"""Microsoft's Python sample of a listener, against the simulator.

The sample: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events. It
polls until the incarnation changes. Then it approves each event that a user has caused,
and each Freeze of less than nine seconds. Only its interval of a second is shortened
here. It uses the simulator by HTTP only.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from bridge.simulator.serve import SimulatorOptions, serve

PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HEADER = {"Metadata": "true"}
INTERVAL = 0.2
SPEED = 240.0
WITHIN = 60.0


class _Output(io.StringIO):
    """A standard output with an event that is set when a line is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = asyncio.Event()

    def flush(self) -> None:
        self.is_written.set()


@asynccontextmanager
async def simulated(scenario: str) -> AsyncIterator[str]:
    """Run the simulator as ``sebridge simulate`` does; yield the host of IMDS."""
    stop, out = asyncio.Event(), _Output()
    options = SimulatorOptions(scenario=scenario, speed=SPEED)
    serving = asyncio.create_task(serve(options, stop, out))
    try:
        async with asyncio.timeout(WITHIN):
            await out.is_written.wait()
        yield urlsplit(json.loads(out.getvalue())["imds"]["url"]).netloc
    finally:
        stop.set()
        await serving


def _exchange(host: str, method: str, body: str | None = None) -> tuple[int, bytes]:
    # As `requests` sends text: without Content-Type. And without a proxy.
    connection = HTTPConnection(host, timeout=WITHIN)
    try:
        connection.request(method, PATH, body=body, headers=HEADER)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@dataclass
class Listener:
    """The sample's loop; it records the documents and the answers."""

    host: str
    documents: list[Any] = field(default_factory=list)
    confirmations: list[int] = field(default_factory=list)
    last_incarnation: object = "-1"
    saw_started_at: datetime | None = None

    async def run_until_completed(self) -> None:
        async with asyncio.timeout(WITHIN):
            while not self.saw_started_at or self.documents[-1]["Events"]:
                await self.advanced_sample()

    async def advanced_sample(self) -> None:
        found, payload = self.last_incarnation, {}
        while found == self.last_incarnation:
            await asyncio.sleep(INTERVAL)
            payload = await self.get_scheduled_events()
            found = payload["DocumentIncarnation"]
        self.documents.append(payload)
        for event in payload["Events"]:
            if event["EventStatus"] == "Started":
                self.saw_started_at = self.saw_started_at or datetime.now(UTC)
            elif is_to_be_approved(event):
                await self.confirm_scheduled_event(event["EventId"])
        self.last_incarnation = found

    async def get_scheduled_events(self) -> Any:
        _, body = await asyncio.to_thread(_exchange, self.host, "GET")
        return json.loads(body)

    async def confirm_scheduled_event(self, event_id: str) -> None:
        payload = json.dumps({"StartRequests": [{"EventId": event_id}]})
        status, _ = await asyncio.to_thread(_exchange, self.host, "POST", payload)
        self.confirmations.append(status)

    def events(self, status: str) -> list[Any]:
        """Return the events with a status, from all recorded documents."""
        seen = [event for document in self.documents for event in document["Events"]]
        return [event for event in seen if event["EventStatus"] == status]


def is_to_be_approved(event: Any) -> bool:
    """Return whether the sample approves an event."""
    is_short = 0 <= int(event["DurationInSeconds"]) < 9
    is_harmless = event["EventType"] == "Freeze" and is_short
    return bool(event["EventSource"] == "User" or is_harmless)


async def listened(scenario: str) -> Listener:
    """Run a listener until a scenario is over; return it."""
    async with simulated(scenario) as host:
        listener = Listener(host)
        await listener.run_until_completed()
    return listener


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["live-migration", "user-reboot"])
async def test_listener_of_microsoft_sees_an_approved_event_through(
    scenario: str,
) -> None:
    listener = await listened(scenario)

    (scheduled,) = listener.events("Scheduled")
    (started,) = listener.events("Started")
    assert listener.confirmations == [200]
    assert started == {**scheduled, "EventStatus": "Started", "NotBefore": ""}
    assert listener.saw_started_at is not None
    assert listener.saw_started_at < parsedate_to_datetime(scheduled["NotBefore"])
    incarnations = [document["DocumentIncarnation"] for document in listener.documents]
    assert incarnations == sorted(set(incarnations))


@pytest.mark.slow
async def test_listener_of_microsoft_approves_no_reboot_of_the_platform() -> None:
    """The event starts at NotBefore, without an approval."""
    listener = await listened("redeploy-after-host-failure")

    (scheduled,) = listener.events("Scheduled")
    assert listener.confirmations == []
    assert listener.saw_started_at is not None
    assert listener.saw_started_at >= parsedate_to_datetime(scheduled["NotBefore"])
