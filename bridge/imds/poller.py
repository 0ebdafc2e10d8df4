"""One loop sends all requests to scheduledevents: it reads the document, and posts.

    read ──▶ observe ──▶ ask the rules, decide the requests ──▶ POST the most urgent ─┐
      ▲                                                                              │
      └──────────────────────────────────────────────────────────────────────────────┘

The document is read once per interval, and when a request needs a fresh look. Requests
begin at least 250 ms apart. When a read is due, at most one POST goes before it: so a
hundred approvals cannot stop the reading, and reads cannot stop an approval. A POST
that may take longer than until the next read goes right after a read.

Nothing else reads the document or posts. So every valid document goes to the observer,
in order, and a POST is decided by the newest document. The observer parses it.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Protocol

from bridge.events.document import Document, ScheduledEvent
from bridge.events.look import Look, Need, Requests, Withheld
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.watch import Moment, Watch
from bridge.foundation.clock import Bell, Clock, PauseMeter, ReferenceClock
from bridge.foundation.errors import (
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
    OutboxFullError,
)
from bridge.imds.client import Answer, Patience
from bridge.imds.config import COUNTED_VERSION, LEAST_INTERVAL, ImdsConfig
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_UNCONDITIONAL_EVERY = 10.0
_LEAST_BACKOFF = 1.0
_REMIND_EVERY = 60.0
_PATIENT_AFTER_TIMEOUTS = 3
_LEAST_AGE = 1.0  # a document of this age may always be posted by
_CUT_SHORT = StartAnswer(
    result=StartResult.IN_DOUBT, text="the POST to IMDS was cut short"
)
LEAST_OVERDUE = 30.0
CLOCK_LIMIT = 60.0  # seconds; a clock that differs by more is reported


class Metadata(Protocol):
    """The source of documents: see ``MetadataClient``."""

    config: ImdsConfig

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - as in the client
        """Read the document; may raise MetadataError."""
        ...

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """POST one EventId, as the document spells it."""
        ...


class Observer(Protocol):
    """Receives every document that was read: see ``bridge.pipeline.observer``.

    Attributes:
        watch: what is known of the scheduled events.
        is_waiting: whether the identity of this VM is not yet known.
        pauses: measures for how long this VM stood still.
    """

    watch: Watch
    is_waiting: bool
    pauses: PauseMeter

    async def observe(self, body: bytes | None, read: Moment) -> Document:
        """Commit the events about changes; None: the document is the last one again.

        Raises:
            MetadataError: the body is not a valid document.
            OutboxFullError: there is no room for the new events.
        """
        ...

    def is_touch_due(self, *, has_read: bool) -> bool:
        """Return whether to store when the document was last seen."""
        ...

    async def touch(self) -> None:
        """Store when the document was last seen."""
        ...


class Rules(Protocol):
    """What approves without a message: see ``bridge.approvals.auto_approve``.

    Attributes:
        withheld: the events that are held now, by key.
    """

    withheld: Mapping[str, Withheld]

    def turn(self, flows: asyncio.TaskGroup) -> float:
        """Begin to decide in tasks of ``flows``, if it is time.

        Return when to ask again at the latest, in monotonic seconds.
        """
        ...


class Poller:
    """The loop that reads the document and posts.

    Args:
        spacing: the least time between the beginnings of two requests, in seconds.

    Attributes:
        last_success: when a read succeeded last, in monotonic seconds; None = never.
        latest: the last good look; None before the first.
        alone: is held during a request: IMDS gets one at a time. Instance metadata is
            read under it.
        requests: what asks for POSTs; None while nothing does.
        rules: what approves by rules, if any; asked after each read.
        wake: is set when something has to be done at once.
        reads: how many reads have begun.
        is_over: whether the loop has been asked to stop.
    """

    name = "poller"

    def __init__(
        self,
        client: Metadata,
        observer: Observer,
        clock: Clock,
        metrics: Metrics,
        spacing: float = LEAST_INTERVAL,
    ) -> None:
        self.client = client
        self.observer = observer
        self.clock = clock
        self.metrics = metrics
        self.pauses = observer.pauses
        self.last_success: float | None = None
        self.latest: Look | None = None
        self.alone = asyncio.Lock()
        self.requests: Requests | None = None
        self.rules: Rules | None = None
        self.wake = Bell()
        self.reads = 0
        self.is_over = False
        self._group: asyncio.TaskGroup | None = None
        self._spacing = spacing
        self._etag: str | None = None
        self._unconditional = float("-inf")
        self._used: Look | None = None  # the look of the last POST
        self._is_clock_wrong = False
        self._getting: asyncio.Timeout | None = None  # the GET in flight
        self._patience, self._started = Patience("starting"), clock.monotonic()
        # In monotonic seconds: when the next request may begin; when the next read is
        # due; when it is if a request needs a fresh look.
        self._free_at = self._due_at = self._asked_at = float("-inf")
        self._has_read = False  # whether the last request was a read
        self._post_seconds = 0.0  # how long the last POST took

    @property
    def watch(self) -> Watch:
        """What is known of the events from the last look, even if that is old."""
        return self.observer.watch

    async def run(self, stop: asyncio.Event) -> None:
        """Read and post until ``stop`` is set; a POST in flight ends before."""
        async with asyncio.TaskGroup() as self._group:
            watcher = self._group.create_task(self._end_at(stop))
            while not stop.is_set():
                await self.turn(stop)
            watcher.cancel()
            self.close()
        await self.observer.touch()

    async def _end_at(self, stop: asyncio.Event) -> None:
        """End the wait or the GET at the stop: a GET may take two minutes."""
        await stop.wait()
        self.close()
        self.wake.set()
        if self._getting is not None:
            self._getting.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """End all requests but those whose POST is in flight; take no others."""
        self.is_over = True
        if self.requests is not None:
            self.requests.close()

    async def turn(self, stop: asyncio.Event) -> None:
        """Send the next request to IMDS, or wait until there may be one."""
        self.wake.clear()
        need, due = Need(), self._due_at
        if self.requests:
            need = self.requests.turn(self._usable())
            due = min(due, self._asked_at) if need.look else due
        if self.rules and self._group:
            need.at = min(need.at, self.rules.turn(self._group))
        now = self.clock.monotonic()
        if need.event is None and due > now:
            end = min(due, max(need.at, now), now + self._late())
            await self._wait(self.wake, end - now)
        elif self._free_at > now:
            await self._wait(stop, self._free_at - now)
        elif need.event is not None and self._may_post(due, now):
            await self._post(need.event, stop)
        else:
            await self.step(stop)
            if self.observer.is_touch_due(has_read=not self._patience.wait):
                await self.observer.touch()

    def _usable(self) -> Look | None:
        """Return the last look if a POST may follow it."""
        look, version = self.latest, self.client.config.api_version
        if look is None or not look.is_unconditional or self._is_old(look):
            return None
        if self._patience.wait:
            return None  # the last read has failed
        if look is self._used and version == COUNTED_VERSION:
            return None  # IMDS compares the DocumentIncarnation, which a POST changes
        return look

    def _may_post(self, due: float, now: float) -> bool:
        """Return whether a POST may go before the next read."""
        return self._has_read or now + self._post_seconds <= due

    async def _post(self, event: ScheduledEvent, stop: asyncio.Event) -> None:
        look, requests = self.latest, self.requests
        async with self.alone:
            if stop.is_set() or look is None or requests is None or self._is_old(look):
                return
            self._begin(is_read=False)
            self._used, answer, began = look, _CUT_SHORT, self.clock.monotonic()
            requests.begin()
            try:
                answer = await self.client.start(
                    event.event_id, incarnation=look.document.incarnation
                )
            finally:
                self._post_seconds = self.clock.monotonic() - began
                requests.answered(answer)

    def _is_old(self, look: Look) -> bool:
        """Return whether a look is too old for a POST, by the longer of both clocks."""
        now = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        elapsed = look.read.elapsed(now)
        return elapsed is None or elapsed > max(
            _LEAST_AGE, self.client.config.poll_interval
        )

    def _begin(self, *, is_read: bool) -> None:
        """Note that a request begins: the next one keeps the distance."""
        self._free_at = self.clock.monotonic() + self._spacing
        self._has_read = is_read

    async def step(self, stop: asyncio.Event | None = None) -> None:
        """Read once, unless ``stop`` is set first; tell the requests."""
        async with self.alone:
            if stop is not None and stop.is_set():
                return
            self._begin(is_read=True)
            self.reads += 1
            began = self.clock.monotonic()
            try:
                self.latest = look = await self._look(began)
            except OutboxFullError as fault:
                self._fail(
                    MetadataUnavailableError(str(fault), outcome="no-room"), began
                )
                return
            except MetadataError as error:
                if stop is None or not stop.is_set():
                    self._fail(error, began)
                return
        self._due_at = look.began + self.client.config.poll_interval
        self._asked_at = float("-inf")

    def _fail(self, error: MetadataError, began: float) -> None:
        """Tell the requests; hold the next read back."""
        self._note(error)
        now, patience = self.clock.monotonic(), self._patience
        least = max(self.client.config.poll_interval, _LEAST_BACKOFF)
        is_fixed = patience.is_asked_for
        self._due_at = now + patience.wait
        self._asked_at = self._due_at if is_fixed else now + min(patience.wait, least)
        if self.requests:
            self.requests.failed(error, began)

    @property
    def imds_state(self) -> str:
        """``ok``, ``starting``, or how the last request failed."""
        return self._patience.outcome

    def is_overdue(self) -> bool:
        """Return whether IMDS has not answered for three intervals, at least 30 s."""
        limit = max(3 * self.client.config.poll_interval, LEAST_OVERDUE)
        if self.last_success is None:
            return True
        return self.clock.monotonic() - self.last_success > limit

    def is_unreachable(self) -> bool:
        """Return whether IMDS fails for long; the slow first request does not count.

        A pause of the VM is no failure of IMDS, and may break one read: so two reads in
        a row must have failed.
        """
        if self.last_success is not None:
            return self.is_overdue() and self._patience.failures > 1
        patience = self.client.config.first_request_timeout
        return self.clock.monotonic() - self._started > patience

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait as the clock does; a wait that ends late shows a pause of the VM."""
        end = self.clock.monotonic() + max(seconds, 0.0)
        await self.clock.wait(event, seconds)
        self.pauses.late(self.clock.monotonic() - end)

    async def _look(self, began: float) -> Look:
        config = self.client.config
        is_stale = began - self._unconditional >= _UNCONDITIONAL_EVERY
        etag = None if self.requests or is_stale else self._etag
        is_first, timeouts = self.last_success is None, self._patience.timeouts
        is_patient = is_first or timeouts >= _PATIENT_AFTER_TIMEOUTS
        timeout = config.first_request_timeout if is_patient else config.request_timeout
        try:
            answer = await self._fetch(etag, timeout, began)
        finally:
            self.pauses.late(self.clock.monotonic() - began - timeout)
        if etag is None:
            self._unconditional = began
        self._follow(answer, began)
        read = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        document = await self.observer.observe(answer.body, read)
        self._etag = answer.etag
        self._succeeded()
        is_reference = isinstance(self.clock, ReferenceClock)  # it knows odd Dates
        return Look(
            document=document,
            watch=self.observer.watch,
            now=read.at if is_reference else answer.date or read.at,
            began=began,
            read=read,
            number=self.reads,
            is_unconditional=etag is None,
        )

    async def _fetch(self, etag: str | None, limit: float, began: float) -> Answer:
        """Read the document, until the stop; give up meanwhile what is late."""
        late, may_last = None, self._patience.wait or self._late(began) < math.inf
        if self._group and may_last:
            late = self._group.create_task(self._end_late(began))
        try:
            async with asyncio.timeout(None) as self._getting:
                return await self.client.fetch(etag=etag, timeout=limit)
        except TimeoutError as error:
            text = "the bridge is stopping"
            raise MetadataUnavailableError(text, outcome="stopping") from error
        finally:
            self._getting = None
            if late is not None:
                late.cancel()

    async def _end_late(self, began: float) -> None:
        """Give up what is late, also what was asked for during the read."""
        while True:
            self.wake.clear()
            await self.clock.wait(self.wake, min(self._late(began), _REMIND_EVERY))

    def _late(self, began: float = -math.inf) -> float:
        """Give up what is late; return the seconds until the next deadline."""
        return self.requests.end_late(began) if self.requests else math.inf

    def _follow(self, answer: Answer, sent: float) -> None:
        """Let the clock follow IMDS's; log once when it begins or ends to differ."""
        self.pauses.note(answer.date, sent)
        if not isinstance(self.clock, ReferenceClock):
            return
        self.clock.note(answer.date, sent)
        ahead = self.clock.ahead or 0.0
        self.metrics.clock_offset.set(ahead)
        was_wrong, self._is_clock_wrong = self._is_clock_wrong, abs(ahead) > CLOCK_LIMIT
        if self._is_clock_wrong and not was_wrong:
            log.warning(
                "this VM's clock differs from IMDS's: IMDS's time is used",
                extra={"offsetSeconds": round(ahead)},
            )
        elif was_wrong and not self._is_clock_wrong:
            log.info("this VM's clock agrees with IMDS's again")

    def _succeeded(self) -> None:
        if self._patience.failures:
            log.info("IMDS answers again", extra={"failures": self._patience.failures})
        if self._patience.outcome != "ok":
            self._patience = Patience("ok")
        self.last_success = self.clock.monotonic()
        self.metrics.imds_last_success.set(self.clock.now().timestamp())

    def _note(self, error: MetadataError) -> None:
        """Record a failure, and log it: at once, and then once a minute."""
        patience, now = self._patience, self.clock.monotonic()
        patience.bad(error, self.client.config.poll_interval)
        is_passing = isinstance(error, MetadataUnavailableError)
        level = logging.WARNING if is_passing else logging.ERROR
        is_news = level > patience.loudest or isinstance(error, MetadataRefusedError)
        if is_news or now - patience.reminded >= _REMIND_EVERY:
            patience.reminded, patience.loudest = now, max(level, patience.loudest)
            log.log(
                level,
                "no document from IMDS",
                extra={
                    "fault": str(error),
                    "failures": patience.failures,
                    "retryInSeconds": round(patience.wait, 3),
                },
            )
