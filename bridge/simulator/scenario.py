"""Scenarios: lives of events to play, by name or from a file of documents.

A scenario begins with the first request for the document, as the real feature is
enabled by it. ``speed`` divides every duration, but a phase is never shorter than
what a poller that looks once a second is sure to see.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from bridge.simulator.errors import SimulatorError
from bridge.simulator.lifecycle import Event, Lifecycle, ids_of

DOCUMENTS = "documents-"
_LEAST_PHASE = 2.5
_LEAD_IN = 1.2  # the empty document is seen first
_PER_DOCUMENT = 60.0
_CANCELLED_AHEAD = timedelta(seconds=60)

Sleep = Callable[[float], Awaitable[None]]


class Act(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The life of one event; no scheduled minutes = it appears as Started."""

    type: str
    resources: tuple[str, ...]
    source: str
    duration: int
    description: str
    scheduled_minutes: float
    started_minutes: float
    end: Literal["completed", "cancelled", "ended"]


class Scenario(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Events to play at once, and the transitions that follow for an observer.

    Attributes:
        documents: in place of ``events``: documents to show one after the other.
    """

    description: str = ""
    source: str = ""
    events: tuple[Act, ...] = ()
    expected: tuple[str, ...] = ()
    documents: tuple[dict[str, object], ...] = ()

    @property
    def vm_name(self) -> str | None:
        """The first VM that the scenario names."""
        names = [name for act in self.events for name in act.resources]
        names += [name for doc in self.documents for name in _resources(doc)]
        return names[0] if names else None


def names() -> list[str]:
    """Return the names of the scenarios that are shipped."""
    files = (resources.files("bridge.simulator") / "scenarios").iterdir()
    found = sorted(f.name.removesuffix(".json") for f in files)
    return sorted(found, key=lambda name: name.startswith(DOCUMENTS))


def load(name: str) -> Scenario:
    """Return a scenario by its name, or from a file.

    Raises:
        SimulatorError: there is no such scenario, or the file holds none.
    """
    shipped = names()
    if name in shipped:
        file = resources.files("bridge.simulator") / "scenarios" / f"{name}.json"
        return _parse(file.read_bytes(), name)
    path = Path(name)
    if not path.is_file():
        raise SimulatorError(
            f"there is no scenario or file {name!r}; scenarios are {', '.join(shipped)}"
        )
    return _parse(path.read_bytes(), name)


def _parse(body: bytes, name: str) -> Scenario:
    try:
        if body.lstrip()[:1] == b"[":
            kind = tuple[dict[str, object], ...]
            return Scenario(documents=msgspec.json.decode(body, type=kind))
        return msgspec.json.decode(body, type=Scenario)
    except msgspec.DecodeError as error:
        raise SimulatorError(f"{name}: no scenario: {error}") from error


def _resources(document: dict[str, object]) -> list[str]:
    events = document.get("Events")
    return [
        name
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict)
        for name in (event.get("Resources") or ())
        if isinstance(name, str)
    ]


@dataclass(slots=True)
class Player:
    """Plays a scenario on a lifecycle.

    Attributes:
        speed: how many times faster than in reality.
        seed: for EventIds that are the same each time; None = random ones.
    """

    lifecycle: Lifecycle
    speed: float = 1.0
    seed: int | None = None
    sleep: Sleep = asyncio.sleep

    async def play(self, scenario: Scenario, enabled: asyncio.Event) -> None:
        """Play from the moment ``enabled`` is set to the end."""
        if scenario.documents:
            self.lifecycle.show(scenario.documents[0])
        await enabled.wait()
        if scenario.documents:
            await self._show(scenario.documents)
            return
        await self.sleep(_LEAD_IN)
        chance = random.Random(self.seed)  # noqa: S311 - ids, no secrets
        async with asyncio.TaskGroup() as acts:
            for act in scenario.events:
                event_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
                acts.create_task(self._perform(act, event_id.upper()))

    async def _perform(self, act: Act, event_id: str) -> None:
        notice = self._phase(act.scheduled_minutes)
        self.lifecycle.schedule(self._event(act, event_id, notice))
        if act.scheduled_minutes and not await self._wait(act, event_id, notice):
            return
        if event_id in self.lifecycle.events:
            self.lifecycle.start(event_id)
        await self.sleep(self._phase(act.started_minutes))
        self._remove(event_id)

    def _remove(self, event_id: str) -> None:
        """Take an event away, unless somebody else has already."""
        if event_id in self.lifecycle.events:
            self.lifecycle.remove(event_id)

    async def _wait(self, act: Act, event_id: str, notice: float) -> bool:
        """Wait for approval or NotBefore; False if the event ended unstarted."""
        approved = asyncio.Event()
        if act.end == "completed":
            self.lifecycle.on_approved.append(
                lambda id_: approved.set() if id_.upper() == event_id else None
            )
        await self._either(approved, notice)
        if act.end == "completed":
            return True
        self._remove(event_id)
        return False

    async def _either(self, event: asyncio.Event, seconds: float) -> None:
        timer = asyncio.ensure_future(self.sleep(seconds))
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((timer, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiter.cancel()

    def _event(self, act: Act, event_id: str, notice: float) -> Event:
        at = datetime.now(UTC) + timedelta(seconds=notice)
        if act.end == "cancelled":
            at += _CANCELLED_AHEAD  # called off well before it would begin
        is_announced = bool(act.scheduled_minutes)
        return Event(
            event_id=event_id,
            event_type=act.type,
            resources=act.resources,
            status="Scheduled" if is_announced else "Started",
            not_before=at if is_announced else None,
            description=act.description,
            source=act.source,
            duration=act.duration,
        )

    def _phase(self, minutes: float) -> float:
        return max(minutes * 60 / self.speed, _LEAST_PHASE) if minutes else 0.0

    async def _show(self, documents: tuple[dict[str, object], ...]) -> None:
        """Show documents in turn; an approval jumps ahead to where it has worked."""
        position = 0
        while position + 1 < len(documents):
            approved = asyncio.Event()
            ids: set[str] = set()

            def note(event_id: str, ids: set[str] = ids) -> None:
                ids.add(event_id.upper())
                approved.set()  # noqa: B023 - awaited within this turn

            self.lifecycle.on_approved.append(note)
            wait = max(_PER_DOCUMENT / self.speed, _LEAST_PHASE)
            await self._either(approved, wait)
            self.lifecycle.on_approved.remove(note)
            position = _after_approval(documents, position, ids) or position + 1
            self.lifecycle.show(documents[position])


def _after_approval(
    documents: tuple[dict[str, object], ...], position: int, approved: set[str]
) -> int | None:
    """Return the next document in which nothing approved is Scheduled any more."""
    if not approved:
        return None
    for index in range(position + 1, len(documents)):
        if not approved & _scheduled(documents[index]):
            return index
    return None


def _scheduled(document: dict[str, object]) -> set[str]:
    events = document.get("Events")
    waiting = [
        event
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict) and event.get("EventStatus") == "Scheduled"
    ]
    return {event_id.upper() for event_id in ids_of({"Events": waiting})}
