"""Bugs to be planted on the way of an event: seen, published, and tried again."""

from typing import Any

from msgspec.structs import replace

from bridge.events import build, transitions
from bridge.events.vocabulary import TransitionKind
from bridge.events.watch import Watch
from bridge.foundation.pace import RetryPolicy
from bridge.imds.poller import Poller
from bridge.outbox import store
from bridge.outbox.deliveries import Deliveries
from bridge.outbox.facts import Observations
from bridge.outbox.image import Image
from bridge.outbox.line import Lines
from bridge.outbox.records import Delivery
from bridge.outbox.state import Ages, Wakeups
from bridge.pipeline import attempt, circuit
from bridge.pipeline.attempt import Attempts, RelayPolicy
from bridge.pipeline.circuit import Circuit
from bridge.pipeline.settling import Settling
from tests.simulation.planting import Patch, bug

# -- what is seen, and its ids -----------------------------------------------------


@bug
def change_of_the_description_is_no_change(patch: Patch) -> None:
    def differ(before: Any, after: Any) -> bool:
        one, other = dict(before.canonical), dict(after.canonical)
        one.pop("Description", None)
        other.pop("Description", None)
        return one != other

    patch.setattr(transitions, "_differ", differ)


@bug
def start_is_published_as_an_update(patch: Patch) -> None:
    def changed(self: Any, before: Any, event: Any) -> Any:
        return self._step(TransitionKind.UPDATED, event, before)

    patch.setattr(transitions._Look, "_changed", changed)


@bug
def every_event_is_said_to_have_been_announced(patch: Patch) -> None:
    patch.setattr(transitions._Look, "announced", lambda *_: True)


@bug
def n_is_stuck_at_one(patch: Patch) -> None:
    counts = Observations.counts

    async def stuck(self: Observations, causes: Any) -> dict[str, int]:
        found = await counts(self, causes)
        return {cause: min(times, 1) for cause, times in found.items()}

    patch.setattr(Observations, "counts", stuck)


@bug
def id_of_the_end_holds_the_last_state(patch: Patch) -> None:
    cause_of = build.cause_of

    def cause(step: Any) -> Any:
        event_id, kind, before, after = cause_of(step)
        return [event_id, kind, before, after or step.event.canonical]

    patch.setattr(build, "cause_of", cause)


@bug
def absence_after_a_gap_is_a_cancellation(patch: Patch) -> None:
    def is_cancelled(self: Any, before: Any) -> bool:
        return before.event.key not in self.relayed

    patch.setattr(transitions._Look, "_is_cancelled", is_cancelled)


@bug
def fall_of_the_number_is_forgotten_at_a_restart(patch: Patch) -> None:
    to_json = Watch.to_json

    def forgetful(watch: Any, *given: Any) -> bytes:
        return to_json(replace(watch, fall=None), *given)

    patch.setattr(Watch, "to_json", forgetful)


@bug
def document_is_looked_at_every_ten_seconds(patch: Patch) -> None:
    step = Poller.step

    async def rare(self: Poller, *given: Any) -> None:
        await step(self, *given)
        self._due_at = self.clock.monotonic() + 10.0

    patch.setattr(Poller, "step", rare)


# -- which sink gets what, in which order ----------------------------------------------


@bug
def sink_that_got_an_event_does_not_get_its_end(patch: Patch) -> None:
    patch.setattr(Observations, "followers", lambda *_: frozenset())


@bug
def nothing_is_urgent(patch: Patch) -> None:
    patch.setattr(store, "_window", lambda *_: (None, None))


@bug
def no_slot_is_kept_for_what_is_urgent(patch: Patch) -> None:
    patch.setattr(Attempts, "_goes_first", lambda *_: False)


@bug
def later_step_is_a_head_beside_the_earlier_one(patch: Patch) -> None:
    add = Lines.add

    def headstrong(self: Lines, one: Any) -> None:
        add(self, one)
        self._place(one)

    patch.setattr(Lines, "add", headstrong)


@bug
def dead_letter_keeps_its_place_at_the_head(patch: Patch) -> None:
    end = Image.end

    def stay(self: Image, one: Any, state: Any, *given: Any, **named: Any) -> None:
        end(self, one, state, *given, **named)
        for other in self.sinks[one.sink].of(one.key) if state == "dead" else ():
            other.is_sendable = False

    patch.setattr(Image, "end", stay)


@bug
def commit_wakes_nobody(patch: Patch) -> None:
    patch.setattr(Wakeups, "wake", lambda *_: None)


# -- what fails ----------------------------------------------------------------------


@bug
def retry_after_is_ignored(patch: Patch) -> None:
    patch.setattr(circuit, "wish_of", lambda _: 0.0)
    patch.setattr(attempt, "wish_of", lambda _: 0.0)


@bug
def retry_after_holds_for_one_delivery_only(patch: Patch) -> None:
    failed = Circuit.failed

    def forgetful(self: Circuit, *given: Any, **named: Any) -> None:
        failed(self, *given, **named)
        self.hold_until = 0.0

    patch.setattr(Circuit, "failed", forgetful)


@bug
def what_fails_is_tried_at_once(patch: Patch) -> None:
    patch.setattr(RelayPolicy, "delay", lambda *_, **__: 0.1)


@bug
def backoff_has_no_upper_bound(patch: Patch) -> None:
    def delay(
        self: RetryPolicy, attempt: int, *, unit: float, retry_after: Any = None
    ) -> float:
        return max(self.first * 4.0**attempt, retry_after or 0.0)

    patch.setattr(RetryPolicy, "delay", delay)


@bug
def urgent_backoff_is_the_ordinary_one(patch: Patch) -> None:
    delay = RelayPolicy.delay

    def ordinary(self: RelayPolicy, one: Delivery, *given: Any, **named: Any) -> float:
        return delay(self, replace(one, urgent_until=None), *given, **named)

    patch.setattr(RelayPolicy, "delay", ordinary)


@bug
def sink_that_is_away_is_not_tried_every_three_seconds(patch: Patch) -> None:
    patch.setattr(Circuit, "wants_try", lambda *_: False)


@bug
def return_of_a_sink_makes_nothing_due(patch: Patch) -> None:
    patch.setattr(Circuit, "takes_release", lambda *_: False)


@bug
def sink_that_refuses_everything_is_never_parked(patch: Patch) -> None:
    patch.setattr(circuit, "_PARK_AFTER", 10**9)


@bug
def age_counts_a_minute_more_with_each_life(patch: Patch) -> None:
    saved = Ages.saved

    def older(self: Ages, sink: str) -> float:
        return saved(self, sink) + 120.0

    patch.setattr(Ages, "saved", older)


@bug
def nothing_is_ever_too_old(patch: Patch) -> None:
    end_of = RelayPolicy.end_of

    def never(self: RelayPolicy, *given: Any, age: float) -> Any:
        return end_of(self, *given, age=0.0)

    patch.setattr(RelayPolicy, "end_of", never)


@bug
def age_stands_still_while_the_disk_is_full(patch: Patch) -> None:
    stood = dict[str, float]()

    def running(self: Settling) -> float:
        seconds = self.circuit.running.at(self.clock.monotonic())
        if not self.outbox.database.is_degraded:
            stood.pop(self.sink, None)
            return seconds
        return stood.setdefault(self.sink, seconds)

    patch.setattr(Settling, "running", running)


@bug
def due_times_stay_when_the_clock_is_set_back(patch: Patch) -> None:
    async def stay(self: Deliveries, sink: str, seconds: float) -> None:
        pass

    patch.setattr(Deliveries, "make_earlier", stay)


@bug
def attempt_that_failed_is_no_news(patch: Patch) -> None:
    def put_off(self: Settling, one: Any, error: Any) -> None:
        self.landed[one.delivery.id] = one.delivery, self.clock.monotonic()

    patch.setattr(Settling, "_put_off", put_off)
