"""Bugs to be planted on the way of an approval, in memory, and in what is kept."""

import asyncio
import math
from typing import Any

from msgspec.structs import replace

from bridge.approvals import policy
from bridge.approvals.context import ApprovalContext, Pending
from bridge.approvals.message_flow import Handling
from bridge.approvals.policy import Standing
from bridge.approvals.requests import Requests
from bridge.approvals.rules import ReplyRules, judge
from bridge.events import transitions
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.watch import Moment
from bridge.imds import poller
from bridge.imds.poller import Poller
from bridge.outbox.deliveries import Deliveries
from bridge.outbox.image import Image
from bridge.outbox.pruning import Pruning
from bridge.outbox.state import Ages
from bridge.outbox.storage.journal import Journal, Rows
from bridge.outbox.store import Outbox
from bridge.pipeline.settling import Settling
from tests.simulation.planting import Patch, bug

# -- approvals -----------------------------------------------------------------------


@bug
def post_is_not_marked_before_it_is_begun(patch: Patch) -> None:
    async def mark(self: Pending) -> None:
        self.is_marked = True

    patch.setattr(Pending, "mark", mark)


@bug
def intent_is_ignored_after_a_crash(patch: Patch) -> None:
    pursue = Requests.pursue

    async def forgetful(one: Pending) -> Any:
        one.was_tried = one.is_marked = False
        one.standing = Standing()
        return await pursue(one)

    patch.setattr(Requests, "pursue", forgetful)


@bug
def post_without_an_answer_did_not_work(patch: Patch) -> None:
    answered = Pending.answered

    def sure(self: Pending, answer: StartAnswer, now: float) -> Any:
        if answer.result is StartResult.IN_DOUBT:
            answer = StartAnswer(result=StartResult.UNAVAILABLE, text=answer.text)
        return answered(self, answer, now)

    patch.setattr(Pending, "answered", sure)


@bug
def message_is_settled_before_its_outcome_is_kept(patch: Patch) -> None:
    conclude, later = ApprovalContext.conclude, set[asyncio.Task[None]]()

    async def soon(self: ApprovalContext, *given: Any, **named: Any) -> None:
        async def after() -> None:
            await asyncio.sleep(0.5)
            await conclude(self, *given, **named)

        later.add(asyncio.get_running_loop().create_task(after()))

    patch.setattr(ApprovalContext, "conclude", soon)


@bug
def decision_is_kept_before_its_outcome(patch: Patch) -> None:
    commit = Outbox.commit

    async def split(self: Outbox, events: Any, **given: Any) -> bool:
        if decisions := given.pop("decisions", ()):
            await commit(self, [], decisions=decisions, now=given["now"])
        return await commit(self, events, **given)

    patch.setattr(Outbox, "commit", split)


@bug
def reply_goes_wherever_it_is_asked_for(patch: Patch) -> None:
    patch.setattr(ReplyRules, "entity", lambda _, reply_to: reply_to or None)


@bug
def message_that_was_delivered_before_gets_no_reply(patch: Patch) -> None:
    reply = Handling._reply

    def rare(self: Handling) -> Any:
        return None if self.message.delivery_count else reply(self)

    patch.setattr(Handling, "_reply", rare)


@bug
def expiry_is_judged_by_the_clock_of_the_machine(patch: Patch) -> None:
    def by_own_clock(**given: Any) -> Any:
        return Look(**{**given, "now": given["read"].at})

    patch.setattr(poller, "Look", by_own_clock)


@bug
def delay_of_a_rule_is_skipped(patch: Patch) -> None:
    def at_once(*given: Any, **named: Any) -> Any:
        return replace(judge(*given, **named), left=0.0)

    patch.setattr(policy, "judge", at_once)


@bug
def delay_of_a_rule_goes_on_though_the_event_has_changed(patch: Patch) -> None:
    def since(self: Any, event: Any) -> Any:
        before = self.watch.known.get(event.key)
        return self.now if before is None else before.since.anchored(self.now)

    patch.setattr(transitions._Look, "since", since)


@bug
def delay_of_a_rule_counts_a_jump_of_the_clock(patch: Patch) -> None:
    def by_the_wall(self: Moment, now: Moment) -> float:
        return (now.at - self.at).total_seconds()

    patch.setattr(Moment, "least_elapsed", by_the_wall)


@bug
def delay_of_a_rule_counts_a_jump_before_a_restart(patch: Patch) -> None:
    def at_once(self: Moment, _: Moment) -> Moment:
        return Moment(at=self.at, monotonic=None)

    patch.setattr(Moment, "proven", at_once)


@bug
def rule_approves_only_what_is_asked_for(patch: Patch) -> None:
    patch.setattr(policy, "rule_that_approves", lambda *_: None)
    patch.setattr("bridge.approvals.auto_approve.rule_that_approves", lambda *_: None)


@bug
def what_the_approver_saw_is_not_compared(patch: Patch) -> None:
    patch.setattr(policy, "is_material", lambda *_: False)


@bug
def post_goes_out_on_an_old_document(patch: Patch) -> None:
    turn = Requests.turn

    def by_any(self: Requests, look: Look | None) -> Any:
        for one in self._all():
            if one.since <= self.poller.clock.monotonic():
                one.after, one.since = 0, -math.inf
                self._put(one)
        return turn(self, look)

    patch.setattr(Requests, "turn", by_any)
    patch.setattr(Poller, "_usable", lambda self: self.latest)
    patch.setattr(Poller, "_is_old", lambda *_: False)


@bug
def post_in_doubt_is_repeated_without_a_look(patch: Patch) -> None:
    turn = Requests.turn

    def again(self: Requests, look: Look | None) -> Any:
        for one in self._all():
            if one.failures and one.since <= self.poller.clock.monotonic():
                one.after, one.since = 0, -math.inf
                self._put(one)
        return turn(self, look)

    patch.setattr(Requests, "turn", again)


@bug
def requests_to_imds_keep_no_distance(patch: Patch) -> None:
    made = Poller.__init__

    def hasty(self: Poller, *given: Any, **_: Any) -> None:
        made(self, *given[:4])
        self._spacing = 0.0

    patch.setattr(Poller, "__init__", hasty)


@bug
def fresh_look_waits_for_the_next_poll(patch: Patch) -> None:
    turn = Requests.turn

    def patient(self: Requests, look: Look | None) -> Any:
        need = turn(self, look)
        need.look = False
        return need

    patch.setattr(Requests, "turn", patient)


# -- memory, and what is kept --------------------------------------------------------


@bug
def what_the_disk_has_refused_is_forgotten(patch: Patch) -> None:
    patch.setattr(Journal, "back", Journal.done)


@bug
def memory_takes_any_number_of_events(patch: Patch) -> None:
    patch.setattr(Image, "has_room", lambda *_, **__: True)


@bug
def event_from_memory_is_said_to_be_durable(patch: Patch) -> None:
    signed = Outbox._signed

    def durable(self: Outbox, *given: Any, **_: Any) -> bytes:
        return signed(self, *given, is_durable=True)

    patch.setattr(Outbox, "_signed", durable)


@bug
def what_waits_is_pruned(patch: Patch) -> None:
    prune = Pruning.prune

    async def careless(self: Pruning, *, before: float, **given: Any) -> int:
        image, rows = self.state.image, Rows()
        for lines in image.sinks.values():
            for one in [w for w in lines.waiting.values() if w.created < before]:
                lines.remove(one)
                rows["deliveries", (one.id,)] = None
        self.state.database.put(rows)
        return await prune(self, before=before, **given)

    patch.setattr(Pruning, "prune", careless)


@bug
def memory_of_events_that_live_is_pruned(patch: Patch) -> None:
    prune = Pruning.prune

    async def forgetful(self: Pruning, **given: Any) -> int:
        return await prune(self, **given | {"alive": frozenset()})

    patch.setattr(Pruning, "prune", forgetful)


@bug
def due_times_beyond_the_longest_backoff_stay_at_a_start(patch: Patch) -> None:
    async def stay(self: Deliveries, *_: Any, **__: Any) -> None:
        pass

    patch.setattr(Deliveries, "make_due", stay)


@bug
def how_old_deliveries_are_is_forgotten_at_a_restart(patch: Patch) -> None:
    def keep(self: Settling) -> None:
        pass

    patch.setattr(Settling, "keep", keep)
    patch.setattr(Ages, "note", lambda *_: None)
