"""Reads the document once per interval, and whenever somebody needs it fresh.

The only reader of the document. Whoever needs a fresh look (the approval listener) asks
here, so that every good document takes the same way to the observer, in order,
whoever it was read for. What is in the document is the observer's business.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from bridge.events.document import Document
from bridge.events.look import Look
from bridge.events.watch import Moment, Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    MalformedDocumentError,
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
    OutboxFullError,
)
from bridge.foundation.workers import waking
from bridge.imds.client import Answer, ImdsConfig
from bridge.imds.turns import Turns
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_UNCONDITIONAL_EVERY = 10.0
_PATIENT_AFTER_TIMEOUTS = 3
_LONGEST_BACKOFF = 10.0
_REFUSED_BACKOFF = 60.0
_LEAST_BACKOFF = 1.0
_LONGEST_WISH = 300.0  # a Retry-After beyond it would be blindness
_REMIND_EVERY = 60.0
LEAST_OVERDUE = 30.0


class Metadata(Protocol):
    """Where documents come from."""

    @property
    def config(self) -> ImdsConfig:
        """How often and how patiently to ask."""
        ...

    @property
    def turns(self) -> Turns:
        """Whose request goes next."""
        ...

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the client's own word
        """Read the document, in the turn of a read.

        Raises:
            MetadataError: it cannot be had now.
        """
        ...


class Observer(Protocol):
    """What becomes of a document that was read."""

    @property
    def watch(self) -> Watch:
        """What is known of the events."""
        ...

    @property
    def document(self) -> Document | None:
        """The last good one; None before the first."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known yet who this VM is."""
        ...

    async def observe(self, body: bytes | None, read: Moment) -> Document:
        """Commit what is new in a document; ``body`` is None where it is the same.

        Raises:
            MetadataError: it is no document.
            OutboxFullError: there is no room for what is new.
        """
        ...

    async def follow_clock(self) -> None:
        """Keep on disk when the document was last seen, if the clock was set."""
        ...

    async def touch_now_and_then(self) -> None:
        """Keep on disk, once a minute, when the document was last seen."""
        ...

    async def touch(self) -> None:
        """Keep on disk when the document was last seen."""
        ...


@dataclass(slots=True)
class _Patience:
    """How IMDS has answered lately, and what follows for the next request."""

    started: float
    is_first: bool = True
    failures: int = 0
    refusals: int = 0
    timeouts: int = 0
    reminded: float = float("-inf")
    loudest: int = logging.NOTSET
    outcome: str = "starting"
    wait: float = 0.0
    is_asked_for: bool = False  # by IMDS: nobody may cut it short

    def good(self) -> None:
        self.is_first, self.failures, self.timeouts = False, 0, 0
        self.outcome, self.wait, self.refusals = "ok", 0.0, 0
        self.reminded, self.loudest = float("-inf"), logging.NOTSET

    def bad(self, error: MetadataError, least: float) -> None:
        self.failures += 1
        self.timeouts = self.timeouts + 1 if error.outcome == "timeout" else 0
        self.outcome = error.outcome
        count, longest = self.failures, _LONGEST_BACKOFF
        if isinstance(error, MetadataRefusedError):
            self.refusals += 1
            count, longest = self.refusals, _REFUSED_BACKOFF
        doubled = least * 2.0 ** min(count - 1, 10)
        self.wait = max(least, min(doubled, longest))
        if isinstance(error, MalformedDocumentError):
            self.wait = least
        wish = getattr(error, "retry_after", None)
        self.is_asked_for = bool(wish)
        if wish:
            self.wait = max(self.wait, min(wish, _LONGEST_WISH))

    def is_patient(self) -> bool:
        """Whether the next request may take two minutes."""
        return self.is_first or self.timeouts >= _PATIENT_AFTER_TIMEOUTS


@dataclass(slots=True)
class Poller:
    """The loop around the client.

    Four fields are given by whoever composes it; the rest is what it remembers between
    two requests.

    Attributes:
        observer: who is handed what was read.
        last_success: of monotonic time; None before the first.
        latest: the last look; None where the last read failed.
    """

    client: Metadata
    observer: Observer
    clock: Clock
    metrics: Metrics
    last_success: float | None = None
    latest: Look | None = None
    name: str = "poller"
    _etag: str | None = None
    _unconditional: float = float("-inf")
    _waiting: list["asyncio.Future[Look]"] = field(default_factory=list)
    _is_over: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _patience: _Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = _Patience(started=self.clock.monotonic())

    @property
    def watch(self) -> Watch:
        """What is known of the events from the last look, however old."""
        return self.observer.watch

    async def run(self, stop: asyncio.Event) -> None:
        """Look at the document until asked to stop."""
        async with waking(stop, self._wake):
            while not stop.is_set():
                began = self.clock.monotonic()
                await self.step(stop)
                await self._pause(stop, began)
        self._dismiss()
        await self.observer.touch()

    async def fresh(self) -> Look:
        """Return a look that began after this call; shared by all that wait.

        Raises:
            MetadataError: the document cannot be had now.
        """
        if self._is_over:
            raise _stopping()
        future: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        return await future

    async def step(self, stop: asyncio.Event | None = None) -> None:
        """Look once, unless ``stop`` comes first, and tell those who wait for it.

        The turn is kept until what was read is on disk: no POST goes out in between
        that an older document was asked about.
        """
        async with self.client.turns.read():
            if stop is None or not stop.is_set():
                await self._step()

    async def _step(self) -> None:
        self._wake.clear()
        waiting, self._waiting = self._waiting, []
        try:
            self.latest = look = await self._look(is_asked=bool(waiting))
        except (MetadataError, OutboxFullError) as fault:
            error = fault if isinstance(fault, MetadataError) else _no_room(fault)
            self.latest = None
            self._note(error)
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for future in waiting:
            if not future.done():
                future.set_result(look)

    @property
    def imds_state(self) -> str:
        """``ok``, ``starting``, or how the last request failed."""
        return self._patience.outcome

    def is_overdue(self) -> bool:
        """Whether IMDS has not answered for three polls or 30 s."""
        limit = max(3 * self.client.config.poll_interval, LEAST_OVERDUE)
        if self.last_success is None:
            return True
        return self.clock.monotonic() - self.last_success > limit

    def is_unreachable(self) -> bool:
        """Whether it is overdue, and not for the patient first request."""
        if self.last_success is not None:
            return self.is_overdue()
        patience = self.client.config.first_request_timeout
        return self.clock.monotonic() - self._patience.started > patience

    async def _pause(self, stop: asyncio.Event, began: float) -> None:
        await self.observer.follow_clock()
        if self._patience.wait:
            await self._hold_back(stop)
            return
        await self.observer.touch_now_and_then()
        left = began + self.client.config.poll_interval - self.clock.monotonic()
        await self.clock.wait(self._wake, left)

    async def _hold_back(self, stop: asyncio.Event) -> None:
        """Wait after a failure; who needs a fresh look may cut short what is ours."""
        wait = self._patience.wait
        least = max(self.client.config.poll_interval, _LEAST_BACKOFF)
        held = wait if self._patience.is_asked_for else min(wait, least)
        if not await self.clock.wait(stop, held):
            await self.clock.wait(self._wake, wait - held)

    def _dismiss(self) -> None:
        self._is_over = True  # nobody would answer who asks from now on
        for future in self._waiting:
            if not future.done():
                future.set_exception(_stopping())
        self._waiting = []

    async def _look(self, *, is_asked: bool) -> Look:
        config, began = self.client.config, self.clock.monotonic()
        is_stale = began - self._unconditional >= _UNCONDITIONAL_EVERY
        is_for_approval = is_asked or self.client.turns.has_posts
        etag = None if is_for_approval or is_stale else self._etag
        is_patient = self._patience.is_patient()
        timeout = config.first_request_timeout if is_patient else config.request_timeout
        answer = await self.client.fetch(etag=etag, timeout=timeout)
        if etag is None:
            self._unconditional = began
        read = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        before = self.observer.document
        document = await self.observer.observe(answer.body, read)
        if document is not before:
            self.client.turns.sort()
        self._etag = answer.etag
        self._succeeded()
        return Look(
            document=document,
            watch=self.observer.watch,
            now=answer.date or read.at,
            began=began,
            read=read,
            is_unconditional=etag is None,
        )

    def _succeeded(self) -> None:
        if self._patience.failures:
            log.info("IMDS answers again", extra={"failures": self._patience.failures})
        self._patience.good()
        self.last_success = self.clock.monotonic()
        self.metrics.imds_last_success.set(self.clock.now().timestamp())

    def _note(self, error: MetadataError) -> None:
        """Remember a failure, and log it: at once, and then once a minute."""
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


def _no_room(fault: OutboxFullError) -> MetadataError:
    """Treat a full outbox as a failed read."""
    return MetadataUnavailableError(str(fault), outcome="no-room")


def _stopping() -> MetadataError:
    return MetadataUnavailableError("the bridge is stopping", outcome="stopping")
