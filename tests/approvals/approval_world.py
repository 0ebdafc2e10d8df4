"""A test world for approvals: a real outbox, a fake IMDS and a fake queue."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from bridge.approvals.context import ApprovalContext, intent_of
from bridge.approvals.listener import Queue
from bridge.approvals.message_flow import Handling, key_of
from bridge.approvals.policy import Terms
from bridge.approvals.rules import ReplyRules
from bridge.events.cloudevent import CloudEvent
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.clock import Bell, PauseMeter
from bridge.foundation.errors import (
    ApprovalQueueError,
    MetadataError,
    MetadataUnavailableError,
)
from bridge.imds.client import Answer
from bridge.imds.config import ImdsConfig
from bridge.imds.poller import Metadata, Poller
from bridge.outbox.reads import NEWEST
from bridge.outbox.records import REPLIES
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.servicebus.decode import ReceivedMessage, Settlement
from bridge.telemetry.metrics import Metrics
from tests.support.book import sent_to
from tests.support.builders import (
    EVENT_ID,
    SINK,
    body_of,
    event_context_of,
    patient_outbox,
    router,
)
from tests.support.fakes import START, settled
from tests.support.outbox_door import Door

ENTITY = "vm-approvals"


@dataclass(slots=True)
class HastyClock:
    """A clock whose time passes at once when a task waits."""

    at: datetime = START
    monotonic_at: float = 1000.0
    waits: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.monotonic_at

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        await asyncio.sleep(0)
        if not event.is_set():
            self.waits.append(seconds)
            self.pass_by(seconds)
        return event.is_set()

    def pass_by(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        self.monotonic_at += seconds


class WorkBell(Bell):
    """A bell that lets the poller work."""

    poller: "PlayedPoller"

    def set(self) -> None:
        super().set()
        self.poller.work()


class PlayedPoller(Poller):
    """A poller that works only while somebody waits for it: no time passes by polls.

    It waits only when nothing is being written.
    """

    stop: asyncio.Event
    outbox: Outbox
    working: "asyncio.Task[None] | None" = None

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        await settled(self.outbox)
        if not event.is_set():
            await super()._wait(event, seconds)

    def work(self) -> None:
        if self.working is None or self.working.done():
            self.working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        ending = asyncio.create_task(self._end_at(self.stop))
        await asyncio.sleep(0)
        while self.requests and not self.stop.is_set():
            await self.turn(self.stop)
        if self.stop.is_set():
            self.close()
        ending.cancel()
        self.is_over = False

    async def ended(self) -> None:
        """Let it end first if it was stopped."""
        if self.working is not None and self.stop.is_set():
            await self.working

    async def die(self) -> None:
        if self.working is not None:
            self.working.cancel()
            await asyncio.gather(self.working, return_exceptions=True)


@dataclass(slots=True)
class PlayedImds:
    """A fake IMDS: shows a document, gives POSTs the answers in order, then 200.

    An answer is a status, or an error of the connection.

    Attributes:
        ahead: by how much the clock of IMDS is ahead of the VM's clock.
        hanging: where set, a POST sets it and is never answered.
    """

    clock: HastyClock
    posts: list[str] = field(default_factory=list)
    answers: deque[int | MetadataError] = field(default_factory=deque)
    faults: deque[MetadataError] = field(default_factory=deque)
    scenes: deque[tuple[object, ...]] = field(default_factory=deque)
    incarnation: int = 1
    gate: asyncio.Event | None = None
    hanging: asyncio.Event | None = None
    on_look: Callable[[], None] = lambda: None
    is_dark: Callable[[], bool] = lambda: False
    ahead: timedelta = timedelta()
    config: ImdsConfig = field(default_factory=ImdsConfig)
    shown: tuple[object, ...] = ()

    def shows(self, *events: object, next_: tuple[object, ...] | None = None) -> None:
        """Show events from now on; after the next POST, show those in ``next_``."""
        self.shown = events
        self.incarnation += 1
        if next_ is not None:
            self.scenes.append(next_)

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the protocol's word
        if self.gate is not None:
            await self.gate.wait()
        if self.faults:
            raise self.faults.popleft()
        if self.is_dark():
            raise MetadataUnavailableError("no answer", outcome="timeout")
        body = body_of(*self.shown, incarnation=self.incarnation)
        self.on_look()
        return Answer(body=body, etag=None, date=self.clock.now() + self.ahead)

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        self.posts.append(event_id)
        if self.hanging is not None:
            self.hanging.set()
            await asyncio.Event().wait()
        answer = self.answers.popleft() if self.answers else 200
        if self.scenes:
            self.shows(*self.scenes.popleft())
        return started_with(answer)


def started_with(answer: int | MetadataError) -> StartAnswer:
    """Return the answer that the client makes from a status or an error."""
    if answer == 200:
        return StartAnswer(result=StartResult.ACCEPTED, status=200)
    if isinstance(answer, int):
        answer = MetadataUnavailableError("IMDS says no", outcome=str(answer))
    status = int(answer.outcome) if answer.outcome.isdigit() else None
    result = StartResult.UNAVAILABLE
    if status is None or status >= 500:
        result = StartResult.IN_DOUBT
    if status == 400:
        result = StartResult.REFUSED
    return StartAnswer(
        result=result,
        status=status,
        text=str(answer),
        retry_after=getattr(answer, "retry_after", None),
    )


@dataclass(slots=True)
class PlayedQueue:
    """A fake queue: delivers messages, and records how each one was settled."""

    waiting: "asyncio.Queue[ReceivedMessage | ApprovalQueueError]" = field(
        default_factory=asyncio.Queue
    )
    settled: list[tuple[str, str, str]] = field(default_factory=list)
    broken: int = 0

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        getting = asyncio.ensure_future(self.waiting.get())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({getting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not getting.done():
            getting.cancel()
            return []
        found = getting.result()
        if isinstance(found, ApprovalQueueError):
            raise found
        return [found]

    async def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        assert bool(settlement.words) == (settlement.verdict == "dead-letter")
        if self.broken:
            self.broken -= 1
            raise ApprovalQueueError("the lock of a message is lost")
        self.settled.append((settlement.verdict, message.lock_token, settlement.reason))


@dataclass(slots=True)
class World:
    """All parts that handle an approval, and the results."""

    clock: HastyClock
    outbox: Outbox
    imds: PlayedImds
    poller: PlayedPoller
    observer: Observer
    context: ApprovalContext

    @property
    def counts(self) -> list[str]:
        return counted(self.poller.metrics)

    async def handle(
        self, message: ReceivedMessage, stop: asyncio.Event | None = None
    ) -> Settlement | None:
        """Handle one delivery of a message, as a bridge does that has just started."""
        handling = Handling(self.context, message, key_of(self.context, message))
        await self.poller.ended()
        self.poller.stop = stop or asyncio.Event()
        return await handling.run(self.poller.stop)

    def hangs_after_a_look(self) -> Callable[[], None]:
        """Let all GETs after the next one hang, until the result is called."""
        gate = asyncio.Event()
        self.imds.on_look = lambda: setattr(self.imds, "gate", gate)

        def go_on() -> None:
            self.imds.on_look, self.imds.gate = lambda: None, None
            gate.set()

        return go_on

    async def outcomes(self) -> list[CloudEvent]:
        """Return the outcome events in the outbox, oldest first."""
        found = await self.outbox.database.read(lambda db: sent_to(db, SINK))
        events = [CloudEvent.from_json(delivery.body) for delivery in found]
        return [event for event in events if ".startrequest." in event.type]

    async def kinds(self) -> list[str]:
        return [str(event.data["outcome"]) for event in await self.outcomes()]

    async def replies(self) -> list[dict[str, object]]:
        found, _ = await self.outbox.deliveries.due(REPLIES, now=9e12, limit=100)
        return [json.loads(delivery.body) for delivery in found]

    async def looks(self) -> Look:
        """Let the poller read the document, which nobody has asked for."""
        await self.poller.step()
        assert self.poller.latest is not None
        return self.poller.latest

    def with_terms(self, **terms: object) -> None:
        self.context = replace(self.context, terms=replace(self.context.terms, **terms))


@asynccontextmanager
async def world_of(path: Path, **changes: object) -> AsyncIterator[World]:
    """Open a world on a state file; ``changes`` are changed fields of its context."""
    clock = HastyClock()
    async with patient_outbox(path, router()) as outbox:
        imds = PlayedImds(clock)
        pauses, metrics = PauseMeter(clock), Metrics([SINK], "1")
        observer = Observer(outbox, event_context_of(), clock, metrics, 1.0, pauses)
        poller = PlayedPoller(imds, observer, clock, metrics, spacing=0.0)
        poller.stop, poller.outbox = asyncio.Event(), outbox
        poller.wake = WorkBell()
        poller.wake.poller = poller
        context = ApprovalContext(
            entity=ENTITY,
            terms=Terms(unknown_grace=15.0, max_age=86400.0),
            abandons_unknown=False,
            replies=ReplyRules.of(["replies"], [ENTITY]),
            outbox=outbox,
            event_context=event_context_of(),
            poller=poller,
            clock=clock,
            chance=lambda: 0.5,
        )
        context = replace(context, **changes)
        await observer.restore()
        yield World(clock, outbox, imds, poller, observer, context)
        await poller.die()


@asynccontextmanager
async def with_many_decisions(path: Path) -> AsyncIterator[Door]:
    """Open a state file that knows of more decisions than memory holds."""
    async with Door(path) as door:
        rows = dict[Any, Any]()
        for n in range(NEWEST + 1):
            old = replace(intent_of(f"m{n}", EVENT_ID, n), state="relayed")
            door.outbox.approvals.decide(old, door.now, rows)
        await door.outbox.state.write(rows)
        await door.reopen()
        yield door


def counted(metrics: Metrics) -> list[str]:
    """Return each outcome as often as it was counted."""
    return [
        sample.labels["outcome"]
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "sebridge_start_requests_total"
        for _ in range(int(sample.value))
    ]


def message(
    *event_ids: str, body: object = None, sequence: int = 7, **fields: object
) -> ReceivedMessage:
    """Return a delivery of an approval."""
    whole = {"StartRequests": [{"EventId": event_id} for event_id in event_ids]}
    given: object = whole if body is None else body
    encoded = given if isinstance(given, bytes) else json.dumps(given).encode()
    defaults = ReceivedMessage(
        lock_token=f"lock-{sequence}",
        message_id="m1",
        sequence_number=sequence,
        enqueued_at=START,
        body=encoded,
    )
    return structs.replace(defaults, **fields)


def _doubles_fit(imds: PlayedImds, queue: PlayedQueue) -> tuple[Metadata, Queue]:
    return imds, queue
