"""The poller: fetch → diff → events → outbox, one transaction per document.

The only reader of the document. Who needs a fresh look (the approval listener)
asks here, so that every good document goes through the same diff and commit, in
order, whoever it was read for.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from bridge.events import checkpoint
from bridge.events.build import Teller, Told
from bridge.events.document import Document, parse
from bridge.events.look import Look
from bridge.events.transitions import (
    Moment,
    Transition,
    Watch,
    anchored,
    diff,
    same_again,
)
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
from bridge.outbox.records import CHECKPOINT, Checkpoint
from bridge.outbox.store import Outbox
from bridge.pipeline.held import Held, Observation, causes_of, told_of
from bridge.telemetry.metrics import Metrics, type_label

log = logging.getLogger(__name__)

_UNCONDITIONAL_EVERY = 10.0
_PATIENT_AFTER_TIMEOUTS = 3
_LONGEST_BACKOFF = 10.0
_REFUSED_BACKOFF = 60.0
_LEAST_BACKOFF = 1.0
_LONGEST_WISH = 300.0  # a Retry-After beyond it would be blindness
_TOUCH_EVERY = 60.0
_REMIND_EVERY = 60.0
_JUMP = 1.0
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
    """Reads the document once per interval and whenever somebody needs it fresh.

    Attributes:
        teller: who tells.
        is_waiting: whether it is not known yet who this VM is: until ``introduce``,
            only what may not wait is told.
        watch: what is known of the document.
        document: the last good one; None before the first.
        last_success: of monotonic time; None before the first.
        latest: the last look; None where the last read failed.
        changed: called when the document was not the same as before.
    """

    client: Metadata
    outbox: Outbox
    teller: Teller
    clock: Clock
    metrics: Metrics
    with_documents: bool = False
    is_waiting: bool = False
    watch: Watch = field(default_factory=Watch)
    document: Document | None = None
    last_success: float | None = None
    latest: Look | None = None
    changed: Callable[[], None] = field(default=lambda: None)
    name: str = "poller"
    _body: bytes | None = None
    _etag: str | None = None
    _unconditional: float = float("-inf")
    _touched: float = float("-inf")
    _offset: float | None = None  # of the wall clock to the monotonic one
    _waiting: list["asyncio.Future[Look]"] = field(default_factory=list)
    _held: Held = field(default_factory=Held)
    _keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_over: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _patience: _Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = _Patience(started=self.clock.monotonic())

    async def restore(self) -> None:
        """Take up the watch where an earlier life of this bridge left it."""
        await self.outbox.remember_again()
        body = await self.outbox.load(CHECKPOINT)
        if body is None:
            return
        try:
            self.watch = anchored(checkpoint.decode(body), self._moment())
        except msgspec.DecodeError as error:  # no page of SQLite's was damaged
            log.error(  # noqa: TRY400 - the text says it all
                "what was observed cannot be read: watching as if for the first time",
                extra={"fault": str(error)},
            )

    async def introduce(self, teller: Teller) -> None:
        """Tell what waits, and from now on everything at once, as ``teller``."""
        async with self._keeping:
            self.teller, self.is_waiting = teller, False
            with suppress(OutboxFullError):  # the next look tries again
                await self._tell_of_held()

    async def run(self, stop: asyncio.Event) -> None:
        """Look at the document until asked to stop."""
        async with waking(stop, self._wake):
            while not stop.is_set():
                began = self.clock.monotonic()
                await self.step(stop)
                await self._pause(stop, began)
        self._dismiss()
        await self._touch()

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
        if self._is_clock_set():
            await self._touch()  # a later life would take the jump for time that passed
        if self._patience.wait:
            await self._hold_back(stop)
            return
        if self.clock.monotonic() - self._touched >= _TOUCH_EVERY:
            await self._touch()
        left = began + self.client.config.poll_interval - self.clock.monotonic()
        await self.clock.wait(self._wake, left)

    def _is_clock_set(self) -> bool:
        """Whether the wall clock was set since this was asked before."""
        offset = self.clock.now().timestamp() - self.clock.monotonic()
        before, self._offset = self._offset, offset
        return before is not None and abs(offset - before) > _JUMP

    async def _hold_back(self, stop: asyncio.Event) -> None:
        """Wait after a failure; who needs a fresh look may cut short what is ours."""
        wait = self._patience.wait
        least = max(self.client.config.poll_interval, _LEAST_BACKOFF)
        held = wait if self._patience.is_asked_for else min(wait, least)
        if not await self.clock.wait(stop, held):
            await self.clock.wait(self._wake, wait - held)

    async def _touch(self) -> None:
        """Keep on disk when the document was last seen, also if nothing happens."""
        self._touched = self.clock.monotonic()
        if self.watch.seen is None:
            return
        async with self._keeping:
            held = self._held.told_of(self.watch)
            body = checkpoint.encode(held, self._moment())
            await self.outbox.save({CHECKPOINT: body})

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
        read = self._moment()
        async with self._keeping:
            document = await self._take(answer, read)
        self._etag = answer.etag
        self._succeeded()
        return Look(
            document=document,
            watch=self.watch,
            now=answer.date or read.at,
            began=began,
            read=read,
            is_unconditional=etag is None,
        )

    async def _take(self, answer: Answer, moment: Moment) -> Document:
        is_same = answer.body is None or answer.body == self._body
        is_told = self.watch.fall is None and not self._again
        if self.document is not None and is_same and is_told:
            self.watch = same_again(self.watch, moment)
            await self._tell_of_held()
            return self.document
        body = self._body if answer.body is None else answer.body
        document = parse(body or b"")
        await self._observe(document, moment)
        self._body, self.document = body, document
        return document

    @property
    def _again(self) -> frozenset[str]:
        """What is to be told again: nothing while steps wait for the identity."""
        return frozenset() if self.is_waiting else self.outbox.again

    def _moment(self) -> Moment:
        return Moment(at=self.clock.now(), monotonic=self.clock.monotonic())

    async def _observe(self, document: Document, now: Moment) -> None:
        before, again = self.watch, self._again
        is_any_gone = not before.known.keys() <= document.events.keys()
        after, steps = diff(
            before,
            document,
            now,
            poll_interval=self.client.config.poll_interval,
            relayed=await self.outbox.posted() if is_any_gone else frozenset(),
            again=again,
        )
        unseen = after.known.keys() - document.events.keys()  # they may come back
        for fault in document.faults:
            log.error("element of the document left out", extra={"fault": fault})
        seen = Observation(
            at=now.at,
            document=document,
            steps=steps,
            is_changed=self.with_documents
            and before.seen is not None
            and document.incarnation != before.incarnation,
            previous_incarnation=before.incarnation,
        )
        sightings = frozenset(before.known.keys() | after.known.keys())
        held = self._held.plus(seen, before)
        await self._keep(held, after, now, sightings, again - unseen)
        self.watch, self._touched = after, self.clock.monotonic()
        self.changed()
        self.client.turns.sort()
        self._report(document, steps)

    async def _tell_of_held(self) -> None:
        """Tell what was observed before and may be told by now."""
        if self._held.observations:
            now = self._moment()
            await self._keep(self._held, self.watch, now, frozenset(), frozenset())

    async def _keep(
        self,
        held: Held,
        watch: Watch,
        now: Moment,
        sightings: frozenset[str],
        again: frozenset[str],
    ) -> None:
        """Commit what is to be told now, with what is known of the document by then."""
        ready, rest = held.observations, Held()
        if self.is_waiting:
            ready, rest = held.split(now.at)
        if ready or not rest.observations:
            await self.outbox.commit(
                await self._tell(ready),
                now=now.at.timestamp(),
                checkpoint=Checkpoint(
                    body=checkpoint.encode(rest.told_of(watch)),
                    sightings=sightings,
                    again=again,
                ),
            )
        self._held = rest

    async def _tell(self, observations: Sequence[Observation]) -> list[Told]:
        causes = list(causes_of(self.teller, observations))
        times = await self.outbox.told(causes) if causes else {}
        return told_of(self.teller, observations, times)

    def _report(self, document: Document, steps: tuple[Transition, ...]) -> None:
        for step in steps:
            event = step.event
            log.info(
                "transition observed",
                extra={
                    "transition": step.kind.value,
                    "eventId": event.event_id,
                    "eventType": event.event_type,
                    "incarnation": document.incarnation,
                },
            )
            label = type_label(event.event_type)
            self.metrics.transitions.labels(step.kind.value, label).inc()
        gauge = self.metrics.scheduled_events
        gauge.clear()
        for event in document.events.values():
            status = event.status if event.status in {"Scheduled", "Started"} else ""
            gauge.labels(type_label(event.event_type), status or "other").inc()
        if document.incarnation is not None:
            self.metrics.incarnation.set(document.incarnation)

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
    """Return what it means: the document is as good as not read."""
    return MetadataUnavailableError(str(fault), outcome="no-room")


def _stopping() -> MetadataError:
    return MetadataUnavailableError("the bridge is stopping", outcome="stopping")
