"""The diff, clause by clause of config/events.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import Document, ScheduledEvent, exact, parse
from bridge.events.transitions import Transition, diff, same_again
from bridge.events.vocabulary import TransitionKind
from bridge.events.watch import Moment, Watch
from tests.support.builders import (
    EVENT_ID,
    document,
    imds_event,
    not_before,
    recorded,
    started,
)
from tests.support.fakes import START
from tests.support.strategies import documents, histories, moments, odd_documents

Fields = dict[str, object]


@dataclass
class Observer:
    """Looks at one document after the other; each look is a second after the last."""

    relayed: frozenset[str] = frozenset()
    interval: float = 1.0
    watch: Watch = field(default_factory=Watch)
    at: datetime = START
    monotonic: float = 50.0

    def sees(
        self, *events: object, number: object, after: float = 1.0
    ) -> tuple[Transition, ...]:
        return self.takes(document(*events, incarnation=number), after=after)

    def takes(self, seen: Document, after: float = 1.0) -> tuple[Transition, ...]:
        self.at += timedelta(seconds=after)
        self.monotonic += after
        self.watch, steps = diff(
            self.watch,
            seen,
            self.now,
            poll_interval=self.interval,
            relayed=self.relayed,
        )
        return steps

    def steps(self, *events: object, number: object, after: float = 1.0) -> list[str]:
        """Return what ``sees`` does, as words."""
        return [
            f"{step.event.event_id} {step.kind}"
            for step in self.sees(*events, number=number, after=after)
        ]

    @property
    def now(self) -> Moment:
        return Moment(at=self.at, monotonic=self.monotonic)


def observer_of(*events: object, number: object = 2, **how: object) -> Observer:
    """Return an observer that has seen nothing, and then these events."""
    eye = Observer(**how)  # type: ignore[arg-type]  # the fields of Observer
    eye.sees(number=1)
    eye.sees(*events, number=number)
    return eye


# -- what appears and changes ------------------------------------------------


@pytest.mark.parametrize("status", ["Scheduled", "Acknowledged", "", None, 7])
def test_event_that_appears_in_any_status_but_started_is_scheduled(
    status: object,
) -> None:
    (step,) = Observer().sees(imds_event(EventStatus=status), number=2)

    assert step.kind == "scheduled"
    assert (step.previous, step.changes) == (None, ())


def test_event_that_appears_as_started_is_started() -> None:
    (step,) = Observer().sees(started(), number=2)

    assert (step.kind, step.previous, step.changes) == ("started", None, ())


@pytest.mark.parametrize("status", ["Scheduled", "Acknowledged", None])
def test_event_that_became_started_is_started(status: str | None) -> None:
    eye = observer_of(imds_event(EventStatus=status))

    (step,) = eye.sees(started(), number=3)

    assert step.kind == "started"
    assert step.previous is not None
    assert step.previous.status == status
    assert step.changes == ("EventStatus", "NotBefore")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({}, {"NotBefore": not_before(60)}, ("NotBefore",)),
        ({}, {"EventType": "Reboot", "DurationInSeconds": -1}, None),
        ({}, {"Resources": ["WestNO_0"]}, ("Resources",)),
        ({}, {"EventStatus": "Acknowledged"}, ("EventStatus",)),
        ({"EventStatus": "Started"}, {"EventStatus": "Scheduled"}, ("EventStatus",)),
        ({"EventStatus": "Started"}, {"EventStatus": "Over"}, ("EventStatus",)),
        ({"EventStatus": "Over"}, {"EventStatus": "Scheduled"}, ("EventStatus",)),
        ({"EventStatus": "Started"}, {"EventStatus": "Started", "X": 1}, ("X",)),
        ({}, {"NextYearsField": None}, ("NextYearsField",)),
        ({"NextYearsField": 1}, {}, ("NextYearsField",)),
        ({"DurationInSeconds": 1}, {"DurationInSeconds": 1.0}, ("DurationInSeconds",)),
        ({"DurationInSeconds": 1}, {"DurationInSeconds": True}, None),
    ],
)
def test_any_other_difference_is_updated_and_names_the_fields(
    before: Fields, after: Fields, changes: tuple[str, ...] | None
) -> None:
    eye = observer_of(imds_event() | before)

    (step,) = eye.sees(imds_event() | after, number=3)

    assert step.kind == "updated"
    assert step.changes == (changes or tuple(sorted(after)))
    assert step.previous is not None
    assert step.previous.raw == imds_event() | before


@pytest.mark.parametrize("event_id", [EVENT_ID, EVENT_ID.lower()])
def test_case_of_the_event_id_is_no_change(event_id: str) -> None:
    eye = observer_of(imds_event(EVENT_ID))

    assert eye.sees(imds_event(event_id), number=3) == ()


def test_order_of_resources_is_no_change() -> None:
    eye = observer_of(imds_event(Resources=["a", "b"]))

    assert eye.sees(imds_event(Resources=["b", "a"]), number=3) == ()


def test_same_number_with_other_content_is_a_change() -> None:
    eye = observer_of(imds_event(), number=2)

    assert eye.steps(started(), number=2) == [f"{EVENT_ID} started"]


def test_other_number_with_the_same_content_is_no_change() -> None:
    eye = observer_of(imds_event(), number=2)

    assert eye.sees(imds_event(), number=3) == ()


def test_document_without_a_number_is_compared_all_the_same() -> None:
    eye = observer_of(imds_event("a"), started("b"), number=None)

    found = eye.steps(started("a"), number=None)

    assert found == ["a started", "b completed"]


def test_event_that_was_gone_and_returns_is_new() -> None:
    eye = observer_of(imds_event(), number=2)
    eye.sees(number=3)

    (step,) = eye.sees(imds_event(), number=4)

    assert (step.kind, step.previous) == ("scheduled", None)


def test_steps_are_sorted_by_event_id_without_case() -> None:
    eye = observer_of(imds_event("b"), imds_event("D"))

    found = eye.steps(imds_event("c"), imds_event("A"), number=3)

    assert found == ["A scheduled", "b cancelled", "c scheduled", "D cancelled"]


@pytest.mark.parametrize(
    ("case", "story"),
    [
        ("live-migration", ["scheduled", "started", "completed"]),
        ("user-reboot", ["scheduled", "ended"]),
        ("mock-server", ["scheduled"]),
    ],
)
def test_recorded_case_gives_its_steps(case: str, story: list[str]) -> None:
    eye = Observer()
    steps = [step for body in recorded(case) for step in eye.takes(parse(body))]

    assert [step.kind for step in steps] == story


# -- what is gone --------------------------------------------------------------


def test_started_event_that_is_gone_is_completed() -> None:
    eye = observer_of(started())

    (step,) = eye.sees(number=3)

    assert step.kind == "completed"
    assert step.is_gone
    assert step.event.raw == started()
    assert step.previous is not None
    assert step.changes == ()


@pytest.mark.parametrize("after", [1, 9999])
@pytest.mark.parametrize("number", [2, 3, 9])
def test_started_event_that_is_gone_is_completed_whatever_was_missed(
    after: float, number: int
) -> None:
    assert observer_of(started()).steps(number=number, after=after) == [
        f"{EVENT_ID} completed"
    ]


@pytest.mark.parametrize("status", ["InProgress", "completed", "", None, 7])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_started_event_with_another_status_at_the_end_is_completed(
    status: object, *, is_restarted: bool
) -> None:
    eye = observer_of(started())
    eye.sees(imds_event(EventStatus=status), number=3)
    if is_restarted:
        eye.watch = restarted(eye.watch)
    eye.sees(imds_event(EventStatus="Odd"), number=4)

    assert eye.steps(number=5) == [f"{EVENT_ID} completed"]


def test_event_of_another_status_that_was_never_started_is_ended() -> None:
    eye = observer_of(imds_event())
    eye.sees(imds_event(EventStatus="InProgress"), number=3)

    assert eye.steps(number=4) == [f"{EVENT_ID} ended"]


def test_started_event_that_is_scheduled_again_is_cancelled() -> None:
    eye = observer_of(started())
    eye.sees(imds_event(), number=3)

    assert eye.steps(number=4) == [f"{EVENT_ID} cancelled"]


def test_scheduled_event_that_vanishes_under_our_eyes_is_cancelled() -> None:
    (step,) = observer_of(imds_event()).sees(number=3)

    assert step.kind == "cancelled"
    assert step.is_gone


@pytest.mark.parametrize("status", ["Acknowledged", "", None, 7])
def test_event_of_unknown_status_that_is_gone_has_ended(status: object) -> None:
    eye = observer_of(imds_event(EventStatus=status))

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


@pytest.mark.parametrize(
    ("interval", "after", "kind"),
    [
        (1.0, 10.0, "cancelled"),
        (1.0, 10.1, "ended"),
        (5.0, 15.0, "cancelled"),
        (5.0, 15.1, "ended"),
        (0.25, 10.0, "cancelled"),
    ],
)
def test_cancelled_only_if_seen_within_three_polls_or_ten_seconds(
    interval: float, after: float, kind: str
) -> None:
    eye = observer_of(imds_event(), interval=interval)

    assert eye.steps(number=3, after=after) == [f"{EVENT_ID} {kind}"]


def test_cancelled_only_if_the_wall_clock_agrees_how_long_ago() -> None:
    """The machine may have slept, in which monotonic time stands still."""
    eye = observer_of(imds_event())
    eye.at += timedelta(seconds=60)

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


def test_cancelled_only_if_the_monotonic_clock_agrees_how_long_ago() -> None:
    eye = observer_of(imds_event())
    eye.at -= timedelta(seconds=3600)

    assert eye.steps(number=3, after=60) == [f"{EVENT_ID} ended"]


def test_wall_clock_set_back_does_not_hide_a_cancellation() -> None:
    eye = observer_of(imds_event())
    eye.at -= timedelta(seconds=30)

    assert eye.steps(number=3) == [f"{EVENT_ID} cancelled"]


def test_cancelled_is_never_said_when_the_clock_ran_backwards_over_a_restart() -> None:
    eye = observer_of(imds_event())
    eye.watch = restarted(eye.watch)
    eye.at -= timedelta(seconds=30)

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


def test_cancelled_may_be_said_after_a_quick_restart() -> None:
    eye = observer_of(imds_event())
    eye.watch = restarted(eye.watch)

    assert eye.steps(number=3, after=5) == [f"{EVENT_ID} cancelled"]


@pytest.mark.parametrize("number", [2, 4, 99, None, "x"])
def test_cancelled_only_if_the_number_rose_by_one(number: object) -> None:
    eye = observer_of(imds_event(), number=2)

    assert eye.steps(number=number) == [f"{EVENT_ID} ended"]


def test_cancelled_never_of_an_event_seen_without_a_number() -> None:
    eye = observer_of(imds_event(), number=None)

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


@pytest.mark.parametrize(
    ("seconds", "kind"), [(8, "cancelled"), (7, "ended"), (2, "ended"), (-60, "ended")]
)
def test_cancelled_only_more_than_five_seconds_before_not_before(
    seconds: float, kind: str
) -> None:
    eye = Observer()
    eye.sees(number=1)
    eye.sees(imds_event(NotBefore=not_before(seconds, since=eye.at)), number=2)

    assert eye.steps(number=3) == [f"{EVENT_ID} {kind}"]


@pytest.mark.parametrize("text", ["", "soon", None, "0001-01-01T00:00:00Z"])
def test_cancelled_never_when_not_before_says_nothing_to_come(text: object) -> None:
    """The year 1 is how .NET writes that there is no time."""
    eye = observer_of(imds_event(NotBefore=text))

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


def test_cancelled_never_of_an_event_whose_approval_was_relayed() -> None:
    eye = observer_of(
        imds_event("a"), imds_event("b"), relayed=frozenset({"A", "other"})
    )

    assert eye.steps(number=3) == ["a ended", "b cancelled"]


def test_event_held_over_a_fall_is_never_cancelled() -> None:
    """Number 3 follows 2, but in between there was 1: something was missed."""
    eye = observer_of(imds_event(), number=2)
    eye.sees(number=1)

    assert eye.steps(number=3) == [f"{EVENT_ID} ended"]


def test_event_seen_again_after_a_fall_may_be_cancelled() -> None:
    eye = observer_of(imds_event(), number=9)
    eye.sees(imds_event(), number=2)

    assert eye.steps(number=3) == [f"{EVENT_ID} cancelled"]


def test_ended_is_said_of_an_event_gone_while_nobody_looked() -> None:
    (step,) = observer_of(imds_event()).sees(number=5, after=3600)

    assert (step.kind, step.unobserved) == ("ended", 3600)


# -- announced, unobserved ---------------------------------------------------


def test_announced_is_true_once_seen_scheduled() -> None:
    eye = observer_of(imds_event())

    (step,) = eye.sees(started(), number=3)
    (gone,) = eye.sees(number=4)

    assert (step.announced, gone.announced) == (True, True)


def test_announced_is_false_when_first_seen_started_without_a_gap() -> None:
    eye = Observer()
    eye.sees(number=1)

    (step,) = eye.sees(started(), number=2)
    (gone,) = eye.sees(number=3)

    assert (step.announced, gone.announced) == (False, False)


def test_gap_is_longer_than_ten_seconds() -> None:
    eye = Observer()
    eye.sees(number=1)

    (step,) = eye.sees(started(), number=2, after=10)

    assert step.announced is False


def test_announced_is_not_known_while_a_fall_is_not_over() -> None:
    """Events come back then, so it may well have been announced before."""
    eye = observer_of(number=9)
    eye.sees(number=2)

    (step,) = eye.sees(started(), number=3)

    assert step.announced is None


def test_announced_is_not_known_on_the_first_look_of_all() -> None:
    (step,) = Observer().sees(started(), number=2)

    assert step.announced is None


@pytest.mark.parametrize(
    ("number", "after"), [(4, 1.0), (1, 1.0), (None, 1.0), (3, 10.1)]
)
def test_announced_is_not_known_after_a_gap(number: object, after: float) -> None:
    eye = Observer()
    eye.sees(number=2)

    (step,) = eye.sees(started(), number=number, after=after)

    assert step.announced is None


def test_announced_is_not_known_after_a_document_without_a_number() -> None:
    eye = Observer()
    eye.sees(number=None)

    (step,) = eye.sees(started(), number=2)

    assert step.announced is None


def test_announced_is_not_known_after_an_incomplete_document() -> None:
    eye = Observer()
    eye.sees("unreadable", number=1)

    (step,) = eye.sees(started(), number=2)

    assert step.announced is None


def test_announced_is_not_known_of_an_unknown_status() -> None:
    eye = Observer()
    eye.sees(number=1)

    (first,) = eye.sees(imds_event(EventStatus="Odd"), number=2)
    (second,) = eye.sees(started(), number=3)

    assert (first.announced, second.announced) == (None, None)


def test_announced_becomes_true_when_a_started_event_goes_back() -> None:
    eye = Observer()
    eye.sees(number=1)
    eye.sees(started(), number=2)

    (step,) = eye.sees(imds_event(), number=3)

    assert (step.kind, step.announced) == ("updated", True)


def test_unobserved_is_not_known_on_the_first_look() -> None:
    (step,) = Observer().sees(imds_event(), number=2)

    assert step.unobserved is None


def test_unobserved_counts_whole_seconds_since_the_last_look() -> None:
    eye = Observer()
    eye.sees(number=1)

    (step,) = eye.sees(imds_event(), number=2, after=2.9)

    assert step.unobserved == 2


def test_unobserved_may_be_nothing() -> None:
    eye = observer_of()
    eye.watch = restarted(eye.watch)

    (step,) = eye.sees(imds_event(), number=3, after=0)

    assert step.unobserved == 0


def test_unobserved_is_not_known_when_the_clock_ran_backwards_over_a_restart() -> None:
    eye = observer_of()
    eye.watch = restarted(eye.watch)
    eye.at -= timedelta(seconds=60)

    (step,) = eye.sees(imds_event(), number=3)

    assert step.unobserved is None


# -- absence that does not count ---------------------------------------------


def test_nothing_is_gone_in_a_document_with_an_unreadable_element() -> None:
    eye = observer_of(imds_event("a"), started("b"))

    found = eye.steps("unreadable", started("a"), imds_event("c"), number=3)

    assert found == ["a started", "c scheduled"]


def test_what_was_held_is_gone_in_the_next_complete_document() -> None:
    eye = observer_of(imds_event("a"), started("b"))
    eye.sees("unreadable", number=3)

    assert eye.steps(number=4) == ["a ended", "b completed"]


def test_nothing_is_gone_when_the_number_fell() -> None:
    eye = observer_of(imds_event("a"), started("b"), number=7)

    assert eye.steps(number=2) == []
    assert set(eye.watch.known) == {"A", "B"}


def test_what_returns_after_a_fall_unchanged_is_no_step() -> None:
    eye = observer_of(imds_event("a"), started("b"), number=7)
    eye.sees(number=2)

    assert eye.steps(imds_event("a"), started("b"), number=3, after=60) == []


def test_what_has_changed_when_the_number_fell_is_a_step_at_once() -> None:
    eye = observer_of(imds_event("a"), number=7)

    found = eye.steps(started("a"), imds_event("b"), number=2)

    assert found == ["a started", "b scheduled"]


def test_absence_counts_when_the_number_has_risen_again() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)

    assert eye.steps(number=3) == [f"{EVENT_ID} completed"]


@pytest.mark.parametrize("after", [1, 100])
def test_absence_does_not_count_while_the_number_stands(after: float) -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)

    assert eye.steps(number=2, after=after) == []


def test_absence_counts_five_minutes_after_the_fall() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)

    assert eye.steps(number=2, after=299) == []
    assert eye.steps(number=2, after=1) == [f"{EVENT_ID} completed"]


def test_second_fall_begins_the_five_minutes_anew() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)
    eye.sees(number=1, after=200)

    assert eye.steps(number=1, after=200) == []
    assert eye.steps(number=1, after=100) == [f"{EVENT_ID} completed"]


def test_rise_above_the_second_fall_is_enough() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=3)
    eye.sees(number=1)

    assert eye.steps(number=2) == [f"{EVENT_ID} completed"]


@pytest.mark.parametrize("jump", [3600, -3600])
def test_clock_that_jumps_neither_ends_nor_prolongs_the_five_minutes(
    jump: float,
) -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)
    eye.at += timedelta(seconds=jump)

    assert eye.steps(number=2, after=290) == []
    assert eye.steps(number=2, after=10) == [f"{EVENT_ID} completed"]


def test_five_minutes_go_on_over_a_restart() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)
    eye.watch = restarted(eye.watch)

    assert eye.steps(number=2, after=299) == []
    assert eye.steps(number=2, after=1) == [f"{EVENT_ID} completed"]


def test_documents_without_a_number_do_not_end_the_hold() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(number=2)

    assert eye.steps(number=None) == []
    assert eye.steps(number=None, after=300) == [f"{EVENT_ID} completed"]


def test_fall_is_noticed_across_a_document_without_a_number() -> None:
    eye = observer_of(started(), number=7)
    eye.sees(started(), number=None)

    assert eye.steps(number=2) == []


# -- the very same bytes again -----------------------------------------------


def test_same_again_moves_the_last_sight_of_what_is_in_the_document() -> None:
    eye = observer_of(imds_event())
    eye.at += timedelta(seconds=600)
    eye.monotonic += 600
    eye.watch = same_again(eye.watch, eye.now)

    assert eye.steps(number=3) == [f"{EVENT_ID} cancelled"]


def test_same_again_does_not_make_a_held_event_look_seen() -> None:
    eye = observer_of(imds_event("a"), number=2)
    eye.sees("unreadable", imds_event("b"), number=3)
    before = eye.watch.known["A"].seen
    eye.at += timedelta(seconds=1)

    eye.watch = same_again(eye.watch, eye.now)

    assert eye.watch.known["A"].seen == before
    assert eye.watch.known["B"].seen == eye.now


# -- properties --------------------------------------------------------------


@given(odd_documents(), moments())
def test_document_compared_with_itself_says_nothing(
    seen: Document, at: datetime
) -> None:
    eye = Observer(at=at)
    eye.takes(seen)

    assert eye.takes(seen) == ()


@given(documents(), documents(), st.floats(0.5, 1000), moments())
def test_steps_applied_to_what_was_known_give_what_is_there(
    first: Document, second: Document, after: float, at: datetime
) -> None:
    eye = Observer(at=at)
    eye.takes(first)
    steps = eye.takes(second, after=after)
    there = {step.event.key: step.event for step in steps if not step.is_gone}
    gone = {step.event.key for step in steps if step.is_gone}

    applied = {k: e for k, e in {**first.events, **there}.items() if k not in gone}

    held = {} if eye.watch.fall is None else first.events
    assert contents(applied) == contents({**held, **second.events})


@given(histories())
def test_history_of_a_vm_can_be_made_again_from_its_steps(
    history: list[Document],
) -> None:
    eye, known = Observer(), dict[str, ScheduledEvent]()
    for seen in history:
        for step in eye.takes(seen):
            assert (step.event.key in known) == (step.previous is not None)
            known[step.event.key] = step.event
            if step.is_gone:
                del known[step.event.key]

        assert contents(known) == contents(seen.events)


@given(documents(), documents(), st.randoms(use_true_random=False))
def test_order_of_events_is_nothing(
    first: Document, second: Document, chance: Random
) -> None:
    straight, mixed = Observer(), Observer()
    for seen in (first, second):
        keys = list(seen.events)
        chance.shuffle(keys)
        other = Document(
            incarnation=seen.incarnation,
            events={key: seen.events[key] for key in keys},
            faults=seen.faults,
            raw=seen.raw,
        )

        assert straight.takes(seen) == mixed.takes(other)


@given(st.lists(st.tuples(odd_documents(), st.floats(-1e6, 1e6)), max_size=5))
def test_any_documents_at_any_times_give_steps_in_order(
    looks: list[tuple[Document, float]],
) -> None:
    eye = Observer()
    for seen, jump in looks:
        eye.at += timedelta(seconds=jump)
        steps = eye.takes(seen)

        keys = [step.event.key for step in steps]
        assert keys == sorted(set(keys))
        assert set(seen.events) <= set(eye.watch.known)
        assert all(s.unobserved is None or s.unobserved >= 0 for s in steps)


@given(odd_documents(), odd_documents())
def test_nothing_is_gone_where_something_could_not_be_read(
    first: Document, second: Document
) -> None:
    eye = Observer()
    eye.takes(first)
    steps = eye.takes(second)

    if second.faults:
        assert not any(step.is_gone for step in steps)


@given(documents(), documents())
def test_changes_name_exactly_the_fields_that_differ(
    first: Document, second: Document
) -> None:
    eye = Observer()
    eye.takes(first)
    for step in eye.takes(second):
        if step.kind is TransitionKind.UPDATED:
            assert step.changes
        for name in step.changes:
            assert step.previous is not None
            before, after = step.previous.canonical, step.event.canonical
            was = [before[name]] if name in before else []
            assert exact(was) != exact([after[name]] if name in after else [])


def contents(events: Mapping[str, ScheduledEvent]) -> dict[str, str]:
    return {key: exact(event.canonical) for key, event in events.items()}


def restarted(watch: Watch) -> Watch:
    """Return the watch as a later life of the process finds it."""
    return Watch.from_json(watch.to_json())
