"""Whether this VM is in rotation: by the document, by time, by what went before."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.values import Duration
from bridge.traffic.config import TrafficConfig
from bridge.traffic.rotation import (
    Record,
    Sight,
    Standing,
    Why,
    concerns,
    decode,
    encode,
    next_look,
    stand,
)
from tests.support.builders import (
    EVENT_ID,
    ME,
    document,
    imds_event,
    not_before,
    started,
)
from tests.support.fakes import START

CONFIG = TrafficConfig()
OTHER_ID = "A" + EVENT_ID[1:]


def at(seconds: float, *, jump: float = 0.0) -> Moment:
    return Moment(
        at=START + timedelta(seconds=seconds + jump), monotonic=1000.0 + seconds
    )


IN = Standing(since=at(0))


def reboot(seconds: float = 900, **fields: object) -> dict[str, object]:
    shape = {"EventType": "Reboot", "NotBefore": not_before(seconds), **fields}
    return {**imds_event(), **shape}


def begun(**fields: object) -> dict[str, object]:
    return {**started(), "EventType": "Reboot", **fields}


def seen(
    *events: object, when: float = 0.0, before: Watch | None = None, number: int = 2
) -> Watch:
    found = document(*events, incarnation=number)
    return diff(before or Watch(), found, at(when), poll_interval=1.0)[0]


def sight(
    watch: Watch, when: float = 0.0, *, me: Identity = ME, jump: float = 0.0
) -> Sight:
    return Sight(watch=watch, me=me, now=at(when, jump=jump), blind_after=30.0)


def after(
    watch: Watch,
    when: float = 0.0,
    before: Standing = IN,
    config: TrafficConfig = CONFIG,
) -> Standing:
    return stand(before, sight(watch, when), config)


@pytest.mark.parametrize(
    ("event", "when", "why"),
    [
        (reboot(900), 0, None),
        (reboot(900), 599, None),
        (reboot(900), 600, Why.SCHEDULED),
        (reboot(900), 901, Why.SCHEDULED),
        (reboot(30), 0, Why.SCHEDULED),
        (reboot(900, NotBefore="soon"), 0, Why.SCHEDULED),
        (begun(), 0, Why.STARTED),
        (reboot(30, EventType="reboot"), 0, Why.SCHEDULED),
        (reboot(30, EventType="Freeze"), 0, None),
        (reboot(30, EventType=7), 0, None),
        (begun(EventType="Freeze"), 0, None),
        (reboot(30, Resources=["other"]), 0, None),
        (reboot(30, Resources=["_westno_0"]), 0, Why.SCHEDULED),
        (reboot(30, Resources=[]), 0, None),
    ],
)
def test_event_takes_its_vm_out_from_its_lead_on(
    event: dict[str, object], when: float, why: Why | None
) -> None:
    watch = seen(event, when=when)

    found = after(watch, when)

    assert found.why == why
    assert found.is_out == (why is not None)
    assert found.event_id == (EVENT_ID if why else None)


def test_lead_of_centuries_is_at_once() -> None:
    config = TrafficConfig(lead=Duration(1e9))
    event = reboot(NotBefore="0001-01-02T00:00:00+00:00")

    assert after(seen(event), config=config).why is Why.SCHEDULED


def test_started_event_is_named_before_the_nearest() -> None:
    near = reboot(60, EventId=OTHER_ID)
    later = reboot(120, EventId="B" + EVENT_ID[1:])

    assert after(seen(later, near, begun())).event_id == EVENT_ID
    assert after(seen(later, near)).event_id == OTHER_ID


def test_comes_in_again_so_long_after_a_document_lacks_the_event() -> None:
    out = after(seen(begun()))
    gone = seen(when=10, before=seen(begun()), number=3)

    over = after(gone, 10, out)
    still = after(with_fields(gone, seen=at(39)), 39.9, over)
    back = after(with_fields(gone, seen=at(40)), 40, still)

    assert (over.why, over.event_id, over.since) == (Why.OVER, EVENT_ID, out.since)
    assert still.why is Why.OVER
    assert back == Standing(since=at(40))


def test_another_event_while_it_waits_holds_it_out_with_the_same_since() -> None:
    out = after(seen(begun()))
    over = after(seen(when=10, number=3), 10, out)

    again = after(seen(reboot(60), when=20, number=4), 20, over)

    assert (again.why, again.since) == (Why.SCHEDULED, out.since)
    assert again.lacking is None


def test_event_that_moved_beyond_its_lead_is_as_good_as_gone() -> None:
    out = after(seen(reboot(60)))

    over = after(seen(reboot(9000), when=10), 10, out)

    assert over.why is Why.OVER
    assert after(seen(reboot(9000), when=41), 41, over).why is None


def test_absence_that_does_not_count_keeps_it_out() -> None:
    watch = seen(begun(), number=5)
    fell = seen(when=10, before=watch, number=1)

    assert after(fell, 200, after(watch)).why is Why.STARTED


@pytest.mark.parametrize(
    ("event", "when", "is_out"),
    [
        (reboot(60), 3659, True),
        (reboot(60), 3660, False),
        (begun(), 3599, True),
        (begun(), 3600, False),
    ],
)
def test_silence_of_imds_keeps_it_out_for_an_hour_past_notbefore(
    event: dict[str, object], when: float, *, is_out: bool
) -> None:
    watch = seen(event)

    assert after(watch, when, after(watch)).is_out == is_out


def test_hour_past_notbefore_counts_from_the_last_document_that_had_it() -> None:
    watch = seen(reboot(60), when=3000)

    assert after(watch, 6599, after(watch, 3000)).is_out
    assert not after(watch, 6600, after(watch, 3000)).is_out


def test_event_in_good_documents_keeps_it_out_without_end() -> None:
    watch = seen(begun(), when=10000)

    assert after(watch, 10000, after(seen(begun()))).why is Why.STARTED


def test_event_that_could_not_be_read_keeps_it_out_while_imds_answers() -> None:
    half = seen("no event", when=9000, before=seen(begun()), number=3)

    assert half.known[EVENT_ID].seen == at(0)
    assert after(half, 9000, after(seen(begun()))).why is Why.STARTED


def test_clock_set_forward_ends_nothing_early() -> None:
    watch = seen(begun())
    over = after(seen(when=10, number=3), 10, after(watch))

    ahead = sight(watch, 60, jump=7200)
    waiting = sight(seen(when=10, number=3), 20, jump=7200)

    assert stand(after(watch), ahead, CONFIG).why is Why.STARTED
    assert stand(over, waiting, CONFIG).why is Why.OVER


def test_clock_set_back_over_a_restart_begins_the_wait_anew() -> None:
    over = Standing(
        since=at(0), why=Why.OVER, lacking=Moment(at=at(900).at, monotonic=None)
    )

    assert after(seen(), 0, over).lacking == at(0)


@pytest.mark.parametrize(
    ("watch", "me", "when", "is_known"),
    [
        (Watch(), ME, 0, False),
        (seen(), ME, 30, True),
        (seen(), ME, 31, False),
        (seen(reboot(60)), Identity(), 0, False),
        (with_fields(seen(), seen=Moment(at=at(60).at, monotonic=None)), ME, 0, False),
    ],
)
def test_on_unknown_decides_while_imds_cannot_be_asked(
    watch: Watch, me: Identity, when: float, *, is_known: bool
) -> None:
    unknown = TrafficConfig(on_unknown="out")
    found = stand(IN, sight(watch, when, me=me), unknown)

    assert found.why == (None if is_known else Why.UNKNOWN)
    assert stand(IN, sight(watch, when, me=me), CONFIG).why is None


def test_unknown_ends_at_once_and_does_not_shorten_what_waits() -> None:
    config = TrafficConfig(on_unknown="out")
    unknown = after(Watch(), 0, config=config)
    over = after(seen(when=10, number=3), 10, after(seen(begun())))

    assert not after(seen(when=1), 1, unknown, config).is_out
    assert after(with_fields(seen(), seen=at(0)), 39, over, config).why is Why.OVER
    assert after(with_fields(seen(), seen=at(0)), 41, over, config).why is Why.UNKNOWN


def test_approved_event_holds_it_out_until_it_is_gone() -> None:
    approved = replace(IN, approved=(EVENT_ID,))
    watch = seen(reboot(9000))

    out = after(watch, 0, approved)
    gone = after(seen(when=10, number=3), 10, out)

    assert (out.why, out.approved) == (Why.APPROVED, (EVENT_ID,))
    assert (gone.why, gone.approved) == (Why.OVER, ())


def test_approved_event_that_starts_is_reported_as_started() -> None:
    approved = replace(IN, approved=(EVENT_ID,))

    assert after(seen(begun()), 0, approved).why is Why.STARTED


@pytest.mark.parametrize(
    ("watch", "before", "seconds"),
    [
        (seen(), IN, float("inf")),
        (seen(reboot(900)), IN, 600.0),
        (seen(reboot(60)), IN, float("inf")),
        (seen(begun()), IN, float("inf")),
        (seen(), replace(IN, why=Why.OVER, lacking=at(-10)), 20.0),
        (seen(reboot(310)), replace(IN, why=Why.OVER, lacking=at(-10)), 10.0),
    ],
)
def test_next_look_is_when_time_alone_changes_something(
    watch: Watch, before: Standing, seconds: float
) -> None:
    assert next_look(before, sight(watch), CONFIG) == seconds


def test_record_is_read_as_it_was_written_but_for_monotonic_time() -> None:
    out = after(seen(begun()))
    over = replace(after(seen(when=10), 10, out), approved=("X",))

    found = decode(encode(over, is_told_out=True))

    assert found == Record(
        standing=replace(
            over,
            since=with_fields(over.since, monotonic=None),
            lacking=over.lacking and with_fields(over.lacking, monotonic=None),
        ),
        is_told_out=True,
    )
    assert decode(encode(out, is_told_out=False)) is not None


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b'{"standing": 1}'])
def test_record_that_nobody_wrote_is_none(body: bytes) -> None:
    assert decode(body) is None


def test_what_is_left_to_a_later_life_says_the_same() -> None:
    watch = seen(begun())
    later = Watch.from_json(watch.to_json())
    record = decode(encode(after(watch), is_told_out=True))

    assert record
    found = after(later, 120, record.standing)
    assert (found.why, found.since.at) == (Why.STARTED, START)


def test_event_concerns_its_own_vm_of_a_listed_type_alone() -> None:
    event = ScheduledEvent(event_id=EVENT_ID, raw=reboot())

    assert concerns(event, ME, CONFIG)
    assert not concerns(event, Identity(), CONFIG)
    assert not concerns(event, ME, TrafficConfig(event_types=("Preempt",)))


EVENTS = st.lists(
    st.builds(
        lambda name, status, notice, kind: imds_event(
            name,
            EventType=kind,
            EventStatus=status,
            NotBefore=not_before(notice),
        ),
        st.sampled_from([EVENT_ID, OTHER_ID]),
        st.sampled_from(["Scheduled", "Started"]),
        st.integers(-4000, 4000),
        st.sampled_from(["Reboot", "Freeze"]),
    ),
    max_size=2,
    unique_by=lambda event: str(event["EventId"]),
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, 2000)), min_size=1, max_size=6))
def test_whatever_comes_looking_again_changes_nothing(
    steps: list[tuple[list[dict[str, object]], int]],
) -> None:
    standing, watch, now = IN, Watch(), 0.0
    for number, (events, seconds) in enumerate(steps):
        now += seconds
        watch = seen(*events, when=now, before=watch, number=number)
        before, standing = standing, after(watch, now, standing)

        assert after(watch, now, standing) == standing
        assert standing.is_out == before.is_out or standing.since == at(now)
        holds = [e for e in events if e["EventStatus"] == "Started"]
        if any(e["EventType"] == "Reboot" for e in holds):
            assert standing.why is Why.STARTED
