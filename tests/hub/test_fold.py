"""What is known of an event is a function of the set of its messages."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.hub import azure_messages, bridge_messages
from bridge.hub.facts import Address, Fact, Kind, Machine, Reporter, machine_of, moment
from bridge.hub.fold import Occurrence, State, fold_in
from bridge.hub.occurrences import Reading, is_surplus, unique
from tests.support.fleet import GROUP, SUBSCRIPTION, at, azure, event, outcome, step, vm

LATER = event(NotBefore="Mon, 02 Mar 2026 13:00:00 GMT")
LAST = event(NotBefore="Mon, 02 Mar 2026 14:00:00 GMT")
WHERE = Address(source="bridges", entity="vm-approvals", prefix="sebridge")


def fold(facts: Iterable[Fact]) -> State | None:
    return fold_in(facts).state


def fact(body: bytes, heard: float | None = None, **address: str) -> Fact:
    """Return what a message tells; it is enqueued at its own time, or when given."""
    when = orjson.loads(body)["time"] if heard is None else at(heard).isoformat()
    read = bridge_messages.read(body, heard=moment(when), source="bridges", **address)
    found = read.fact
    assert found is not None
    return found


def grid(body: bytes, heard: float | None = None) -> Fact:
    when = orjson.loads(body)["time"] if heard is None else at(heard).isoformat()
    found = azure_messages.read(body, heard=moment(when))
    assert found is not None
    return found


def state(*facts: Fact) -> State:
    """Fold, and hold it to what must be so of every fold."""
    found = fold(facts)
    assert found is not None
    assert fold(reversed((*facts, *facts))) == found
    return found


def now(*facts: Fact) -> Occurrence:
    found = state(*facts).now
    assert found is not None
    return found


def test_nothing_is_known_of_no_messages() -> None:
    assert fold([]) is None


def test_step_is_what_is_known() -> None:
    found = state(fact(step("scheduled")))
    life = found.now

    assert life is not None
    assert (life.status, life.is_open, life.is_whole) == (Kind.SCHEDULED, True, True)
    assert life.first.reporter.name == "web-0"
    assert life.machines == (
        Machine(subscription=SUBSCRIPTION, group=GROUP, name="web-0"),
        Machine(subscription=SUBSCRIPTION, group=GROUP, name="web-1"),
    )


@pytest.mark.parametrize("kind", ["completed", "cancelled", "ended"])
def test_end_holds_whatever_comes_before(kind: str) -> None:
    life = now(fact(step("scheduled")), fact(step(kind, seconds=60)))

    assert (life.status, life.is_open, life.ended) == (Kind(kind), False, at(60))


@pytest.mark.parametrize(
    ("reported", "holds"),
    [
        (("cancelled", "ended"), "ended"),
        (("ended", "completed"), "completed"),
        (("completed", "cancelled", "ended"), "completed"),
    ],
)
def test_stronger_end_holds(reported: Sequence[str], holds: str) -> None:
    for order in itertools.permutations(reported):
        ends = [fact(step(kind, seconds=n)) for n, kind in enumerate(order, 60)]

        assert now(fact(step("scheduled")), *ends).status == Kind(holds)


def test_azure_overrules_the_end_that_bridges_reported() -> None:
    reported = fact(step("scheduled")), fact(step("cancelled", seconds=60))

    life = now(*reported, grid(azure("Completed", seconds=50)))

    assert (life.status, life.bridges_say) == (Kind.COMPLETED, Kind.CANCELLED)


def test_what_a_bridge_did_not_know_is_no_disagreement() -> None:
    reported = fact(step("scheduled")), fact(step("ended", seconds=60))

    life = now(*reported, grid(azure("Canceled", seconds=70)))

    assert (life.status, life.bridges_say) == (Kind.CANCELLED, None)


def test_azure_alone_tells_of_an_event() -> None:
    life = now(grid(azure("Scheduled")), grid(azure("Started", seconds=5)))

    assert (life.status, life.has_bridge) == (Kind.STARTED, False)
    assert life.resource.endswith(f"/scheduledevents/{event()['EventId']}")
    assert len(life.machines) == 2


def test_status_of_azure_that_nobody_knows_is_kept() -> None:
    assert now(grid(azure("Paused"))).status is Kind.OTHER


def test_update_follows_what_it_names_whatever_the_clocks_say() -> None:
    early = fact(step("updated", LATER, previous=event(), seconds=-3))
    reported = fact(step("scheduled", who=vm(1)))

    life = now(reported, early)

    assert life.event is not None
    assert life.event.raw == LATER


def test_chain_of_updates_holds_whatever_the_clocks_say() -> None:
    second = fact(step("updated", LAST, previous=LATER, seconds=-6))
    first = fact(step("updated", LATER, previous=event(), seconds=-3))
    life = now(fact(step("scheduled")), first, second)

    assert life.event is not None
    assert life.event.raw == LAST


def test_event_that_changes_back_is_as_it_was() -> None:
    there = fact(step("updated", LATER, previous=event(), seconds=10))
    back = fact(step("updated", event(), previous=LATER, seconds=20))

    life = now(fact(step("scheduled")), there, back)

    assert life.event is not None
    assert life.event.raw == event()


def test_of_two_that_follow_nothing_the_later_holds() -> None:
    life = now(fact(step("scheduled")), fact(step("scheduled", LATER, seconds=20)))

    assert life.event is not None
    assert life.event.raw == LATER


def test_update_that_skips_one_holds_if_it_is_later() -> None:
    skipped = fact(step("updated", LAST, previous=LATER, seconds=30))
    life = now(fact(step("scheduled")), skipped)

    assert life.event is not None
    assert life.event.raw == LAST


def test_event_that_comes_back_later_has_another_life() -> None:
    first = fact(step("scheduled")), fact(step("completed", seconds=60))
    again = fact(step("scheduled", seconds=71, who=vm(1), repeats=1))

    found = state(*first, again)

    assert [life.status for life in found.occurrences] == ["completed", "scheduled"]


def test_laggard_does_not_bring_an_event_back() -> None:
    first = fact(step("scheduled")), fact(step("completed", seconds=60))
    late = fact(step("updated", LATER, previous=event(), seconds=69, who=vm(1)))

    assert [life.status for life in state(*first, late).occurrences] == ["completed"]


def test_who_reported_the_end_opens_another_life_at_once() -> None:
    first = fact(step("scheduled")), fact(step("completed", seconds=60))
    again = fact(step("scheduled", seconds=61, repeats=1))

    assert len(state(*first, again).occurrences) == 2


def test_every_address_that_came_is_kept() -> None:
    one = fact(step("scheduled"), reply_to="vm-approvals", session="web")
    two = fact(step("scheduled", who=vm(1)), reply_to="vm-approvals", session="b")
    none = fact(step("updated", LATER, previous=event(), seconds=5))

    assert {one.address for one in fold_in([two, one, none]).kept} == {
        replace(WHERE, session="b"),
        replace(WHERE, session="web"),
        None,
    }


def test_outcomes_are_kept_beside_the_lives() -> None:
    reported = fact(outcome("relayed", "m-1", seconds=5))

    found = state(reported)

    assert found.now is None
    assert [one.outcome for one in found.outcomes] == [reported.outcome]
    assert state(reported, fact(step("scheduled"))).now is not None


def test_makeshift_source_is_helped_by_what_others_know() -> None:
    makeshift = orjson.loads(step("scheduled"))
    makeshift |= {"source": "urn:sebridge:host"}
    makeshift["data"]["reporter"]["resourceId"] = None
    other = fact(step("updated", LATER, previous=event(), seconds=5, who=vm(1)))

    life = now(fact(orjson.dumps(makeshift)), other)

    assert life.group == (SUBSCRIPTION, GROUP)


ALONE = event(Resources=["web-0"])


def machine(name: str, group: str = GROUP) -> Machine:
    return Machine(subscription=SUBSCRIPTION, group=group, name=name)


def who_is_in(life: Occurrence) -> list[str]:
    """Return the names of those VMs out of ten that are in Resources."""
    reporters = [Reporter(resource_id=vm(n).resource_id or "") for n in range(10)]
    return [
        f"web-{n}" for n, one in enumerate(reporters) if machine_of(one) in life.named
    ]


def test_first_message_that_was_heard_names_others_but_not_its_own_vm() -> None:
    opener = fact(step("scheduled", seconds=50), heard=0)
    late = fact(step("scheduled", event(Resources=["web-9"]), who=vm(9)), heard=100)

    life = now(opener, late)

    assert life.named == (machine("web-1"),)
    assert who_is_in(life) == ["web-1"]


def test_vm_is_in_resources_by_the_word_of_one_who_is() -> None:
    opener = fact(step("scheduled"))
    more = event(Resources=["web-0", "web-2"])
    by_one = fact(step("updated", more, previous=event(), seconds=9, who=vm(1)))
    stranger = event(Resources=["web-7", "web-9"])
    by_none = fact(step("updated", stranger, previous=event(), seconds=5, who=vm(9)))

    assert who_is_in(now(opener, by_one, by_none)) == ["web-0", "web-1", "web-2"]


def test_vm_is_in_resources_by_the_word_of_azure() -> None:
    alone = fact(step("scheduled", ALONE))
    grids = grid(azure("Scheduled", ALONE, seconds=5))

    assert who_is_in(now(alone)) == []
    assert who_is_in(now(alone, grids)) == ["web-0"]


def test_vm_of_another_group_is_not_in_resources() -> None:
    life = now(fact(step("scheduled", who=vm(5))))
    elsewhere = (vm(0).resource_id or "").replace("Web", "Other")

    assert machine_of(Reporter(resource_id=vm(0).resource_id or "")) in life.named
    assert machine_of(Reporter(resource_id=elsewhere)) not in life.named
    assert machine_of(Reporter(vm_id="some", name="web-0")) not in life.named


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("virtualMachines/WEB-0", "web-0"),
        ("virtualMachineScaleSets/Set/virtualMachines/7", "set_7"),
        ("virtualMachineScaleSets/Set", None),
        ("", None),
    ],
)
def test_machine_of_a_reporter_is_in_its_resource_id(
    path: str, name: str | None
) -> None:
    place = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Web/providers/"

    found = machine_of(Reporter(resource_id=f"{place}Microsoft.Compute/{path}"))

    assert found == (None if name is None else machine(name))


def test_every_reporter_is_known_with_its_own_group_and_what_it_said() -> None:
    elsewhere = replace(
        vm(9), resource_id=(vm(9).resource_id or "").replace("Web", "Other")
    )
    reported = fact(step("scheduled", event(EventType="Redeploy"), who=elsewhere))
    life = now(fact(step("scheduled")), reported, fact(step("started", seconds=9)))

    assert [
        (voice.reporter.name, voice.group[1], voice.groups, voice.event_types)
        for voice in life.voices
    ] == [
        ("web-0", GROUP, ((SUBSCRIPTION, GROUP),), ("Freeze",)),
        ("web-9", "other", ((SUBSCRIPTION, "other"),), ("Redeploy",)),
    ]


def test_clock_that_is_far_ahead_is_not_believed() -> None:
    """A reporter whose clock is 2 h ahead would leave the event open for ever."""
    ahead = fact(step("scheduled", seconds=7200, who=vm(1)), heard=1)
    reported = fact(step("scheduled")), fact(step("completed", seconds=600))

    found = state(*reported, ahead)

    assert ahead.time == at(1)
    assert [life.status for life in found.occurrences] == [Kind.COMPLETED]
    assert fact(step("scheduled", seconds=300), heard=0).time == at(300)


def test_letters_that_become_others_in_capitals_are_not_folded() -> None:
    reported = fact(step("scheduled", event("\ufb00-\u00e4b")))

    assert reported.key == "\ufb00-\u00e4B"


LONG = timedelta(minutes=15)


def test_end_by_a_stranger_takes_no_event_off_the_list() -> None:
    reported = fact(step("scheduled")), fact(step("scheduled", seconds=1, who=vm(1)))
    stranger = fact(step("completed", seconds=60, who=vm(9)))

    life = now(*reported, stranger)

    assert (life.status, life.is_open, life.ended) == (Kind.SCHEDULED, True, None)
    assert (life.said, life.said_by) == (Kind.COMPLETED, stranger.reporter)
    assert reported[0].not_before is not None
    assert life.said_until == reported[0].not_before + LONG


@pytest.mark.parametrize("resources", [["web-0"], ["web-0", "web-1"]])
def test_end_by_a_stranger_is_no_end_beside_one_vm_that_reports(
    resources: list[str],
) -> None:
    raw = event(Resources=resources)
    reported = fact(step("scheduled", raw))
    stranger = fact(step("completed", raw, seconds=60, who=vm(9)))

    assert now(reported, stranger).said is Kind.COMPLETED
    own = fact(step("completed", raw, seconds=90))
    life = now(reported, stranger, own)
    assert (life.status, life.said) == (Kind.COMPLETED, None)


@pytest.mark.parametrize(
    "agrees",
    [
        fact(step("completed", seconds=120, who=vm(1))),
        grid(azure("Completed", seconds=120)),
    ],
)
def test_end_counts_once_one_in_resources_or_azure_agrees(agrees: Fact) -> None:
    reported = fact(step("scheduled")), fact(step("cancelled", seconds=60, who=vm(9)))

    assert now(*reported).is_open
    assert now(*reported, agrees).status is Kind.COMPLETED


def test_end_by_strangers_counts_15_minutes_after_not_before() -> None:
    reported = fact(step("scheduled")), fact(step("completed", seconds=60, who=vm(9)))
    until = now(*reported).said_until
    assert until is not None

    before = fold_in(reported, now=until).state
    after = fold_in(reported, now=until + timedelta(seconds=1)).state

    assert before is not None
    assert before.now is not None
    assert before.now.is_open
    assert after is not None
    assert after.now is not None
    assert (after.now.status, after.now.ended) == (Kind.COMPLETED, at(60))


def test_change_by_a_stranger_is_not_shown() -> None:
    worse = event(EventType="Terminate", Resources=["web-0", "web-1", "web-2"])
    reported = fact(step("scheduled")), fact(step("scheduled", seconds=1, who=vm(1)))
    change = fact(step("updated", worse, previous=event(), seconds=60, who=vm(9)))

    for life in (now(*reported, change), now(reported[0], change)):
        assert life.event is not None
        assert (life.event.raw, life.is_by_others) == (event(), False)
        assert {voice.event_types for voice in life.voices} == {
            ("Freeze",),
            ("Terminate",),
        }


def test_event_that_others_alone_report_is_shown() -> None:
    reported = fact(step("scheduled", who=vm(8)))
    change = fact(step("updated", LATER, previous=event(), seconds=60, who=vm(9)))

    life = now(reported, change)

    assert life.event is not None
    assert (life.event.raw, life.is_by_others) == (LATER, True)


def test_back_dated_message_of_a_stranger_is_not_the_first() -> None:
    reported = fact(step("scheduled"))
    forged = fact(step("scheduled", event(), seconds=-600, who=vm(9)), heard=60)

    life = now(reported, forged)

    assert (life.first, life.opened, life.group[1]) == (reported, at(0), GROUP)


def test_one_vm_that_reports_two_things_with_one_id_is_reported() -> None:
    honest = step("scheduled")
    other = orjson.loads(step("scheduled", LATER, seconds=-5))
    other["id"] = orjson.loads(honest)["id"]
    twins = fact(honest), fact(orjson.dumps(other))
    same = fact(step("scheduled", seconds=1, who=vm(1)))

    life = now(*twins, same)

    assert same.id == twins[0].id
    assert life.doubled == (twins[0].reporter,)
    assert now(twins[0], same, fact(honest, heard=50)).doubled == ()


def test_of_two_deliveries_the_smaller_times_are_kept() -> None:
    ahead = step("scheduled", seconds=7200)
    first, second = fact(ahead, heard=1), fact(ahead, heard=7201)

    (kept,) = unique([second, first])

    assert (kept.time, kept.enqueued) == (at(1), at(1))


def test_what_was_enqueued_before_the_end_is_no_other_occurrence() -> None:
    """A clock that is 4 minutes ahead would leave a ghost of the event open."""
    ahead = fact(step("scheduled", seconds=240, who=vm(1)), heard=0)
    reported = fact(step("scheduled")), fact(step("completed", seconds=60))
    agreed = fact(step("completed", seconds=61 + 240, who=vm(1)), heard=61)

    found = state(*reported, ahead, agreed)

    assert [life.status for life in found.occurrences] == [Kind.COMPLETED]


def crowd(count: int, start: int = 100) -> list[Fact]:
    """Return what many VMs that are not in Resources report, one after another."""
    return [fact(step("scheduled", who=vm(n), seconds=n)) for n in range(start, count)]


def test_thousand_messages_are_kept_and_those_in_resources_first() -> None:
    reported = [fact(step("scheduled", seconds=50, who=vm(5))), *crowd(1400)]
    late = fact(step("scheduled", seconds=5000, who=vm(1)))

    found = fold_in([*reported, late])

    assert (len(found.kept), found.dropped) == (1000, 302)
    assert late in found.kept
    assert reported[1] in found.kept
    assert reported[-1] not in found.kept


def test_vm_heard_first_is_kept_however_many_others_report() -> None:
    """Its word counts: nobody may drown the end that it reports."""
    alone = fact(step("scheduled", event(Resources=["web-0"])))
    end = fact(step("completed", event(Resources=["web-0"]), seconds=5000))

    found = fold_in([alone, *alike(crowd(1400), alone), end])

    assert found.state is not None
    assert found.state.now is not None
    assert found.state.now.status is Kind.COMPLETED


def alike(reported: Sequence[Fact], first: Fact) -> list[Fact]:
    """Return what others report, with the Resources of the first one."""
    return [replace(one, names=first.names, event=first.event) for one in reported]


BUSY = vm(100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "is_so"),
    [
        (step("scheduled", who=vm(9999), seconds=9000), True),
        (step("completed", who=vm(9999), seconds=9000), True),
        (step("completed", who=vm(9999), seconds=50), True),
        (step("updated", LATER, who=vm(101), seconds=9000), True),
        (step("completed", who=vm(101), seconds=50), True),
        (step("updated", LAST, who=BUSY, seconds=9000), False),
        (step("updated", LATER, who=vm(1), seconds=9000), False),
        (step("completed", who=vm(5), seconds=9000), False),
    ],
    ids=[
        "another",
        "end",
        "end of another time",
        "again",
        "end of one that is known",
        "one with twelve",
        "in Resources",
        "heard first",
    ],
)
def test_message_beyond_enough_is_surplus_only_if_it_changes_nothing(
    body: bytes, *, is_so: bool
) -> None:
    busy = [
        fact(step("updated", event(DurationInSeconds=n), who=BUSY, seconds=200 + n))
        for n in range(11)
    ]
    full = fold_in(
        [fact(step("scheduled", seconds=50, who=vm(5))), *busy, *crowd(1400)]
    )
    assert full.state is not None
    assert full.state.now is not None
    assert full.full is not None
    named = {(one.subscription, one.group, one.name) for one in full.state.now.named}
    more = fact(body, heard=9000)

    found = fold_in([*full.kept, more])

    assert is_surplus(more, full.full, named, full.heeded) is is_so
    same = (found.kept, found.state, found.full) == (full.kept, full.state, full.full)
    assert same is is_so


def test_of_a_machine_that_reports_very_much_first_and_last_are_kept() -> None:
    contents = [
        event(NotBefore=f"Mon, 02 Mar 2026 13:00:{n:02} GMT") for n in range(30)
    ]
    reported = [
        fact(step("updated", raw, previous=event(), seconds=n))
        for n, raw in enumerate(contents)
    ]
    first = fact(step("scheduled", seconds=-1))

    found = fold_in([first, *reported])

    assert found.kept == (first, reported[0], reported[-1])
    assert found.state is not None
    assert found.state.now is not None
    assert found.state.now.event is not None
    assert found.state.now.event.raw == contents[-1]


def test_hundred_outcomes_are_kept_and_those_of_own_decisions_first() -> None:
    reported = [fact(outcome("relayed", f"m-{n}", seconds=n)) for n in range(150)]

    found = fold_in(reported, own={"m-3"})

    assert len(found.kept) == 100
    assert reported[3] in found.kept
    assert reported[-1] in found.kept
    assert reported[4] not in found.kept


def test_names_beyond_two_thousand_are_left_out() -> None:
    many = [f"m-{n}" for n in range(2500)]

    life = now(fact(step_with(Resources=many)))

    assert (len(life.machines), life.is_whole) == (2000, False)


def step_with(**fields: object) -> bytes:
    """Return a step whose event is too large for a bridge to send it so."""
    found = orjson.loads(step("scheduled"))
    found["data"]["event"] |= fields
    return orjson.dumps(found)


@given(st.data())
def test_fold_of_what_was_kept_is_the_fold_of_all(data: st.DataObject) -> None:
    """However messages are grouped, and whatever comes twice."""
    steps = data.draw(lives())
    lags = data.draw(st.lists(st.floats(0, 4), min_size=1, max_size=4))
    reports = [facts_of(steps, number, lag) for number, lag in enumerate(lags)]
    reported = data.draw(
        st.permutations([one for report in reports for one in report] * 2)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reported)), max_size=4)))
    by_digest = {one.digest: one.event for one in reported}
    stored, found = tuple[Fact, ...](), fold_in([])

    for start, end in itertools.pairwise([0, *cuts, len(reported)]):
        found = fold_in(
            [*stored, *reported[start:end]],
            reading=Reading(event_of=lambda one: by_digest[one.digest]),
            past=found.past,
        )
        stored = tuple(one.light for one in found.kept)

    whole = fold_in(reported)
    assert {one.report for one in stored} == {one.report for one in whole.kept}
    assert plain(found.state) == plain(whole.state)


def plain(found: State | None) -> object:
    """Return a state, with facts that have no IMDS objects."""
    assert found is not None
    return replace(
        found,
        outcomes=tuple(one.light for one in found.outcomes),
        occurrences=tuple(
            replace(
                life,
                first=life.first.light,
                azure=life.azure and life.azure.light,
            )
            for life in found.occurrences
        ),
    )


@dataclass(frozen=True)
class Step:
    """A step of a life, as anybody who watches tells it."""

    kind: str
    raw: dict[str, object]
    previous: dict[str, object] | None
    seconds: float
    repeats: int


@st.composite
def lives(draw: st.DrawFn) -> list[Step]:
    """Draw the steps of an event that may come back: 20 s or more apart."""
    steps, seconds = list[Step](), 0.0
    four = [f"web-{n}" for n in range(4)]
    contents = st.sampled_from(
        [{**one, "Resources": four} for one in (event(), LATER, LAST)]
    )
    for life in range(draw(st.integers(1, 3))):
        now_ = draw(contents)
        steps.append(Step("scheduled", now_, None, seconds, life))
        for content in draw(st.lists(contents, max_size=3)):
            seconds += draw(st.integers(20, 600))
            if content != now_:
                steps.append(Step("updated", content, now_, seconds, len(steps)))
                now_ = content
        if draw(st.booleans()):
            seconds += draw(st.integers(20, 600))
            running = {**now_, "EventStatus": "Started", "NotBefore": ""}
            steps.append(Step("started", running, now_, seconds, life))
            now_ = running
        seconds += draw(st.integers(20, 600))
        is_last = draw(st.booleans())
        if is_last:
            break
        end = "completed" if now_["EventStatus"] == "Started" else "cancelled"
        steps.append(Step(end, now_, now_, seconds, life))
        seconds += draw(st.integers(20, 600))
    return steps


def facts_of(steps: Iterable[Step], number: int, lag: float) -> list[Fact]:
    """Return what one reporter tells of a life, by its own clock."""
    return [
        fact(
            step(
                reported.kind,
                reported.raw,
                previous=reported.previous,
                seconds=reported.seconds + lag,
                who=vm(number),
                repeats=reported.repeats,
            )
        )
        for reported in steps
    ]


def shown(facts: Iterable[Fact]) -> list[tuple[Kind, object]]:
    """Return what is said of each life, without who told it first."""
    found = fold(facts)
    assert found is not None
    return [
        (life.status, life.event.canonical if life.event else None)
        for life in found.occurrences
    ]


@given(st.data())
def test_any_order_repetition_and_subset_of_reporters_say_the_same(
    data: st.DataObject,
) -> None:
    steps = data.draw(lives())
    lags = data.draw(st.lists(st.floats(0, 4), min_size=1, max_size=4))
    reports = [facts_of(steps, number, lag) for number, lag in enumerate(lags)]
    everything = [reported for report in reports for reported in report]
    whole = fold(everything)

    repeated = everything + data.draw(st.lists(st.sampled_from(everything)))
    shuffled = data.draw(st.permutations(repeated))
    assert fold(shuffled) == whole
    some = data.draw(st.sets(st.sampled_from(range(len(reports))), min_size=1))
    assert shown(t for n in some for t in reports[n]) == shown(everything)
    (last,) = shown(everything)[-1:]
    assert last[1] == fact(step("scheduled", steps[-1].raw)).event.canonical  # type: ignore[union-attr]  # it has one


@given(st.data())
def test_order_makes_no_difference_whatever_is_reported(data: st.DataObject) -> None:
    kinds = st.sampled_from(
        ["scheduled", "started", "updated", "completed", "cancelled", "ended"]
    )
    contents = st.sampled_from([event(), LATER, LAST])
    own = st.builds(
        lambda k, c, p, s, w: fact(step(k, c, previous=p, seconds=s, who=vm(w))),
        kinds,
        contents,
        st.none() | contents,
        st.integers(0, 40),
        st.integers(0, 2),
    )
    azures = st.builds(
        lambda status, s: grid(azure(status, seconds=s)),
        st.sampled_from(["Scheduled", "Started", "Completed", "Canceled", "New"]),
        st.integers(0, 40),
    )
    reported = data.draw(st.lists(own | azures, min_size=1, max_size=12))

    assert fold(data.draw(st.permutations(reported * 2))) == fold(reported)
