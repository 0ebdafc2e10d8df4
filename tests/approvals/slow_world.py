"""Approvals in virtual time, with a slow IMDS and a queue of any length.

Everything between the HTTP session and the messages is real: client, poller, the whole
approval path, and the state file. Waits take no real time, so an hour passes quickly.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import format_datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import aiohttp
from msgspec.structs import replace

from bridge.app.approvals import ApprovalWorkers
from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.listener import Listener
from bridge.approvals.rules import ReplyRules, Rule
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.values import Duration
from bridge.imds.client import MetadataClient
from bridge.imds.config import LEAST_INTERVAL, ImdsConfig
from bridge.imds.poller import Poller
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.storage.journal import Done, Timings
from bridge.outbox.store import Outbox
from bridge.servicebus.decode import ReceivedMessage, Settlement
from bridge.telemetry.metrics import Metrics
from tests.approvals.approval_world import message
from tests.simulation.life import end_all
from tests.simulation.machine import InlineDriver
from tests.simulation.timeline import VirtualClock, VirtualLoop, Wall, true_time
from tests.support.book import sent_to
from tests.support.builders import SINK, event_context_of, imds_event, observed, router

if TYPE_CHECKING:
    from bridge.foundation.workers import Worker
    from tests.simulation.life import Life

T = TypeVar("T")
Event = dict[str, object]
History = Callable[[float], Iterable[Event]]  # the document's events at a second


def in_virtual_time(scenario: Coroutine[object, object, T]) -> T:
    """Run a scenario from second 0 on."""
    loop = VirtualLoop(0.0)
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.set_exception_handler(lambda *_: None)
        end_all(loop)
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Request:
    """One request to scheduledevents: its content, its time, and the shown document."""

    method: str
    began: float
    ended: float
    event_id: str = ""
    shown: Mapping[str, Event] = field(default_factory=dict)


@dataclass(slots=True)
class SlowResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_length(self) -> int:
        return len(self.body)

    async def read(self) -> bytes:
        return self.body


@dataclass(slots=True)
class SlowImds:
    """A fake HTTP session of an IMDS that answers after so many seconds.

    Attributes:
        history: returns the document at a time; called when the request comes in.
        posting: returns the status of each POST, by its number; by default 200.
        getting: returns the status of a GET, by the second; by default 200.
    """

    history: History
    get_seconds: float = 0.01
    post_seconds: float = 0.01
    posting: Callable[[int], int] = lambda _: 200
    getting: Callable[[float], int] = lambda _: 200
    requests: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    in_flight: int = 0
    incarnation: int = 0
    _found: list[Event] | None = None
    _shown: dict[str, Event] = field(default_factory=dict)
    _events: str = ""

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        data: bytes | None = None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own word
        **_: object,
    ) -> AsyncIterator[SlowResponse]:
        assert "/metadata/scheduledevents" in url
        assert not self.in_flight, "two requests at once"
        self.in_flight += 1
        try:
            async with asyncio.timeout(timeout.total):
                yield await self._answer(method, json.loads(data or b"{}"))
        finally:
            self.in_flight -= 1

    async def _answer(self, method: str, asked: dict[str, Any]) -> SlowResponse:
        began = now()
        date = format_datetime(true_time(began).replace(microsecond=0), usegmt=True)
        if method == "POST":
            await asyncio.sleep(self.post_seconds)
            (one,) = asked["StartRequests"]
            number = len(self.posts)
            self.requests.append(Request("POST", began, now(), one["EventId"]))
            return SlowResponse(self.posting(number), {"Date": date}, b"")
        found = [*self.history(began)]
        if found != self._found:
            self._found, self._shown = found, {str(e["EventId"]): e for e in found}
            self._events, self.incarnation = json.dumps(found), self.incarnation + 1
        await asyncio.sleep(self.get_seconds)
        if (status := self.getting(began)) != 200:
            self.failed.append(Request("GET", began, now()))
            return SlowResponse(status, {"Date": date}, b"")
        self.requests.append(Request("GET", began, now(), shown=self._shown))
        number, events = self.incarnation, self._events
        body = f'{{"DocumentIncarnation": {number}, "Events": {events}}}'
        return SlowResponse(200, {"Date": date}, body.encode())

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    @property
    def reads(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def read_before(self, post: Request) -> Request:
        """Return the newest document that had been read before a POST was sent."""
        return [read for read in self.reads if read.ended <= post.began][-1]

    def longest_without_a_read(self) -> float:
        """Return the longest time between the end of a read and the next start."""
        ends = [read.ended for read in self.reads]
        begins = [*(read.began for read in self.reads[1:]), now()]
        return max(begin - end for end, begin in zip(ends, begins, strict=True))

    def least_distance(self) -> float:
        """Return the shortest time between the starts of two requests."""
        requests = sorted([*self.requests, *self.failed], key=lambda r: r.began)
        pairs = pairwise(requests)
        return min(after.began - before.began for before, after in pairs)


@dataclass(slots=True)
class LongQueue:
    """A fake approval entity: delivers ten messages at a time."""

    waiting: list[ReceivedMessage] = field(default_factory=list)
    settled: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, *messages: ReceivedMessage) -> None:
        self.waiting.extend(messages)
        self._news.set()

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        self._news.clear()
        if not self.waiting:
            waits = [asyncio.ensure_future(e.wait()) for e in (stop, self._news)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        await asyncio.sleep(0.001)
        found, self.waiting = self.waiting[:10], self.waiting[10:]
        return found

    async def settle(self, message: ReceivedMessage, how: Settlement) -> None:
        self.settled[message.message_id or ""] = (how.verdict, how.reason, now())


@dataclass(slots=True)
class _Undying:
    """Plans no end of the process, for the state file without a thread."""

    database: Database | None = None

    def moment(self, what: str) -> None:
        """Pass."""

    def is_disk_full(self) -> bool:
        return False


class SlowDriver(InlineDriver):
    """A slow disk: each transaction takes so many seconds."""

    seconds = 0.0
    database: Database

    def start(self, work: Callable[[], object], done: Done) -> None:
        later = asyncio.get_running_loop().call_later
        is_write = bool(self.database.journal.with_disk)
        later(self.seconds if is_write else 0.0, super().start, work, done)


@dataclass(slots=True)
class SlowWorld:
    """All parts of the approval path, running."""

    imds: SlowImds
    queue: LongQueue
    poller: Poller
    listener: Listener
    outbox: Outbox
    stop: asyncio.Event

    async def outcomes(self) -> list[CloudEvent]:
        """Return the outcome events in the outbox, oldest first."""
        found = await self.outbox.database.read(lambda db: sent_to(db, SINK))
        events = [CloudEvent.from_json(delivery.body) for delivery in found]
        return [event for event in events if ".startrequest." in event.type]

    async def settles(self, count: int, *, within: float = 36000.0) -> None:
        """Wait until so many messages are settled."""
        async with asyncio.timeout(within):
            while len(self.queue.settled) < count:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def slow_world(  # noqa: PLR0913 - what a test may change
    imds: SlowImds,
    *messages: ReceivedMessage,
    poll_interval: float = 1.0,
    disk_seconds: float = 0.0,
    rules: tuple[Rule, ...] = (),
    settings: Mapping[str, object] | None = None,
    version: Literal["2017-03-01", "2020-07-01"] = "2020-07-01",
) -> AsyncIterator[SlowWorld]:
    """Run the approval path on messages in virtual time."""
    config = ApprovalsConfig(queue="vm-approvals", rules=rules, **(settings or {}))  # type: ignore[arg-type]  # a test's own words
    clock, metrics, event_context = (
        VirtualClock(Wall()),
        Metrics([SINK], "1"),
        event_context_of(),
    )
    imds_config = ImdsConfig(poll_interval=Duration(poll_interval), api_version=version)
    session = cast("aiohttp.ClientSession", imds)
    client = MetadataClient(session, imds_config, clock, metrics)
    with tempfile.TemporaryDirectory() as folder:
        file = File(Path(folder) / "state.db", may_degrade=True)
        life = _Undying()
        driver = SlowDriver(cast("Life", life))
        database = Database(file, Timings(patience=inf, quiet=inf), driver)
        driver.database = life.database = database
        await database._open()
        await database.read(lambda db: db.execute("PRAGMA synchronous = OFF"))
        outbox = await Outbox.of(database, router())
        driver.seconds = disk_seconds
        poller, _ = observed(
            client, outbox, event_context, clock, metrics, spacing=LEAST_INTERVAL
        )
        approval_workers = ApprovalWorkers(
            config=config,
            outbox=outbox,
            poller=poller,
            event_context=event_context,
            clock=clock,
            metrics=metrics,
            reply_rules=ReplyRules.of((), ()),
        )
        queue, stop = LongQueue(list(messages)), asyncio.Event()
        poller.rules = approval_workers.rules()
        listener = Listener(queue, approval_workers._context())
        workers: list[Worker] = [poller, listener]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(stop))
            try:
                yield SlowWorld(imds, queue, poller, listener, outbox, stop)
            finally:
                stop.set()
        await database._close()


def approval(number: int, *event_ids: str, **fields: object) -> ReceivedMessage:
    """Return an approval message with an id of its own."""
    name = f"m{number}"
    whole = message(*event_ids, sequence=number, message_id=name)
    return replace(whole, **{"enqueued_at": true_time(0.0), **fields})


def freeze(event_id: str, **fields: object) -> Event:
    """Return an event that will freeze a VM in an hour."""
    soon = format_datetime(true_time(3600.0), usegmt=True)
    return imds_event(event_id, NotBefore=soon, Resources=["web-1"], **fields)
