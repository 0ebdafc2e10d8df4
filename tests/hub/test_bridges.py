"""What is known of a bridge is a function of the set of what it said."""

from datetime import datetime
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.hub.bridge_messages import read
from bridge.hub.bridges import (
    BridgeState,
    Liveness,
    bridge_in,
    is_unreported,
    liveness,
    of_report,
)
from bridge.hub.facts import Machine
from tests.support.fleet import GROUP, SUBSCRIPTION, at, life, step, vm

OFFER = {"entity": "vm-approvals", "session": "web", "rules": [], "digest": "d1"}
WEEK = 7 * 86400.0


def known(*bodies: bytes, heard: float | None = None) -> BridgeState:
    """Return what is known of a bridge; it is heard 10 s apart."""
    states = [
        of_report(report)
        for number, body in enumerate(bodies)
        if (report := read(body, heard=at(heard or 10 * number), source="b").report)
    ]
    return reduce(BridgeState.joined, states)


def fares(
    state: BridgeState,
    seconds: float,
    since: float | None = 0.0,
    back: float | None = None,
) -> Liveness:
    return liveness(
        state,
        at(seconds),
        listening=None if since is None else at(since),
        forget_after=WEEK,
        absent_until=None if back is None else at(back),
    )


BEAT = life("heartbeat", seconds=10, intervalSeconds=60, pending=3)


def test_bridge_is_who_it_says_it_is() -> None:
    state = known(life("started", intervalSeconds=60, approvals=OFFER), BEAT)

    assert state.vm_id == vm().vm_id
    assert state.reporter.name == "web-0"
    assert state.machine == Machine(
        subscription=SUBSCRIPTION, group=GROUP, name="web-0"
    )
    assert state.beat.data == {"intervalSeconds": 60, "pending": 3}
    assert state.who.data["version"] == "1.2.3"
    assert bridge_in(msgspec.json.encode(state)) == state


@pytest.mark.parametrize(
    ("seconds", "since", "how"),
    [
        (190, 0, Liveness.ALIVE),
        (191, 0, Liveness.SILENT),
        (191, None, Liveness.UNKNOWN),
        (400, 300, Liveness.UNKNOWN),
        (481, 300, Liveness.SILENT),
        (WEEK + 11, 0, Liveness.GONE),
        (WEEK + 11, WEEK + 20, Liveness.UNKNOWN),
        (WEEK + 500, WEEK + 400, Liveness.UNKNOWN),
        (WEEK + 581, WEEK + 400, Liveness.GONE),
    ],
)
def test_silence_is_judged_only_while_somebody_listens(
    seconds: float, since: float | None, how: Liveness
) -> None:
    assert fares(known(BEAT, heard=10), seconds, since) is how


def test_absence_of_the_hub_is_no_silence_of_a_bridge() -> None:
    """After it, bridges that live are silent until their next message."""
    stays = known(BEAT, heard=10)
    quiet = known(life("started"))
    stopped = known(BEAT, life("stopped", seconds=20))
    back = WEEK + 1000

    assert fares(stays, back + 100, since=back, back=back) is Liveness.UNKNOWN
    assert fares(stays, back + 181, since=back, back=back) is Liveness.SILENT
    assert fares(quiet, back + 100, since=back, back=back) is Liveness.UNKNOWN
    assert fares(stopped, back + 100, since=back, back=back) is Liveness.UNKNOWN
    for state in (stays, quiet, stopped):
        seconds = back + WEEK + 1
        assert fares(state, seconds, since=back, back=back) is Liveness.GONE


def test_bridge_without_heartbeats_is_not_judged() -> None:
    assert fares(known(life("started")), 3600) is Liveness.UNKNOWN
    assert fares(known(life("started", intervalSeconds=True)), 9) is Liveness.UNKNOWN


def test_bridge_that_stopped_is_not_silent_until_it_speaks_again() -> None:
    stopped = BEAT, life("stopped", seconds=20)

    assert fares(known(*stopped), 3600) is Liveness.STOPPED
    again = known(*stopped, step("scheduled", seconds=30))
    assert fares(again, 60) is Liveness.ALIVE


def test_stop_hides_silence_for_a_day_at_most() -> None:
    """Else one message in the name of a bridge mutes the alarm about it for good."""
    state = known(BEAT, life("stopped", seconds=10))
    day = 86_400

    assert fares(state, day) is Liveness.STOPPED
    assert fares(state, day + 11) is Liveness.SILENT


def test_stop_of_the_year_2099_ends_with_the_next_message() -> None:
    far = 73 * 365 * 86_400
    stopped = (
        BEAT,
        life("stopped", seconds=far),
        life("heartbeat", seconds=20, intervalSeconds=60),
    )

    state = known(*stopped, heard=None)

    assert fares(state, 21) is Liveness.ALIVE


def test_clock_that_was_ahead_leaves_no_bridge_stopped() -> None:
    """Its next messages have earlier times than the stop."""
    ahead = life("stopped", seconds=200)
    later = life("started", seconds=21, intervalSeconds=60, approvals=OFFER)

    for state in (known(BEAT, ahead, later), known(BEAT, later, ahead)):
        assert not state.is_stopped or state.life.data["word"] == "stopped"
    assert fares(known(BEAT, ahead, later), 60) is Liveness.ALIVE
    assert known(BEAT, ahead, later).approvals == OFFER


def test_bridge_is_gone_with_its_machine_until_it_speaks_again() -> None:
    state = known(BEAT, heard=10)

    def how(gone: datetime) -> Liveness:
        return liveness(state, at(60), listening=at(0), forget_after=WEEK, gone=gone)

    assert how(at(10)) is Liveness.GONE
    assert how(at(9)) is Liveness.ALIVE


def test_rules_are_known_until_a_heartbeat_tells_of_others() -> None:
    began = life("started", intervalSeconds=60, approvals=OFFER)
    same = life("heartbeat", seconds=10, approvals={"digest": "d1"})
    other = life("heartbeat", seconds=20, approvals={"digest": "d2"})

    assert known(began).approvals == OFFER
    assert known(began, same).approvals == OFFER
    assert known(began, same, other).approvals is None
    assert known(BEAT).approvals is None


def test_message_that_names_no_vm_is_of_no_bridge() -> None:
    body = life("heartbeat").replace(b'"vmId":"0', b'"nobody":"0')

    assert read(body, heard=at(0), source="b").report is None


WORDS = st.builds(
    lambda what, seconds, number: life(
        what, seconds=seconds, intervalSeconds=number, approvals={"digest": number}
    ),
    st.sampled_from(
        ["started", "stopped", "heartbeat", "imds-unreachable", "imds-recovered"]
    ),
    st.integers(0, 3),
    st.integers(0, 3),
)


@given(st.data())
def test_order_and_repetition_make_no_difference(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(WORDS, min_size=1, max_size=8))
    reported = [
        of_report(report)
        for number, body in enumerate(bodies)
        if (report := read(body, heard=at(number), source="b").report)
    ]

    shuffled = data.draw(st.permutations(reported * 2))
    assert reduce(BridgeState.joined, shuffled) == reduce(BridgeState.joined, reported)


@pytest.mark.parametrize(
    ("received", "drained", "now", "is_so"),
    [
        (0, 0, 60, False),
        (0, 0, 61, True),
        (0, 30, 61, False),
        (30, 0, 61, False),
        (0, None, 9999, False),
    ],
)
def test_event_is_unreported_once_bridges_had_their_time(
    received: float, drained: float | None, now: float, *, is_so: bool
) -> None:
    since = None if drained is None else at(drained)

    assert is_unreported(at(received), since, at(now), missing_after=60) is is_so
