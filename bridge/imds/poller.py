"""One loop sends all requests to scheduledevents: it reads the document, and posts.

    read ──▶ observe ──▶ POST the most urgent that waits ──▶ read …
                          decide by the newest document, mark on disk, POST

The document is read once per interval, and when an approval needs a fresh look.
Requests begin at least 250 ms apart. A POST goes right after a read, or is expected to
end before the next one: so approvals cannot stop the reading, nor reads an approval.

Nothing else reads the document or posts. So every valid document goes to the observer,
in order, and a POST is decided by the newest document. The observer parses it.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from bridge.events.document import Document
from bridge.events.look import Look, Posting
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
_LEAST_AGE = 1.0  # a document of this age may always be posted by
_CUT_SHORT = StartAnswer(
    result=StartResult.IN_DOUBT, text="the POST to IMDS was cut short"
)
LEAST_OVERDUE = 30.0
CLOCK_LIMIT = 60.0  # seconds; a clock that differs by more is reported

_Waiting: TypeAlias = "asyncio.Future[Look]"


class Metadata(Protocol):
    """The source of documents: the client."""

    @property
    def config(self) -> ImdsConfig:
        """The interval and the timeouts."""
        ...

    @property
    def alone(self) -> AbstractAsyncContextManager[None]:
        """A lock that is held for each request: IMDS gets one at a time."""
        ...

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - as in the client
        """Read the document. The caller must hold ``alone``.

        Raises:
            MetadataError: the document cannot be read now.
        """
        ...

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """POST one EventId, as the document spells it. The caller holds ``alone``."""
        ...


class Observer(Protocol):
    """Receives every document that was read."""

    @property
    def watch(self) -> Watch:
        """What is known of the scheduled events."""
        ...

    @property
    def document(self) -> Document | None:
        """The last valid document; None before the first."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the identity of this VM is not yet known."""
        ...

    @property
    def pauses(self) -> PauseMeter:
        """Measures for how long this VM stood still."""
        ...

    async def observe(self, body: bytes | None, read: Moment) -> Document:
        """Compare a document with the last one, and commit the events about changes.

        Args:
            body: the document; None if it is the same as the last one.
            read: when it was read.

        Raises:
            MetadataError: the body is not a valid document.
            OutboxFullError: there is no room for the new events.
        """
        ...

    def is_touch_due(self, *, has_read: bool) -> bool:
        """Return whether to store when the document was last seen.

        Args:
            has_read: whether the last read has succeeded. If not, only a change of the
                wall clock makes it due.
        """
        ...

    async def touch(self) -> None:
        """Store when the document was last seen."""
        ...


class Poller:
    """The loop that reads the document and posts.

    Args:
        spacing: the least time between the beginnings of two requests, in seconds.

    Attributes:
        last_success: when a read succeeded last, in monotonic seconds; None = never.
        latest: the last look; None if the last read failed.
        line: what waits for a POST, by EventId in capitals.
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
        self.line: dict[str, Posting] = {}
        self._spacing = spacing
        self._etag: str | None = None
        self._unconditional = float("-inf")
        self._waiting = list[_Waiting]()
        self._used: Look | None = None  # the look of the last POST
        self._is_over = False
        self._is_clock_wrong = False
        self._wake = Bell()
        self._getting: asyncio.Timeout | None = None  # the GET in flight
        self._patience = Patience(started=clock.monotonic())
        # In monotonic seconds: when the next request may begin; when the next read is
        # due; when it is if somebody asks for a fresh look.
        self._free_at = self._due_at = self._asked_at = float("-inf")
        self._has_read = False  # whether the last request was a read
        self._post_seconds = 0.0  # how long the last POST took

    @property
    def watch(self) -> Watch:
        """What is known of the events from the last look, even if that is old."""
        return self.observer.watch

    async def run(self, stop: asyncio.Event) -> None:
        """Read and post until ``stop`` is set; a POST in flight ends before."""
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._end_at(stop))
            while not stop.is_set():
                await self.turn(stop)
            watcher.cancel()
        self._dismiss()
        await self.observer.touch()

    async def _end_at(self, stop: asyncio.Event) -> None:
        """End the wait or the GET at the stop: a GET may take two minutes."""
        await stop.wait()
        self._wake.set()
        if self._getting is not None:
            self._getting.reschedule(asyncio.get_running_loop().time())

    async def fresh(self) -> Look:
        """Return a look whose GET began after this call; all callers share one GET.

        Raises:
            MetadataError: the document cannot be read now.
        """
        if self._is_over:
            raise _stopping()
        future: _Waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        return await future

    def line_up(self, key: str, posting: Posting) -> None:
        """Let a POST wait for its turn; ``settle`` of the posting gets the result."""
        if self._is_over:
            posting.settle(None)
            return
        self.line[key] = posting
        self._wake.set()

    async def turn(self, stop: asyncio.Event) -> None:
        """Send the next request to IMDS, or wait until there may be one."""
        self._wake.clear()
        now, good = self.clock.monotonic(), list[str]()
        wait = self._free_at - now
        if not self.line and not self._waiting:
            wait = max(wait, self._due_at - now)
        elif wait <= 0:
            good = self._postable()
            wait = self._next_read(good) - now
        if good and self._may_post(good):
            await self._post(min(good, key=lambda key: self.line[key].urgency()), stop)
        elif wait > 0 and not good:
            await self._wait(self._wake, wait)
        else:
            await self.step(stop)
            if self.observer.is_touch_due(has_read=not self._patience.wait):
                await self.observer.touch()

    def _postable(self) -> list[str]:
        """Return the EventIds for whose POST the last look is new enough."""
        look, config = self.latest, self.client.config
        if look is None or not look.is_unconditional or self._is_old(look):
            return []
        if look is self._used and config.api_version == COUNTED_VERSION:
            return []  # IMDS compares the DocumentIncarnation, which a POST changes
        return [key for key, one in self.line.items() if look.began >= one.since]

    def _next_read(self, good: list[str]) -> float:
        """Return when the next read is due; ``good`` can be posted before it."""
        is_asked = self._waiting or len(good) < len(self.line)
        return self._asked_at if is_asked else self._due_at

    def _may_post(self, good: list[str]) -> bool:
        """Return whether a POST may go before the next read."""
        end = self.clock.monotonic() + self._post_seconds
        return self._has_read or end <= self._next_read(good)

    async def _post(self, key: str, stop: asyncio.Event) -> None:
        """Decide by the newest document; POST if that is still allowed after it."""
        posting, look = self.line[key], self.latest
        event = None if look is None else await posting.decide(look)
        if look is None or event is None:
            del self.line[key]
            posting.settle(None)
            return
        async with self.client.alone:
            is_late = self._is_old(look) or not self._may_post(self._postable())
            if stop.is_set() or is_late:
                return  # to store the mark took too long: decide again
            del self.line[key]
            self._begin(is_read=False)
            self._used, answer, began = look, _CUT_SHORT, self.clock.monotonic()
            try:
                answer = await self.client.start(
                    event.event_id, incarnation=look.document.incarnation
                )
            finally:
                self._post_seconds = self.clock.monotonic() - began
                posting.settle(answer)

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
        """Read once, unless ``stop`` is set first; wake the callers of ``fresh``."""
        async with self.client.alone:
            if stop is not None and stop.is_set():
                return
            self._begin(is_read=True)
            waiting, self._waiting = self._waiting, []
            try:
                self.latest = look = await self._look(is_asked=bool(waiting))
            except (MetadataError, OutboxFullError) as fault:
                if stop is not None and stop.is_set():
                    _refuse(waiting, _stopping())
                else:
                    self._fail(fault, waiting)
                return
        self._due_at = look.began + self.client.config.poll_interval
        self._asked_at = float("-inf")
        for future in waiting:
            if not future.done():
                future.set_result(look)

    def _fail(
        self, fault: MetadataError | OutboxFullError, waiting: list[_Waiting]
    ) -> None:
        """Tell all that wait; hold the next read back."""
        error = fault
        if isinstance(error, OutboxFullError):
            error = MetadataUnavailableError(str(fault), outcome="no-room")
        self.latest = None
        self._note(error)
        now, patience = self.clock.monotonic(), self._patience
        least = max(self.client.config.poll_interval, _LEAST_BACKOFF)
        self._asked_at = self._due_at = now + patience.wait
        if not patience.is_asked_for:
            self._asked_at = now + min(patience.wait, least)
        _refuse(waiting, error)
        self._clear_line(error)

    def _clear_line(self, result: MetadataError | None) -> None:
        line, self.line = self.line, {}
        for posting in line.values():
            posting.settle(result)

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
        return self.clock.monotonic() - self._patience.started > patience

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait as the clock does; a wait that ends late shows a pause of the VM."""
        end = self.clock.monotonic() + max(seconds, 0.0)
        await self.clock.wait(event, seconds)
        self.pauses.late(self.clock.monotonic() - end)

    def _dismiss(self) -> None:
        self._is_over = True  # from now on, ``fresh`` raises at once
        _refuse(self._waiting, _stopping())
        self._waiting = []
        self._clear_line(None)

    async def _look(self, *, is_asked: bool) -> Look:
        config, began = self.client.config, self.clock.monotonic()
        is_stale = began - self._unconditional >= _UNCONDITIONAL_EVERY
        is_for_approval = is_asked or bool(self.line)
        etag = None if is_for_approval or is_stale else self._etag
        is_patient = self._patience.is_patient()
        timeout = config.first_request_timeout if is_patient else config.request_timeout
        try:
            async with asyncio.timeout(None) as self._getting:
                answer = await self.client.fetch(etag=etag, timeout=timeout)
        except TimeoutError as error:
            raise _stopping() from error
        finally:
            self._getting = None
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
            is_unconditional=etag is None,
        )

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
            self._patience.good()
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


def _refuse(waiting: list[_Waiting], error: MetadataError) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)


def _stopping() -> MetadataError:
    return MetadataUnavailableError("the bridge is stopping", outcome="stopping")
