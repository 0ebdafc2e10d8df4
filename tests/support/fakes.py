"""Doubles of the bridge's edges. The checks at the end are mypy's to make."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bridge.events.build import OutgoingEvent
from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError, OutboxFullError
from bridge.foundation.workers import Worker
from bridge.imds.client import Answer
from bridge.imds.config import ImdsConfig
from bridge.imds.poller import Metadata
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Deliver

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class FakeClock:
    """Time that passes only when a test says so.

    ``waits`` holds the seconds of every wait, in the order they were asked for.
    """

    def __init__(self, start: datetime = START) -> None:
        self.waits: list[float] = []
        self._start, self._passed = start, 0.0  # in full: datetime rounds to 1 µs
        self._monotonic = 1000.0
        self._alarms: list[tuple[float, int, asyncio.Event]] = []
        self._count = itertools.count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._monotonic

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        self.waits.append(seconds)
        alarm = asyncio.Event()
        due = self._monotonic + max(seconds, 0.0)
        heapq.heappush(self._alarms, (due, next(self._count), alarm))
        self._ring()
        waits = [asyncio.ensure_future(e.wait()) for e in (event, alarm)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            alarm.set()
        return event.is_set()

    def pass_by(self, seconds: float) -> None:
        """Let time pass without giving anybody a turn."""
        self._passed += seconds
        self._monotonic += seconds
        self._ring()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everybody who waits wake in the order of dues."""
        end = self._monotonic + seconds
        await turns()
        while (due := self._next_due()) is not None and due <= end:
            self.pass_by(due - self._monotonic)
            await turns()
        self.pass_by(end - self._monotonic)
        await turns()

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as an administrator or NTP would."""
        self._start += timedelta(seconds=seconds)

    def _next_due(self) -> float | None:
        while self._alarms and self._alarms[0][2].is_set():
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def _ring(self) -> None:
        while self._alarms and self._alarms[0][0] <= self._monotonic:
            heapq.heappop(self._alarms)[2].set()


async def turns(count: int = 20) -> None:
    """Let every task that can go on do so."""
    loop: Any = asyncio.get_running_loop()
    for _ in range(count):
        await asyncio.sleep(0)
        if not loop._ready:  # nobody can go on
            break


async def settled(outbox: Outbox) -> None:
    """Let every task go on until nothing is left to do, in the outbox's thread too.

    What asyncio runs in other threads is waited for where ``one_thread()`` was called.
    """
    loop: Any = asyncio.get_running_loop()
    for _ in range(8):
        await turns()
        has_threads = (
            loop._default_executor
        )  # somebody has called ``asyncio.to_thread``
        if not (has_threads or outbox.database.is_busy):
            break
        await outbox.database.read(lambda db: None)
        if has_threads:
            await asyncio.to_thread(int)
    else:
        await turns()


def one_thread() -> None:
    """Let ``asyncio.to_thread`` run one call after the other, in this loop."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


@dataclass
class FakeMetadata:
    """IMDS by script: each request takes the next answer; the last one stays.

    Attributes:
        asked: the ETag and the timeout of each request.
        posts: the EventId and the incarnation of each StartRequest.
        gate: where set, a request waits for it before it is answered.
    """

    config: ImdsConfig = field(default_factory=ImdsConfig)
    answers: "deque[Answer | MetadataError]" = field(default_factory=deque)
    asked: list[tuple[str | None, float]] = field(default_factory=list)
    posts: list[tuple[str, int | None]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    def says(
        self,
        *bodies: bytes | None,
        etag: str | None = None,
        date: datetime | None = None,
    ) -> None:
        self.answers.extend(Answer(body=b, etag=etag, date=date) for b in bodies)

    def fails(self, *errors: MetadataError) -> None:
        self.answers.extend(errors)

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the protocol's word
        self.asked.append((etag, timeout))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MetadataError):
            raise answer
        return answer

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        self.posts.append((event_id, incarnation))
        return StartAnswer(result=StartResult.ACCEPTED, status=200)


@dataclass
class RecordingSink:
    """Takes deliveries as told: with an error, after a gate, or at once.

    Attributes:
        taken: what was delivered.
        tried: every attempt.
        faults: raised by the next attempts, one each; None = a success.
        always: raised by every attempt once ``faults`` is used up.
        gates: by CloudEvent id: an attempt at it waits until its gate is open.
        failing: by CloudEvent id: what each attempt at it fails with.
    """

    taken: list[Delivery] = field(default_factory=list)
    tried: list[Delivery] = field(default_factory=list)
    faults: "deque[Exception | None]" = field(default_factory=deque)
    always: Exception | None = None
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)

    async def __call__(self, delivery: Delivery) -> None:
        self.tried.append(delivery)
        fault = self.faults.popleft() if self.faults else self.always
        fault = self.failing.get(delivery.cloud_event_id or "", fault)
        if (gate := self.gates.get(delivery.cloud_event_id or "")) is not None:
            await gate.wait()
        if fault is not None:
            raise fault
        self.taken.append(delivery)

    def gate(self, cloud_event_id: str) -> asyncio.Event:
        return self.gates.setdefault(cloud_event_id, asyncio.Event())

    @property
    def tried_ids(self) -> list[str | None]:
        return [delivery.cloud_event_id for delivery in self.tried]


@dataclass
class FakeWorker:
    """A worker whose life is one function."""

    life: Callable[[asyncio.Event], Coroutine[None, None, None]]
    name: str = "fake"

    async def run(self, stop: asyncio.Event) -> None:
        await self.life(stop)


_CLOCK: type[Clock] = FakeClock
_METADATA: type[Metadata] = FakeMetadata
_DELIVER: Deliver = RecordingSink()
_WORKER: type[Worker] = FakeWorker


class FullOutbox(Outbox):
    """The same outbox as ``outbox``, without room for events while ``is_full``."""

    is_full = False

    def __init__(self, outbox: Outbox) -> None:
        vars(self).update(vars(outbox))

    async def commit(self, events: Sequence[OutgoingEvent], **parts: Any) -> bool:
        if self.is_full:
            raise OutboxFullError("neither disk nor memory has room")
        return await super().commit(events, **parts)
