"""Transitions that wait for the identity of this VM: none is lost or doubled."""

from collections import Counter, defaultdict
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import Document
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.pipeline.held import Held, Observation
from bridge.pipeline.observer import makers_of
from tests.support.builders import document, event_context_of
from tests.support.fakes import START
from tests.support.strategies import histories

Story = dict[str | None, list[str]]


def moment(number: int) -> Moment:
    """Return the time of a look: a minute apart, so that the notice gets shorter."""
    return Moment(at=START + timedelta(minutes=number), monotonic=60.0 * number)


def seen(watch: Watch, document: Document, number: int) -> tuple[Watch, Observation]:
    after, steps = diff(watch, document, moment(number), poll_interval=60)
    at = moment(number).at
    return after, Observation(at=at, document=document, steps=steps, is_changed=True)


def story(*published: Observation) -> Story:
    """Return the published ids by EventId, in order."""
    found: Story = defaultdict(list)
    counts = Counter[str]()
    for make in makers_of(event_context_of(), published):
        cause = make(repeats=0).cause
        one = make(repeats=counts[cause])
        counts[cause] += 1
        found[one.key].append(one.event.id)
    return found


@given(history=histories(), until=st.integers(0, 8))
def test_waiting_changes_only_the_time_of_publishing(
    history: list[Document], until: int
) -> None:
    watch, held, published, plain = Watch(), Held(), list[Observation](), []
    for number, look in enumerate(history):
        after, one = seen(watch, look, number)
        plain.append(one)
        held = held.plus(one, watch)
        if number < until:
            ready, held = held.split(one.at)
        else:
            ready, held = held.observations, Held()
        published += ready
        watch = after
    published += held.observations

    assert story(*published) == story(*plain)


@given(history=histories(), data=st.data())
def test_checkpoint_holds_exactly_the_published_events(
    history: list[Document], data: st.DataObject
) -> None:
    """Whatever was published before a restart, exactly the rest is found after it."""
    watch, held, keys = Watch(), Held(), set[str]()
    last = data.draw(st.integers(0, len(history) - 1))
    for number, look in enumerate(history[: last + 1]):
        after, one = seen(watch, look, number)
        _, held = held.plus(one, watch).split(one.at)
        watch = after
    keys = {step.event.key for one in held.observations for step in one.steps}

    _, steps = diff(
        held.published_part(watch), history[last], moment(last + 1), poll_interval=60
    )

    assert {step.event.key for step in steps} <= keys
    missing = keys - {step.event.key for step in steps}
    for key in missing:  # unchanged: the steps in between are over
        before, now = held.before[key], history[last].events.get(key)
        assert (before and before.event) == now


@given(history=histories())
def test_nothing_urgent_waits(history: list[Document]) -> None:
    watch, held = Watch(), Held()
    for number, look in enumerate(history):
        after, one = seen(watch, look, number)
        _, held = held.plus(one, watch).split(one.at)
        watch = after
        waiting = held.before.keys() & look.events.keys()
        for event in (look.events[key] for key in waiting):
            assert event.status == "Scheduled"
            assert event.not_before is not None
            assert event.not_before - one.at >= timedelta(minutes=2)


def test_look_without_a_change_does_not_wait() -> None:
    nothing = Observation(at=START, document=document())

    assert Held().plus(nothing, Watch()) == Held()
