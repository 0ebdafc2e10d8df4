"""Requests for POSTs: data until their conclusion, decided in the poller's loop.

    asked ─▶ look ─▶ decide ─┬─ a conclusion
      ▲                      ├─ wait: for a time, or until the event changes
      │                      └─ agreed ─▶ its turn: marked on disk ─▶ decided anew ─▶
      │                                                        POST ─┬─ relayed
      └──────── refused, no answer, no document: later, or failed ◀──┘

All requests for one EventId share a POST; each is decided separately. One that joins
shares it if the look began after it had joined. The loop waits for no write: a mark is
written meanwhile, and when it is there, the request is decided anew by the newest look.
It was written after the commit of its look, so a mark on disk proves that the look is,
too. Only the next two are marked: a mark that no POST follows is in doubt after a kill.
After a POST, its EventId needs a look that began after that POST had ended.

A turn of the loop touches only what is due: each request stands in the queue of what
it waits for. What writes, and what is to be posted together with it, stands in none.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from bridge.approvals.context import Pending
from bridge.approvals.policy import Conclusion, Post, Wait
from bridge.events.document import Document, ScheduledEvent
from bridge.events.look import Look, Need
from bridge.events.start_result import StartAnswer
from bridge.events.vocabulary import NOTHING_TO_APPROVE
from bridge.foundation.errors import MetadataError
from bridge.imds.poller import Poller

_LEAST_WAIT = 0.001
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired
_PROOF_AGE = 5.0  # a rule's commands are looked up again after so many seconds


class Queue:
    """Requests in an order, each at most once."""

    def __init__(self) -> None:
        self.order: list[tuple[float, float, int, Pending]] = []
        self._places: dict[int, tuple[float, float, int, Pending]] = {}

    def put(self, one: Pending, first: float, second: float = 0.0) -> None:
        """Give a request its place, instead of any that it had."""
        self.drop(one)
        self._places[one.number] = place = (first, second, one.number, one)
        insort(self.order, place)

    def drop(self, one: Pending) -> None:
        """Take a request out, if it is there."""
        if place := self._places.pop(one.number, None):
            del self.order[bisect_left(self.order, place)]

    def until(self, first: float) -> list[Pending]:
        """Return those with a place up to this one."""
        end = bisect_right(self.order, (first, math.inf))
        return [one for *_, one in self.order[:end]]

    def next_after(self, first: float) -> float:
        """Return the first place behind this one; infinite if there is none."""
        index = bisect_right(self.order, (first, math.inf))
        return self.order[index][0] if index < len(self.order) else math.inf


class Requests:
    """All requests that have no conclusion yet; the loop of ``poller`` decides them."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self._lines: dict[str, list[Pending]] = {}  # by EventId; a line shares a POST
        self._later, self._ends = Queue(), Queue()  # by ``since``; by ``end``
        self._asked = Queue()  # by the look after which one must begin
        self._agreed, self._marked = Queue(), Queue()  # the most urgent first
        self._writing: dict[str, int] = {}  # how many of each line that writes
        self._ready: list[Pending] = []  # the line of the next POST
        self._posting: list[Pending] = []
        self._seen: Document | None = None

    @classmethod
    async def pursue(cls, one: Pending) -> Conclusion | None:
        """Return the conclusion of a request; None if the process stops first."""
        poller, observations = one.context.poller, one.context.outbox.observations
        one.standing.was_seen = await observations.was_seen(one.key)
        await one.prove()
        one.is_over, one.after = poller.is_over, poller.reads
        one.began = one.since = now = poller.clock.monotonic()
        if poller.imds_state not in {"ok", "starting"}:  # a read may take long
            one.fault = f"IMDS does not answer: {poller.imds_state}"
            one.end = now + max(one.left(now), 0.0)
        requests = poller.requests
        if not isinstance(requests, cls):
            poller.requests = requests = cls(poller)
        requests._lines.setdefault(one.key, []).append(one)
        try:
            await requests._work(one)
        finally:
            requests._drop(one)
        await one.unmark()
        return one.conclusion

    async def _work(self, one: Pending) -> None:
        """Write what is to be written for a request, until its conclusion."""
        self._put(one)
        while not one.is_over:
            self.poller.wake.set()
            await one.bell.wait()
            one.bell.clear()
            if one.work is not None:
                await one.work()
                self._wrote(one)

    def _write(self, one: Pending, work: Callable[[], Awaitable[None]]) -> None:
        """Let a request's own task write something, unless that writes already."""
        if one.work is None:
            one.work = work
            self._writing[one.key] = self._writing.get(one.key, 0) + 1
            one.bell.set()
            is_first = self._writing[one.key] == 1
            self._put(*(self._lines[one.key] if is_first else [one]))

    def _wrote(self, one: Pending) -> None:
        """Take note that a request writes no more."""
        if one.work is not None:
            one.work, left = None, self._writing.pop(one.key) - 1
            if left:
                self._writing[one.key] = left
            self._put(*([one] if left else self._lines.get(one.key, ())))

    def _put(self, *requests: Pending) -> None:
        """Let requests stand in the queue of what they wait for."""
        now = self.poller.clock.monotonic()
        for one in requests:
            self._leave(one)
            if one.is_over:
                continue
            if one.end < math.inf and not one.standing.may_have_worked:
                self._ends.put(one, one.end)
            if one.work is not None:
                continue
            if one.since > now:
                self._later.put(one, one.since)
            elif isinstance(one.step, Post):
                if one.key not in self._writing:
                    queue = self._marked if one.is_marked else self._agreed
                    queue.put(one, one.nearness, one.since)
            else:
                self._asked.put(one, one.after)

    def _leave(self, one: Pending) -> None:
        for queue in (
            *(self._later, self._asked, self._agreed),
            *(self._marked, self._ends),
        ):
            queue.drop(one)

    def turn(self, look: Look | None) -> Need:
        """Decide what can be decided now, by the last look if a POST may follow it."""
        now, need = self.poller.clock.monotonic(), Need()
        self._notice_changes()
        self._put(*self._later.until(now))
        if look is not None:
            for one in self._asked.until(look.number - 1):
                if look.began < one.since:
                    one.after = look.number
                    self._put(one)
                else:
                    self._decide(one, look, now)
            need.event = self._next(look, now)
        agreed = self._agreed.order or self._marked.order
        need.look = bool(self._asked.order or (look is None and agreed))
        need.at = self._later.next_after(-math.inf)
        return need

    def _notice_changes(self) -> None:
        """Let those be decided anew whose event has changed."""
        last = self.poller.latest
        if last is None or last.document is self._seen:
            return
        self._seen = last.document
        for one in self._all():
            one.standing.was_seen |= one.known is not None  # also if it waits now
            if one.step is not None and one.known != one.shown:
                one.step, one.since = None, -math.inf
                self._put(one)

    def _all(self) -> list[Pending]:
        return [one for line in self._lines.values() for one in line]

    def _next(self, look: Look, now: float) -> ScheduledEvent | None:
        """Return the most urgent event whose mark is there; let the next be marked."""
        self._ready, marked, agreed = [], self._marked.order, self._agreed.order
        while marked and not self._ready:
            self._ready = self._line(marked[0][-1].key, look, now)
        while agreed and not self._writing:  # one at a time: it may be in vain
            if len(marked) > 1 and marked[1] < agreed[0]:
                break
            self._line(agreed[0][-1].key, look, now)
        step = self._ready[0].step if self._ready else None
        return step.event if isinstance(step, Post) else None

    def _line(self, key: str, look: Look, now: float) -> list[Pending]:
        """Return those that may share a POST; empty while their marks are written."""
        for one in [*self._lines[key]]:
            if isinstance(one.step, Post):
                self._decide(one, look, now)
        line = self._lines.get(key, ())
        found = [one for one in line if isinstance(one.step, Post)]
        for one in found:
            if not one.is_marked:
                self._write(one, one.mark)
        return [] if key in self._writing else found

    def _decide(self, one: Pending, look: Look, now: float) -> None:
        """Decide a request by a look."""
        if now - one.proven > _PROOF_AGE:
            self._write(one, one.prove)
            return
        step = one.decide(look, now)
        if isinstance(step, Conclusion):
            self._conclude(one, step)
            return
        one.step = step
        one.rest()
        if not one.failures:
            one.end = math.inf  # it came while IMDS did not answer
        if isinstance(step, Wait):
            one.since = now + max(min(step.seconds, _LONGEST_WAIT), _LEAST_WAIT)
            if one.is_marked:
                self._write(one, one.unmark)
        elif one.key in self._writing and not one.is_marked:
            self._write(one, one.mark)  # together with the others of its line
        self._put(one)

    def _conclude(self, one: Pending, conclusion: Conclusion | None) -> None:
        if not self._drop(one):
            return  # the caller was cancelled meanwhile
        if conclusion is not None:
            one.conclusion = replace(conclusion, imds_status=one.status)
            is_last = one.key not in self._lines
            rotation, kind = one.context.rotation, conclusion.kind
            if rotation is not None and is_last and kind not in NOTHING_TO_APPROVE:
                rotation.stay(one.key)
        one.bell.set()

    def _drop(self, one: Pending) -> bool:
        line = self._lines.get(one.key, [])
        if one not in line:
            return False
        line.remove(one)
        one.is_over = True
        self._leave(one)
        self._wrote(one)
        if not line:
            del self._lines[one.key]
        if not self._lines and self.poller.requests is self:
            self.poller.requests = None
        return True

    def begin(self) -> None:
        """Take note that the POST begins."""
        self._posting = self._ready
        for one in self._posting:
            one.standing.was_posted = True

    def answered(self, answer: StartAnswer) -> None:
        """Take the answer to the POST."""
        now, posting, self._posting = self.poller.clock.monotonic(), self._posting, []
        key = posting[0].key
        for one in self._lines.get(key, ()):
            one.since, one.step = max(one.since, now), None
            one.after = self.poller.reads
        for one in posting:
            if end := one.answered(answer, now):
                self._conclude(one, end)
        self._put(*self._lines.get(key, ()))

    def failed(self, error: MetadataError, began: float) -> None:
        """Take note of a read that has failed."""
        now = self.poller.clock.monotonic()
        wish = getattr(error, "retry_after", None)
        for one in self._all():
            if one.since <= began and one.after < self.poller.reads:
                if end := one.fail(str(error), wish, now):
                    self._conclude(one, end)
                else:
                    self._put(one)

    def end_late(self, began: float = -math.inf) -> float:
        """Give up what has failed until its deadline, unless a POST is in doubt.

        What was late when a read ``began`` is decided by that. Return the seconds until
        the next deadline; infinite if there is none.
        """
        now = self.poller.clock.monotonic()
        for one in self._ends.until(now):
            if one.end > began and one not in self._posting:
                self._conclude(one, one.failed())
        return max(self._ends.next_after(now) - now, _LEAST_WAIT)

    def close(self) -> None:
        """End all requests but those whose POST is in flight: the process stops."""
        for one in self._all():
            if one not in self._posting:
                self._conclude(one, None)
