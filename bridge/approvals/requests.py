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
too. After a POST, its EventId needs a look that began after that POST had ended.
"""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from bridge.approvals.context import Pending
from bridge.approvals.policy import Conclusion, Post, Wait
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look, Need
from bridge.events.start_result import StartAnswer
from bridge.events.vocabulary import NOTHING_TO_APPROVE
from bridge.foundation.errors import MetadataError
from bridge.imds.poller import Poller

_LEAST_WAIT = 0.001
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired
_PROOF_AGE = 5.0  # a rule's commands are looked up again after so many seconds


class Requests:
    """All requests that have no conclusion yet; the loop of ``poller`` decides them."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self._all: list[Pending] = []
        self._ready: list[Pending] = []  # those that share the next POST
        self._posting: list[Pending] = []

    @classmethod
    async def pursue(cls, one: Pending) -> Conclusion | None:
        """Return the conclusion of a request; None if the process stops first.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        poller, observations = one.context.poller, one.context.outbox.observations
        await one.store()
        one.was_seen = await observations.was_seen(one.key)
        await one.prove()
        one.is_over, one.after = poller.is_over, poller.reads
        one.began = one.since = now = poller.clock.monotonic()
        if poller.imds_state not in {"ok", "starting"}:  # a read may take long
            one.fault = f"IMDS does not answer: {poller.imds_state}"
            one.end = now + max(one.left(now), 0.0)
        requests = poller.requests
        if not isinstance(requests, cls):
            poller.requests = requests = cls(poller)
        requests._all.append(one)
        try:
            await requests._work(one)
        finally:
            requests._drop(one)
        if one.conclusion is None or one.is_marked:
            await one.withdraw()
        return one.conclusion

    async def _work(self, one: Pending) -> None:
        """Write what is to be written for a request, until its conclusion."""
        while not one.is_over:
            self.poller.wake.set()
            await one.bell.wait()
            one.bell.clear()
            if one.work is not None:
                await one.work()
                one.work = None

    def turn(self, look: Look | None) -> Need:
        """Decide what can be decided now; return what is to be done next.

        Args:
            look: the last look, if a POST may follow it.
        """
        now, need = self.poller.clock.monotonic(), Need()
        agreed = dict[str, list[Pending]]()
        for one in [*self._all]:
            if one.step is not None and one.known != one.shown:
                one.step, one.since = None, -math.inf
            if one.since > now:
                need.at = min(need.at, one.since)
            elif look is None or look.number <= one.after or look.began < one.since:
                need.look = True
            elif isinstance(one.step, Post) or self._agrees(one, look, now):
                agreed.setdefault(one.key, []).append(one)
        if look is not None:
            need.event = self._next(agreed, look, now)
        return need

    def _next(
        self, agreed: Mapping[str, list[Pending]], look: Look, now: float
    ) -> ScheduledEvent | None:
        """Return the most urgent event whose mark is there; let the next be marked."""
        self._ready = []
        writing = {one.key for one in self._all if one.work is not None}
        for key in sorted(agreed, key=lambda key: _place(agreed[key])):
            is_marked = any(one.is_marked for one in agreed[key])
            if self._ready if is_marked else writing - {key}:
                continue  # one EventId at a time: most marks would be in vain
            line = [one for one in agreed[key] if self._agrees(one, look, now)]
            for one in line:
                if not one.is_marked:
                    one.write(one.mark)
            if any(one.work for one in line):
                writing.add(key)
            else:
                self._ready = line
        step = self._ready[0].step if self._ready else None
        return step.event if isinstance(step, Post) else None

    def _agrees(self, one: Pending, look: Look, now: float) -> bool:
        """Decide a request; return whether it may be posted."""
        if now - one.proven > _PROOF_AGE:
            one.write(one.prove)
            return False
        step = one.decide(look, now)
        if isinstance(step, Conclusion):
            self._conclude(one, step)
            return False
        one.step = step
        one.rest()
        if not one.failures:
            one.end = math.inf  # it came while IMDS did not answer
        if isinstance(step, Wait):
            one.since = now + max(min(step.seconds, _LONGEST_WAIT), _LEAST_WAIT)
            if one.is_marked:
                one.write(one.unmark)
        return isinstance(step, Post)

    def _conclude(self, one: Pending, conclusion: Conclusion | None) -> None:
        if not self._drop(one):
            return  # the caller was cancelled meanwhile
        if conclusion is not None:
            one.conclusion = replace(conclusion, imds_status=one.status)
            is_last = all(other.key != one.key for other in self._all)
            rotation, kind = one.context.rotation, conclusion.kind
            if rotation is not None and is_last and kind not in NOTHING_TO_APPROVE:
                rotation.stay(one.key)
        one.is_over = True
        one.bell.set()

    def _drop(self, one: Pending) -> bool:
        if one not in self._all:
            return False
        self._all.remove(one)
        if not self._all and self.poller.requests is self:
            self.poller.requests = None
        return True

    def begin(self) -> None:
        """Take note that the POST begins."""
        self._posting = self._ready
        for one in self._posting:
            one.was_sent = True

    def answered(self, answer: StartAnswer) -> None:
        """Take the answer to the POST."""
        now, posting, self._posting = self.poller.clock.monotonic(), self._posting, []
        for one in self._all:
            if one.key == posting[0].key:
                one.since, one.step = max(one.since, now), None
                one.after = self.poller.reads
        for one in posting:
            if end := one.answered(answer, now):
                self._conclude(one, end)

    def failed(self, error: MetadataError, began: float) -> None:
        """Take note of a read that has failed."""
        now = self.poller.clock.monotonic()
        wish = getattr(error, "retry_after", None)
        for one in [*self._all]:
            has_waited = one.since <= began and one.after < self.poller.reads
            if has_waited and (end := one.fail(str(error), wish, now)):
                self._conclude(one, end)

    def end_late(self, began: float = -math.inf) -> float:
        """Give up what has failed until its deadline, unless a POST is in doubt.

        Args:
            began: when the present read began: it decides what was late already.

        Returns:
            The seconds until the next deadline; infinite if there is none.
        """
        now, least = self.poller.clock.monotonic(), math.inf
        for one in [*self._all]:
            if one.may_have_worked or one in self._posting or one.end <= began:
                continue
            if one.end <= now:
                self._conclude(one, one.failed())
            else:
                least = min(least, one.end - now)
        return max(least, _LEAST_WAIT)

    def close(self) -> None:
        """End all requests but those whose POST is in flight: the process stops."""
        for one in [*self._all]:
            if one not in self._posting:
                self._conclude(one, None)


def _place(line: list[Pending]) -> tuple[float, float]:
    """Return the place in line: by NotBefore, then who has waited longest."""
    return min((one.nearness, one.since) for one in line)
